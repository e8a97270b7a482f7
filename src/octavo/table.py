"""Page tables: from logical positions to slots, and the Step, a frozen view of one forward pass.

A slot is page * page_size + offset. Knows arrays; not pools, nodes or how sequences live.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CapacityError, LengthError

if TYPE_CHECKING:
    from octavo.sequences import Sequence

Ints = NDArray[np.int32]


def slot_mapping(
    pages: Ints | Items[int], page_size: int, start: int, stop: int, out: Ints | None = None
) -> Ints:
    """Slots of positions ``start..stop-1`` of a sequence.

    The slot of position ``i`` is ``pages[i // page_size] * page_size + i % page_size``.

    Args:
        pages: physical pages of the sequence, in logical order.
        page_size: tokens a page holds.
        start: first position.
        stop: position behind the last one.
        out: int32 array of at least ``stop - start``, written and returned cut to size.

    Returns:
        int32[stop - start].

    Raises:
        LengthError: page size below 1, or an interval that is reversed or beyond the pages.
        CapacityError: ``out`` is too small, or a slot is beyond int32; nothing was written.

    Cost: O(stop - start), one vectorised pass over the pages touched.
    """
    if page_size < 1:
        raise LengthError("page_size", page_size, 1, None)
    if not 0 <= start <= stop <= len(pages) * page_size:
        low, high = (0, stop) if start > stop or start < 0 else (start, len(pages) * page_size)
        name, value = ("start", start) if start > stop or start < 0 else ("stop", stop)
        raise LengthError(name, value, low, high, f"{len(pages)} pages of {page_size}")
    count = stop - start
    if out is not None and out.size < count:
        raise CapacityError("stop - start", count, out.size, "out is too small")
    if count == 1:
        slot = int(pages[start // page_size]) * page_size + start % page_size
        return _single(slot, out)
    first = start // page_size
    touched = np.asarray(pages[first : -(-stop // page_size)], np.int64) * page_size
    if touched.size and int(touched.max()) + page_size - 1 > 0x7FFF_FFFF:
        raise CapacityError("slot", int(touched.max()) + page_size - 1, 0x7FFF_FFFF, "beyond int32")
    grid: Ints = np.add.outer(touched.astype(np.int32), np.arange(page_size, dtype=np.int32))
    slots = grid.reshape(-1)[start - first * page_size :][:count]
    if out is None:
        return slots
    out[:count] = slots
    return out[:count]


def _single(slot: int, out: Ints | None) -> Ints:
    if slot > 0x7FFF_FFFF:
        raise CapacityError("slot", slot, 0x7FFF_FFFF, "beyond int32")
    if out is None:
        return np.array((slot,), np.int32)
    out[0] = slot
    return out[:1]


class GroupView(NamedTuple):
    """One group's addresses in a step of n rows and T tokens.

    Attributes:
        slots: int32[T], where each new token's KV goes.
        table: int32[n, width], physical pages in logical order; 0, the null page, behind them.
        base: int32[n], first position the table's column 0 stands for.
    """

    slots: Ints
    table: Ints
    base: Ints


@dataclass(frozen=True, eq=False)
class Step:
    """One forward pass: n rows (sequences) with T new tokens together. All arrays are int32.

    Attributes:
        sequences: the rows.
        counts: int32[n], new tokens of each row; a row with 0 sits out.
        input_ids: int32[T], known token ids; 0 beyond what is known.
        positions: int32[T], position of each new token in its sequence.
        query_start: int32[n + 1], where each row's tokens begin in T.
        past: int32[n], tokens computed before this step.
        context: int32[n], past + counts.
        last: int32[n], index in T of each row's last token (logit rows); -1 where it sits out.
        wants_token: bool[n], whether the step reaches the end of the known tokens, so that a token
            is to be sampled from ``last``.
        groups: addresses by group name.
    """

    sequences: "tuple[Sequence, ...]"
    counts: Ints
    input_ids: Ints
    positions: Ints
    query_start: Ints
    past: Ints
    context: Ints
    last: Ints
    wants_token: NDArray[np.bool_]
    groups: dict[str, GroupView] = field(repr=False)

    @property
    def max_query(self) -> int:
        """Most new tokens of a row."""
        return int(self.counts.max())

    @property
    def max_context(self) -> int:
        """Longest context of a row."""
        return int(self.context.max())

    def group(self, name: str | None = None) -> GroupView:
        """The addresses of group ``name``; default: the first token group. O(1).

        Raises:
            KeyError: no such group in this plan.
        """
        return next(iter(self.groups.values())) if name is None else self.groups[name]


class PageTables:
    """The page table of every row of a cache: logical page -> physical page.

    Rows are wide enough for the longest sequence so far; widening doubles, so appending is
    amortised O(pages).

    Args:
        rows: sequences held at once.

    Attributes:
        held: int32[rows], pages each row has.
    """

    def __init__(self, rows: int) -> None:
        self.held = np.zeros(rows, np.int32)
        self._table = np.zeros((rows, 16), np.int32)

    def row(self, row: int) -> Ints:
        """The pages of ``row`` in logical order, a view. O(1)."""
        return self._table[row, : self.held[row]]

    def gather(self, rows: list[int]) -> Ints:
        """int32[len(rows), most pages of them], 0 behind each row's pages. O(rows x width)."""
        return self._table[rows, : int(self.held[rows].max(initial=0))]

    def append(self, row: int, pages: Ints) -> None:
        """Put ``pages`` behind those of ``row``. Amortised O(len(pages))."""
        start = int(self.held[row])
        end = start + pages.size
        if end > self._table.shape[1]:
            grown = np.zeros((self._table.shape[0], max(end, 2 * self._table.shape[1])), np.int32)
            grown[:, : self._table.shape[1]] = self._table
            self._table = grown
        self._table[row, start:end] = pages
        self.held[row] = end

    def replace(self, row: int, column: int, page: int) -> None:
        """Let logical page ``column`` of ``row`` be physical ``page``. O(1)."""
        self._table[row, column] = page

    def cut(self, row: int, keep: int) -> Ints:
        """Take away all but the first ``keep`` pages of ``row``; returns them, last first.

        Cost: O(pages taken away).
        """
        end = int(self.held[row])
        pages = self._table[row, keep:end][::-1].copy()
        self._table[row, keep:end] = 0
        self.held[row] = min(keep, end)
        return pages
