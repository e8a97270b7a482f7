"""The block mask of torch's flex attention over pages as keys, and what its mask function asks."""

from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.checks import check_flag, check_int
from octavo.core.emit import Slots
from octavo.errors import LengthError, PlanError
from octavo.index.addresses import Addresses
from octavo.index.arguments import MOST, check_plan
from octavo.planner.plan import Plan

Int64s = NDArray[np.int64]


class Flex(NamedTuple):
    """What torch's flex attention takes: T queries against all slots of a layer's pool.

    Q blocks of queries; pages are kernel pages where ``kv_block`` is less than the page size. All
    int32.

    Attributes:
        kv_num_blocks: [1, 1, Q], key blocks of which some query sees some key, but not each all.
        kv_indices: [1, 1, Q, most of them], which, ascending; 0 behind them.
        full_kv_num_blocks: [1, 1, Q], those of which every query sees every key.
        full_kv_indices: [1, 1, Q, most of them], which.
        block_table: [n, width], page of each row and column; 0 where there is none.
        columns: [pages of the pool], the column each page stands in, in whichever row; else 0.
        token_rows: [T], row of each token.
        first_keys: [T], first position each token sees, sinks apart.
        last_keys: [T], the last one.
        slot_mapping, positions, logit_rows: as of `Vllm`, without padding.
        page: tokens per page of these arrays.
        sink_tokens: leading positions that all see.
        query_block, kv_block: queries and keys of a block.
        kv_len: slots of the pool.
    """

    kv_num_blocks: Ints
    kv_indices: Ints
    full_kv_num_blocks: Ints
    full_kv_indices: Ints
    block_table: Ints
    columns: Ints
    token_rows: Ints
    first_keys: Ints
    last_keys: Ints
    slot_mapping: Ints
    positions: Ints
    logit_rows: Ints
    page: int
    sink_tokens: int
    query_block: int
    kv_block: int
    kv_len: int


class Blocks(NamedTuple):
    """Which blocks of keys each block of queries reads; the fields are those of `Flex`."""

    kv_num_blocks: Ints
    kv_indices: Ints
    full_kv_num_blocks: Ints
    full_kv_indices: Ints
    block_table: Ints
    columns: Ints
    token_rows: Ints
    first_keys: Ints
    last_keys: Ints
    page: int
    sink_tokens: int
    query_block: int
    kv_block: int
    kv_len: int


class Reading(NamedTuple):
    """What the T queries of n rows read.

    Attributes:
        counts: int[n], tokens of each row.
        first, last: int64[T], first key each token sees, sinks apart, and last one. A row's do not
            descend.
        table: int32[n, width], page of each column; 0 where there is none that is seen.
        page: tokens per page.
        pages: pages there are; page 0 is nobody's.
        sinks: leading positions that all see.
    """

    counts: NDArray[np.integer[Any]]
    first: Int64s
    last: Int64s
    table: Ints
    page: int
    pages: int
    sinks: int


class _Stretches(NamedTuple):
    """Runs of tokens of one row in one block of queries.

    Attributes:
        starts, stops: int64[s], tokens of each.
        rows: int64[s], their row.
    """

    starts: Int64s
    stops: Int64s
    rows: Int64s


def flex(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    query_block: int = 128,
    kv_block: int | None = None,
    causal: bool = True,
) -> Flex:
    """The arrays of a ``BlockMask``: all tokens of the step against all slots of a layer's pool.

    Made of the page table, page by page; a mask of queries by keys is never built. Blocks are
    ``full`` where every query of theirs sees every key. `octavo.attention.kernels.flex` makes
    torch's objects of them.

    Args:
        step, group, plan: as `octavo.index` says.
        query_block: queries a block has.
        kv_block: keys a block has: the page size, a divisor or a multiple of it. Of a multiple,
            pages whose numbers follow each other share a block, whoever holds them.
        causal: whether queries see no later keys of their sequence; else all in its context.

    Raises:
        PlanError: a ``kv_block`` that neither divides the page size nor is a multiple of it.
        LengthError: a page that stands in different columns; no cache makes such a table.
        others: as `octavo.index` says.

    Cost: O(rows x columns + pages + tokens + blocks listed).
    """
    check_plan(plan, group)
    query_block = check_int("query_block", query_block, 1, MOST)
    causal = check_flag("causal", causal)
    kv_block = _kv_block(plan.page_size, kv_block)
    found = Addresses(step, plan, group, (), min(kv_block, plan.page_size))
    positions = step.positions.astype(np.int64)
    last = positions if causal else np.repeat(step.context.astype(np.int64) - 1, step.counts)
    reading = Reading(
        counts=step.counts,
        first=found.lifetime.floors(positions),
        last=last,
        table=found.table(),
        page=found.page,
        pages=found.pages,
        sinks=found.lifetime.sinks,
    )
    return Flex(
        **list_blocks(reading, query_block, kv_block)._asdict(),
        slot_mapping=found.array(Slots, step.positions.size),
        positions=step.positions.copy(),
        logit_rows=step.last.copy(),
    )


