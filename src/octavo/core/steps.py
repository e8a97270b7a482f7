"""Steps: slots for the next positions of some rows, for all of them or for none.

One path for one row and for hundreds, for prompts, drafts and single tokens, whatever the groups
keep; nothing is changed before all is known to be possible::

    check rows -> count pages -> ask the pool -> place pages -> fill the block
"""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.core.arena import ints, longs, view
from octavo.core.blocks import StepBlocks
from octavo.core.groups import Group
from octavo.core.rows import (
    AHEAD,
    COUNT,
    DRAFTS,
    GONE,
    LIMIT,
    NOTHING,
    PAGES,
    PREEMPTED,
    STATE_LOST,
    TWICE,
    Handle,
    Pass,
    Refused,
    Rows,
)
from octavo.core.sequences import Parts
from octavo.core.spaces import Space


class Steps(StepBlocks):
    """The rows of one cache, and the steps they are in.

    Attributes:
        open: the steps that wait to be committed or aborted, oldest first. One in it that is not
            ``is_open`` was interrupted while it was made, committed or aborted.
        stamp: by row, the last extend that named it.
        growing: places of rows that take pages or need something else in the step that is made;
            ``growers`` of them.
        new, owed_after: by group, pages this step takes, and pages owed when it has.
        nothing: no numbers. given: token ids of the list read last.
        scratch: the rows of the list of handles read last.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.open: list[Any] = []
        self.stamp = longs(parts.rows)
        self.tick = 0
        self.growing = ints(parts.rows)
        self.growers = 0
        self.new = longs(len(parts.groups))
        self.owed_after = longs(len(parts.groups))
        self.nothing = ints(0)
        self.given = ints(64)
        self.scratch = Rows(8)

    def select(self, handles: tuple[Any, ...]) -> Rows:
        """The rows of some handles, for one step; overwritten by the next call. O(handles).

        Raises:
            Refused: one is no handle of this cache, or released.
        """
        rows = self.scratch
        if len(handles) > len(rows.data):
            rows.data = ints(2 * len(handles))
        rows.count = 0
        for item in handles:
            if not isinstance(item, Handle):
                raise Refused(GONE, rows.count)
            handle: Handle = item
            if handle.core is not self or handle.row < 0:
                raise Refused(GONE, rows.count)
            rows.data[rows.count] = handle.row
            rows.count += 1
        return rows

    def listed(self, tokens: list[Any]) -> Any:
        """Token ids of a list as numbers, which the next call overwrites. O(tokens).

        Raises:
            Refused: an entry is no token id.
        """
        if len(tokens) > len(self.given):
            self.given = ints(2 * len(tokens))
        self.write(self.given, 0, tokens, len(tokens))
        return self.given[: len(tokens)]

    def extend(self, step: Pass, rows: Rows, count: int, counts: Any, ahead: int) -> None:
        """Slots for the next positions of each row, for all or for none; fills ``step``.

        Args:
            count: new positions of each row, where ``counts`` is None.
            counts: int32[rows] as numbers, of each row; 0 sits out.
            ahead: positions allowed beyond the known ids; clipped at the limit.

        Raises:
            Refused: a row cannot come so far, or there are too few pages; nothing is changed.

        Cost: O(rows x groups + tokens).
        """
        tokens, most = self.aim_rows(rows, count, counts, ahead)
        pages = self.count_pages(rows)
        self.reserve_columns(rows)
        step.core = self
        step.count = rows.count
        step.tokens = tokens
        step.width = (most + self.size - 1) // self.size
        step.array = np.empty(self.block_size(rows.count, tokens) + pages, np.int32)
        step.block = view(step.array)
        ids = len(self.groups) + 8 * rows.count + 1
        step.ids = step.array[ids : ids + tokens]  # this view can be written, later ones cannot
        step.behind = []
        step.kept = []
        self.open.append(step)
        self.place_rows(step, rows)
        self.fill(step, rows)
        step.array.setflags(False)
        step.rows = None if rows is self.scratch else rows
        step.turn = rows.steps
        step.log = rows.take_log()
        rows.steps += 1
        self.clock += 1
        step.clock = self.clock
        step.is_open = True

    def preview(self, rows: Rows, count: int, counts: Any, ahead: int) -> None:
        """What `extend` would take of each group, into ``new``; changes nothing. O(rows)."""
        self.aim_rows(rows, count, counts, ahead)
        self.count_new(rows)

    def aim_rows(self, rows: Rows, count: int, counts: Any, ahead: int) -> tuple[int, int]:
        """Where each row comes to, into ``target``, and which grow into ``growing``.

        Returns:
            New tokens of all rows, and the longest context.
        """
        self.tick += 1
        self.growers = 0
        given = self.nothing
        if counts is not None:
            given = counts
        if counts is not None and len(given) != rows.count:
            raise Refused(COUNT, -1, len(given))
        tokens = most = 0
        for i in range(rows.count):
            row = rows.data[i]
            if row < 0:
                raise Refused(GONE, i)
            if self.preempted[row]:
                raise Refused(PREEMPTED, i)
            if self.stamp[row] == self.tick:
                raise Refused(TWICE, i)
            self.stamp[row] = self.tick
            start = self.scheduled[row]
            end = start + (count if counts is None else given[i])
            if end < start:
                raise Refused(COUNT, i, end - start)
            if end > start:
                end = self.check_end(i, row, start, end, ahead)
                self.note_growth(i, row, start, end)
            self.target[row] = end
            tokens += end - start
            most = max(most, end)
        if tokens == 0:
            raise Refused(NOTHING)
        return tokens, most

    def check_end(self, place: int, row: int, start: int, end: int, ahead: int) -> int:
        """How far a row that moves may come: at most to its limit where it runs ahead."""
        if self.states and start < self.floor[row]:
            raise Refused(STATE_LOST, place)
        if end > self.limit[row]:
            if ahead == 0:
                raise Refused(LIMIT, place, end)
            end = self.limit[row]
        if end > self.known[row] + ahead:
            raise Refused(AHEAD, place, end - start, max(0, self.known[row] + ahead - start))
        if self.states and end - self.known[row] - self.waiting[row] > self.rollback:
            raise Refused(DRAFTS, place, end)
        return end

    def note_growth(self, place: int, row: int, start: int, end: int) -> None:
        """Into ``growing`` where a row that moves needs more than its open page. O(1)."""
        over = start % self.size
        if over == 0 or over + end - start > self.size or self.special[row]:
            self.growing[self.growers] = place
            self.growers += 1

    def count_new(self, rows: Rows) -> int:
        """Pages by group for all rows, into ``new``; returns how many.

        Of an open page that several rows share, all but its last holder need a copy.
        """
        self.clear_wants()
        for (number, page), times in self.want_rows(rows).items():
            space: Space = self.pool.spaces[number]
            if space.holders[page] == times and space.node[page] == 0:
                self.wants[number] -= 1
        total = 0
        for number in range(len(self.groups)):
            self.new[number] = self.wants[number]
            total += self.new[number]
        return total

    def count_pages(self, rows: Rows) -> int:
        """`count_new`, where the pool has so many beside what is owed. O(rows)."""
        total = self.count_new(rows)
        self.ask()
        if self.guaranteed:
            self.owe_beyond()
        for number in range(len(self.groups)):
            self.owed_after[number] = self.pool.need[number]
            self.pool.need[number] += self.new[number]
            self.pool.due[number] = self.pool.need[number]
        if self.pool.is_short(False):
            raise Refused(PAGES, 0, total)
        if self.pool.quiet.lanes > 2 and total > self.pool.free():
            self.pool.quiet.rebalance(self.pool.excess)
        return total

    def want_rows(self, rows: Rows) -> dict[tuple[int, int], int]:
        """Into ``wants`` what all rows take, each a copy of an open page that others can read.

        Returns:
            By (group, page), how many of the rows such a page is open in.
        """
        shared: dict[tuple[int, int], int] = {}
        size = self.size
        new = 0
        for i in range(self.growers):
            row = rows.data[self.growing[i]]
            start, end = self.scheduled[row], self.target[row]
            if not self.special[row]:
                new += (end + size - 1) // size - (start + size - 1) // size
                continue
            self.want(row, end)
            for group in self.groups:
                if group.keeps_tokens:
                    page = group.open_page(row, start)
                    if page:
                        place = (group.number, page)
                        shared[place] = shared.get(place, 0) + 1
        for group in self.groups:
            if group.keeps_tokens:
                self.wants[group.number] += new
        return shared

    def owe_beyond(self) -> None:
        """Take from what is owed what guaranteed rows of this step take now. O(guaranteed rows)."""
        for row in self.guaranteed:
            if self.stamp[row] == self.tick and self.target[row] > self.scheduled[row]:
                self.clear_wants()
                self.want(row, self.target[row])
                for number in range(len(self.groups)):
                    self.pool.need[number] -= self.wants[number]

    def reserve_columns(self, rows: Rows) -> None:
        """Room in every table, before anything is changed. Amortised O(new columns)."""
        size = self.size
        for i in range(self.growers):
            row = rows.data[self.growing[i]]
            used = (self.scheduled[row] + size - 1) // size
            columns = (self.target[row] + size - 1) // size
            if columns > used:
                for group in self.groups:
                    if group.keeps_tokens and columns > group.table.room[row]:
                        group.table.reserve(row, columns, used)

    def place_rows(self, step: Pass, rows: Rows) -> None:
        """Pages into the tables of all rows, and the copies that go with them. O(pages)."""
        self.begin_pages(step)
        if self.crosses:
            self.begin_crosses(step, rows)
        copies = [(number, source, page) for (number, page), source in self.pending.items()]
        given: dict[tuple[int, int], int] = {}
        fetched = [(number, source) for number, source, _ in copies]
        self.pending = {}
        for i in range(self.growers):
            place = self.growing[i]
            row = rows.data[place]
            start, end = self.scheduled[row], self.target[row]
            if self.special[row]:
                self.place_special(step, place, row, copies, given, fetched)
            first, last = (start + self.size - 1) // self.size, (end + self.size - 1) // self.size
            if last > first:
                self.take_columns(step, row, first, last)
        step.before = copies
        if self.states:
            self.place_snapshots(step, rows)
        for (number, page), times in given.items():  # not before: what is copied from is not taken
            for _ in range(times):
                self.pool.release(number, page, False)
        for number, page in fetched:
            self.pool.release(number, page, False)

    def begin_pages(self, step: Pass) -> None:
        """How many pages each group takes, and into ``wants`` where the next one is noted."""
        at = self.block_size(step.count, step.tokens)
        for number in range(len(self.groups)):
            step.block[number] = self.new[number]
            self.wants[number] = at
            at += self.new[number]

    def take_columns(self, step: Pass, row: int, first: int, last: int) -> None:
        """Pages for a row's new columns in every group of tokens. O(pages)."""
        for group in self.groups:
            if group.keeps_tokens:
                for column in range(first, last):
                    self.take(step, group, row, column)

    def take(self, step: Pass, group: Group, row: int, column: int) -> int:
        """A page for a column, noted among those the step took."""
        page = group.take(row, column)
        step.block[self.wants[group.number]] = page
        self.wants[group.number] += 1
        return page

    def place_special(
        self,
        step: Pass,
        place: int,
        row: int,
        copies: list[tuple[int, int, int]],
        given: dict[tuple[int, int], int],
        fetched: list[tuple[int, int]],
    ) -> None:
        """What a row needs beside new pages: a copy of its open page, states, a cross input.

        Args:
            copies: where to enter (group, from, to).
            given: by (group, page), how many rows of the step have a copy of an open page instead.
            fetched: where to enter pages of states that are copied from.
        """
        for group in self.groups:
            if group.keeps_tokens:
                self.copy_shared_page(step, group, row, copies, given)
            elif group.keeps_state:
                if group.entry(row, 0) == 0:
                    for column in range(group.units * group.parts):
                        self.take(step, group, row, column)
            elif self.cross[row] and group.entry(row, 0) == 0:
                for column in range(self.width_in(group, row)):
                    self.take(step, group, row, column)
                at = self.section(group.number, step.count, step.tokens) + step.count + place
                step.block[at] = 1
        fetches = self.fetches[row]
        self.fetches[row] = None
        for number, pages in fetches or ():
            self.place_fetched(self.groups[number], row, pages, copies, fetched)
        self.special[row] = 0

    def copy_shared_page(
        self,
        step: Pass,
        group: Group,
        row: int,
        copies: list[tuple[int, int, int]],
        given: dict[tuple[int, int], int],
    ) -> None:
        """A row about to write into a page that others can read gets a copy of it.

        The last holder of a page that is not published keeps it.
        """
        start = self.scheduled[row]
        page = group.open_page(row, start)
        if page == 0:
            return
        place, space = (group.number, page), group.space()
        times = given.get(place, 0)
        if space.node[page] or space.holders[page] - times > 1:
            copies.append((group.number, page, self.take(step, group, row, start // self.size)))
            given[place] = times + 1

    def place_fetched(
        self,
        group: Group,
        row: int,
        pages: tuple[int, ...],
        copies: list[tuple[int, int, int]],
        fetched: list[tuple[int, int]],
    ) -> None:
        """A kept state is copied into the unit it belongs to."""
        column = group.unit(self.scheduled[row])
        for page in pages:
            copies.append((group.number, page, group.entry(row, column)))
            fetched.append((group.number, page))
            column += 1

    def place_snapshots(self, step: Pass, rows: Rows) -> None:
        """Pages to keep the states of rows that come to a stop in. O(rows)."""
        for i in range(rows.count):
            row = rows.data[i]
            end = self.target[row]
            if self.stop[row] <= end and end > self.scheduled[row]:
                if self.is_stop(row, end):
                    self.place_snapshot(step, row, end)

    def place_snapshot(self, step: Pass, row: int, end: int) -> None:
        """Pages to keep the row's state in after this step, where there is room without need."""
        self.pool.ask()
        for group in self.groups:
            number = group.number
            self.pool.need[number] = self.owed_after[number]
            if group.keeps_state:
                self.pool.need[number] += group.parts
            self.pool.due[number] = self.pool.need[number]
        if self.pool.is_short(False):
            return
        if not self.make_room():
            return
        for group in self.groups:
            if group.keeps_state:
                pages = []
                column = group.unit(end)
                for part in range(group.parts):
                    self.pool.due[group.number] -= 1
                    page = self.pool.take(group.number)
                    step.behind.append((group.number, group.entry(row, column + part), page))
                    pages.append(page)
                step.kept.append((row, group.number, tuple(pages), end))
                group.in_flight += 1
