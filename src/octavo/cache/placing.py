"""Putting pages into the tables of single rows, and the copies that go with it.

Row by row: pages of tokens, the copy of an open page before it is written, states and cross inputs,
states to be kept, and copies that forks left behind. Knows nothing of a step's arrays.
"""

from typing import NamedTuple

import numpy as np

from octavo.cache.ledger import Ledger
from octavo.cache.promises import Promises, copied_pages
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.step import Copies, Step

NO_PAGES = np.empty(0, np.int32)
Pairs = dict[int, tuple[list[int], list[int]]]
"""By group, pages to copy: from and to."""
Ends = dict[Sequence, int]
"""Where each sequence comes to."""
Kept = tuple[Sequence, int, tuple[int, ...], int]
"""A state to be kept: whose, its group, the pages it is copied to, the length it is of."""


class Placed(NamedTuple):
    """What a step says of what was placed row by row.

    Attributes:
        copies, snapshots: pages to copy before and after the forward pass.
        states: the states that the snapshots are.
        crosses: sequences whose cross input the step must write.
    """

    copies: Pairs
    snapshots: Pairs
    states: list[Kept]
    crosses: list[Sequence]


NOTHING = Placed({}, {}, [], [])


class Placer:
    """Places pages for one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        most_snapshots: snapshots a state group may keep; None: as many as fit.

    Attributes:
        pending: copies that run with the next step.
    """

    def __init__(
        self, ledger: Ledger, promises: Promises, most_snapshots: list[int | None]
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._most_snapshots = most_snapshots
        self.pending: Pairs = {}

    def place(self, rows: Ends, taken: dict[int, Ints], stopping: Ends, moving: Ends) -> Placed:
        """Put pages ``taken`` for ``rows`` into their tables, in order.

        Args:
            stopping: those a state may have to be kept of.
            moving: all rows that move, as far as something is promised to them.
        """
        copies: Pairs = {}
        for group in self._ledger.token_groups:
            self._place_tokens(rows, group, taken.get(group, NO_PAGES), copies)
        given = {group: list(source) for group, (source, _) in copies.items()}
        for group in self._ledger.state_groups:
            self._place_states(rows, group, taken.get(group, NO_PAGES), copies, given)
        for sequence in rows:
            sequence._rows.special[sequence._row] = False
        crosses = self._place_crosses(rows, taken)
        states, snapshots = self._place_snapshots(stopping, moving)
        for group, pages in given.items():  # not before: what is copied from is not to be taken
            self._ledger.pool.release(pages, group)
        return Placed(copies, snapshots, states, crosses)

    def enter(self, step: Step, placed: Placed, taken: dict[int, Ints]) -> None:
        """Let ``step`` say what was taken, and which copies go with it. O(copies)."""
        names = self._ledger.names
        if placed.copies or self.pending:
            step.copies = self._copies(self._with_pending(placed.copies))
        if placed.snapshots:
            step.snapshots = self._copies(placed.snapshots)
        step._kept_states = placed.states
        step.fresh = {names[group]: pages for group, pages in taken.items() if pages.size}
        for group, (_, target) in placed.snapshots.items():
            before = step.fresh.get(names[group], NO_PAGES)
            step.fresh[names[group]] = np.concatenate([before, np.array(target, np.int32)])

    def _place_tokens(self, rows: Ends, group: int, pages: Ints, copies: Pairs) -> None:
        ledger = self._ledger
        sources = copied_pages(ledger, rows, group)
        for (sequence, end), copied in zip(rows.items(), sources, strict=True):
            start = int(sequence._rows.scheduled[sequence._row])
            if copied:
                source, target = copies.setdefault(group, ([], []))
                source.append(copied)
                target.append(int(pages[0]))
                self.put(sequence, group, start // ledger.page_size, pages[:1])
                pages = pages[1:]
            first = ledger.columns(start)
            count = ledger.columns(end) - first
            if count:
                self.put(sequence, group, first, pages[:count])
                pages = pages[count:]

    @staticmethod
    def put(sequence: Sequence, group: int, column: int, pages: Ints) -> None:
        """Let ``pages`` be the columns from ``column`` on. O(len(pages))."""
        rows, row, batch = sequence._rows, sequence._row, sequence._batch
        if batch is not None:
            if column < rows.tables[group].shape[1] and rows.tables[group][row, column]:
                rows.part_from_views(len(batch))
            columns = np.arange(column, column + pages.size)
            batch._note(group, np.full(pages.size, row), columns, pages)
        rows.put(row, group, column, pages)

    def _place_states(
        self, rows: Ends, group: int, pages: Ints, copies: Pairs, given: dict[int, list[int]]
    ) -> None:
        """Units for states, and the copies of fetched ones into the right units."""
        count = self._ledger.units[group]
        for sequence in rows:
            if not sequence._rows.tables[group][sequence._row, 0]:
                self.put(sequence, group, 0, pages[:count])
                pages = pages[count:]
            if sequence._fetch:
                self._place_fetched(sequence, group, copies, given)

    def _place_fetched(
        self, sequence: Sequence, group: int, copies: Pairs, given: dict[int, list[int]]
    ) -> None:
        for fetched, states in sequence._fetch:
            if fetched == group:
                source, target = copies.setdefault(group, ([], []))
                source.extend(states.tolist())
                target.extend(self._unit(sequence, group, sequence.scheduled))
                given.setdefault(group, []).extend(states.tolist())
        sequence._fetch = [item for item in sequence._fetch if item[0] != group]

    def _unit(self, sequence: Sequence, group: int, length: int) -> list[int]:
        """Pages of the unit of the ring that holds the state after ``length`` positions."""
        parts = self._ledger.groups[group].parts
        at = (length - 1) % (self._ledger.rollback + 1) * parts
        pages: list[int] = sequence._rows.tables[group][sequence._row, at : at + parts].tolist()
        return pages

    def _place_crosses(self, rows: Ends, taken: dict[int, Ints]) -> list[Sequence]:
        """Pages for cross inputs nobody has placed; returns whose step must write them."""
        fresh = []
        for group in self._ledger.cross_groups:
            pages = taken.get(group, NO_PAGES)
            for sequence in rows:
                if sequence._cross is None or sequence._rows.tables[group][sequence._row, 0]:
                    continue
                count = self._ledger.columns(sequence._cross.length)
                self.put(sequence, group, 0, pages[:count])
                pages = pages[count:]
                fresh.append(sequence)
        return fresh

    def _place_snapshots(self, stopping: Ends, moving: Ends) -> tuple[list[Kept], Pairs]:
        """Pages for states to keep after this step, where there is room without need."""
        ledger = self._ledger
        states: list[Kept] = []
        copies: Pairs = {}
        for sequence, end in stopping.items() if ledger.state_groups else ():
            if end not in sequence._stops:
                continue
            counts = [0] * len(ledger.groups)
            for group in ledger.state_groups:
                counts[group] = ledger.groups[group].parts
            owed, most = self._promises.owed(moving), self._most_snapshots
            if any(ledger.short(counts, owed)):
                continue
            if not all(ledger.has_room_for_state(g, most[g]) for g in ledger.state_groups):
                continue
            taken = ledger.take_all(counts, owed)
            states += self._place_snapshot(sequence, end, taken, copies)
        return states, copies

    def _place_snapshot(
        self, sequence: Sequence, end: int, taken: dict[int, Ints], copies: Pairs
    ) -> list[Kept]:
        states: list[Kept] = []
        for group in self._ledger.state_groups:
            pages = taken[group].tolist()
            source, target = copies.setdefault(group, ([], []))
            source.extend(self._unit(sequence, group, end))
            target.extend(pages)
            states.append((sequence, group, tuple(pages), end))
            self._ledger.in_flight[group] += 1
        return states

    # -- copies --------------------------------------------------------------------------------

    def copy_later(self, group: int, sources: Ints, targets: Ints) -> None:
        """Copy pages with the next step, whoever it is for; the sources are held until then.

        A source that waits to be filled itself stands for what it will be filled from.
        """
        source, target = self.pending.setdefault(group, ([], []))
        origin = dict(zip(target, source, strict=True))
        pages = [origin.get(page, page) for page in sources.tolist()]
        self._ledger.pool.retain(pages, group)
        source.extend(pages)
        target.extend(targets.tolist())

    def forget_copies(self, group: int, targets: Ints) -> None:
        """Whoever was to get copies into ``targets`` is gone. O(pending copies)."""
        if group not in self.pending:
            return
        gone = set(targets.tolist())
        source, target = self.pending.pop(group)
        for page, to in zip(source, target, strict=True):
            if to in gone:
                self._ledger.pool.release([page], group)
            else:
                kept = self.pending.setdefault(group, ([], []))
                kept[0].append(page)
                kept[1].append(to)

    def _with_pending(self, copies: Pairs) -> Pairs:
        """Copies that forks left behind run first."""
        copies = dict(copies)
        for group, (source, target) in self.pending.items():
            self._ledger.pool.release(source, group)
            later_source, later_target = copies.get(group, ([], []))
            copies[group] = (source + later_source, target + later_target)
        self.pending = {}
        return copies

    def _copies(self, pairs: Pairs) -> dict[str, Copies]:
        """Each target once: a later copy into a page takes the place of an earlier one."""
        found = {}
        for group, (source, target) in pairs.items():
            last = dict(zip(target, source, strict=True))
            sources, targets = np.array([*last.values()], np.int32), np.array([*last], np.int32)
            found[self._ledger.names[group]] = Copies(sources, targets)
        return found
