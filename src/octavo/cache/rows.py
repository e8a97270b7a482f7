"""Rows: the numbers and page tables of sequences, as arrays with a row each.

A sequence's numbers live in exactly one `Rows`: its batch's while it is in one, else the cache's
own. That is what lets a step of hundreds of sequences be a few array operations. Knows nothing of
the pool and of prefixes.
"""

import numpy as np
from numpy.typing import NDArray

from octavo.planner.request import GroupPlan

Ints = NDArray[np.int32]
NEVER = 2**62
"""A position nobody comes to."""
_GROWS = 16
_NUMBERS = ("known", "scheduled", "computed", "limit", "floor", "stop")
_COPIED = (*_NUMBERS, "special", "apart", "marks", "tail")


class Constants:
    """Arrays that are the same for every step of one token a row; read-only.

    Attributes:
        rows: int64[capacity], their numbers.
        tails: int64[capacity], where in all tails each row's begins.
        ones, zeros: int32[capacity].
        yes: bool[capacity], all True.
        starts: int32[capacity + 1], 0, 1, 2 and so on.
    """

    def __init__(self, capacity: int, page_size: int) -> None:
        self.rows = np.arange(capacity)
        self.tails = self.rows * page_size
        self.ones = np.ones(capacity, np.int32)
        self.zeros = np.zeros(capacity, np.int32)
        self.yes = np.ones(capacity, np.bool_)
        self.starts = np.arange(capacity + 1, dtype=np.int32)
        for array in vars(self).values():
            array.flags.writeable = False


class Rows:
    """State of up to ``capacity`` sequences.

    Args:
        groups: the plan's groups, in order.
        page_size: tokens a page holds.
        capacity: rows.
        widths: columns each group's table begins with.

    Attributes:
        known, scheduled, computed, limit: int64[capacity], positions.
        special: bool[capacity], rows whose next step needs more than new pages: a page to copy, a
            state to take or fetch, a cross input to place.
        apart: bool[capacity], rows whose pages stand for more than tokens, or are not published.
        marks: int64[capacity, 2], boundaries in columns where other prompts are likely to branch
            off: the end of the prompt, and where it left a known chain.
        tables: by group, int32[capacity, width]: physical page of each column; 0: none is held.
        first: by group, int64[capacity]: first column behind the sinks that is held.
        floor: int64[capacity], lowest position the states reach back to.
        stop: int64[capacity], next position a state should be kept at, or NEVER; only maintained
            in a batch, and only where a row is not special.
        tail: int32[capacity, page_size], token ids of the page that holds position ``computed``, as
            far as they are known; only maintained in a batch.
        late: of each row, token bytes of the pages before its tail's that are in no buffer yet.
        tip: prefix index node of each row's last full page.
        viewed: whether a step may hold a view of the tables.
    """

    def __init__(
        self, groups: list[GroupPlan], page_size: int, capacity: int, widths: list[int]
    ) -> None:
        self.capacity, self.page_size = capacity, page_size
        self.known = np.zeros(capacity, np.int64)
        self.scheduled = np.zeros(capacity, np.int64)
        self.computed = np.zeros(capacity, np.int64)
        self.limit = np.zeros(capacity, np.int64)
        self.floor = np.zeros(capacity, np.int64)
        self.stop = np.full(capacity, NEVER, np.int64)
        self.special = np.zeros(capacity, np.bool_)
        self.apart = np.zeros(capacity, np.bool_)
        self.marks = np.zeros((capacity, 2), np.int64)
        self.tables: list[Ints] = [np.zeros((capacity, w), np.int32) for w in widths]
        self.first = [np.zeros(capacity, np.int64) for _ in groups]
        self.tail = np.zeros((capacity, page_size), np.int32)
        self.late: list[list[bytes]] = [[] for _ in range(capacity)]
        self.tip: list[int] = [0] * capacity
        self.viewed = False

    def held(self, row: int, group: int) -> Ints:
        """Pages of ``row`` in ``group`` by column, dropped columns left out. O(columns)."""
        pages = self.tables[group][row]
        held: Ints = pages[pages.nonzero()[0]]
        return held

    def put(self, row: int, group: int, column: int, pages: Ints) -> None:
        """Let ``pages`` be the columns from ``column`` on. Amortised O(len(pages))."""
        end = column + pages.size
        if end > self.tables[group].shape[1]:
            self.widen(group, end)
        self.tables[group][row, column:end] = pages

    def widen(self, group: int, width: int) -> None:
        """Make room for at least ``width`` columns, at least doubling. O(capacity x width)."""
        old = self.tables[group]
        grown = np.zeros((self.capacity, max(width, 2 * old.shape[1], _GROWS)), np.int32)
        grown[:, : old.shape[1]] = old
        self.tables[group] = grown

    def part_from_views(self, used: int) -> None:
        """Leave tables that steps were given as they are, before entries of a row change.

        Args:
            used: rows in use.

        Cost: O(used x width) once after a step was given a view.
        """
        if self.viewed:
            self.viewed = False
            for group, table in enumerate(self.tables):
                self.tables[group] = np.zeros_like(table)
                self.tables[group][:used] = table[:used]

    def clear(self, row: int) -> None:
        """Forget what ``row`` held. O(columns)."""
        for table, first in zip(self.tables, self.first, strict=True):
            table[row] = 0
            first[row] = 0
        self.known[row] = self.scheduled[row] = self.computed[row] = self.limit[row] = 0
        self.floor[row] = self.tip[row] = 0
        self.late[row] = []
        self.marks[row] = 0
        self.stop[row] = NEVER
        self.special[row] = self.apart[row] = False

    def copy(self, source: "Rows", at: int, row: int) -> None:
        """Make ``row`` equal to row ``at`` of ``source``. O(columns)."""
        for name in _COPIED:
            getattr(self, name)[row] = getattr(source, name)[at]
        for group, table in enumerate(source.tables):
            width = table.shape[1]
            if width > self.tables[group].shape[1]:
                self.widen(group, width)
            self.tables[group][row, :width] = table[at]
            self.tables[group][row, width:] = 0
            self.first[group][row] = source.first[group][at]
        self.tip[row], self.late[row] = source.tip[at], source.late[at].copy()