def _kv_block(page_size: int, wanted: int | None) -> int:
    size = page_size if wanted is None else check_int("kv_block", wanted, 1, MOST)
    if size % page_size and page_size % size:
        right = f"a divisor or a multiple of the page size, {page_size}"
        raise PlanError("kv_block", size, right)
    return size


def list_blocks(reading: Reading, query_block: int, kv_block: int) -> Blocks:
    """The blocks that are read, listed.

    Args:
        reading: what the queries read.
        query_block: queries a block has.
        kv_block: keys a block has, a multiple of a page.

    Raises:
        LengthError: a page that stands in different columns.

    Cost: O(rows x columns + pages + tokens + blocks listed).
    """
    blocks = -(-reading.first.size // query_block)
    part, whole = _pairs(reading, query_block, kv_block, blocks)
    partial_counts, partial = _listed(*part, blocks)
    full_counts, full = _listed(*whole, blocks)
    return Blocks(
        kv_num_blocks=partial_counts,
        kv_indices=partial,
        full_kv_num_blocks=full_counts,
        full_kv_indices=full,
        block_table=reading.table,
        columns=_columns(reading),
        token_rows=np.repeat(np.arange(reading.counts.size, dtype=np.int32), reading.counts),
        first_keys=reading.first.astype(np.int32),
        last_keys=reading.last.astype(np.int32),
        page=reading.page,
        sink_tokens=reading.sinks,
        query_block=query_block,
        kv_block=kv_block,
        kv_len=reading.pages * reading.page,
    )


def _pairs(
    reading: Reading, query_block: int, kv_block: int, blocks: int
) -> tuple[tuple[Int64s, Int64s], tuple[Int64s, Int64s]]:
    """Pairs of query and key blocks in which a query sees a key: in part, and whole."""
    cut = _stretches(reading, query_block)
    owner, pages, is_whole = _seen_pages(reading, cut)
    together = kv_block // reading.page
    key_blocks, of = -(-reading.pages // together), cut.starts // query_block
    pairs, which = np.unique(of[owner] * key_blocks + pages // together, return_inverse=True)
    queries, keys = np.divmod(pairs, key_blocks)
    needed = np.bincount(of, minlength=blocks)[queries] * together
    full = np.bincount(which[is_whole], minlength=pairs.size) == needed
    return (queries[~full], keys[~full]), (queries[full], keys[full])


def _stretches(reading: Reading, query_block: int) -> _Stretches:
    tokens, behind = reading.first.size, np.add.accumulate(reading.counts, dtype=np.int64)
    begins = (behind - reading.counts)[reading.counts > 0]
    starts = np.union1d(begins, np.arange(0, tokens, query_block)).astype(np.int64)
    rows = np.searchsorted(behind, starts, side="right")
    return _Stretches(starts, np.append(starts, tokens)[1:], rows)


def _seen_pages(reading: Reading, cut: _Stretches) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
    """Stretch and page of every page a stretch sees, and whether all of it sees all of the page."""
    page, sinks = reading.page, reading.sinks
    low, high = reading.first[cut.starts], reading.first[cut.stops - 1]
    near = low // page
    behind = np.maximum(reading.last[cut.stops - 1] // page + 1, near)
    lead = np.minimum(-(-sinks // page), near)
    counts = lead + behind - near
    owner = np.repeat(np.arange(counts.size), counts)
    columns = np.arange(owner.size) - (np.add.accumulate(counts) - counts)[owner]
    columns += (columns >= lead[owner]) * (near - lead)[owner]
    begin, end = columns * page, (columns + 1) * page
    whole = (begin >= high[owner]) | (end <= sinks) | (high <= sinks)[owner]
    whole &= end - 1 <= reading.last[cut.starts][owner]
    pages = reading.table[cut.rows[owner], columns].astype(np.int64)
    there = pages > 0
    return owner[there], pages[there], whole[there]


def _listed(queries: Int64s, keys: Int64s, blocks: int) -> tuple[Ints, Ints]:
    """How many key blocks each block of queries has, and which, ascending."""
    counts = np.bincount(queries, minlength=blocks).astype(np.int32)
    width = int(counts.max(initial=1))
    listed = np.zeros((blocks, width), np.int32)
    listed[np.arange(width) < counts[:, None]] = keys
    return counts[None, None], listed[None, None]


def _columns(reading: Reading) -> Ints:
    """The column each page stands in, 0 where none."""
    where: tuple[NDArray[Any], ...] = reading.table.nonzero()
    pages, at = reading.table[where], where[1]
    columns = np.zeros(reading.pages, np.int32)
    columns[pages] = at
    other = columns[pages] != at
    if other.any():
        page = int(pages[other.argmax()])
        right = "the same column in every row that holds it"
        raise LengthError(f"column of page {page}", int(at[other.argmax()]), None, None, right)
    return columns
