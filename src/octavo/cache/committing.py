"""Ending a step: learn token ids, keep what is valid, publish full pages, let windows slide.

Row by row, but for what is given back, which is taken together; `octavo.cache.halting` knows what
else is the same for rows of a batch. Going back is in `octavo.cache.retreating`.
"""

from bisect import bisect_left
from collections.abc import Collection
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from octavo.cache.ledger import Ledger
from octavo.cache.publishing import Filled, Publisher, Repointed
from octavo.cache.retreating import Retreat
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.sliding import Slider
from octavo.cache.standing import Stand, stands
from octavo.cache.step import CrossView, Step
from octavo.errors import CapacityError, LengthError, StepError


class Committed(NamedTuple):
    """What a commit did: pages newly published, entries repointed, pages windows gave back."""

    published: int
    repointed: tuple[Repointed, ...]
    dropped: int


class Row(NamedTuple):
    """One row to commit by itself: its new ids and how far it is computed.

    Attributes:
        at: its number in the step.
    """

    at: int
    sequence: Sequence
    learned: Ints
    past: int
    computed: int
    context: int


class Committer:
    """Ends the steps of one cache.

    Args:
        ledger: what the cache owns.
        retreat: lets sequences go back.
        publisher: brings their pages into the index.
        most_snapshots: snapshots a state group may keep; None: as many as fit.
    """

    def __init__(
        self,
        ledger: Ledger,
        retreat: Retreat,
        publisher: Publisher,
        most_snapshots: list[int | None],
    ) -> None:
        self._ledger, self.retreat, self.slider = ledger, retreat, Slider(ledger)
        self.publisher, self._most_snapshots = publisher, most_snapshots

    # -- rows ----------------------------------------------------------------------------------

    def check(self, row: Row, *, later: bool) -> None:
        """Refuse what cannot be committed, before anything is changed."""
        sequence, known = row.sequence, row.sequence.length + row.learned.size
        if known > sequence.limit:
            raise CapacityError(
                "length", known, sequence.limit, f"the limit of sequence {sequence.id!r}"
            )
        if row.context == row.past:
            return
        if row.computed > known:
            why = f"sequence {sequence.id!r} would have KV for tokens it does not know"
            raise LengthError("computed", row.computed, 0, known, why)
        if row.computed < row.context and later:
            raise StepError(f"a later step of {sequence.id!r} is open: all its positions stay")
        if row.computed < row.context:
            self.retreat.reachable(sequence, row.computed)

    def commit(self, step: Step, rows: Items[Row], later: Collection[Sequence]) -> Committed:
        """End ``step`` for checked rows, one by one.

        Args:
            later: sequences with a further step open.

        Cost: O(rows + new tokens).
        """
        cut = set[int]()
        grown = self.learn(rows, later, cut)
        if cut:
            shorter = [row for row in rows if row.at in cut]
            ends = np.array([(row.computed, row.context) for row in shorter], np.int64)
            self.retreat.cut(stands(row.sequence for row in shorter), ends[:, 0], ends[:, 1])
        published, repointed = self.publish(rows, grown, later) if any(grown) else (0, [])
        sliding = []
        if self._ledger.sliding:
            moved = (row.sequence for row in rows if row.context > row.past)
            sliding = stands(filter(self.slider.slides, moved))
        return self.finish(step, published, repointed, sliding)

    def learn(self, rows: Items[Row], later: Collection[Sequence], cut: set[int]) -> list[int]:
        """Learn what checked rows are told and count what they computed. O(rows + tokens).

        Args:
            cut: where to enter rows that have pages to give back, by their number in the step.

        Returns:
            New columns of each that stand in the prefix index.
        """
        return [self._learn(row, later, cut) for row in rows]

    def publish(
        self,
        rows: Items[Row],
        grown: Items[int],
        later: Collection[Sequence],
        filled: Filled | None = None,
    ) -> tuple[int, list[Repointed]]:
        """Publish what rows computed, and what rows of a batch have filled.

        Args:
            grown: new columns of each of ``rows``.
            filled: pages of rows that were taken together; they are published in their turn.

        Returns:
            Pages new to the index, and entries repointed.

        Cost: O(rows + new pages).
        """
        repointed: list[Repointed] = []
        published, done, publisher = 0, 0, self.publisher
        for row, count in zip(rows, grown, strict=True):
            if count <= 0:
                continue
            if filled is not None and (turn := bisect_left(filled.at, row.at)) > done:
                published += publisher.publish_part(filled.part(done, turn), later, repointed)
                done = turn
            pairs = None if row.sequence in later else repointed
            published += publisher.publish(row.sequence, count, pairs)
        if filled is not None and done < len(filled.at):
            rest = filled.part(done, len(filled.at)) if done else filled
            published += publisher.publish_part(rest, later, repointed)
        return published, repointed

    def finish(
        self, step: Step, published: int, repointed: list[Repointed], sliding: Items[Stand]
    ) -> Committed:
        """Let windows of ``sliding`` slide, and publish what else the step has written."""
        dropped = self.slider.slide(sliding) if sliding else 0
        self.keep_written(step)
        return Committed(published, tuple(repointed), dropped)

    def _learn(self, row: Row, later: Collection[Sequence], cut: set[int]) -> int:
        """Its ids are known and its positions computed; returns columns new to the index."""
        sequence, numbers = row.sequence, row.sequence._rows
        sequence._sync()
        sequence._store(row.learned)
        numbers.known[sequence._row] += row.learned.size
        grown = 0
        if row.context > row.past:
            before = self._span(sequence, sequence.computed)
            self._keep(row, later, cut)
            grown = self._span(sequence, sequence.computed) - before
        sequence._turn()
        return grown

    def _keep(self, row: Row, later: Collection[Sequence], cut: set[int]) -> None:
        """Count what the row computed, as far as it is kept and its state is there."""
        sequence, numbers, at = row.sequence, row.sequence._rows, row.sequence._row
        lost = bool(self._ledger.state_groups) and row.computed < numbers.floor[at]
        if lost and sequence not in later:
            self.retreat.settle(sequence, row.computed)
            return
        numbers.computed[at] = row.computed
        if row.computed < row.context:
            numbers.scheduled[at] = row.computed
            sequence._aim()
            if self._ledger.columns(row.computed) < self._ledger.columns(row.context):
                cut.add(row.at)

    def _span(self, sequence: Sequence, computed: int) -> int:
        """Columns of ``sequence`` that stand in the prefix index. O(media)."""
        return self.retreat.span(sequence, computed)

    # -- states and cross inputs ---------------------------------------------------------------

    def keep_written(self, step: Step) -> None:
        """Publish states copied after ``step`` and cross inputs it has written. O(of these)."""
        if step._kept_states:
            self._keep_states(step)
        for group in self._ledger.cross_groups if self.publisher.publishes else ():
            self._publish_crosses(step, group)

    def _keep_states(self, step: Step) -> None:
        ledger = self._ledger
        for sequence, group, pages, end in step._kept_states:
            reached = sequence._takes_part(step._clock) and sequence.computed == end
            if reached and self._span(sequence, end) * ledger.page_size == end:
                self._keep_state(sequence, group, pages)
            ledger.pool.release(pages, group)
            ledger.in_flight[group] -= 1
        step._kept_states = []

    def _keep_state(self, sequence: Sequence, group: int, pages: tuple[int, ...]) -> None:
        tip = sequence._rows.tip[sequence._row]
        if self._ledger.keep_state(group, tip, pages, self._most_snapshots[group]):
            sequence._stops.discard(int(sequence._rows.computed[sequence._row]))
            if self.publisher.on_stored is not None:
                self.publisher.on_stored(group, [tip], [pages[0]])

    def _publish_crosses(self, step: Step, group: int) -> None:
        ledger = self._ledger
        view = step.groups[ledger.names[group]]
        assert isinstance(view, CrossView)
        for at in view.fresh.nonzero()[0].tolist():
            sequence = step.sequences[at]
            key = sequence._identity.root
            if not sequence._takes_part(step._clock) or key in ledger.cross[group]:
                continue
            ledger.enter_cross(group, key, sequence._rows.held(sequence._row, group))
