"""Decoding on: a step of one token a row that follows on another one of the same batch.

What such a step needs is what the last one had, moved on by one: so it is kept, and whatever else
happens to a row of the batch forgets it. Same results as `octavo.marching`, which does the rest.
"""

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.ledger import Ledger
from octavo.promises import Promises
from octavo.rows import Constants
from octavo.sequences import Ints
from octavo.table import GroupView, Step, View


class Stride:
    """The last step of one token a row of a batch, each of which knew one token more.

    Attributes:
        step: while it is open; None: it has ended with one id learned in each row.
        past: int32[n], its positions.
        offsets: int32[n], places in their pages of the positions that are computed next.
        slots: by group, int32[n].
        width: columns of the longest row.
        room: ids each row may still learn.
        ids: int32[n], ids of the positions that are computed next.
        turning: rows that begin a page next.
    """

    __slots__ = ("ids", "offsets", "past", "room", "slots", "step", "turning", "width")

    def __init__(self, step: Step, offsets: Ints, slots: list[Ints], width: int, room: int) -> None:
        self.step: Step | None = step
        self.past, self.offsets, self.slots = step.past.copy(), offsets, slots
        self.width, self.room = width, room
        self.ids = step.input_ids
        self.turning: NDArray[np.intp] = np.empty(0, np.intp)

    def end(self, ids: Ints, turning: NDArray[np.intp]) -> None:
        """The step ended: each row learned one of ``ids``, those ``turning`` filled a page."""
        self.offsets += 1
        self.offsets[turning] = 0
        self.ids, self.turning, self.step = ids.copy(), turning, None
        self.room -= 1


class Strider:
    """Makes the steps of batches that decode on, in plans whose groups all keep tokens."""

    def __init__(self, ledger: Ledger, promises: Promises, constants: Constants) -> None:
        self._ledger, self._promises, self._constants = ledger, promises, constants
        self._may = len(ledger.token_groups) == len(ledger.groups)

    def begin(self, batch: Batch, step: Step, offsets: Ints, width: int) -> None:
        """Remember ``step``, of one token a row, where its like may follow. O(rows)."""
        if self._may and np.logical_and.reduce(step.wants_token):
            rows, n = batch._rows, offsets.size
            room = int(np.minimum.reduce(rows.limit[:n] - rows.known[:n]))
            slots = [step.group(name).slots.copy() for name in self._ledger.names]
            batch._stride = Stride(step, offsets, slots, width, room)

    def extend(self, batch: Batch) -> Step | None:
        """The step in which each row runs the token it has learned; None: not this way.

        Raises:
            OutOfPages: too few pages; nothing is changed.
        """
        stride = batch._stride
        if stride.step is not None or self._promises.sequences:
            return None
        fresh = self._turn(batch, stride) if stride.turning.size else {}
        n = stride.past.size
        stride.past += self._constants.ones[:n]
        stride.step = step = self._make(batch, stride, fresh)
        scheduled = batch._rows.scheduled[:n]
        scheduled += 1
        return step

    def _turn(self, batch: Batch, stride: Stride) -> dict[str, Ints]:
        """A new page in every group for each row that begins one."""
        ledger, rows, turning = self._ledger, batch._rows, stride.turning
        size, needs = ledger.page_size, [turning.size] * len(ledger.groups)
        if sum(needs) > ledger.pool.free:
            ledger.require(needs, None)
        taken, fresh = ledger.take_all(needs, None), {}
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

    def _make(self, batch: Batch, stride: Stride, fresh: dict[str, Ints]) -> Step:
        same, rows, past = self._constants, batch._rows, stride.past
        n, groups = past.size, dict[str, View]()
        ones, numbers = same.ones[:n], same.starts[: n + 1]
        for group, name in enumerate(self._ledger.names):
            slots = stride.slots[group]
            slots += ones
            table = rows.tables[group][:n, : stride.width]
            groups[name] = GroupView(slots.copy(), table, same.zeros[:n])
        rows.viewed = True
        return Step(
            sequences=batch._snapshot(),
            counts=ones,
            input_ids=stride.ids,
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
            _one=True,
        )
