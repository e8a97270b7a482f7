"""Windows that slide: what no query can see any more is given back, for many rows at once."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.ledger import Ledger
from octavo.cache.rows import Ints
from octavo.cache.sequence import Sequence
from octavo.cache.standing import Index, Stand, last_first

Bools = NDArray[np.bool_]


class _Left(NamedTuple):
    """Pages that rows let go of, row by row, and which of them do not go cold."""

    pages: Ints
    warm: Bools


class Slider:
    """Lets the windows of one cache slide.

    Args:
        ledger: what the cache owns.

    Attributes:
        places: a row that goes on by one position has something to give back only where it comes
            to one of these places of a page; None: anywhere.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._sinks = {group: ledger.sink_columns(group) for group in ledger.sliding}
        size = ledger.page_size
        turns = [ledger.groups[group].lifetime.turns(size) for group in ledger.sliding]
        there = {(turn + ledger.rollback) % size for turn in turns if turn is not None}
        self.places = None if None in turns else sorted(there)

    def slides(self, sequence: Sequence) -> bool:
        """Whether ``sequence`` holds what no window of it can see. O(groups)."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        position = int(rows.computed[row]) - ledger.rollback
        return any(
            ledger.kept_columns(group, position)[1] > max(int(rows.first[group][row]), sinks)
            for group, sinks in self._sinks.items()
        )

    def slide(self, stands: Iterable[Stand]) -> int:
        """Give back what no window of these rows can see any more; returns how many pages.

        Of each group all rows in their order, a row's last column first: what goes cold, then what
        a hit at a marked boundary would need.

        Cost: some array operations a group; O(columns given back).
        """
        listed = list(stands)
        return sum([self._slide(group, listed) for group in self._sinks])

    def _slide(self, group: int, stands: list[Stand]) -> int:
        left = [part for stand in stands if (part := self._leave(group, stand)) is not None]
        if not left:
            return 0
        pages = np.concatenate([part.pages for part in left])
        warm, held = np.concatenate([part.warm for part in left]), pages != 0
        for cold, which in ((True, held & ~warm), (False, held & warm)):
            if np.count_nonzero(which):  # forks may list a page twice
                self._ledger.pool.release(pages[which], group, cold=cold)
        return int(np.count_nonzero(held))

    def _leave(self, group: int, stand: Stand) -> _Left | None:
        """Move the windows of one group on and clear what they leave; None: none of them moves."""
        rows, numbers, ledger = stand.rows, stand.numbers, self._ledger
        positions = np.maximum(rows.computed[numbers] - ledger.rollback, 0)
        stops = ledger.groups[group].lifetime.floors(positions) // ledger.page_size
        starts = np.maximum(rows.first[group][numbers], self._sinks[group])
        moving = (stops > starts).nonzero()[0]
        if not moving.size:
            return None
        numbers, starts, stops = numbers[moving], starts[moving], stops[moving]
        rows.first[group][numbers] = stops
        at, columns = last_first(numbers, starts, stops)
        warm = self._is_marked(group, stand, at, columns)
        return _Left(stand.take_out(group, at, columns), warm)

    def _is_marked(self, group: int, stand: Stand, at: Index, columns: Index) -> Bools:
        """Which of these entries a hit at a marked boundary of their row would need."""
        lifetime, size = self._ledger.groups[group].lifetime, self._ledger.page_size
        marks, column = stand.rows.marks[at], columns[:, None]
        firsts = lifetime.floors(marks * size) // size
        marked: Bools = np.logical_or.reduce((firsts <= column) & (column < marks), 1)
        return marked
