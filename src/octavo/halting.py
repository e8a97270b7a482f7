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
        stride, batch._stride = batch._stride, None
        if ids is not None and stride is not None and stride.steps[:1] == [step] and stride.room:
            batch._stride = stride
            return self._commit_stride(stride, step, ids, open_)
        later = moving(open_) if open_ else ()
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
        published, repointed = self._committer.learn_rows(alone, later, filled)
        sliding = self._sliding(step, batch._rows, numbers, there) if self._ledger.sliding else ()
        return self._committer.finish(step, published, repointed, sliding)

    # -- every row learns one id ---------------------------------------------------------------

    def _commit_stride(
        self, stride: Stride, step: Step, ids: Ints, open_: Items[Step]
    ) -> Committed:
        rows, published, repointed = step._batch._rows, 0, list[Repointed]()
        filled = self._advance_stride(stride, rows, ids)
        if filled is not None and open_ and not stride.steps:
            published, repointed = self._committer.learn_rows((), moving(open_), filled)
        elif filled is not None:  # entries stay where every row has a later step open
            pairs = None if stride.steps else repointed
            published = self._committer.publish_filled(*filled[1:], pairs)
        sliding: Collection[Sequence] = ()
        if self._ledger.sliding:
            sliding = self._sliding(step, rows, self._constants.rows[: ids.size], None)
        return self._committer.finish(step, published, repointed, sliding)

    def _advance_stride(self, stride: Stride, rows: Rows, ids: Ints) -> Filled | None:
        """Each row computed the one token it knew more, and learns another one."""
        n, size = ids.size, self._ledger.page_size
        full, filled = stride.filling(size), None
        if full.listed:
            filled = self._fill(rows, full.listed, full.sequences, full.rows)
        stride.end(ids, full, size)
        computed, known = rows.computed[:n], rows.known[:n]
        computed += 1
        known += 1
        rows.tail.reshape(-1)[stride.tails] = ids
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
        at, filled = (moved & turned).nonzero()[0], None
        if at.size:
            sequences = [step.sequences[row] for row in at.tolist()]
            filled = self._fill(rows, at.tolist(), sequences, numbers[at])
        rows.computed[numbers[moved]] = step.context[moved]
        if ids is not None:
            places, size = numbers[learning], self._ledger.page_size
            rows.tail.reshape(-1)[places * size + step.context[learning] % size] = ids[learning]
            rows.known[places] += 1
        return filled

    def _fill(self, rows: Rows, at: list[int], sequences: list[Sequence], places: Index) -> Filled:
        """Keep the ids of pages that are full, before the tails move on."""
        size = self._ledger.page_size
        raw, width = rows.tail[places].tobytes(), 4 * size
        keys = [raw[start : start + width] for start in range(0, len(raw), width)]
        for row, key in zip(places.tolist(), keys, strict=True):
            rows.late[row].append(key)
        return Filled(at, sequences, rows, places, rows.computed[places] // size, keys)

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
