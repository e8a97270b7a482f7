"""A batch: the ordered rows of the next steps, and the checks on what a caller asks for them.

Knows which sequences stand in which row; not pages, tokens or tables.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import DuplicateSequence, LengthError
from octavo.sequences import Sequence
from octavo.spec import check_int

Counts = int | Iterable[int] | NDArray[np.integer[Any]]


class Removed(NamedTuple):
    """Which sequence moved into the row that became free (None: it was the last row)."""

    moved: Sequence | None
    row: int


class Batch:
    """Sequences in rows 0..n-1, each once. Made by `Cache.batch`."""

    def __init__(self) -> None:
        self._rows: list[Sequence] = []
        self._at: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._rows)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._at

    def add(self, sequence: Sequence) -> int:
        """Put ``sequence`` in a new last row and return its number. O(1).

        Raises:
            DuplicateSequence: it is in the batch already.
        """
        if sequence in self._at:
            raise DuplicateSequence(sequence.id, "is in this batch already")
        self._at[sequence] = len(self._rows)
        self._rows.append(sequence)
        return len(self._rows) - 1

    def remove(self, sequence: Sequence) -> Removed:
        """Take ``sequence`` out; the last row moves into its place. O(1).

        Raises:
            KeyError: it is not in the batch.
        """
        row = self._at.pop(sequence)
        last = self._rows.pop()
        if last is sequence:
            return Removed(None, row)
        self._rows[row] = last
        self._at[last] = row
        return Removed(last, row)


Rows = Batch | Sequence | Iterable[Sequence]


def check_counts(counts: Counts, rows: int) -> list[int]:
    """One count a row, as ints of at least 0, not all 0. O(rows).

    Raises:
        LengthError: a count is no such int, there are not ``rows`` of them, or none is above 0.
    """
    if isinstance(counts, Iterable):
        items = counts.tolist() if isinstance(counts, np.ndarray) else list(counts)
    else:
        items = [counts] * rows
    if not isinstance(items, list) or len(items) != rows:
        size = len(items) if isinstance(items, list) else 0
        raise LengthError("len(counts)", size, rows, rows, "one count a row")
    checked = [check_int("count", item, 0) for item in items]
    if not any(checked):
        raise LengthError("sum(counts)", 0, 1, None, "at least one row must take part in a step")
    return checked
