"""The block mask of torch's flex attention over a whole pool of pages, and what its mask asks."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Ints, Step
from octavo.checks import check_int
from octavo.errors import LengthError, PlanError
from octavo.index.addresses import Addresses, read_addresses
from octavo.index.formats import Flex
from octavo.index.steps import check_plan
from octavo.planner.plan import Plan

Int64s = NDArray[np.int64]


class _Reach(NamedTuple):
    """The keys each token sees, and stretches of tokens of one row in one block of queries.

    Attributes:
        first, last: int64[T], first key, sinks apart, and last one.
        starts, stops: int64[s], tokens of each stretch.
        rows: int64[s], their row.
    """

    first: Int64s
    last: Int64s
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
    ``full`` where every query of theirs sees every key. `octavo.attention.flexmask` makes torch's
    objects of them.

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
    check_int("query_block", query_block, 1)
    kv_block = _kv_block(plan.page_size, kv_block)
    found = read_addresses(step, plan, group, (), min(kv_block, plan.page_size), "absolute")
    reach = _reach(found, query_block, causal=causal)
    blocks = -(-step.positions.size // query_block)
    part, whole = _pairs(found, reach, query_block, kv_block, blocks)
    partial_counts, partial = _listed(*part, blocks)
    full_counts, full = _listed(*whole, blocks)
    return Flex(
        kv_num_blocks=partial_counts,
        kv_indices=partial,
        full_kv_num_blocks=full_counts,
        full_kv_indices=full,
        block_table=found.table,
        columns=_columns(found),
        token_rows=np.repeat(np.arange(len(step.counts), dtype=np.int32), step.counts),
        first_keys=reach.first.astype(np.int32),
        last_keys=reach.last.astype(np.int32),
        slot_mapping=found.slots.copy(),
        positions=step.positions.copy(),
        logit_rows=step.last.copy(),
        page=found.page,
        sink_tokens=found.lifetime.sinks,
        query_block=query_block,
        kv_block=kv_block,
        kv_len=found.pages * found.page,
    )


def _kv_block(page_size: int, asked: int | None) -> int:
    size = page_size if asked is None else check_int("kv_block", asked, 1)
    if size % page_size and page_size % size:
        right = f"a divisor or a multiple of the page size, {page_size}"
        raise PlanError("kv_block", size, right)
    return size


def _reach(found: Addresses, query_block: int, *, causal: bool) -> _Reach:
    step, tokens = found.step, found.step.positions.size
    positions = step.positions.astype(np.int64)
    first = found.lifetime.floors(positions)
    last = positions if causal else np.repeat(step.context.astype(np.int64) - 1, step.counts)
    begins = step.query_start[:-1][step.counts > 0]
    starts = np.union1d(begins, np.arange(0, tokens, query_block)).astype(np.int64)
    rows = np.searchsorted(step.query_start, starts, side="right") - 1
    return _Reach(first, last, starts, np.append(starts, tokens)[1:], rows)


def _pairs(
    found: Addresses, reach: _Reach, query_block: int, kv_block: int, blocks: int
) -> tuple[tuple[Int64s, Int64s], tuple[Int64s, Int64s]]:
    """Pairs of query and key blocks in which a query sees a key: in part, and whole."""
    owner, pages, is_whole = _seen_pages(found, reach)
    together = kv_block // found.page
    key_blocks, of = -(-found.pages // together), reach.starts // query_block
    pairs, which = np.unique(of[owner] * key_blocks + pages // together, return_inverse=True)
    queries, keys = np.divmod(pairs, key_blocks)
    needed = np.bincount(of, minlength=blocks)[queries] * together
    full = np.bincount(which[is_whole], minlength=pairs.size) == needed
    return (queries[~full], keys[~full]), (queries[full], keys[full])


def _seen_pages(found: Addresses, reach: _Reach) -> tuple[Int64s, Int64s, NDArray[np.bool_]]:
    """Stretch and page of every page a stretch sees, and whether all of it sees all of the page."""
    page, sinks = found.page, found.lifetime.sinks
    low, high = reach.first[reach.starts], reach.first[reach.stops - 1]
    near, behind = low // page, reach.last[reach.stops - 1] // page + 1
    lead = np.minimum(-(-sinks // page), near)
    counts = lead + behind - near
    owner = np.repeat(np.arange(counts.size), counts)
    columns = np.arange(owner.size) - (np.add.accumulate(counts) - counts)[owner]
    columns += (columns >= lead[owner]) * (near - lead)[owner]
    begin, end = columns * page, (columns + 1) * page
    whole = (begin >= high[owner]) | (end <= sinks) | (high <= sinks)[owner]
    whole &= end - 1 <= reach.last[reach.starts][owner]
    return owner, found.table[reach.rows[owner], columns].astype(np.int64), whole


def _listed(queries: Int64s, keys: Int64s, blocks: int) -> tuple[Ints, Ints]:
    """How many key blocks each block of queries has, and which, ascending."""
    counts = np.bincount(queries, minlength=blocks).astype(np.int32)
    width = int(counts.max(initial=1))
    listed = np.zeros((blocks, width), np.int32)
    listed[np.arange(width) < counts[:, None]] = keys
    return counts[None, None], listed[None, None]


def _columns(found: Addresses) -> Ints:
    """The column each page stands in, 0 where none."""
    where: tuple[NDArray[Any], ...] = found.table.nonzero()
    pages, at = found.table[where], where[1]
    columns = np.zeros(found.pages, np.int32)
    columns[pages] = at
    other = columns[pages] != at
    if other.any():
        page = int(pages[other.argmax()])
        right = "the same column in every row that holds it"
        raise LengthError(f"column of page {page}", int(at[other.argmax()]), None, None, right)
    return columns
