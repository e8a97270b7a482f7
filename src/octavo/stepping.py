"""Making a step: slots for new positions of many rows at once, and the arrays of the forward pass.

Row by row, for any step; `octavo.decoding` has the fast way for batches that decode. The ledger
hands out pages; publication is not known here.
"""

from collections.abc import Sequence as Items
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.errors import CapacityError, LengthError, RollbackUnsupported, StepError
from octavo.ledger import Ledger
from octavo.promises import Promises, open_page_shared, total_needs
from octavo.rows import Rows
from octavo.sequences import Ints, Sequence
from octavo.table import Copies, CrossView, GroupView, StateView, Step, View, slot_mapping

_NO_PAGES = np.empty(0, np.int32)
Pairs = dict[int, tuple[list[int], list[int]]]
Given = list[tuple[int, int]]
Kept = tuple[Sequence, int, tuple[int, ...], int]
"""A state to be kept: whose, its group, the pages it is copied to, the length it is of."""


class Stepper:
    """Makes the steps of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        most_snapshots: snapshots a state group may keep; None: as many as fit.
    """

    def __init__(
        self, ledger: Ledger, promises: Promises, most_snapshots: list[int | None]
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._most_snapshots = most_snapshots
        self.pending: Pairs = {}
        groups = len(ledger.groups)
        self._is_plain = groups == 1 and bool(ledger.token_groups) and not ledger.sliding

    def extend(
        self,
        sequences: tuple[Sequence, ...],
        counts: list[int],
        ahead: int,
        batch: Batch | None,
        waiting: dict[Sequence, int],
    ) -> Step:
        """The step in which each sequence runs its next positions; all or nothing.

        Args:
            waiting: tokens each sequence will learn from steps that are still open.
        """
        step = self._plain(sequences, counts, batch) if self._is_plain else None
        return step or self._any(sequences, counts, ahead, batch, waiting)

    def _plain(
        self, sequences: tuple[Sequence, ...], counts: list[int], batch: Batch | None
    ) -> Step | None:
        """A step of one full group over known tokens that takes new pages only; None: it is not."""
        ledger, size = self._ledger, self._ledger.page_size
        starts, ends, firsts, needs = [], [], [], []
        for sequence, count in zip(sequences, counts, strict=True):
            rows, row = sequence._rows, sequence._row
            start = int(rows.scheduled[row])
            if rows.special[row] or start + count > rows.known[row]:
                return None
            starts.append(start)
            ends.append(start + count)
            firsts.append(-(-start // size))
            needs.append(-(-(start + count) // size) - firsts[-1])
        total = sum(needs)
        if self._promises.sequences or total > ledger.pool.free + ledger.pool.evictable:
            return None
        pages = ledger.take(0, total)
        rest = pages
        for sequence, first, need in zip(sequences, firsts, needs, strict=True):
            if need:
                self._put(sequence, 0, first, rest[:need])
                rest = rest[need:]
        step = self._make(sequences, starts, ends, [])
        if total:
            step.fresh = {ledger.names[0]: pages}
        self._schedule(step, sequences, ends, batch)
        return step

    def _any(
        self,
        sequences: tuple[Sequence, ...],
        counts: list[int],
        ahead: int,
        batch: Batch | None,
        waiting: dict[Sequence, int],
    ) -> Step:
        """A step of any groups; takes, copies and fetches what its rows need."""
        ledger = self._ledger
        starts = [s.scheduled for s in sequences]
        ends = [
            self.end(s, start, count, ahead, waiting.get(s, 0))
            for s, start, count in zip(sequences, starts, counts, strict=True)
        ]
        if ends == starts:
            first = sequences[0]
            raise CapacityError("length", starts[0] + max(counts), first.limit, "its limit")
        moving = {s: e for s, b, e in zip(sequences, starts, ends, strict=True) if e > b}
        needs = total_needs(ledger, moving.items())
        owed = self._promises.owed(moving)
        ledger.require(needs, owed)
        taken = ledger.take_all(needs, owed)
        copies, given = self._place(moving, taken)
        fresh_cross = self._place_cross(moving, taken)
        states, snapshots = self._place_snapshots(moving)
        for group, page in given:  # not before: what is copied from is not to be taken
            ledger.pool.release([page], group)
        step = self._make(sequences, starts, ends, fresh_cross)
        if copies or self.pending:
            step.copies = self._copies(self._with_pending(copies))
        if snapshots:
            step.snapshots = self._copies(snapshots)
        step.fresh = {ledger.names[g]: pages for g, pages in self._fresh(taken, snapshots).items()}
        step._kept_states = states
        self._schedule(step, sequences, ends, batch)
        return step

    @staticmethod
    def _schedule(
        step: Step, sequences: tuple[Sequence, ...], ends: list[int], batch: Batch | None
    ) -> None:
        """The step is made: its positions have slots from here on."""
        step._changes = batch.take_changes() if batch is not None else None
        for sequence, end in zip(sequences, ends, strict=True):
            sequence._rows.scheduled[sequence._row] = end
            sequence._leave_run()

    def end(self, sequence: Sequence, start: int, count: int, ahead: int, waiting: int) -> int:
        """Where ``sequence`` comes to; clipped at its limit where it runs ahead, else refused."""
        end, limit, known = start + count, sequence.limit, sequence.length
        lost = self._ledger.state_groups and start < sequence._rows.floor[sequence._row]
        if count and lost:
            raise StepError(f"the state of {sequence.id!r} went with an aborted step: commit first")
        if end > limit and count:
            if not ahead:
                raise CapacityError("length", end, limit, f"limit of {sequence.id!r}")
            end = limit
        if end > known + ahead and count:
            why = f"sequence {sequence.id!r} knows {known} tokens"
            raise LengthError("count", count, 0, max(0, known + ahead - start), why)
        drafts = end - known - waiting
        if drafts > self._ledger.rollback and self._ledger.state_groups and count:
            name = self._ledger.names[self._ledger.state_groups[0]]
            raise RollbackUnsupported(name, end - self._ledger.rollback)
        return end

    def _place(self, moving: dict[Sequence, int], taken: dict[int, Ints]) -> tuple[Pairs, Given]:
        """Put the pages taken into the tables.

        Returns:
            The copies that must run first, and the pages given up for them.
        """
        copies: Pairs = {}
        given: list[tuple[int, int]] = []
        for group in self._ledger.token_groups:
            pages = taken.get(group, _NO_PAGES)
            for sequence, end in moving.items():
                pages = self._place_tokens(sequence, end, group, pages, copies, given)
        for group in self._ledger.state_groups:
            pages = taken.get(group, _NO_PAGES)
            for sequence in moving:
                pages = self._place_state(sequence, group, pages, copies, given)
        for sequence, end in moving.items():
            sequence._rows.special[sequence._row] = False
            if self._ledger.state_groups:
                self.reach(sequence._rows, sequence._row, end)
        return copies, given

    def _place_tokens(
        self,
        sequence: Sequence,
        end: int,
        group: int,
        pages: Ints,
        copies: Pairs,
        given: list[tuple[int, int]],
    ) -> Ints:
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        start = int(rows.scheduled[row])
        if rows.special[row]:
            shared = open_page_shared(ledger, sequence, group)
            refs, published = ledger.pool.state(group)
            if shared and (refs[shared] - given.count((group, shared)) > 1 or published[shared]):
                source, target = copies.setdefault(group, ([], []))
                source.append(shared)
                target.append(int(pages[0]))
                given.append((group, shared))
                self._put(sequence, group, start // ledger.page_size, pages[:1])
                pages = pages[1:]
        first = ledger.columns(start)
        count = ledger.columns(end) - first
        if count:
            self._put(sequence, group, first, pages[:count])
        return pages[count:]

    @staticmethod
    def _put(sequence: Sequence, group: int, column: int, pages: Ints) -> None:
        row = sequence._row
        sequence._rows.put(row, group, column, pages)
        if sequence._batch is not None:
            columns = np.arange(column, column + pages.size)
            sequence._batch.note(group, np.full(pages.size, row), columns, pages)

    def _place_state(
        self,
        sequence: Sequence,
        group: int,
        pages: Ints,
        copies: Pairs,
        given: list[tuple[int, int]],
    ) -> Ints:
        """Units for the state, and the copy of a fetched one into the right unit."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        count, parts = ledger.units[group], ledger.groups[group].parts
        if not rows.tables[group][row, 0]:
            self._put(sequence, group, 0, pages[:count])
            pages = pages[count:]
        for fetched, states in sequence._fetch:
            if fetched == group:
                unit = self._unit(int(rows.scheduled[row])) * parts
                source, target = copies.setdefault(group, ([], []))
                source.extend(states.tolist())
                target.extend(rows.tables[group][row, unit : unit + parts].tolist())
                given.extend((group, page) for page in states.tolist())
        sequence._fetch = [item for item in sequence._fetch if item[0] != group]
        return pages

    def _unit(self, length: int) -> int:
        """Which unit of the ring holds the state after ``length`` positions."""
        return (length - 1) % (self._ledger.rollback + 1)

    def reach(self, rows: Rows, row: int | slice, end: Any) -> None:
        """States of lengths below ``end - rollback`` are overwritten by this step."""
        rows.floor[row] = np.maximum(rows.floor[row], end - self._ledger.rollback)

    def _place_cross(self, moving: dict[Sequence, int], taken: dict[int, Ints]) -> list[Sequence]:
        """Pages for cross inputs nobody has placed; returns whose step must write them."""
        fresh = []
        for group in self._ledger.cross_groups:
            pages = taken.get(group, _NO_PAGES)
            for sequence in moving:
                if sequence._cross is None or sequence._rows.tables[group][sequence._row, 0]:
                    continue
                count = self._ledger.columns(sequence._cross.length)
                self._put(sequence, group, 0, pages[:count])
                pages = pages[count:]
                fresh.append(sequence)
        return fresh

    def _place_snapshots(self, moving: dict[Sequence, int]) -> tuple[list[Kept], Pairs]:
        """Pages for states to keep after this step, where there is room without need."""
        ledger = self._ledger
        wanted = [s for s, end in moving.items() if end in s._stops]
        states: list[Kept] = []
        copies: Pairs = {}
        for sequence in wanted if ledger.state_groups else ():
            counts = [0] * len(ledger.groups)
            for group in ledger.state_groups:
                counts[group] = ledger.groups[group].parts
            owed, most = self._promises.owed(moving), self._most_snapshots
            if any(ledger.short(counts, owed)):
                continue
            if not all(ledger.has_room_for_state(g, most[g]) for g in ledger.state_groups):
                continue
            taken = ledger.take_all(counts, owed)
            states += self._place_snapshot(sequence, moving[sequence], taken, copies)
        return states, copies

    def _place_snapshot(
        self, sequence: Sequence, end: int, taken: dict[int, Ints], copies: Pairs
    ) -> list[Kept]:
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        states: list[Kept] = []
        for group in ledger.state_groups:
            parts = ledger.groups[group].parts
            pages = taken[group]
            unit = self._unit(end) * parts
            source, target = copies.setdefault(group, ([], []))
            source.extend(rows.tables[group][row, unit : unit + parts].tolist())
            target.extend(pages.tolist())
            states.append((sequence, group, tuple(pages.tolist()), end))
            ledger.in_flight[group] += 1
        return states

    def _make(
        self,
        sequences: tuple[Sequence, ...],
        starts: list[int],
        ends: list[int],
        fresh_cross: list[Sequence],
    ) -> Step:
        """The step's arrays, once every page is in its table."""
        spans = list(zip(sequences, starts, ends, strict=True))
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        query_start = [0, *accumulate(counts)]
        last = [at - 1 if n else -1 for at, n in zip(query_start[1:], counts, strict=True)]
        wants = [b > a and b >= s.length for s, a, b in spans]
        names = self._ledger.names
        numbers = np.array((counts, starts, ends, last), np.int32)
        return Step(
            sequences=sequences,
            counts=numbers[0],
            input_ids=_joined([_known_ids(s, a, b) for s, a, b in spans]),
            positions=_joined([np.arange(a, b, dtype=np.int32) for _, a, b in spans]),
            query_start=np.array(query_start, np.int32),
            past=numbers[1],
            context=numbers[2],
            last=numbers[3],
            wants_token=np.array(wants, np.bool_),
            groups={name: self._view(g, spans, fresh_cross) for g, name in enumerate(names)},
        )

    def _view(
        self, group: int, spans: list[tuple[Sequence, int, int]], fresh_cross: list[Sequence]
    ) -> View:
        ledger = self._ledger
        columns = max(ledger.columns(end) for _, _, end in spans)
        tables = [s._rows.tables[group][s._row] for s, _, _ in spans]
        if group in ledger.state_groups:
            past = np.array([start for _, start, _ in spans])
            counts = np.array([end - start for _, start, end in spans])
            return self.state_view(group, np.stack(tables), past, counts)
        if group in ledger.cross_groups:
            sequences = [s for s, _, _ in spans]
            return self.cross_view(self._padded(tables), sequences, fresh_cross)
        size = ledger.page_size
        slots = [slot_mapping(t, size, a, b) for t, (_, a, b) in zip(tables, spans, strict=True)]
        table = self._padded([t[:columns] for t in tables], columns)
        return GroupView(_joined(slots), table, np.zeros(len(spans), np.int32))

    @staticmethod
    def _padded(tables: list[Ints], width: int | None = None) -> Ints:
        if len(tables) == 1:
            return tables[0][None].copy()
        width = max(map(len, tables)) if width is None else width
        table = np.zeros((len(tables), width), np.int32)
        for row, pages in enumerate(tables):
            table[row, : pages.size] = pages
        return table

    def state_view(
        self, group: int, table: Ints, past: NDArray[np.int64], counts: Any
    ) -> StateView:
        """Units by position: the state after length L stands in unit (L - 1) % (rollback + 1)."""
        parts, units = self._ledger.groups[group].parts, self._ledger.rollback + 1
        ring = table[:, : units * parts].reshape(len(table), units, parts)
        at = np.arange(len(table))[:, None]
        back = np.arange(units)
        targets = ((past + counts - 1)[:, None] - back) % units
        return StateView(ring[at[:, 0], (past - 1) % units], ring[at, targets], past > 0)

    def cross_view(
        self, table: Ints, sequences: Items[Sequence], fresh: Items[Sequence] = ()
    ) -> CrossView:
        """Tables and lengths of each row's cross input, and which of them this step writes."""
        lengths = [s._cross.length if s._cross is not None else 0 for s in sequences]
        width = max((self._ledger.columns(n) for n in lengths), default=0)
        flags = np.array([s in fresh for s in sequences], np.bool_)
        return CrossView(table[:, :width], np.array(lengths, np.int32), flags)

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

    @staticmethod
    def _fresh(taken: dict[int, Ints], snapshots: Pairs) -> dict[int, Ints]:
        fresh = {group: pages for group, pages in taken.items() if pages.size}
        for group, (_, target) in snapshots.items():
            fresh[group] = np.concatenate([fresh.get(group, _NO_PAGES), np.array(target, np.int32)])
        return fresh


def _known_ids(sequence: Sequence, start: int, stop: int) -> Ints:
    """Known ids of positions ``start..stop-1``, 0 beyond them."""
    known = sequence._known()[start:stop]
    if known.size == stop - start:
        return known.copy()
    ids = np.zeros(stop - start, np.int32)
    ids[: known.size] = known
    return ids


def _joined(parts: list[Ints]) -> Ints:
    """One array of all ``parts``, which are fresh."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
