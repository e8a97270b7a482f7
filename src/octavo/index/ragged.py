"""FlashInfer's formats: the pages of all rows one after another, and where each row's begin."""

from typing import Unpack

from octavo.cache.step import Step
from octavo.index.buffers import Field, deliver
from octavo.index.formats import Cascade, Flashinfer
from octavo.index.options import Options
from octavo.index.parts import NULL, Parts, shared_columns, whole
from octavo.index.rows import page_lists
from octavo.planner.plan import Plan


def flashinfer(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flashinfer | None = None,
    **options: Unpack[Options],
) -> Flashinfer:
    """The arrays of FlashInfer; arguments, errors and cost as `octavo.index` says."""
    parts = Parts(step, plan, group, options)
    numbers = {"max_query_len": parts.max_query, "max_seq_len": parts.max_keys}
    return deliver(Flashinfer, _csr(parts, 0), out, numbers, step)


def cascade(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Cascade | None = None,
    **options: Unpack[Options],
) -> Cascade:
    """The arrays of FlashInfer's cascade: one level of pages that all rows share, one of the rest.

    Shared are leading pages that every row holds and that end before the step's first new position
    of any row, so that all queries see all of them; in groups that drop tokens none.
    Arguments, errors and cost as `octavo.index` says.
    """
    parts = Parts(step, plan, group, options)
    found = parts.found
    skip = 0 if found.lifetime.slides else shared_columns(found)
    pages = found.table[0, :skip]
    fields = _csr(parts, skip) | {
        "shared_qo_indptr": whole([0, step.positions.size]),
        "shared_kv_indptr": whole([0, skip]),
        "shared_kv_indices": Field(pages, pages.shape, NULL),
        "shared_kv_last_page_len": whole([found.page if skip else 1]),
    }
    numbers = {"max_query_len": parts.max_query, "max_seq_len": parts.max_keys}
    return deliver(Cascade, fields, out, numbers, step)


def _csr(parts: Parts, skip: int) -> dict[str, Field]:
    """FlashInfer's arrays of all columns but the first ``skip``."""
    found = parts.found
    starts, pages, last = page_lists(found.table, found.keys, found.page, skip)
    return parts.common() | {
        "qo_indptr": parts.query_start(),
        "kv_indptr": parts.running(starts),
        "kv_indices": Field(pages, pages.shape, NULL, fresh=True),
        "kv_last_page_len": parts.by_row(last, 1, fresh=True),
    }
