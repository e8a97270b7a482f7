"""A batch: the ordered rows of the next steps, and the checks on what a caller asks for them.

A batch owns the numbers and tables of its sequences while they are in it. Knows which sequence
stands in which row; not pages and prefixes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.rows import Rows
from octavo.cache.sequence import Sequence
from octavo.checks import check_int
from octavo.errors import CapacityError, DuplicateSequence, LengthError, UnknownSequence

Counts = int | Iterable[int] | NDArray[np.integer[Any]]
Change = tuple[Any, Any, Any]
"""Rows, columns and pages of changed table entries, arrays or numbers."""
_NOTES = 1000
_MOST = 2**31 - 1
Place = Callable[[Sequence], None]


class Removed(NamedTuple):
    """Which sequence moved into the row that became free (None: it was the last row)."""

    moved: Sequence | None
    row: int


class Batch:
    """Sequences in rows 0..n-1, each once and in no other batch. Made by `Cache.batch`.

    A released sequence keeps its row, and no step can be made, until it is removed.
    """

    def __init__(
        self,
        rows: Rows,
        names: list[str],
        check: Callable[[object], Sequence],
        send_home: Place,
        leave_home: Place,
    ) -> None:
        self._rows = rows
        self._idle: set[Sequence] = set()
        self._names, self._check = names, check
        self._send_home, self._leave_home = send_home, leave_home
        self._sequences: list[Sequence] = []
        self._listed: tuple[Sequence, ...] | None = None
        self._lengths: NDArray[np.int32] | None = None
        self._stride: Any = None
        self._changes: list[list[Change]] = [[] for _ in names]

    def __len__(self) -> int:
        """Rows."""
        return len(self._sequences)

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} rows>"

    def row(self, sequence: Sequence) -> int:
        """The row of ``sequence`` now: its place in the arrays of the next step. O(1).

        Raises:
            UnknownSequence: it is not in this batch, or released.
        """
        if sequence not in self or sequence.released:
            raise UnknownSequence(getattr(sequence, "id", sequence), "is not in this batch")
        return sequence._row

    def __iter__(self) -> Iterator[Sequence]:
        """The rows' sequences as they are now; rows may be added and removed meanwhile."""
        return iter(self._snapshot())

    def __contains__(self, sequence: object) -> bool:
        """Whether ``sequence`` is a row of this batch. O(1)."""
        return isinstance(sequence, Sequence) and sequence._batch is self

    def add(self, sequence: Sequence) -> int:
        """Put ``sequence`` in a new last row and return its number. O(columns).

        Raises:
            DuplicateSequence: it is in a batch already.
            CapacityError: the batch is full.
            UnknownSequence, StaleSequence: it cannot be a row.
        """
        self._check(sequence)
        if sequence._batch is not None:
            raise DuplicateSequence(sequence.id, "is in a batch already; remove it there first")
        row = len(self._sequences)
        if row == self._rows.capacity:
            raise CapacityError("len(batch)", row + 1, row, "released sequences count")
        self._rows.copy(sequence._rows, sequence._row, row)
        self._leave_home(sequence)
        sequence._rows, sequence._row, sequence._batch = self._rows, row, self
        sequence._turn()
        sequence._aim()
        self._sequences.append(sequence)
        if sequence.preempted:
            self._idle.add(sequence)
        self._changed(row)
        return row

    def remove(self, sequence: Sequence) -> Removed:
        """Take ``sequence`` out; the last row moves into its place.

        Cost: O(columns), after a step O(rows x columns), as steps keep the tables they were given.

        Raises:
            UnknownSequence: it is not in this batch.
        """
        if sequence not in self:
            raise UnknownSequence(getattr(sequence, "id", sequence), "is not in this batch")
        row = self._sequences.index(sequence) if sequence.released else sequence._row
        sequence._sync()
        if not sequence.released:
            self._send_home(sequence)
        sequence._batch = None
        self._idle.discard(sequence)
        self._rows.part_from_views(len(self._sequences))
        last = self._sequences.pop()
        end = len(self._sequences)
        before, widths = self._widths(row), self._widths(end)
        moved = None if row == end else last
        if moved is not None:
            self._sequences[row] = last
            self._rows.copy(self._rows, end, row)
            if not last.released:
                last._row = row
            self._changed(row, before)
        self._rows.clear(end)
        self._changed(end, widths)
        return Removed(moved, row)

    def _note(self, group: int, rows: Any, columns: Any, pages: Any) -> None:
        """Remember changed table entries for the next step's delta. O(1)."""
        self._changes[group].append((rows, columns, pages))
        if len(self._changes[group]) > _NOTES:
            self._changes[group] = [_last_of_each(self._changes[group])]

    def _take_changes(self) -> dict[str, list[Change]]:
        """What changed since the last call, by group name. O(groups)."""
        found = {}
        for group, changes in enumerate(self._changes):
            if changes:
                found[self._names[group]] = changes
                self._changes[group] = []
        return found

    def _run_to(self, step: object) -> Any:
        """The `Stride` whose newest step is ``step``, while tables are as it found them; else None.

        A copy of a step is not the step. O(groups).
        """
        stride = self._stride
        if stride is None or not stride.steps or stride.steps[-1] is not step:
            return None
        return None if any(self._changes) else stride

    def _snapshot(self) -> tuple[Sequence, ...]:
        """The sequences now, by row. O(rows) once after a change."""
        if self._listed is None:
            self._listed = tuple(self._sequences)
        return self._listed

    def _cross_lengths(self) -> NDArray[np.int32]:
        """int32[rows], tokens of each row's cross input. O(rows) once after a change."""
        if self._lengths is None:
            lengths = [sequence._cross_length for sequence in self._sequences]
            self._lengths = np.array(lengths, np.int32)
            self._lengths.flags.writeable = False
        return self._lengths

    def _changed(self, row: int, before: list[int] | None = None) -> None:
        """Every entry of ``row`` is new to whoever mirrors the table. O(columns).

        Args:
            before: columns the row had in each group until now; None: none.
        """
        self._listed = self._lengths = self._stride = None
        for group, now in enumerate(self._widths(row)):
            width = max(now, before[group] if before else 0)
            columns = np.arange(width)
            pages = self._rows.tables[group][row, :width].copy()
            if width:
                self._note(group, np.full(width, row), columns, pages)

    def _widths(self, row: int) -> list[int]:
        """Columns of ``row`` up to its last page, by group. O(columns)."""
        held = [table[row].nonzero()[0] for table in self._rows.tables]
        return [int(columns[-1]) + 1 if columns.size else 0 for columns in held]


