"""Ending a step: learn token ids, keep what is valid, publish full pages, let windows slide.

Row by row, for any step; `octavo.decoding` has the fast way for batches that decode. Also goes
back: the cuts that truncate and abort make.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.errors import CapacityError, LengthError, RollbackUnsupported, StepError
from octavo.ledger import Ledger
from octavo.matching import page_keys, shareable_pages
from octavo.promises import Promises
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
    """One row to commit: its new ids and how far it is computed."""

    sequence: Sequence
    learned: Ints
    past: int
    computed: int
    context: int


Stored = Callable[[int, Items[int], Items[int]], None]
"""Told of a group, nodes and the pages that now hold them."""


class Committer:
    """Ends the steps of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        most_snapshots: snapshots a state group may keep; None: as many as fit.
        on_stored: told of new pages in the index; None: nobody listens.
        publishes: whether full pages are published at all.
    """

    def __init__(
        self,
        ledger: Ledger,
        promises: Promises,
        most_snapshots: list[int | None],
        on_stored: Stored | None,
        *,
        publishes: bool,
    ) -> None:
        self._ledger, self._promises, self.publishes = ledger, promises, publishes
        self._most_snapshots, self._on_stored = most_snapshots, on_stored

    # -- pages into the index ------------------------------------------------------------------

    def publish_last(self, sequence: Sequence, repointed: list[Repointed] | None) -> int:
        """Publish the column a single row has just filled, if it can be shared."""
        computed = sequence.computed
        count = self._span(sequence, computed) - self._span(sequence, computed - 1)
        return self._publish(sequence, count, repointed)

    def publish_filled(
        self,
        sequences: Items[Sequence],
        rows: Rows,
        numbers: list[int],
        columns: NDArray[np.int64],
        keys: list[bytes],
        repointed: list[Repointed] | None,
    ) -> int:
        """Publish the column that each of some rows has just filled, by its tokens alone.

        Args:
            sequences: whose rows they are.
            rows: where they stand, in rows ``numbers``.
            columns: by row, the one it filled.
            keys: by row, the token bytes of that column.
            repointed: as `_publish`.
        """
        filled = {g: rows.tables[g][numbers, columns] for g in self._ledger.token_groups}
        tips = [rows.tip[row] for row in numbers]
        told = self._on_stored is not None  # group by group, so that events count copies
        at_once = {} if told else {g: pages.tolist() for g, pages in filled.items()}
        nodes, others = self._ledger.index.advance(tips, keys, at_once)
        for row, node in zip(numbers, nodes, strict=True):
            rows.tip[row] = node
        one_by_one = list(range(len(nodes))) if told else others
        published = 0
        for group, pages in filled.items():
            attached = np.delete(pages, one_by_one) if one_by_one else pages
            self._ledger.pool.publish(attached, group)
            published += attached.size
            for at in one_by_one:
                column = int(columns[at])
                page = int(pages[at])
                published += self._attach_one(
                    sequences[at], group, column, nodes[at], page, repointed
                )
        return published

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
            sequence._batch.note(group, row, column, new)
        repointed.append(Repointed(sequence, ledger.names[group], column, old, new))

    def slide_all(self, batch: Batch, count: int) -> int:
        """Give back what no window of any row can see any more."""
        ledger, rows, dropped = self._ledger, batch.rows, 0
        positions = np.maximum(rows.computed[:count] - ledger.rollback, 0)
        moving = np.zeros(count, np.bool_)
        for group in ledger.sliding:
            first = ledger.groups[group].lifetime.floors(positions) // ledger.page_size
            moving |= first > np.maximum(rows.first[group][:count], ledger.sink_columns(group))
        for row in np.flatnonzero(moving).tolist():
            dropped += self._slide(batch._sequences[row])
        return dropped

    def _slide(self, sequence: Sequence) -> int:
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        before = [int(rows.first[group][row]) for group in ledger.sliding]
        dropped = ledger.slide(rows, row, int(rows.computed[row]) - ledger.rollback)
        if sequence._batch is not None and dropped:
            for group, start in zip(ledger.sliding, before, strict=True):
                columns = np.arange(
                    max(start, ledger.sink_columns(group)), int(rows.first[group][row])
                )
                sequence._batch.note(group, np.full(columns.size, row), columns, columns * 0)
        return dropped

    # -- any step, row by row ------------------------------------------------------------------

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
            self.reachable(sequence, row.computed)

    def commit_rows(self, rows: list[Row], step: Step, later: set[Sequence]) -> Committed:
        """Commit checked rows; ``later``: sequences with a further step open."""
        published, repointed, dropped = 0, list[Repointed](), 0
        for row in rows:
            sequence, numbers = row.sequence, row.sequence._rows
            sequence._sync()
            sequence._store(row.learned)
            numbers.known[sequence._row] += row.learned.size
            if row.context > row.past:
                before = self._span(sequence, int(numbers.computed[sequence._row]))
                self._keep(row, later)
                new = self._span(sequence, int(numbers.computed[sequence._row])) - before
                if new > 0:
                    pairs = None if sequence in later else repointed
                    published += self._publish(sequence, new, pairs)
                dropped += self._slide(sequence) if self._ledger.sliding else 0
            sequence._sync_tail()
        if step._kept_states:
            self._keep_states(step, {row.sequence: row for row in rows})
        if self._ledger.cross_groups:
            self._publish_cross(step, {row.sequence for row in rows})
        return Committed(published, tuple(repointed), dropped)

    def _keep(self, row: Row, later: set[Sequence]) -> None:
        """Count what the row computed, as far as it is kept and its state is there."""
        sequence, numbers = row.sequence, row.sequence._rows
        lost = bool(self._ledger.state_groups) and row.computed < numbers.floor[sequence._row]
        if row.computed < row.context or (lost and sequence not in later):
            self.settle(sequence, row.computed)
        else:
            numbers.computed[sequence._row] = row.computed

    def _span(self, sequence: Sequence, computed: int) -> int:
        """Columns of ``sequence`` that stand in the prefix index. O(media)."""
        if not self.publishes or sequence._private:
            return 0
        return shareable_pages(sequence._identity, computed, self._ledger.page_size)

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

    def _keep_states(self, step: Step, rows: dict[Sequence, Row]) -> None:
        """Publish the states copied after this step where their boundary was reached."""
        ledger = self._ledger
        for sequence, group, pages, end in step._kept_states:
            row = rows.get(sequence)
            reached = row is not None and sequence.computed == end
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

    def _publish_cross(self, step: Step, rows: set[Sequence]) -> None:
        """Cross inputs written by this step can be shared from now on."""
        ledger = self._ledger
        for group in ledger.cross_groups:
            view = step.groups[ledger.names[group]]
            assert isinstance(view, CrossView)
            for sequence, written in zip(step.sequences, view.fresh.tolist(), strict=True):
                if not written or sequence not in rows or not self.publishes:
                    continue
                key = sequence._cross
                pages = sequence._rows.held(sequence._row, group)
                if key is not None and key not in ledger.cross[group]:
                    ledger.enter_cross(group, key, pages)

    # -- going back ----------------------------------------------------------------------------

    def reachable(self, sequence: Sequence, computed: int) -> int:
        """Where a cut to ``computed`` positions comes to, given what windows and states keep.

        Raises:
            RollbackUnsupported: a window dropped what a query there must see.

        Cost: O(pages) where a state has to be found, else O(groups).
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        if ledger.state_groups and computed < rows.floor[row]:
            return self._state_boundary(sequence, computed)
        self._check_windows(sequence, computed)
        return computed

    def _check_windows(self, sequence: Sequence, computed: int) -> None:
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        for group in ledger.sliding if computed else ():
            _, first = ledger.kept_columns(group, computed)
            dropped = int(rows.first[group][row])
            if first < dropped and ledger.sink_columns(group) < dropped:
                floor = dropped * ledger.page_size
                kept_from = ledger.groups[group].lifetime.first_after(floor)
                raise RollbackUnsupported(ledger.names[group], kept_from)

    def _state_boundary(self, sequence: Sequence, computed: int) -> int:
        """Longest boundary up to ``computed`` with a snapshot and all its window pages, or 0."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        span = self._span(sequence, int(rows.computed[row]))
        columns = min(span, computed // ledger.page_size)
        node = ledger.index.ancestor(rows.tip[row], span - columns) if columns else 0
        while columns:
            if self._can_fetch(node) and self._windows_reach(sequence, columns * ledger.page_size):
                return columns * ledger.page_size
            node, columns = ledger.index.ancestor(node, 1), columns - 1
        return 0

    def _can_fetch(self, node: int) -> bool:
        """Whether the state after ``node`` is kept and can be held beside what is promised."""
        ledger = self._ledger
        pinned: list[tuple[int, ...]] = [() for _ in ledger.groups]
        for group in ledger.state_groups:
            pinned[group] = ledger.index.state(group, node)
            if not pinned[group]:
                return False
        owed = self._promises.owed()
        return owed is None or not any(ledger.short([0] * len(owed), owed, pinned))

    def _windows_reach(self, sequence: Sequence, computed: int) -> bool:
        try:
            self._check_windows(sequence, computed)
        except RollbackUnsupported:
            return False
        return True

    def settle(self, sequence: Sequence, computed: int) -> int:
        """Let ``computed`` positions, or what is `reachable`, be computed and scheduled.

        Gives back the pages beyond. O(pages given back).
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        reached = self.reachable(sequence, computed)
        before = self._span(sequence, int(rows.computed[row]))
        after = self._span(sequence, reached)
        if after < before:
            tip = rows.tip[row]
            rows.tip[row] = ledger.index.ancestor(tip, before - after)
            ledger.index.hold(rows.tip[row])
            ledger.index.unhold(tip)
        if reached < rows.floor[row] and ledger.state_groups:
            self._fetch(sequence, reached)
        rows.computed[row] = rows.scheduled[row] = reached
        for group in ledger.token_groups:
            self._cut(sequence, group, ledger.columns(reached))
            rows.first[group][row] = min(int(rows.first[group][row]), ledger.columns(reached))
        if reached % ledger.page_size:
            rows.special[row] = True
        sequence._leave_run()
        return reached

    def _cut(self, sequence: Sequence, group: int, keep: int) -> None:
        rows, row = sequence._rows, sequence._row
        columns = keep + rows.tables[group][row, keep:].nonzero()[0]
        if columns.size and sequence._batch is not None:
            rows.part_from_views(len(sequence._batch))
        self._ledger.cut(rows, row, group, keep)
        if sequence._batch is not None and columns.size:
            sequence._batch.note(group, np.full(columns.size, row), columns, columns * 0)

    def _fetch(self, sequence: Sequence, boundary: int) -> None:
        """Hold the snapshot at ``boundary``, to be copied before the next forward pass."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        self.drop_fetches(sequence)
        rows.floor[row] = boundary
        if not boundary:
            return
        for group in ledger.state_groups:
            pages = np.array(ledger.index.state(group, rows.tip[row]), np.int32)
            ledger.pool.retain(pages, group)
            sequence._fetch.append((group, pages))
        rows.special[row] = True

    def drop_fetches(self, sequence: Sequence) -> None:
        """Let go of snapshots that were to be copied. O(pages)."""
        for group, pages in sequence._fetch:
            self._ledger.pool.release(pages, group)
        sequence._fetch = []

    def abort(self, step: Step, sequences: set[Sequence]) -> None:
        """Undo ``step`` for ``sequences``: give back its pages. O(rows)."""
        spans = zip(step.sequences, step.past.tolist(), step.counts.tolist(), strict=True)
        for sequence, past, count in spans:
            if count and sequence in sequences:
                self._rewind(sequence, past)
        self._take_back_cross(step, sequences)
        for _, group, pages, _ in step._kept_states:
            self._ledger.pool.release(pages, group)
            self._ledger.in_flight[group] -= 1
        step._kept_states = []

    def _take_back_cross(self, step: Step, sequences: set[Sequence]) -> None:
        """Cross inputs this step was to write are not there: another step must."""
        ledger = self._ledger
        for group in ledger.cross_groups:
            view = step.groups[ledger.names[group]]
            assert isinstance(view, CrossView)
            for sequence, fresh in zip(step.sequences, view.fresh.tolist(), strict=True):
                if fresh and sequence in sequences:
                    self._cut(sequence, group, 0)
                    sequence._rows.special[sequence._row] = True

    def _rewind(self, sequence: Sequence, past: int) -> None:
        """Back to ``past`` scheduled positions; computed ones only fall where a state is lost."""
        rows, row = sequence._rows, sequence._row
        computed = int(rows.computed[row])
        if past == computed:
            self.settle(sequence, past)
            sequence._sync_tail()
            return
        rows.scheduled[row] = past
        sequence._leave_run()
        for group in self._ledger.token_groups:
            self._cut(sequence, group, self._ledger.columns(past))
