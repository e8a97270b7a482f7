"""The rows of sequences that are in no batch, and the ways into a batch and back."""

from typing import Any

from octavo.identity import Identity
from octavo.ledger import Ledger
from octavo.rows import Rows
from octavo.sequences import Ints, Sequence


class Home:
    """Rows for up to ``capacity`` sequences.

    A sequence has its row here until a batch takes it in; a cache admits no more sequences than
    there are rows, so there is always one to come back to.

    Attributes:
        rows: where they stand.
    """

    def __init__(self, ledger: Ledger, capacity: int) -> None:
        self._ledger, self._capacity = ledger, capacity
        self.rows = self.new_rows()
        self._free = list(range(capacity))[::-1]

    def new_rows(self) -> Rows:
        """Rows for a batch. O(capacity)."""
        ledger = self._ledger
        return Rows(ledger.groups, ledger.page_size, self._capacity, ledger.widths())

    def make(self, cache: Any, ids: Ints, limit: int, id: object, identity: Identity) -> Sequence:
        """A sequence that knows ``ids`` and holds nothing. O(len(ids))."""
        row = self._free.pop()
        sequence = Sequence(cache, id, self.rows, row, ids, identity)
        self.rows.known[row], self.rows.limit[row] = ids.size, limit
        self.rows.apart[row] = bool(identity.media)
        return sequence

    def receive(self, sequence: Sequence) -> None:
        """From a batch's rows back to a row here. O(columns)."""
        row = self._free.pop()
        self.rows.copy(sequence._rows, sequence._row, row)
        sequence._rows, sequence._row = self.rows, row

    def send(self, sequence: Sequence) -> None:
        """Its numbers have been copied into a batch's rows. O(columns)."""
        self.free(sequence._row)

    def free(self, row: int) -> None:
        """``row`` belongs to nobody any more. O(columns)."""
        self.rows.clear(row)
        self._free.append(row)

    def clear(self, sequence: Sequence) -> None:
        """Forget what its row held; a batch cannot step until it is resumed or removed."""
        batch, rows, row = sequence._batch, sequence._rows, sequence._row
        widths = [] if batch is None else batch._widths(row)
        if batch is not None:
            rows.part_from_views(len(batch))
        rows.clear(row)
        if batch is not None:
            batch._idle.add(sequence)
            batch._changed(row, widths)

    def leave(self, sequence: Sequence) -> None:
        """It is released: its numbers stay readable, its row does not. O(columns)."""
        sequence._numbers = (
            sequence.length,
            sequence.scheduled,
            sequence.computed,
            sequence.limit,
        )
        self.clear(sequence)
        if sequence._batch is None:
            self._free.append(sequence._row)
