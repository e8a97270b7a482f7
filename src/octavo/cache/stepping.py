"""Making a step of single sequences, row by row: slots for new positions, and the arrays.

For one sequence and for lists; `octavo.cache.marching` has the way for batches. Which row may come
how far is decided here for both. The ledger hands out pages; publication is not known here.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from itertools import accumulate

import numpy as np

from octavo.cache.batch import Batch
from octavo.cache.ledger import Ledger
from octavo.cache.placing import Placer
from octavo.cache.promises import Promises, total_needs
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.step import GroupView, Step, View, cross_view, slot_mapping, state_view
from octavo.errors import CapacityError, LengthError, RollbackUnsupported, StepError

Waiting = Callable[[], dict[Sequence, int]]
"""Tokens each sequence will learn from steps that are still open."""


class Stepper:
    """Makes steps of single sequences for one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        placer: puts pages into tables.
    """

    def __init__(self, ledger: Ledger, promises: Promises, placer: Placer) -> None:
        self._ledger, self._promises, self._placer = ledger, promises, placer
        groups = len(ledger.groups)
        self._is_plain = groups == 1 and bool(ledger.token_groups) and not ledger.sliding
        self._base = np.zeros(1, np.int32)
        self._base.flags.writeable = False

    def extend_one(self, sequence: Sequence, count: int, ahead: int, waiting: Waiting) -> Step:
        """The step in which ``sequence`` alone runs its next ``count`` positions, at least one.

        Raises:
            As `extend`.

        Cost: O(count + columns).
        """
        rows, row, pool = sequence._rows, sequence._row, self._ledger.pool
        start = int(rows.scheduled[row])
        end, size = start + count, self._ledger.page_size
        first = -(-start // size)
        need = -(-end // size) - first
        if (
            not self._is_plain
            or end > rows.known[row]
            or rows.special[row]
            or self._placer.pending
            or need > pool.free + pool.evictable
            or self._promises.sequences
        ):
            return self.extend((sequence,), [count], ahead, waiting)
        fresh = {}
        if need:
            pages = self._ledger.take(0, need)
            self._placer.put(sequence, 0, first, pages)
            fresh[self._ledger.names[0]] = pages
        step = self._make_one(sequence, start, end)
        step.fresh = fresh
        rows.scheduled[row] = end
        sequence._leave_stride()
        return step

    def _make_one(self, sequence: Sequence, start: int, end: int) -> Step:
        """The arrays of a step of known tokens in one full group."""
        rows, row, ledger = sequence._rows, sequence._row, self._ledger
        count, columns = end - start, ledger.columns(end)
        pages = rows.tables[0][row, :columns]
        numbers = np.array((0, count, count, start, end, count - 1), np.int32)
        slots = slot_mapping(pages, ledger.page_size, start, end)
        return Step(
            sequences=(sequence,),
            counts=numbers[2:3],
            input_ids=sequence._known()[start:end].copy(),
            positions=np.arange(start, end, dtype=np.int32),
            query_start=numbers[:2],
            past=numbers[3:4],
            context=numbers[4:5],
            last=numbers[5:6],
            wants_token=np.array((end == rows.known[row] < rows.limit[row],)),
            groups={ledger.names[0]: GroupView(slots, pages[None].copy(), self._base)},
        )

    def extend(
        self,
        sequences: tuple[Sequence, ...],
        counts: list[int],
        ahead: int,
        waiting: Waiting,
        batch: Batch | None = None,
    ) -> Step:
        """The step in which each sequence runs its next positions; all or nothing.

        Args:
            waiting: asked only where states have to be taken back.
            batch: whose rows these are.

        Raises:
            CapacityError, LengthError, RollbackUnsupported, StepError: a row cannot come so far.
            OutOfPages: too few pages; nothing is changed.

        Cost: O(rows x columns + tokens).
        """
        ledger = self._ledger
        starts = [s.scheduled for s in sequences]
        ends = self.ends(sequences, starts, counts, ahead, waiting)
        moving = {s: e for s, b, e in zip(sequences, starts, ends, strict=True) if e > b}
        needs = total_needs(ledger, moving.items())
        owed = self._promises.owed(moving)
        ledger.require(needs, owed)
        taken = ledger.take_all(needs, owed)
        placed = self._placer.place(moving, taken, moving, moving)
        step = self._make(sequences, starts, ends, placed.crosses)
        self._placer.enter(step, placed, taken)
        step._changes = batch._take_changes() if batch is not None else None
        for sequence, end in moving.items():
            self._schedule(sequence, end)
        return step

    def _schedule(self, sequence: Sequence, end: int) -> None:
        """Its positions have slots from here on."""
        rows, row = sequence._rows, sequence._row
        rows.scheduled[row] = end
        sequence._leave_stride()
        if self._ledger.state_groups:  # states of lengths below are overwritten by this step
            rows.floor[row] = max(int(rows.floor[row]), end - self._ledger.rollback)
            sequence._aim()

    def ends(
        self,
        sequences: Items[Sequence],
        starts: list[int],
        counts: list[int],
        ahead: int,
        waiting: Waiting,
    ) -> list[int]:
        """Where each sequence comes to; refused unless one moves at all. O(rows)."""
        open_ = waiting() if self._ledger.state_groups else {}
        ends = [
            self.end(s, start, count, ahead, open_.get(s, 0))
            for s, start, count in zip(sequences, starts, counts, strict=True)
        ]
        if ends == starts:
            limit = sequences[0].limit
            raise CapacityError("length", starts[0] + max(counts), limit, "its limit")
        return ends

    def end(self, sequence: Sequence, start: int, count: int, ahead: int, waiting: int) -> int:
        """Where ``sequence`` comes to; clipped at its limit where it runs ahead, else refused."""
        end, limit, known = start + count, sequence.limit, sequence.length
        lost = self._ledger.state_groups and start < sequence._rows.floor[sequence._row]
        if count and lost:
            raise StepError(f"the state of {sequence.id!r} went with an aborted step: commit first")
        if end > limit and count:
            if not ahead:
                raise CapacityError("length", end, limit, f"the limit of sequence {sequence.id!r}")
            end = limit
        if end > known + ahead and count:
            why = f"sequence {sequence.id!r} knows {known} tokens"
            raise LengthError("count", count, 0, max(0, known + ahead - start), why)
        drafts = end - known - waiting
        if drafts > self._ledger.rollback and self._ledger.state_groups and count:
            name = self._ledger.names[self._ledger.state_groups[0]]
            raise RollbackUnsupported(name, end - self._ledger.rollback)
        return end

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
        wants = [b > a and s.limit > s.length <= b for s, a, b in spans]
        names = self._ledger.names
        numbers = np.array((counts, starts, ends, last), np.int32)
        return Step(
            sequences=sequences,
            counts=numbers[0],
            input_ids=_joined([known_ids(s, a, b) for s, a, b in spans]),
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
            past, ends = np.array([span[1:] for span in spans]).T
            units = ledger.rollback + 1
            return state_view(np.stack(tables), units, ledger.groups[group].parts, past, ends)
        if group in ledger.cross_groups:
            fresh = [at for at, (s, _, _) in enumerate(spans) if s in fresh_cross]
            lengths = np.array([s._cross_length for s, _, _ in spans], np.int32)
            return cross_view(self._padded(tables), ledger.page_size, lengths, fresh)
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


def known_ids(sequence: Sequence, start: int, stop: int) -> Ints:
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
