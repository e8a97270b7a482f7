"""Ending a step of a batch: rows that turn at most one page are taken together.

Rows that do anything else, such as a prompt that fills pages or a state that is lost, go one by one
through `octavo.cache.committing`, in the same step and with the same results.
"""

from collections.abc import Collection
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.batch import Batch
from octavo.cache.committing import Committed, Committer, Row
from octavo.cache.learning import Int64s, Told
from octavo.cache.ledger import Ledger
from octavo.cache.publishing import Filled, Repointed
from octavo.cache.rows import Constants, Rows
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.standing import Stand, stands
from octavo.cache.step import Step
from octavo.cache.striding import Stride

Bools = NDArray[np.bool_]


class News(NamedTuple):
    """What a step of n rows brings.

    Attributes:
        told: ids they learn.
        numbers: int64[n], where they stand in the batch.
        there: bool[n], which of them still do; None: all.
        moved: bool[n], which have new positions.
        known: int64[n], ids known before.
        ends: int64[n], positions computed afterwards.
        begun, full: int64[n], full pages of computed positions, before and afterwards.
    """

    step: Step
    told: Told
    numbers: Int64s
    there: Bools | None
    moved: Bools
    known: Int64s
    ends: Int64s
    begun: Int64s
    full: Int64s


class Halter:
    """Ends the steps of the batches of one cache.

    Args:
        ledger: what the cache owns.
        committer: ends the steps of single rows.
        constants: of as many rows as a batch may have.
    """

    def __init__(self, ledger: Ledger, committer: Committer, constants: Constants) -> None:
        self._ledger, self._committer, self._constants = ledger, committer, constants

    def commit(self, step: Step, told: Told, kept: Int64s | None, open_: Items[Step]) -> Committed:
        """Each row of ``step`` learns what it is told, and what it keeps is computed.

        Args:
            kept: positions of the step whose KV is kept, int64[rows]; None: all.
            open_: later steps that are open.

        Raises:
            As `Committer.check`; nothing is changed.

        Cost: some array operations; O(new ids and pages); O(1) a row that goes alone.
        """
        batch: Batch = step._batch
        stride, batch._stride = batch._stride, None
        plain = told.each and kept is None
        if plain and stride is not None and stride.steps[:1] == [step] and stride.room:
            batch._stride = stride
            return self._commit_stride(stride, step, told.ids, open_)
        later = moving(open_) if open_ else ()
        news = self._news(step, told, kept)
        together = self._together(news, later)
        alone = self._alone(news, together)
        for row in alone:
            self._committer.check(row, later=row.sequence in later)
        filled = self._advance(news, together)
        cut = set[int]()
        grown = self._committer.learn(alone, later, cut)
        if kept is not None:
            self._cut(news, together, cut)
        published, repointed = self._committer.publish(alone, grown, later, filled)
        sliding = self._stands(news, news.moved) if self._ledger.sliding else []
        return self._committer.finish(step, published, repointed, sliding)

    # -- every row learns one id ---------------------------------------------------------------

    def _commit_stride(
        self, stride: Stride, step: Step, ids: Ints, open_: Items[Step]
    ) -> Committed:
        rows, published, repointed = step._batch._rows, 0, list[Repointed]()
        filled = self._advance_stride(stride, rows, ids)
        if filled is not None and open_ and not stride.steps:
            published, repointed = self._committer.publish((), (), moving(open_), filled)
        elif filled is not None:  # entries stay where every row has a later step open
            pairs = None if stride.steps else repointed
            published = self._committer.publisher.publish_filled(filled, pairs)
        sliding = self._sliding(stride, step._batch) if self._ledger.sliding else []
        return self._committer.finish(step, published, repointed, sliding)

    def _sliding(self, stride: Stride, batch: Batch) -> list[Stand]:
        """Rows whose windows may have to slide after a step of a stride has ended."""
        places, size = self._committer.slider.places, self._ledger.page_size
        if places is None:
            return [Stand(batch._rows, self._constants.rows[: stride.past.size], batch)]
        buckets = [stride.computed_to(place, size) for place in places]
        return [Stand(batch._rows, bucket.rows, batch) for bucket in buckets if bucket.listed]

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

    def _news(self, step: Step, told: Told, kept: Int64s | None) -> News:
        """What ``step`` brings."""
        batch: Batch = step._batch
        rows, size, moved = batch._rows, self._ledger.page_size, step.counts > 0
        numbers, there = self._places(step, batch)
        computed, known = rows.computed[numbers], rows.known[numbers]
        ends = step.context.astype(np.int64) if kept is None else step.past + kept
        if np.count_nonzero(moved) < moved.size:
            ends = np.where(moved, ends, computed)
        return News(step, told, numbers, there, moved, known, ends, computed // size, ends // size)

    def _places(self, step: Step, batch: Batch) -> tuple[Int64s, Bools | None]:
        """Where each row stands now, and whether it still stands in the batch; None: all do."""
        if batch._listed is step.sequences:
            return self._constants.rows[: step.counts.size], None
        clock, sequences = step._clock, step.sequences
        found = [s._row if s._batch is batch and s._takes_part(clock) else -1 for s in sequences]
        numbers = np.array(found, np.int64)
        return np.maximum(numbers, 0), numbers >= 0

    def _together(self, news: News, later: Collection[Sequence]) -> Bools | None:
        """Which rows are as the tails can hold them, and lose nothing but slots; None: all."""
        rows, numbers, size = news.step._batch._rows, news.numbers, self._ledger.page_size
        counts, known, full = news.told.counts, news.known, news.full
        after = known + counts
        good: Bools = (after <= (full + 1) * size) | (counts == 0)
        good &= (after <= rows.limit[numbers]) & (news.ends <= after)
        if np.count_nonzero(full > news.begun):
            good &= (full == news.begun) | (full == news.begun + 1) & (known <= full * size)
        if self._ledger.state_groups:
            good &= (news.ends >= rows.floor[numbers]) | ~news.moved
        for at in self._shorter(news).nonzero()[0].tolist() if later else ():
            good[at] &= news.step.sequences[at] not in later
        if news.there is not None:
            good &= news.there
        return good if np.count_nonzero(good) < good.size else None

    @staticmethod
    def _shorter(news: News) -> Bools:
        """Which rows do not keep all positions of the step."""
        shorter: Bools = (news.ends < news.step.context) & news.moved
        return shorter

    @staticmethod
    def _alone(news: News, together: Bools | None) -> list[Row]:
        """The other rows, as far as the step still means anything to them."""
        if together is None:
            return []
        rows, step, told = [], news.step, news.told
        stops = told.counts.cumsum()
        for at in (~together).nonzero()[0].tolist():
            sequence = step.sequences[at]
            if sequence._takes_part(step._clock):
                past, context = int(step.past[at]), int(step.context[at])
                end = int(news.ends[at]) if context > past else past
                learned = told.ids[stops[at] - told.counts[at] : stops[at]]
                rows.append(Row(at, sequence, learned, past, end, context))
        return rows

    def _advance(self, news: News, together: Bools | None) -> Filled | None:
        """Count what rows together computed and learned; the pages they filled, if any."""
        rows, mine = news.step._batch._rows, slice(None) if together is None else together
        places, ids, early = self._new_ids(news, together)
        turned, filled = news.full > news.begun, None
        at = (turned if together is None else turned & together).nonzero()[0]
        tails = rows.tail.reshape(-1)
        if at.size:
            tails[places[early]] = ids[early]
            places, ids = places[~early], ids[~early]
            sequences = [news.step.sequences[row] for row in at.tolist()]
            filled = self._fill(rows, at.tolist(), sequences, news.numbers[at])
        tails[places] = ids
        numbers = news.numbers[mine]
        rows.computed[numbers] = news.ends[mine]
        rows.known[numbers] += news.told.counts[mine]
        return filled

    def _new_ids(self, news: News, together: Bools | None) -> tuple[Int64s, Ints, Bools]:
        """Where in all tails each new id goes, the ids, and which go to the page that was open."""
        size, counts, ids = self._ledger.page_size, news.told.counts, news.told.ids
        owners = counts.nonzero()[0]
        positions = news.known[owners]
        if owners.size < ids.size:
            owners = np.repeat(self._constants.rows[: counts.size], counts)
            positions = (news.known - counts.cumsum() + counts)[owners]
            positions += np.arange(owners.size)
        if together is not None:
            mine = together[owners]
            owners, positions, ids = owners[mine], positions[mine], ids[mine]
        early = positions < ((news.begun + 1) * size)[owners]
        return news.numbers[owners] * size + positions % size, ids, early

    def _fill(self, rows: Rows, at: list[int], sequences: list[Sequence], places: Int64s) -> Filled:
        """Keep the ids of pages that are full, before the tails move on."""
        size = self._ledger.page_size
        raw, width = rows.tail[places].tobytes(), 4 * size
        keys = [raw[start : start + width] for start in range(0, len(raw), width)]
        for row, key in zip(places.tolist(), keys, strict=True):
            rows.late[row].append(key)
        return Filled(at, sequences, rows, places, rows.computed[places] // size, keys)

    def _cut(self, news: News, together: Bools | None, alone: Collection[int]) -> None:
        """Give back the slots of positions that are not kept.

        Args:
            alone: rows that were counted alone and have pages to give back.
        """
        step, cut = news.step, self._shorter(news)
        if together is not None:
            cut &= together
        step._batch._rows.scheduled[news.numbers[cut]] = news.ends[cut]
        for at in cut.nonzero()[0].tolist() if self._ledger.state_groups else ():
            if step.sequences[at]._stops:
                step.sequences[at]._aim()
        cut[list(alone)] = True
        ends, slots = news.ends[cut], step.context[cut].astype(np.int64)
        self._committer.retreat.cut(self._stands(news, cut), ends, slots)

    @staticmethod
    def _stands(news: News, which: Bools) -> list[Stand]:
        """Where these rows of a step stand, those the step means nothing to left out."""
        step = news.step
        if news.there is None:
            return [Stand(step._batch._rows, news.numbers[which], step._batch)]
        listed = [step.sequences[at] for at in which.nonzero()[0].tolist()]
        return stands([s for s in listed if s._takes_part(step._clock)])


def moving(steps: Items[Step]) -> set[Sequence]:
    """Sequences that move in any of ``steps``. O(rows) a step."""
    found = set[Sequence]()
    for step in steps:
        if np.count_nonzero(step.counts) == len(step.sequences):
            found.update(step.sequences)
        else:
            found.update([step.sequences[at] for at in step.counts.nonzero()[0].tolist()])
    return found
