"""Commits: the ends of steps. A commit keeps what was computed, an abort undoes the step.

One path for any rows, counts and drafts; nothing is learned before all is known to be possible::

    check rows -> learn ids -> cut what is not kept -> publish full pages -> slide windows
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.core.groups import Group
from octavo.core.rows import (
    DIFFERS,
    KEPT,
    LATER,
    LEARNS,
    TOKEN,
    TOKENS,
    UNKNOWN,
    Handle,
    Pass,
    Refused,
)
from octavo.core.sequences import Parts
from octavo.core.steps import Steps

if TYPE_CHECKING:
    from octavo.core.arena import Ints


class Core(Steps):
    """All of one cache that runs in every step.

    Attributes:
        dropped: pages given back by windows in the last commit.
        coming: nodes that this commit may add.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.dropped = 0
        self.coming = 0

    def commit(self, step: Pass, ids: Any, counts: Any, kept: Any) -> None:
        """A step's KV is written: ids are learned, positions kept, full pages published.

        Args:
            ids: token ids as numbers; without ``counts`` one a row, ignored where none is wanted,
                or none at all; with them those of the first row, then those of the next.
            counts, kept: int32[n] as numbers; None: as above, and all positions.

        Raises:
            Refused: a row cannot learn or keep that; nothing is changed.

        Cost: O(rows x groups + new ids and pages).
        """
        block, n, first, at = step.block, step.count, len(self.groups), 0
        numbers, given, valid = ids, self.nothing, self.nothing
        if counts is not None:
            given = counts
        if kept is not None:
            valid = kept
        every, some = len(numbers) > 0 and counts is None, counts is not None
        self.check_commit(step, numbers, given, valid, every, some, kept is not None)
        step.is_open = False
        self.published = 0
        self.dropped = 0
        self.repointed = []
        for i in range(n):
            row, past = block[first + i], block[first + 2 * n + i]
            context, wants = block[first + 3 * n + i], block[first + 5 * n + i]
            count = given[i] if some else (wants if every else 0)
            if every:
                at = i
            if self.epoch[row] <= step.clock:
                if count:  # there is room for them since they were checked
                    begin = self.ids.begin[row] + self.known[row]
                    for j in range(count):
                        self.ids.data[begin + j] = numbers[at + j]
                    known = self.known[row]
                    self.known[row] = known + count
                    if (known + count) % self.size < count:  # a page has become full
                        self.come(row, self.span(row, known), self.span(row, known + count))
                self.opened[row] -= 1
                if context > past:
                    self.moving[row] -= 1
                    self.waiting[row] -= wants
                    end = context if kept is None else past + valid[i]
                    self.keep(i, row, end, context)
            at += count
        self.publish_copies(step)
        self.open.pop(0)

    def check_commit(
        self,
        step: Pass,
        numbers: Ints,
        given: Ints,
        valid: Ints,
        every: bool,
        some: bool,
        partly: bool,
    ) -> None:
        """Whether `commit` may do this.

        Args:
            every, some, partly: whether there is an id for each row, as many as ``given`` says, and
                whether ``valid`` says how many positions are kept.
        """
        block, n, first, at = step.block, step.count, len(self.groups), 0
        self.coming = 0
        if every and len(numbers) != n:
            raise Refused(TOKENS, n, len(numbers))
        for i in range(n):
            row, past = block[first + i], block[first + 2 * n + i]
            context = block[first + 3 * n + i]
            count = given[i] if some else (block[first + 5 * n + i] if every else 0)
            if count < 0 or at + count > len(numbers):
                raise Refused(TOKENS, n, at + count)
            for j in range(at, at + count):
                if numbers[j] < 0:
                    raise Refused(TOKEN, j)
            if partly and not 0 <= valid[i] <= context - past:
                raise Refused(KEPT, i, valid[i])
            if self.epoch[row] <= step.clock:
                end = past + valid[i] if partly else context
                self.check_row(i, row, count, past, end, context)
                if end > block[first + 6 * n + i]:
                    self.check_drafts(step, i, end, numbers, at)
            at += 1 if every else count
        if some and at != len(numbers):
            raise Refused(TOKENS, n, at)
        self.index.reserve(self.coming)

    def check_row(
        self, place: int, row: int, count: int, past: int, end: int, context: int
    ) -> None:
        """Whether a row may learn ``count`` ids and be computed up to ``end``."""
        known = self.known[row] + count
        if known > self.limit[row]:
            raise Refused(LEARNS, place, known)
        if count:
            if known % self.size < count:
                self.coming += self.span(row, known) - self.span(row, self.known[row])
            if known > self.ids.room[row]:
                self.ids.reserve(row, known, self.known[row])
        if context == past:
            return
        if end > known:
            raise Refused(UNKNOWN, place, end, known)
        if end < context:
            if self.moving[row] > 1:
                raise Refused(LATER, place, end)
            self.end_of_cut(row, end)

    def check_drafts(self, step: Pass, place: int, end: int, numbers: Ints, at: int) -> None:
        """Whether what a row computed of ids it did not know is what it knows with this commit.

        An id of 0 is none that the engine has written. The row learns ``numbers`` from ``at`` on.
        """
        block, n, first = step.block, step.count, len(self.groups)
        row, past = block[first + place], block[first + 2 * n + place]
        known, begin = self.known[row], self.ids.begin[row]
        ids = first + 8 * n + 1 + block[first + 7 * n + place] - past
        for position in range(max(past, block[first + 6 * n + place]), end):
            read = block[ids + position]
            if read > 0:
                if position < known:
                    right = self.ids.data[begin + position]
                else:
                    right = numbers[at + position - known]
                if read != right:
                    raise Refused(DIFFERS, place, end, position)

    def keep(self, place: int, row: int, end: int, context: int) -> None:
        """Positions up to ``end`` are computed; later ones, of rejected drafts, are given back."""
        later = self.moving[row] > 0
        if self.states and end < self.floor[row] and not later:
            self.settle(row, self.end_of_cut(row, end))
        else:
            before = self.span(row, self.computed[row])
            self.computed[row] = end
            if end < context:
                self.cut(row, end)
            if end >= (before + 1) * self.size:
                after = self.span(row, end)
                if after > before:
                    self.publish(place, row, before, after, later)
        if self.sliding:
            position = max(0, self.computed[row] - self.rollback)
            for group in self.groups:
                if group.slides():
                    self.dropped += group.slide(
                        row, position, self.prompt[row], self.branch[row], self.rollback
                    )

    def publish_copies(self, step: Pass) -> None:
        """Publish states copied after a step, and cross inputs it has written. O(of these)."""
        for row, number, pages, end in step.kept:
            group: Group = self.groups[number]
            if self.epoch[row] <= step.clock and self.computed[row] == end:
                if self.span(row, end) * self.size == end:
                    self.keep_state(group, row, pages)
            self.drop_copies(group, pages)
        step.kept = []
        if self.crosses and self.publishes:
            for group in self.groups:
                if group.keeps_cross:
                    self.publish_crosses(step, group)

    def drop_copies(self, group: Group, pages: tuple[int, ...]) -> None:
        """A step holds its snapshot no more. O(parts)."""
        for page in pages:
            self.pool.release(group.number, page, False)
        group.in_flight -= 1

    def publish_crosses(self, step: Pass, group: Group) -> None:
        """Cross inputs a step has written can be read by others. O(rows + pages)."""
        fresh = self.section(group.number, step.count, step.tokens) + step.count
        for i in range(step.count):
            row = step.block[len(self.groups) + i]
            if step.block[fresh + i] and self.is_row(step, i):
                root = self.root[row]
                if root not in self.index.bundles[group.number]:
                    pages = group.held(row, self.width_in(group, row))
                    self.pool.publish_bundle(group.number, tuple(pages), root)

    def abort(self, step: Pass) -> None:
        """The newest step never was: its slots are given back. O(rows + pages)."""
        block, n, first = step.block, step.count, len(self.groups)
        step.is_open = False
        for i in range(n):
            row, past = block[first + i], block[first + 2 * n + i]
            if self.epoch[row] <= step.clock:
                self.opened[row] -= 1
                if block[first + n + i]:
                    self.moving[row] -= 1
                    self.waiting[row] -= block[first + 5 * n + i]
                    if past == self.computed[row]:
                        self.settle(row, self.end_of_cut(row, past))
                    else:
                        self.cut(row, past)
        for group in self.groups if self.crosses else ():
            if group.keeps_cross:
                self.take_back_crosses(step, group)
        for _, number, pages, _ in step.kept:
            self.drop_copies(self.groups[number], pages)
        step.kept = []
        self.open.pop()

    def retire(self, handles: list[Handle]) -> None:
        """All of this core is given up: its steps are over, handles keep what they were. O(known).

        Needs nothing to be whole: this is what is done after an interrupt.
        """
        for step in self.open:
            step.is_open = False
        for handle in handles:
            if handle.row >= 0:
                self.part_from(handle)

    def take_back_crosses(self, step: Pass, group: Group) -> None:
        """Cross inputs this step was to write are not there: another step must. O(rows + pages)."""
        fresh = self.section(group.number, step.count, step.tokens) + step.count
        for i in range(step.count):
            row = step.block[len(self.groups) + i]
            if step.block[fresh + i] and self.is_row(step, i):
                group.cut(row, 0, self.width_in(group, row))
                self.special[row] = 1
