"""Numbers in flat arrays: 32 bits each, and stretches of them that belong to rows.

Every array of the core is a memoryview, so that the loops over it are the same text interpreted and
compiled. Numbers in them are 0 or more, or -1 where one means nothing, and are divided by positive
numbers only when they are 0 or more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core import nocython as cython

if TYPE_CHECKING:
    Ints = memoryview[int]

AT_ONCE = 2**24
"""Most numbers to ask the system for before they are needed: 64 MiB, touched when written to."""


def view(array: Any) -> Ints:
    """The numbers of an array: what C reads them from as it is, and else Python ints. O(1)."""
    return array if cython.compiled else memoryview(array)


def ints(count: int) -> Ints:
    """``count`` zeros of 32 bits; memory is touched when it is written to."""
    return view(np.zeros(count, np.int32))


def longs(count: int) -> Ints:
    """``count`` zeros of 64 bits."""
    return view(np.zeros(count, np.int64))


def copy(target: Ints, at: int, source: Ints, start: int, count: int) -> None:
    """``count`` numbers from ``source``, which is not ``target`` where they overlap. O(count)."""
    if not cython.compiled:  # a slice is what the interpreter is fast at, a loop what C is
        target[at : at + count] = source[start : start + count]
        return
    if count < 1:
        return
    if at < 0 or start < 0 or at + count > len(target) or start + count > len(source):
        raise IndexError(at)
    with cython.boundscheck(False):
        for i in range(count):
            target[at + i] = source[start + i]


def fill(target: Ints, start: int, stop: int, number: int) -> None:
    """The same number from ``start`` to ``stop``. O(stop - start)."""
    for i in range(start, stop):
        target[i] = number


def count_up(target: Ints, at: int, first: int, count: int) -> None:
    """``first`` and the numbers after it, ``count`` in all. O(count)."""
    if count < 1:
        return
    if at < 0 or at + count > len(target):
        raise IndexError(at)
    with cython.boundscheck(False):
        for i in range(count):
            target[at + i] = first + i


def larger(array: Ints, used: int, count: int) -> Ints:
    """A new array of ``count`` numbers that begins with the first ``used`` ones. O(used)."""
    grown = ints(count)
    copy(grown, 0, array, 0, used)
    return grown


class Arena:
    """The numbers of many rows in one array, each row in a stretch of its own.

    Args:
        rows: how many rows there can be.
        room: numbers to have room for from the start, of which only those used take memory.

    A row that outgrows its stretch moves to the end, into one half as large again. Where the end is
    reached, the stretches in use move together into a new array of twice their size. So memory and
    cost follow what rows hold now: what a long row held yesterday costs nobody anything.

    Attributes:
        data: the numbers.
        begin: by row, where its stretch begins.
        room: by row, how long it is; 0: the row has none.
        end: where the next stretch begins.
    """

    def __init__(self, rows: int, room: int) -> None:
        self.rows = rows
        self.data = ints(max(1, min(room, AT_ONCE)))
        self.begin = longs(rows)
        self.room = ints(rows)
        self.end = 0

    def reserve(self, row: int, count: int, used: int) -> None:
        """Room for ``count`` numbers; the first ``used`` ones of the row come along.

        Amortised O(count).
        """
        if count <= self.room[row]:
            return
        count += count // 2 + 8
        if self.end + count > len(self.data):
            self.compact(count)
        at = self.end
        self.end += count  # first: no stretch is ever two rows'
        copy(self.data, at, self.data, self.begin[row], used)
        self.begin[row], self.room[row] = at, count

    def free(self, row: int) -> None:
        """The row has no stretch any more. O(1)."""
        self.room[row] = 0

    def spare(self, count: int) -> int:
        """Where ``count`` numbers can be written that belong to nobody until the next `reserve`."""
        if self.end + count > len(self.data):
            self.compact(count)
        return self.end

    def compact(self, more: int) -> None:
        """A new array with room for ``more`` numbers behind what is in use. O(used + rows)."""
        live = more
        for row in range(self.rows):
            live += self.room[row]
        grown, begin = ints(2 * live + self.rows + 1024), longs(self.rows)
        end = 0
        for row in range(self.rows):
            if self.room[row]:
                copy(grown, end, self.data, self.begin[row], self.room[row])
                begin[row] = end
                end += self.room[row]
        self.data, self.begin, self.end = grown, begin, end
