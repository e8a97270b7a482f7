"""Going back: the cuts that truncate, rejected drafts and aborted steps make.

Knows what windows and states allow, and gives back the pages beyond a cut.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.cache.ledger import Ledger
from octavo.cache.matching import shareable_pages
from octavo.cache.promises import Promises, open_page_shared
from octavo.cache.sequence import Sequence
from octavo.cache.standing import Stand, last_first
from octavo.cache.step import CrossView, Step
from octavo.errors import RollbackUnsupported

Int64s = NDArray[np.int64]


class Retreat:
    """Lets the sequences of one cache go back.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        publishes: whether full pages are published at all.
    """

    def __init__(self, ledger: Ledger, promises: Promises, *, publishes: bool) -> None:
        self._ledger, self._promises, self._publishes = ledger, promises, publishes

    def span(self, sequence: Sequence, computed: int) -> int:
        """Columns of ``computed`` positions that stand in the prefix index. O(media)."""
        if not self._publishes or sequence._private:
            return 0
        return shareable_pages(sequence._identity, computed, self._ledger.page_size)

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
        span = self.span(sequence, int(rows.computed[row]))
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
        before = self.span(sequence, int(rows.computed[row]))
        after = self.span(sequence, reached)
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
        if reached % ledger.page_size and self._is_open_shared(sequence):
            rows.special[row] = True
        sequence._aim()
        return reached

    def cut(self, stands: Iterable[Stand], ends: Int64s, slots: Int64s) -> None:
        """Give back what rows have beyond ``ends`` computed positions of a step that ends.

        No other step of theirs is open and their states reach so far: then the pages beyond are
        their own, windows show what is needed, and the open page is nobody else's.

        Args:
            stands: the rows, in the order of the step.
            ends, slots: int64[rows], positions that stay, and those there were slots for.

        Cost: some array operations a group; O(pages given back).
        """
        size, at, parts = self._ledger.page_size, 0, []
        keep, had = -(-ends // size), -(-slots // size)
        for stand in stands:
            part = slice(at, at + stand.numbers.size)
            entries = last_first(stand.numbers, keep[part], had[part])
            if entries[0].size:
                stand.part_from_views()
                parts.append((stand, *entries))
            at = part.stop
        for group in self._ledger.token_groups if parts else ():
            pages = [stand.take_out(group, *entries) for stand, *entries in parts]
            self._ledger.pool.release(np.concatenate(pages), group, distinct=True)

    def _is_open_shared(self, sequence: Sequence) -> bool:
        groups = self._ledger.token_groups
        return any(open_page_shared(self._ledger, sequence, group) for group in groups)

    def _cut(self, sequence: Sequence, group: int, keep: int) -> None:
        rows, row = sequence._rows, sequence._row
        columns = keep + rows.tables[group][row, keep:].nonzero()[0]
        if columns.size and sequence._batch is not None:
            rows.part_from_views(len(sequence._batch))
        self._ledger.cut(rows, row, group, keep)
        if sequence._batch is not None and columns.size:
            sequence._batch._note(group, np.full(columns.size, row), columns, columns * 0)

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
            sequence._sync()
            self.settle(sequence, past)
            sequence._turn()
            return
        rows.scheduled[row] = past
        sequence._aim()
        for group in self._ledger.token_groups:
            self._cut(sequence, group, self._ledger.columns(past))
