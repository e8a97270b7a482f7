"""One table, every kernel's format: pure functions from a Step to the arrays a kernel takes.

They read a step and its plan and change neither; what they return shares no memory with either.

Arguments that all share:
    step: what `Cache.extend` returned.
    group: name of a group that keeps tokens; by default the first one.
    plan: the plan the step's cache was made by. A step knows pages but neither how many tokens one
        holds nor what a window still sees; the plan knows both.
    out: what the same function returned before, or arrays of one's own in the same NamedTuple. Its
        arrays are written whole, so that nothing of an earlier, larger batch stays, and returned at
        their own sizes. They are the caller's: a copy that is still reading must end first.
    rows: rows to pad to, at least the step's. Padded rows have no tokens and no keys; each brings
        one token of padding, so that a batch that decodes has as many tokens as rows.
    kernel_page: tokens of a page as the kernel sees it; it divides the plan's page size. Page p is
        its pages ``p * r .. p * r + r - 1``, r kernel pages a page; slots stay what they are.
    form: "absolute": a column for every page from position 0, the null page where a window dropped
        it. "compact": columns no query of the step can see are left out, behind those of sinks, and
        lengths count what is left; ``base`` positions are left out. Key k behind the sinks' columns
        is position ``k + base``; queries move with the keys, so that windows stay as wide.

Errors that all share; each names the sequence and the numbers, and nothing was written:
    PlanError: a page size the kernel cannot take, or a ``kernel_page`` that does not divide it; an
        unknown ``form``; a group of states or cross inputs; a plan without the group.
    UnknownGroup: the step has no such group.
    LengthError: a query longer than its context; a page that a query sees is missing; ``rows``
        below the step's; an array of ``out`` of other axes or element type, read-only, or not
        contiguous.
    CapacityError: a page whose last slot is beyond int32; an array of ``out`` is too small.

Cost: O(rows x columns + tokens), a handful of array operations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CapacityError
from octavo.index.addresses import Addresses, Form, read_addresses
from octavo.index.buffers import Field, deliver
from octavo.index.formats import Cascade, Dense, Flash, Flashinfer, Onnxruntime, Tensorrt, Vllm
from octavo.index.latent import LatentGeometry, check_offsets, max_addressable_pages
from octavo.plans import Plan, slides
from octavo.spec import check_int
from octavo.table import Ints, Step

__all__ = [
    "Cascade",
    "Dense",
    "Flash",
    "Flashinfer",
    "LatentGeometry",
    "Onnxruntime",
    "Tensorrt",
    "Vllm",
    "cascade",
    "check_offsets",
    "dense",
    "flash",
    "flashinfer",
    "max_addressable_pages",
    "onnxruntime",
    "tensorrt",
    "vllm",
]

PAD = -1
NULL = 0


def vllm(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Vllm | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
) -> Vllm:
    """The arrays of vLLM's backends; arguments, errors and cost as the module says."""
    found = read_addresses(step, plan, group, "any", kernel_page, form)
    rows = _rows(step, rows)
    fields = _common(found, rows) | {
        "block_table": _by_row(found.table, rows, NULL),
        "seq_lens": _by_row(found.keys, rows, 0),
        "query_start_loc": _cumulative(step.query_start, rows),
    }
    return deliver(Vllm, fields, out, **_longest(found))


def flash(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flash | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
) -> Flash:
    """The arrays of FlashAttention; arguments, errors and cost as the module says."""
    found = read_addresses(step, plan, group, "any", kernel_page, form)
    rows = _rows(step, rows)
    fields = _common(found, rows) | {
        "cu_seqlens_q": _cumulative(step.query_start, rows),
        "cu_seqlens_k": _cumulative(_summed(found.keys), rows),
        "cache_seqlens": _by_row(found.keys, rows, 0),
        "block_table": _by_row(found.table, rows, NULL),
    }
    most = _longest(found)
    longest = {"max_seqlen_q": most["max_query_len"], "max_seqlen_k": most["max_seq_len"]}
    return deliver(Flash, fields, out, **longest)


def flashinfer(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flashinfer | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
) -> Flashinfer:
    """The arrays of FlashInfer; arguments, errors and cost as the module says."""
    found = read_addresses(step, plan, group, "any", kernel_page, form)
    rows = _rows(step, rows)
    return deliver(Flashinfer, _csr(found, rows, 0), out, **_longest(found))


def cascade(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Cascade | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
) -> Cascade:
    """The arrays of FlashInfer's cascade: one level of pages that all rows share, one of the rest.

    Shared are leading pages that every row holds and that end before the step's first new position
    of any row, so that all queries see all of them; in groups that drop tokens none.
    Arguments, errors and cost as the module says; the form is the absolute one.
    """
    found = read_addresses(step, plan, group, "any", kernel_page, "absolute")
    rows, skip = _rows(step, rows), _shared(found)
    pages = found.table[0, :skip]
    fields = _csr(found, rows, skip) | {
        "shared_qo_indptr": _whole([0, len(step.positions)]),
        "shared_kv_indptr": _whole([0, skip]),
        "shared_kv_indices": Field(pages, pages.shape, NULL),
        "shared_kv_last_page_len": _whole([found.page if skip else 1]),
    }
    return deliver(Cascade, fields, out, **_longest(found))


def onnxruntime(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Onnxruntime | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
) -> Onnxruntime:
    """The inputs of com.microsoft::PagedAttention; arguments and cost as the module says.

    Raises:
        PlanError: pages that are no power of two of at least 16 tokens.
        others: as the module says.
    """
    found = read_addresses(step, plan, group, "onnxruntime", kernel_page, form)
    rows = _rows(step, rows)
    most = _longest(found)
    bounds = [most["max_query_len"], most["max_seq_len"], most["max_seq_len"]]
    fields = _common(found, rows) | {
        "block_table": _by_row(found.table, rows, NULL),
        "cumulative_sequence_length": _cumulative(step.query_start, rows),
        "past_seqlens": _by_row(found.keys - step.counts, rows, 0),
        "attention_metadata": _whole(bounds),
    }
    return deliver(Onnxruntime, fields, out)


