"""The admitted sequences: their names, the rows of those in no batch, and how they end.

A sequence stands here until a batch takes it in, and comes back when it leaves it. Handles that
were collected without a release are told by themselves and taken back at the next verb.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any
from weakref import ReferenceType, ref

from octavo.cache.forking import share
from octavo.cache.identity import Identity
from octavo.cache.ledger import Ledger
from octavo.cache.placing import Placer
from octavo.cache.promises import Promises
from octavo.cache.rows import Rows
from octavo.cache.sequence import Ints, Orphan, Sequence


class Home:
    """Up to ``capacity`` sequences, by name.

    A cache admits no more sequences than there are rows, so there is always one to come back to.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        placer: knows what waits to be copied to whom.
        capacity: rows.

    Attributes:
        rows: where sequences in no batch stand.
        orphans: what collected handles left behind, for `reap`.
    """

    def __init__(self, ledger: Ledger, promises: Promises, placer: Placer, capacity: int) -> None:
        self._ledger, self._promises, self._placer = ledger, promises, placer
        self._capacity = capacity
        self.rows = self.new_rows()
        self.orphans: list[Orphan] = []
        self._free = list(range(capacity))[::-1]
        self._named: dict[object, ReferenceType[Sequence]] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._named) - len(self.orphans)

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences, oldest first."""
        for handle in list(self._named.values()):
            sequence = handle()
            if sequence is not None:
                yield sequence

    def __contains__(self, id: object) -> bool:
        return id in self._named

    def new_rows(self) -> Rows:
        """Rows for a batch. O(capacity)."""
        ledger = self._ledger
        return Rows(ledger.groups, ledger.page_size, self._capacity, ledger.widths())

    def make(self, cache: Any, ids: Ints, limit: int, id: object, identity: Identity) -> Sequence:
        """A sequence that knows ``ids`` and holds nothing; ``id`` None: a new name. O(len(ids))."""
        name = self._new_name() if id is None else id
        row = self._free.pop()
        sequence = Sequence(cache, name, self.rows, row, ids, identity)
        self.rows.known[row], self.rows.limit[row] = ids.size, limit
        self.rows.apart[row] = bool(identity.media)
        self._named[name] = ref(sequence)
        return sequence

    def fork(self, cache: Any, parent: Sequence) -> Sequence:
        """A sequence that knows and shares what ``parent`` does. O(columns)."""
        child = self.make(cache, parent.tokens(), parent.limit, None, parent._identity)
        share(self._ledger, self._placer, self._promises, parent, child)
        return child

    def receive(self, sequence: Sequence) -> None:
        """From a batch's rows back to a row here. O(columns)."""
        row = self._free.pop()
        self.rows.copy(sequence._rows, sequence._row, row)
        sequence._rows, sequence._row = self.rows, row

    def send(self, sequence: Sequence) -> None:
        """Its numbers have been copied into a batch's rows. O(columns)."""
        self._give_back(sequence._row)

    def empty(self, sequence: Sequence) -> None:
        """Take everything its row holds; a batch cannot step until it is resumed or removed."""
        self._let_go(sequence._rows, sequence._row, sequence._fetch)
        sequence._fetch, sequence._stops = [], set()
        self._clear(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It is released: its numbers stay readable, its row does not. O(pages)."""
        if not sequence.preempted:
            self._let_go(sequence._rows, sequence._row, sequence._fetch)
        if sequence._promised:
            self._promises.sequences.pop(sequence.id, None)
        del self._named[sequence.id]
        sequence._numbers = (
            sequence.length,
            sequence.scheduled,
            sequence.computed,
            sequence.limit,
        )
        if sequence._batch is None:
            self._give_back(sequence._row)
        else:
            self._clear(sequence)

    def reap(self) -> None:
        """Take back what handles held that were collected without a release."""
        while self.orphans:
            orphan = self.orphans.pop()
            self._named.pop(orphan.id, None)
            if not orphan.preempted:
                self._let_go(orphan.rows, orphan.row, orphan.fetches)
            if orphan.at_home:
                self._give_back(orphan.row)

    def _new_name(self) -> int:
        name = next(self._numbers)
        while name in self._named:
            name = next(self._numbers)
        return name

    def _let_go(self, rows: Rows, row: int, fetches: list[tuple[int, Ints]]) -> None:
        """Give back everything a row holds and stands on."""
        for group, pages in fetches:
            self._ledger.pool.release(pages, group)
        for group in self._ledger.state_groups if self._placer.pending else ():
            self._placer.forget_copies(group, rows.held(row, group))
        self._ledger.release_row(rows, row)
        self._ledger.index.unhold(rows.tip[row])

    def _clear(self, sequence: Sequence) -> None:
        batch, rows, row = sequence._batch, sequence._rows, sequence._row
        widths = [] if batch is None else batch._widths(row)
        if batch is not None:
            rows.part_from_views(len(batch))
        rows.clear(row)
        if batch is not None:
            batch._idle.add(sequence)
            batch._changed(row, widths)

    def _give_back(self, row: int) -> None:
        """``row`` belongs to nobody any more. O(columns)."""
        self.rows.clear(row)
        self._free.append(row)