Steppable = Batch | Sequence | Iterable[Sequence]
"""What may be asked to step: a batch, sequences, or one of them."""


def _last_of_each(changes: list[Change]) -> Change:
    """The same changes in one, each place once: a batch may not step for long."""
    rows, columns, pages = (
        np.concatenate([np.atleast_1d(part) for part in column])
        for column in zip(*changes, strict=True)
    )
    places = {
        place: at for at, place in enumerate(zip(rows.tolist(), columns.tolist(), strict=True))
    }
    last = np.array(list(places.values()))
    return rows[last], columns[last], pages[last]


def as_array(counts: Counts, rows: int) -> NDArray[np.int64] | int | None:
    """``counts`` to reckon with, one number or int64[rows]; None: they are neither. O(rows).

    A number is at least 1; of an array no entry is below 0 and one is above.
    """
    if isinstance(counts, list) and len(counts) == rows and set(map(type, counts)) == {int}:
        counts = np.array(counts)
    if isinstance(counts, np.ndarray):
        if counts.shape != (rows,) or counts.dtype.kind not in "iu":
            return None
        low, high = int(np.minimum.reduce(counts)), int(np.maximum.reduce(counts))
        if low == high == 1:
            return 1
        return counts.astype(np.int64) if low >= 0 and 0 < high <= _MOST else None
    return counts if type(counts) is int and 0 < counts <= _MOST else None


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
