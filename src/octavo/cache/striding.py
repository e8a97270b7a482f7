"""Decoding on: a step of one token a row that follows on another one of the same batch.

What such a step needs is what the last one had, moved on by one: so it is kept, and whatever else
happens to a row of the batch forgets it. Same results as `octavo.cache.marching`, which does the
rest.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.batch import Batch
from octavo.cache.ledger import Ledger
from octavo.cache.promises import Promises
from octavo.cache.rows import Constants
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.step import GroupView, Step, View, cross_view, state_view


class Bucket(NamedTuple):
    """Rows that stand at the same place of a page, and so begin and fill pages together."""

    rows: NDArray[np.intp]
    listed: list[int]
    sequences: list[Sequence]


_NOBODY = Bucket(np.zeros(0, np.intp), [], [])


class Stride:
    """A run of steps of one token a row of one batch, from rows that know one token more.

    Attributes:
        steps: those that are open, oldest first.
        past: int32[n], positions of the newest.
        tails: int64[n], where in all tails the position stands that is computed next.
        ids: int32[n], its id.
        slots: by group, int32[n], of the newest step.
        width: columns of the longest row.
        room: ids every row may still learn.
        extended: steps made after the first.
        turned: rows that begin a page with the newest step, if that is not the first.
    """

    def __init__(
        self,
        step: Step,
        tails: NDArray[np.int64],
        slots: dict[int, Ints],
        width: int,
        room: int,
    ) -> None:
        self.steps, self.room, self.width = [step], room, width
        self.past, self.tails, self.slots = step.past.copy(), tails, slots
        self.ids = step.input_ids
        self._sequences, self._buckets = step.sequences, list[Bucket]()
        self.extended = self._ended = 0
        self.turned = _NOBODY

    def bucket(self, offset: int, size: int) -> Bucket:
        """Rows whose first step began at place ``offset`` of a page. O(rows) once, then O(1)."""
        if not self._buckets:
            places = (self.tails - self._ended) % size
            self._buckets = [self._bucket((places == place).nonzero()[0]) for place in range(size)]
        return self._buckets[offset % size]

    def _bucket(self, rows: NDArray[np.intp]) -> Bucket:
        listed = rows.tolist()
        return Bucket(rows, listed, [self._sequences[row] for row in listed])

    def filling(self, size: int) -> Bucket:
        """Rows that fill a page with the oldest open step."""
        return self.bucket(size - 1 - self._ended, size)

    def computed_to(self, place: int, size: int) -> Bucket:
        """Rows that have computed all before ``place`` of a page, by the steps that ended."""
        return self.bucket(place - self._ended, size)

    def end(self, ids: Ints, filled: Bucket, size: int) -> None:
        """The oldest step ends: each row learned one of ``ids``."""
        self.tails += 1
        if filled.listed:
            self.tails[filled.rows] -= size
        self.ids = ids.copy()
        self.steps.pop(0)
        self._ended += 1
        self.room -= 1


class Strider:
    """Makes the steps of batches that decode on."""

    def __init__(self, ledger: Ledger, promises: Promises, constants: Constants) -> None:
        self._ledger, self._promises, self._constants = ledger, promises, constants
        groups = range(len(ledger.groups))
        self._has_tokens = [int(group in ledger.token_groups) for group in groups]

    def begin(self, batch: Batch, step: Step, offsets: Ints, width: int) -> None:
        """Remember ``step``, of one token a row, where its like may follow. O(rows)."""
        rows, n = batch._rows, offsets.size
        lagging = np.count_nonzero(step.past != rows.computed[:n])
        if not lagging and not np.count_nonzero(step.context != rows.known[:n]):
            room = int(np.minimum.reduce(rows.limit[:n] - rows.known[:n]))
            names = self._ledger.names
            slots = {g: step.group(names[g]).slots.copy() for g in self._ledger.token_groups}
            tails = self._constants.tails[:n] + offsets
            batch._stride = Stride(step, tails, slots, width, room)

    def extend(self, batch: Batch, ahead: int) -> Step | None:
        """The step in which each row runs its next token; None: not this way.

        Raises:
            OutOfPages: too few pages; nothing is changed.
        """
        stride = batch._stride
        lead = len(stride.steps)
        if lead > ahead or lead >= stride.room:
            return None
        if self._ledger.state_groups and (lead or self._is_stopping(batch, stride)):
            return None
        turning = stride.bucket(-1 - stride.extended, self._ledger.page_size)
        fresh = self._turn(batch, stride, turning.rows) if turning.listed else {}
        n = stride.past.size
        stride.past += self._constants.ones[:n]
        stride.extended += 1
        stride.turned = turning
        ids = np.zeros(n, np.int32) if lead else stride.ids
        step = self._make(batch, stride, ids, fresh)
        stride.steps.append(step)
        scheduled = batch._rows.scheduled[:n]
        scheduled += 1
        if self._ledger.state_groups:  # states of lengths below are overwritten by this step
            floor = batch._rows.floor[:n]
            np.maximum(floor, scheduled - self._ledger.rollback, out=floor)
        return step

    @staticmethod
    def _is_stopping(batch: Batch, stride: Stride) -> bool:
        """Whether a state may have to be kept after the next step."""
        rows, n = batch._rows, stride.past.size
        return bool(np.count_nonzero(rows.stop[:n] <= rows.scheduled[:n] + 1))

    def _turn(self, batch: Batch, stride: Stride, turning: NDArray[np.intp]) -> dict[str, Ints]:
        """A new page in every group for each row that begins one."""
        ledger, rows, size = self._ledger, batch._rows, self._ledger.page_size
        needs = [turning.size * times for times in self._has_tokens]
        owed = self._owed(batch)
        if owed is not None or sum(needs) > ledger.pool.free:
            ledger.require(needs, owed)
        taken, fresh = ledger.take_all(needs, owed), {}
        columns = rows.scheduled[turning] // size
        stride.width = max(stride.width, int(np.maximum.reduce(columns)) + 1)
        for group, pages in taken.items():
            if stride.width > rows.tables[group].shape[1]:
                rows.widen(group, stride.width)
            rows.tables[group][turning, columns] = pages
            stride.slots[group][turning] = pages * size - 1
            batch._note(group, turning, columns, pages)
            fresh[ledger.names[group]] = pages
        return fresh

    def _owed(self, batch: Batch) -> list[int] | None:
        """Pages by group owed to guaranteed sequences after the next step; None: nothing."""
        if not self._promises.sequences:
            return None
        guaranteed = self._promises.sequences.values()
        return self._promises.owed({s: s.scheduled + 1 for s in guaranteed if s._batch is batch})

    def _view(self, batch: Batch, stride: Stride, group: int, ones: Ints) -> View:
        ledger, n = self._ledger, ones.size
        table = batch._rows.tables[group][:n]
        if group in ledger.state_groups:
            units, parts = ledger.rollback + 1, ledger.groups[group].parts
            starts = batch._rows.scheduled[:n]
            return state_view(table, units, parts, starts, starts + 1)
        if group in ledger.cross_groups:
            return cross_view(table, ledger.page_size, batch._cross_lengths())
        slots = stride.slots[group]
        slots += ones
        return GroupView(slots.copy(), table[:, : stride.width], self._constants.zeros[:n])

    def _make(self, batch: Batch, stride: Stride, ids: Ints, fresh: dict[str, Ints]) -> Step:
        same, rows, past = self._constants, batch._rows, stride.past
        n, groups = past.size, dict[str, View]()
        ones, numbers = same.ones[:n], same.starts[: n + 1]
        for group, name in enumerate(self._ledger.names):
            groups[name] = self._view(batch, stride, group, ones)
        rows.viewed = True
        return Step(
            sequences=batch._snapshot(),
            counts=ones,
            input_ids=ids,
            positions=past.copy(),
            query_start=numbers,
            past=past.copy(),
            context=past + ones,
            last=numbers[:n],
            wants_token=same.yes[:n],
            groups=groups,
            fresh=fresh,
            _changes=batch._take_changes(),
            _batch=batch,
        )
