"""A batch: the ordered rows of the next steps.

Knows which sequence stands in which place; what their rows hold is the core's.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from octavo.cache.sequence import NO_HANDLE, Sequence
from octavo.cache.verbs import verb
from octavo.core.rows import Rows
from octavo.errors import CapacityError, UnknownSequence, uncopied


class RemovedRow(NamedTuple):
    """Which sequence moved into the row that became free (None: it was the last row)."""

    moved: Sequence | None
    row: int


class Batch:
    """Sequences in rows 0..n-1, each once and in no other batch. Made by `Cache.batch`.

    A released sequence keeps its row, and no step can be made, until it is removed. Sequences of a
    batch that was collected are in no batch.
    """

    __reduce__ = uncopied(
        "it is its cache's; Cache.batch makes one of any sequences that are in none"
    )

    def __init__(self, cache: Any) -> None:
        self._cache, self._core = cache, cache._core
        self._rows = Rows(16)
        self._places: dict[Sequence, int] = {}
        self._sequences: list[Sequence] = []
        self._listed: tuple[Sequence, ...] | None = None

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
            raise _not_here(sequence)
        return self._places[sequence]

    def __iter__(self) -> Iterator[Sequence]:
        """The rows' sequences as they are now; rows may be added and removed meanwhile."""
        return iter(self._snapshot())

    def __contains__(self, sequence: object) -> bool:
        """Whether ``sequence`` is a row of this batch. O(1)."""
        return isinstance(sequence, Sequence) and sequence in self._places

    @verb
    def add(self, sequence: Sequence) -> int:
        """Put ``sequence`` in a new last row and return its number. Amortised O(1).

        Raises:
            DuplicateSequence: it is in a batch already.
            CapacityError: the batch is full.
            UnknownSequence, StaleSequence: it cannot be a row.
        """
        self.check_whole(self._cache)
        self._cache._reap()
        self._cache._check_unbatched(self._cache._check(sequence))
        return self._add(sequence)

    def _add(self, sequence: Sequence) -> int:
        """`add` of a sequence that may be a row."""
        row = len(self._sequences)
        if row == self._cache.max_sequences:
            raise CapacityError("len(batch)", row + 1, row, "released sequences count")
        self._core.join(self._rows, sequence.row)  # until the last line it is not whole
        self._places[sequence] = row
        self._listed = None
        self._sequences.append(sequence)
        return row

    @verb
    def remove(self, sequence: Sequence) -> RemovedRow:
        """Take ``sequence`` out; the last row moves into its place. O(1).

        Raises:
            UnknownSequence: it is not in this batch.
        """
        if sequence not in self:
            raise _not_here(sequence)
        self.check_whole(self._cache)
        row, last = self._places[sequence], self._sequences[-1]
        self._core.part(self._rows, row)  # until the last line it is not whole
        self._listed = None
        self._sequences[row] = last
        self._places[last] = row
        del self._places[sequence]
        self._sequences.pop()
        return RemovedRow(None if last is sequence else last, row)

    def check_whole(self, cache: Any) -> None:
        """Refuse a batch that is not the cache's, or that an interrupt left half changed. O(1).

        Raises:
            UnknownSequence: it is.
        """
        if self._cache is not cache:
            raise UnknownSequence(self, "it is a batch of another cache", "rows")
        if self._core is not cache._core:
            raise UnknownSequence(self, "it was made before the cache was reset", "rows")
        if len(self._sequences) != self._rows.count:
            raise UnknownSequence(self, "an interrupt left it half changed", "rows")

    def __del__(self) -> None:
        if hasattr(self, "_rows") and self._core is self._cache._core:
            self._cache._disbanded.append(self._rows)

    def _snapshot(self) -> tuple[Sequence, ...]:
        """The sequences now, by row. O(rows) once after a change."""
        if self._listed is None:
            self._listed = tuple(self._sequences)
        return self._listed


def _not_here(sequence: object) -> UnknownSequence:
    if isinstance(sequence, Sequence):
        return UnknownSequence(sequence.id, "is not in this batch")
    return UnknownSequence(sequence, NO_HANDLE)


Steppable = Batch | Sequence | Iterable[Sequence]
"""What can step: a batch, sequences, or one of them."""
