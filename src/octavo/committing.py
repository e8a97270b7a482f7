"""Ending a step: learn token ids, keep what is valid, publish full pages, let windows slide.

Row by row, and what is the same for rows of a batch taken together, of which `octavo.halting`
knows. Going back is in `octavo.retreating`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Items
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CapacityError, LengthError, StepError
from octavo.ledger import Ledger
from octavo.matching import page_keys
from octavo.promises import Promises
from octavo.retreating import Retreat
from octavo.rows import Rows
from octavo.sequences import Ints, Sequence
from octavo.table import CrossView, Step

Index = NDArray[np.intp]


class Repointed(NamedTuple):
    """A table entry moved to an equal page that was published before."""

    sequence: Sequence
    group: str
    column: int
    old: int
    new: int


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


class Filled(NamedTuple):
    """Rows of a batch that have just filled a page each, by a token they learned.

    Attributes:
        at: their numbers in the step, ascending.
        sequences: theirs.
        rows: where they stand.
        numbers: int64[k], where in ``rows``.
        columns: int64[k], the column each filled.
        keys: token bytes of each page.
    """

    at: list[int]
    sequences: list[Sequence]
    rows: Rows
    numbers: NDArray[np.int64]
    columns: NDArray[np.int64]
    keys: list[bytes]


Stored = Callable[[int, Items[int], Items[int]], None]
"""Told of a group, nodes and the pages that now hold them."""


class Committer:
    """Ends the steps of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        retreat: lets sequences go back.
        most_snapshots: snapshots a state group may keep; None: as many as fit.
        on_stored: told of new pages in the index; None: nobody listens.
        publishes: whether full pages are published at all.
    """

    def __init__(
        self,
        ledger: Ledger,
        promises: Promises,
        retreat: Retreat,
        most_snapshots: list[int | None],
        on_stored: Stored | None,
        *,
        publishes: bool,
    ) -> None:
        self._ledger, self._promises, self.publishes = ledger, promises, publishes
        self._retreat = retreat
        self._most_snapshots, self._on_stored = most_snapshots, on_stored

    # -- pages into the index ------------------------------------------------------------------

    def publish_last(self, sequence: Sequence, repointed: list[Repointed] | None) -> int:
        """Publish the column a single row has just filled, if it can be shared."""
        computed = sequence.computed
        count = self._span(sequence, computed) - self._span(sequence, computed - 1)
        return self._publish(sequence, count, repointed)

    def _attach_one(
        self,
        sequence: Sequence,
        group: int,
        column: int,
        node: int,
        page: int,
        repointed: list[Repointed] | None,
    ) -> bool:
        """Attach ``page`` to its node; an entry whose node has a page goes to that one."""
        if not self._ledger.index.page(group, node):
            self.attach(group, range(node, node + 1), np.array([page]))
            return True
        if repointed is not None:
            self._repoint(sequence, group, column, page, node, repointed)
        return False

    def attach(self, group: int, nodes: range, pages: Index) -> None:
        """Publish ``pages`` as the pages of ``nodes`` of one run, which have none. O(pages)."""
        self._ledger.index.attach(group, nodes, pages)
        self._ledger.pool.publish(pages, group)
        if self._on_stored is not None:
            self._on_stored(group, nodes, pages.tolist())

    def _repoint(
        self,
        sequence: Sequence,
        group: int,
        column: int,
        old: int,
        node: int,
        repointed: list[Repointed],
    ) -> None:
        """Move an entry to the page its node has, unless what is promised needs the own copy.

        The canonical page is held before the own one is given back.
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        new = ledger.index.page(group, node)
        if new == old:
            return
        pinned: list[list[int]] = [[] for _ in ledger.groups]
        pinned[group] = [new]
        owed = self._promises.owed()
        if owed is not None and any(ledger.short([0] * len(owed), owed, pinned)):
            return
        ledger.pool.retain([new], group)
        ledger.pool.mark_reused([new], group)
        rows.tables[group][row, column] = new
        ledger.pool.release([old], group)
        if sequence._batch is not None:
            sequence._batch._note(group, row, column, new)
        repointed.append(Repointed(sequence, ledger.names[group], column, old, new))

    def _publish(self, sequence: Sequence, count: int, repointed: list[Repointed] | None) -> int:
        """Publish the last ``count`` full columns; returns how many pages are new to the index.

        Args:
            repointed: where to enter columns that move to a page published before; None: they keep
                their own.
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        stop = self._span(sequence, int(rows.computed[row]))
        first = stop - count
        if count <= 0:
            return 0
        keys = page_keys(sequence._known(), sequence._identity, ledger.page_size, first, stop)
        known, new = ledger.index.enter(rows.tip[row], keys)
        rows.tip[row] = new[-1] if new else known.node(count - 1)
        published = 0
        for group in ledger.token_groups:
            pages = rows.tables[group][row, first:stop].astype(np.intp)
            for at, node in enumerate(known.nodes()):
                page = int(pages[at])
                published += self._attach_one(sequence, group, first + at, node, page, repointed)
            if new:
                self.attach(group, new, pages[known.size :])
                published += len(new)
        return published

    def publish_filled(
        self,
        sequences: Items[Sequence],
        rows: Rows,
        numbers: NDArray[np.int64],
        columns: NDArray[np.int64],
        keys: list[bytes],
        repointed: list[Repointed] | None,
    ) -> int:
        """Publish the page each of these rows has just filled; returns how many are new.

        Args:
            rows: where they stand.
            numbers: int64[k], where in ``rows``.
            columns: int64[k], the column each filled.
            keys: token bytes of each page.
            repointed: as in `_publish`.

        Cost: O(k).
        """
        if not self.publishes:
            return 0
        if np.count_nonzero(rows.apart[numbers]):
            return sum([self.publish_last(s, repointed) for s in sequences])
        groups = self._ledger.token_groups
        filled: dict[int, Index] = {
            g: rows.tables[g][numbers, columns].astype(np.intp) for g in groups
        }
        told = self._on_stored is not None  # page by page, so that events count copies
        at_once: dict[int, Index] = {} if told else filled
        tips, listed = rows.tip, numbers.tolist()
        nodes, others = self._ledger.index.advance([tips[row] for row in listed], keys, at_once)
        for row, node in zip(listed, nodes, strict=True):
            tips[row] = node
        in_turn = list(range(len(nodes))) if told else others
        published = 0
        for group, pages in filled.items():
            attached = np.delete(pages, in_turn) if in_turn else pages
            self._ledger.pool.publish(attached, group)
            published += attached.size
        for at in in_turn:  # row by row: the order in which pages are given back counts
            for group, pages in filled.items():
                place = group, int(columns[at]), nodes[at], int(pages[at])
                published += self._attach_one(sequences[at], *place, repointed)
        return published

    # -- rows ----------------------------------------------------------------------------------

    def check(self, row: Row, *, later: bool) -> None:
        """Refuse what cannot be committed, before anything is changed."""
        sequence, known = row.sequence, row.sequence.length + row.learned.size
        if known > sequence.limit:
            raise CapacityError("length", known, sequence.limit, f"limit of {sequence.id!r}")
        if row.context == row.past:
            return
        if row.computed > known:
            why = f"sequence {sequence.id!r} would have KV for tokens it does not know"
            raise LengthError("computed", row.computed, 0, known, why)
        if row.computed < row.context and later:
            raise StepError(f"a later step of {sequence.id!r} is open: all its positions stay")
        if row.computed < row.context:
            self._retreat.reachable(sequence, row.computed)

    def learn_rows(
        self, rows: Items[Row], later: Collection[Sequence], filled: Filled | None = None
    ) -> tuple[int, list[Repointed]]:
        """Learn and publish what checked rows computed, and what rows of a batch have filled.

        Args:
            later: sequences with a further step open.
            filled: pages of rows that were taken together; they are published in their turn.

        Returns:
            Pages new to the index, and entries repointed.

        Cost: O(rows + new pages).
        """
        repointed: list[Repointed] = []
        published, done = 0, 0
        for row, count in [(row, self._learn(row, later)) for row in rows]:
            if count > 0:
                if filled is not None:
                    turn = bisect_left(filled.at, row.at)
                    published += self._publish_part(filled, done, turn, later, repointed)
                    done = turn
                pairs = None if row.sequence in later else repointed
                published += self._publish(row.sequence, count, pairs)
        if filled is not None:
            published += self._publish_part(filled, done, len(filled.at), later, repointed)
        return published, repointed

    def _publish_part(
        self,
        filled: Filled,
        start: int,
        stop: int,
        later: Collection[Sequence],
        repointed: list[Repointed],
    ) -> int:
        """Publish ``filled[start:stop]``; entries of rows with a later step open stay."""
        if not later and stop - start == len(filled.at):
            return self.publish_filled(*filled[1:], repointed)
        published = 0
        stays = [sequence in later for sequence in filled.sequences[start:stop]]
        for stay, run in groupby(range(start, stop), lambda at: stays[at - start]):
            numbers = list(run)
            part = slice(numbers[0], numbers[-1] + 1)
            published += self.publish_filled(
                filled.sequences[part],
                filled.rows,
                filled.numbers[part],
                filled.columns[part],
                filled.keys[part],
                None if stay else repointed,
            )
        return published

    def finish(
        self, step: Step, published: int, repointed: list[Repointed], sliding: Iterable[Sequence]
    ) -> Committed:
        """Let windows of ``sliding`` slide, and publish what else the step has written."""
        dropped = 0
        for sequence in sliding if self._ledger.sliding else ():
            dropped += self.slide(sequence)
        self.keep_written(step)
        return Committed(published, tuple(repointed), dropped)

    def _learn(self, row: Row, later: Collection[Sequence]) -> int:
        """Its ids are known and its positions computed; returns columns new to the index."""
        sequence, numbers = row.sequence, row.sequence._rows
        sequence._sync()
        sequence._store(row.learned)
        numbers.known[sequence._row] += row.learned.size
        grown = 0
        if row.context > row.past:
            before = self._span(sequence, sequence.computed)
            self._keep(row, later)
            grown = self._span(sequence, sequence.computed) - before
        sequence._turn()
        return grown

    def _keep(self, row: Row, later: Collection[Sequence]) -> None:
        """Count what the row computed, as far as it is kept and its state is there."""
        sequence, numbers = row.sequence, row.sequence._rows
        lost = bool(self._ledger.state_groups) and row.computed < numbers.floor[sequence._row]
        if row.computed < row.context or (lost and sequence not in later):
            self._retreat.settle(sequence, row.computed)
        else:
            numbers.computed[sequence._row] = row.computed

    def _span(self, sequence: Sequence, computed: int) -> int:
        """Columns of ``sequence`` that stand in the prefix index. O(media)."""
        return self._retreat.span(sequence, computed)

    def slide(self, sequence: Sequence) -> int:
        """Give back what no window of ``sequence`` can see any more. O(columns given back)."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        before = [int(rows.first[group][row]) for group in ledger.sliding]
        dropped = ledger.slide(rows, row, int(rows.computed[row]) - ledger.rollback)
        if sequence._batch is not None and dropped:
            for group, start in zip(ledger.sliding, before, strict=True):
                columns = np.arange(
                    max(start, ledger.sink_columns(group)), int(rows.first[group][row])
                )
                sequence._batch._note(group, np.full(columns.size, row), columns, columns * 0)
        return dropped

    def may_slide(self, rows: Rows, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows hold what no window of theirs can see. O(rows x groups)."""
        ledger = self._ledger
        positions = np.maximum(rows.computed[numbers] - ledger.rollback, 0)
        moving = np.zeros(numbers.size, np.bool_)
        for group in ledger.sliding:
            first = ledger.groups[group].lifetime.floors(positions) // ledger.page_size
            moving |= first > np.maximum(rows.first[group][numbers], ledger.sink_columns(group))
        return moving

    # -- states and cross inputs ---------------------------------------------------------------

    def keep_written(self, step: Step) -> None:
        """Publish states copied after ``step`` and cross inputs it has written. O(of these)."""
        if step._kept_states:
            self._keep_states(step)
        for group in self._ledger.cross_groups if self.publishes else ():
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
            if self._on_stored is not None:
                self._on_stored(group, [tip], [pages[0]])

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
