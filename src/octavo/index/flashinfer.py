"""FlashInfer's arrays: pages row after row, and its cascade of shared pages and each row's own."""

from typing import NamedTuple, Unpack, cast

import numpy as np

from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.core.emit import LastLengths, Pages, PageStarts, QueryStarts
from octavo.index.addresses import Addresses
from octavo.index.arguments import Options
from octavo.index.emit import COMMON, Emission, Format
from octavo.index.out import fill
from octavo.planner.plan import Plan


class Flashinfer(NamedTuple):
    """What FlashInfer's paged wrappers plan with. All int32.

    Attributes:
        qo_indptr: [R + 1], cumulative new tokens; padded rows repeat the last entry.
        kv_indptr: [R + 1], cumulative kernel pages; the same.
        kv_indices: [pages of all rows], or of ``columns`` a row, row after row; 0, the null page,
            where a window dropped one, and behind ``kv_indptr[-1]``.
        kv_last_page_len: [R], 1..page tokens in each row's last page; 1 for rows without pages.
        slot_mapping, input_ids, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    slot_mapping: Ints
    input_ids: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


class Cascade(NamedTuple):
    """Two levels for FlashInfer's cascade: pages all rows share, and each row's own. All int32.

    Attributes:
        shared_qo_indptr: [2], all of the step's tokens.
        shared_kv_indptr: [2], the shared kernel pages; all of their keys come before every query.
        shared_kv_indices: [shared pages], or as many as ``columns`` says, with 0 behind them.
        shared_kv_last_page_len: [1], a full page; 1 where none is shared.
        qo_indptr, kv_indptr, kv_indices, kv_last_page_len: as of `Flashinfer`, of what is left.
        slot_mapping, input_ids, positions, logit_rows, base: as of `Vllm`.
        max_query_len, max_seq_len: the largest of the rows', shared keys included, as ints.
    """

    shared_qo_indptr: Ints
    shared_kv_indptr: Ints
    shared_kv_indices: Ints
    shared_kv_last_page_len: Ints
    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    slot_mapping: Ints
    input_ids: Ints
    positions: Ints
    logit_rows: Ints
    base: Ints
    max_query_len: int
    max_seq_len: int


_PAGES = COMMON | {
    "qo_indptr": QueryStarts,
    "kv_indptr": PageStarts,
    "kv_indices": Pages,
    "kv_last_page_len": LastLengths,
}
FLASHINFER = Format("flashinfer", Flashinfer, _PAGES)
CASCADE = Format("cascade", Cascade, _PAGES, by_entry=False)


def flashinfer(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Flashinfer | None = None,
    **options: Unpack[Options],
) -> Flashinfer:
    """The arrays of FlashInfer, as `Flashinfer` lists them.

    ``help(octavo.index)`` explains the arguments, the options, errors and cost.
    """
    return cast("Flashinfer", Emission(FLASHINFER, step, plan, group, options).give(out))


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
    ``help(octavo.index)`` explains the arguments, the options, errors and cost.
    """
    emission = Emission(CASCADE, step, plan, group, options)
    found = emission.found
    pages = np.zeros(0, np.int32) if found.lifetime.slides else _shared_pages(found)
    found.source.skip = skip = pages.size
    shared = {
        "shared_qo_indptr": [0, step.positions.size],
        "shared_kv_indptr": [0, skip],
        "shared_kv_indices": pages,
        "shared_kv_last_page_len": [found.page if skip else 1],
    }
    arrays = {name: np.array(numbers, np.int32) for name, numbers in shared.items()}
    if emission.options.columns is not None:
        emission.pages()  # refuses columns of which there cannot be so many
        arrays["shared_kv_indices"] = np.zeros(emission.columns, np.int32)
        fill(arrays["shared_kv_indices"], pages)
    return cast("Cascade", emission.give(out, arrays))


def _shared_pages(found: Addresses) -> Ints:
    """Leading columns that are the same page in every row and lie before all new positions."""
    before = int(found.step.past.min()) // found.page
    table = found.table()[:, :before]
    differ = (table != table[0]).any(axis=0)
    return table[0, : int(differ.argmax()) if differ.any() else before]
