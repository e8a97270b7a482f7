"""Ending a step of a batch: rows that learn one id each, or none, are taken together.

Rows that do anything else, such as a prompt that fills pages or a state that is lost, go one by one
through `octavo.committing`, in the same step and with the same results.
"""

from collections.abc import Collection
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.committing import Committed, Committer, Filled, Repointed, Row
from octavo.learning import NO_IDS
from octavo.ledger import Ledger
from octavo.rows import Constants, Rows
from octavo.sequences import Ints, Sequence
from octavo.striding import Stride
from octavo.table import Step

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]


class Halter:
    """Ends the steps of the batches of one cache.

    Args:
        ledger: what the cache owns.
        committer: ends the steps of single rows.
        constants: of as many rows as a batch may have.
    """

    def __init__(self, ledger: Ledger, committer: Committer, constants: Constants) -> None:
        self._ledger, self._committer, self._constants = ledger, committer, constants

    def commit(self, step: Step, ids: Ints | None, open_: Items[Step]) -> Committed:
        """All positions of ``step`` are kept; each row that wants an id learns the one of ``ids``.

        Args:
            ids: int32[rows], 0 where none is wanted; None: nothing is learned.
            open_: later steps that are open.

        Raises:
            As `Committer.check`; nothing is changed.

        Cost: some array operations; O(new pages); O(1) a row that goes alone.
        """
        batch: Batch = step._batch
        later = moving(open_) if open_ else ()
        stride, batch._stride = batch._stride, None
        if ids is not None and stride is not None and stride.step is step and stride.room:
            filled = self._advance_stride(stride, step, batch._rows, ids)
            batch._stride = stride
            return self._finish(step, batch._rows, None, [], later, filled)
        numbers, there = self._places(step, batch)
        learns = step.wants_token if ids is not None else np.zeros(numbers.size, np.bool_)
        turned = self._turned(step)
        together = self._together(step, batch._rows, numbers, learns, turned)
        whole = there is None and np.count_nonzero(together) == numbers.size
        alone: list[Row] = []
        if not whole:
            together &= there if there is not None else True
            alone = self._alone(step, ids, learns, together)
            for row in alone:
                self._committer.check(row, later=row.sequence in later)
        filled = self._advance(step, batch._rows, numbers, together, learns, turned, ids)
        return self._finish(step, batch._rows, (numbers, there), alone, later, filled)

    def _finish(
        self,
        step: Step,
        rows: Rows,
        places: tuple[Index, Bools | None] | None,
        alone: list[Row],
        later: Collection[Sequence],
        filled: Filled | None,
    ) -> Committed:
        repointed: list[Repointed] = []
        if alone or later:
            published, repointed = self._committer.learn_rows(alone, later, filled)
        elif filled is not None:
            published = self._committer.publish_filled(*filled[1:], repointed)
        else:
            published = 0
        if not self._ledger.sliding:
            return self._committer.finish(step, published, repointed, ())
        numbers, there = places or (self._constants.rows[: step.counts.size], None)
        sliding = self._sliding(step, rows, numbers, there)
        return self._committer.finish(step, published, repointed, sliding)

    # -- every row learns one id ---------------------------------------------------------------

    def _advance_stride(self, stride: Stride, step: Step, rows: Rows, ids: Ints) -> Filled | None:
        """Each row computed the one token it knew more, and learns another one."""
        n, full = ids.size, self._ledger.page_size - 1
        turning = (stride.offsets == full).nonzero()[0]
        filled = self._fill(step, rows, self._constants.rows, turning)
        stride.end(ids, turning)
        computed, known = rows.computed[:n], rows.known[:n]
        computed += 1
        known += 1
        rows.tail.reshape(-1)[self._constants.tails[:n] + stride.offsets] = ids
        return filled

    # -- any rows ------------------------------------------------------------------------------

    def _places(self, step: Step, batch: Batch) -> tuple[Index, Bools | None]:
        """Where each row stands now, and whether it still stands in the batch; None: all do."""
        if batch._listed is step.sequences:
            return self._constants.rows[: step.counts.size], None
        clock, sequences = step._clock, step.sequences
        found = [s._row if s._batch is batch and s._takes_part(clock) else -1 for s in sequences]
        numbers = np.array(found, np.int64)
        return np.maximum(numbers, 0), numbers >= 0

    def _turned(self, step: Step) -> Bools:
        """Which rows come to the end of a page or beyond."""
        size = self._ledger.page_size
        turned: Bools = step.context // size > step.past // size
        return turned

    def _together(
        self, step: Step, rows: Rows, numbers: Index, learns: Bools, turned: Bools
    ) -> Bools:
        """Which rows learn one id or none and fill no page but by a single token."""
        known, context = rows.known[numbers], step.context
        good: Bools = (context == known) & (known < rows.limit[numbers])
        if np.count_nonzero(learns) < learns.size:
            still = step.counts == 0
            good = np.where(learns, good, (context <= known) & ~turned | still)
        if np.count_nonzero(step.counts > 1):
            good &= ~turned | (step.counts == 1)
        if self._ledger.state_groups:
            good &= (context >= rows.floor[numbers]) | (step.counts == 0)
        return good

    @staticmethod
    def _alone(step: Step, ids: Ints | None, learns: Bools, together: Bools) -> list[Row]:
        """The other rows, as far as the step still means anything to them."""
        rows = []
        for at in (~together).nonzero()[0].tolist():
            sequence = step.sequences[at]
            if sequence._takes_part(step._clock):
                learned = ids[at : at + 1] if ids is not None and learns[at] else NO_IDS
                past, context = int(step.past[at]), int(step.context[at])
                rows.append(Row(at, sequence, learned, past, context, context))
        return rows

    def _advance(
        self,
        step: Step,
        rows: Rows,
        numbers: Index,
        together: Bools,
        learns: Bools,
        turned: Bools,
        ids: Ints | None,
    ) -> Filled | None:
        """Count what rows together computed and learned; the pages they filled, if any."""
        moved, learning = together & (step.counts > 0), together & learns
        filled = self._fill(step, rows, numbers, (moved & turned).nonzero()[0])
        rows.computed[numbers[moved]] = step.context[moved]
        if ids is not None:
            places = numbers[learning]
            rows.tail[places, step.context[learning] % self._ledger.page_size] = ids[learning]
            rows.known[places] += 1
        return filled

    def _fill(self, step: Step, rows: Rows, numbers: Index, at: NDArray[np.intp]) -> Filled | None:
        """Keep the ids of pages that are full, before the tails move on."""
        if not at.size:
            return None
        size, places = self._ledger.page_size, numbers[at]
        raw, width = rows.tail[places].tobytes(), 4 * self._ledger.page_size
        keys = [raw[start : start + width] for start in range(0, len(raw), width)]
        listed, all_ = at.tolist(), step.sequences
        columns = rows.computed[places] // size
        sequences = [all_[number] for number in listed]
        for row, key in zip(places.tolist(), keys, strict=True):
            rows.late[row].append(key)
        return Filled(listed, sequences, rows, places, columns, keys)

    def _sliding(
        self, step: Step, rows: Rows, numbers: Index, there: Bools | None
    ) -> Collection[Sequence]:
        """Rows of the step whose windows may have to slide, in order."""
        may = self._committer.may_slide(rows, numbers) & (step.counts > 0)
        if there is not None:
            may |= ~there
        sequences = [step.sequences[at] for at in may.nonzero()[0].tolist()]
        return [s for s in sequences if there is None or s._takes_part(step._clock)]


def moving(steps: Items[Step]) -> set[Sequence]:
    """Sequences that move in any of ``steps``. O(rows) a step."""
    found = set[Sequence]()
    for step in steps:
        if np.count_nonzero(step.counts) == len(step.sequences):
            found.update(step.sequences)
        else:
            found.update([step.sequences[at] for at in step.counts.nonzero()[0].tolist()])
    return found