def tensorrt(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Tensorrt | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
    layers: int = 1,
) -> Tensorrt:
    """The arrays of TensorRT-LLM; arguments and cost as the module says.

    Args:
        layers: layers whose blocks lie beside each other in a page of the kernel's pool.

    Raises:
        PlanError: pages that are no power of two.
        CapacityError: a block offset beyond int32.
        others: as the module says.
    """
    found = read_addresses(step, plan, group, "tensorrt", kernel_page, form)
    rows = _rows(step, rows)
    fields = _common(found, rows) | {
        "block_offsets": _by_row(_block_offsets(found.table, layers), rows, NULL),
        "sequence_length": _by_row(found.keys, rows, 0),
        "host_past_key_value_lengths": _by_row(found.keys - step.counts, rows, 0),
        "context_lengths": _by_row(step.counts, rows, 0),
    }
    return deliver(Tensorrt, fields, out, **_longest(found))


def dense(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Dense | None = None,
    rows: int | None = None,
    kernel_page: int | None = None,
    form: Form = "absolute",
) -> Dense:
    """A boolean mask for every query and key; arguments and errors as the module says.

    Cost: O(rows x longest query x keys).
    """
    found = read_addresses(step, plan, group, "any", kernel_page, form)
    rows = _rows(step, rows)
    mask = _mask(found)
    fields = _common(found, rows) | {
        "mask": _by_row(mask, rows, 0),
        "block_table": _by_row(np.where(found.table > 0, found.table, np.int32(PAD)), rows, PAD),
        "seq_lens": _by_row(found.keys, rows, 0),
        "query_start_loc": _cumulative(step.query_start, rows),
    }
    return deliver(Dense, fields, out, **_longest(found))


def _rows(step: Step, rows: int | None) -> int:
    real = len(step.sequences)
    return real if rows is None else check_int("rows", rows, real, None, f"{real} in the step")


def _common(found: Addresses, rows: int) -> dict[str, Field]:
    """What every format has."""
    step = found.step
    tokens = (len(step.positions) + rows - len(step.sequences),)
    return {
        "slot_mapping": Field(found.slots, tokens, PAD),
        "positions": Field(step.positions, tokens, 0),
        "logit_rows": _by_row(step.last, rows, PAD),
        "base": _by_row(found.base, rows, 0),
    }


def _csr(found: Addresses, rows: int, skip: int) -> dict[str, Field]:
    """FlashInfer's arrays of all columns but the first ``skip``."""
    pages = -(-found.keys // found.page) - skip
    indices = found.table[:, skip:][found.held[:, skip:]]
    last = np.where(found.keys > 0, (found.keys - 1) % found.page + 1, 1).astype(np.int32)
    return _common(found, rows) | {
        "qo_indptr": _cumulative(found.step.query_start, rows),
        "kv_indptr": _cumulative(_summed(pages), rows),
        "kv_indices": Field(indices, indices.shape, NULL),
        "kv_last_page_len": _by_row(last, rows, 1),
    }


def _shared(found: Addresses) -> int:
    """Leading columns that are the same page in every row and lie before all new positions."""
    if slides(found.lifetime):
        return 0
    before = int(found.step.past.min()) // found.page
    differ = (found.table[:, :before] != found.table[0, :before]).any(axis=0)
    return int(differ.argmax()) if differ.any() else before


def _whole(values: list[int]) -> Field:
    return Field(np.array(values, np.int32), (len(values),), 0)


def _by_row(values: NDArray[Any], rows: int, pad: int) -> Field:
    return Field(values, (rows, *values.shape[1:]), pad)


def _cumulative(values: Ints, rows: int) -> Field:
    return Field(values, (rows + 1,), int(values[-1]))


def _summed(lengths: Ints) -> Ints:
    sums = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=sums[1:])
    if sums[-1] > 2**31 - 1:
        raise CapacityError("keys of all rows", int(sums[-1]), 2**31 - 1, "beyond int32")
    return sums.astype(np.int32)


def _longest(found: Addresses) -> dict[str, int]:
    most = int(found.keys.max(initial=0))
    return {"max_query_len": int(found.step.counts.max(initial=0)), "max_seq_len": most}


def _block_offsets(table: Ints, layers: int) -> Ints:
    stride = 2 * check_int("layers", layers, 1)
    last = int(table.max(initial=0)) * stride + 1
    if last > 2**31 - 1:
        raise CapacityError("block offset", last, 2**31 - 1, f"{stride} blocks a page")
    keys = table * np.int32(stride)
    return np.stack([keys, keys + (table > 0)], axis=1).astype(np.int32, copy=False)


def _mask(found: Addresses) -> NDArray[np.bool_]:
    """Whether query j of row i sees key k: not after it, and in its window or a sink."""
    step = found.step
    order = np.arange(found.table.shape[1] * found.page)
    keys = (order + np.where(order >= found.sinks, found.base[:, None], 0))[:, None, :]
    ahead = np.arange(int(step.counts.max(initial=0)))
    queries = (step.past[:, None] + ahead).astype(np.int64)
    floors = found.lifetime.floors(queries)[:, :, None]
    seen = (keys <= queries[:, :, None]) & ((keys >= floors) | (keys < found.lifetime.sinks))
    there: NDArray[np.bool_] = ahead < step.counts[:, None]
    return seen & there[:, :, None]
