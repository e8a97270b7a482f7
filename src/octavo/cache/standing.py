"""Where the rows of a step stand, those of one store together, and columns of many rows at once."""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.rows import Ints, Rows
from octavo.cache.sequence import Sequence

Index = NDArray[np.int64]


class Stand(NamedTuple):
    """Rows of one store, each once, in the order of a step.

    Attributes:
        rows: the store.
        numbers: int64[k], where in it they stand.
        batch: the batch whose store it is; None: it is the cache's own.
    """

    rows: Rows
    numbers: Index
    batch: Any

    def part_from_views(self) -> None:
        """Leave tables that steps were given as they are, before entries change. O(table)."""
        if self.batch is not None:
            self.rows.part_from_views(len(self.batch))

    def take_out(self, group: int, at: Index, columns: Index) -> Ints:
        """Clear entries of the tables, and return the pages that were there. O(entries)."""
        table = self.rows.tables[group]
        pages: Ints = table[at, columns]
        table[at, columns] = 0
        if self.batch is not None:
            self.batch._note(group, at, columns, np.zeros_like(columns))
        return pages


def stands(sequences: Iterable[Sequence]) -> list[Stand]:
    """Where ``sequences`` stand: a stand for each stretch that is in one store. O(sequences)."""
    found = []
    for rows, stretch in groupby(sequences, lambda sequence: sequence._rows):
        listed = list(stretch)
        numbers = np.array([sequence._row for sequence in listed], np.int64)
        found.append(Stand(rows, numbers, listed[0]._batch))
    return found


def last_first(numbers: Index, starts: Index, stops: Index) -> tuple[Index, Index]:
    """Columns ``starts`` to ``stops`` of each row, a row's last one first. O(columns).

    Returns:
        (the number of the row, the column) of each.
    """
    counts = stops - starts
    if not np.count_nonzero(counts != 1):
        return numbers, starts
    ends = counts.cumsum()
    columns = np.repeat(starts + ends, counts)
    columns -= np.arange(1, columns.size + 1)
    return np.repeat(numbers, counts), columns
