"""Steps: slots for the next positions of some rows, and what becomes of them.

`Core.extend` checks all rows and counts what they need before it changes anything, so a step is made
whole or not at all; `Core.commit` checks before it learns. One path for one row and for hundreds,
for prompts, drafts and single tokens, whatever the groups keep::

    extend   check rows -> count pages -> ask the pool -> place pages -> fill the block
    commit   check rows -> learn ids -> cut what is not kept -> publish full pages -> slide windows
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core import nocython as cython
from octavo.core.arena import Arena, copy, ints, longs, view
from octavo.core.groups import Group
from octavo.core.index import PrefixIndex
from octavo.core.pages import Pool
from octavo.core.rows import (
    AHEAD,
    COUNT,
    DRAFTS,
    GONE,
    KEPT,
    LATER,
    LEARNS,
    LIMIT,
    NOTHING,
    PAGES,
    PREEMPTED,
    STATE_LOST,
    TOKEN,
    TOKENS,
    TWICE,
    UNKNOWN,
    Handle,
    Pass,
    Places,
    Refused,
    Rows,
)
from octavo.core.sequences import Sequences

if TYPE_CHECKING:
    from octavo.core.arena import Ints


class Core(Sequences):
    """All of one cache that runs in every step; arguments as `Sequences`.

    Attributes:
        stamp: by row, the last extend that named it; ``target``, where it comes to in this one.
        new, owed_after: by group, pages this step takes, and pages owed when it has.
        published, dropped: pages newly published, and given back by windows, in the last commit.
        repointed: (place, group, column, old, new) of entries it moved to equal pages.
    """

    def __init__(
        self,
        size: int,
        rows: int,
        index: PrefixIndex,
        pool: Pool,
        groups: list[Group],
        ids: Arena,
        places: Places,
        rollback: int,
        publishes: bool,
        names: list[str],
    ) -> None:
        super().__init__(size, rows, index, pool, groups, ids, places, rollback, publishes)
        self.names = names  # of the groups, for what the cache hands out
        self.zeros = np.zeros(rows, np.int32)
        self.zeros.flags.writeable = False
        self.stamp = longs(rows)
        self.tick = 0
        self.target = ints(rows)
        self.new = longs(len(groups))
        self.owed_after = longs(len(groups))
        self.nothing = ints(0)
        self.given = ints(64)
        self.scratch = Rows(8)
        self.published = 0
        self.dropped = 0
        self.repointed: list[tuple[int, int, int, int, int]] = []

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

    # -- extend --------------------------------------------------------------------------------

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
        ids = len(self.groups) + 7 * rows.count + 1
        step.ids = step.array[ids : ids + tokens]  # this view can be written, later ones cannot
        step.behind = []
        step.kept = []
        self.place_rows(step, rows)
        self.fill(step, rows)
        step.array.flags.writeable = False
        step.log = rows.take_log()
        self.clock += 1
        step.clock = self.clock
        step.is_open = True

    def aim_rows(self, rows: Rows, count: int, counts: Any, ahead: int) -> tuple[int, int]:
        """Where each row comes to, into ``target``; returns new tokens and the longest context."""
        self.tick += 1
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

    def preview(self, rows: Rows, count: int, counts: Any, ahead: int) -> None:
        """What `extend` would take of each group, into ``new``; changes nothing. O(rows)."""
        self.aim_rows(rows, count, counts, ahead)
        self.count_new(rows)

    def count_new(self, rows: Rows) -> int:
        """Pages by group for all rows, into ``new``; returns how many.

        Of an open page that several rows share, all but its last holder need a copy.
        """
        self.clear_wants()
        shared = self.want_rows(rows)
        for number, page in shared:
            self.pool.spaces[number].holders[page] += 1
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
        if self.pool.lanes > 2 and total > self.pool.free():
            self.pool.rebalance()
        return total

    def want_rows(self, rows: Rows) -> list[tuple[int, int]]:
        """Into ``wants`` what all rows take; returns the pages whose holders were counted down."""
        shared: list[tuple[int, int]] = []
        size = self.size
        new = 0
        for i in range(rows.count):
            row = rows.data[i]
            start, end = self.scheduled[row], self.target[row]
            if end == start:
                continue
            if not self.special[row]:
                new += (end + size - 1) // size - (start + size - 1) // size
                continue
            self.want(row, end)
            for group in self.groups:
                if group.keeps_tokens:
                    page = group.open_page(row, start)
                    if page:
                        group.space().holders[page] -= 1
                        shared.append((group.number, page))
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
        for i in range(rows.count):
            row = rows.data[i]
            used = (self.scheduled[row] + size - 1) // size
            columns = (self.target[row] + size - 1) // size
            if columns > used:
                for group in self.groups:
                    if group.keeps_tokens and columns > group.table.room[row]:
                        group.table.reserve(row, columns, used)

    # -- placing pages -------------------------------------------------------------------------

    def place_rows(self, step: Pass, rows: Rows) -> None:
        """Pages into the tables of all rows, and the copies that go with them. O(pages)."""
        at = self.block_size(rows.count, step.tokens)
        for number in range(len(self.groups)):
            step.block[number] = self.new[number]
            self.wants[number] = at  # from here on: where the next page of the group is noted
            at += self.new[number]
        if self.crosses:
            self.begin_crosses(step, rows)
        size = self.size
        copies = self.pending
        given: list[tuple[int, int]] = []
        fetched = [(number, source) for number, source, _ in copies]
        self.pending = []
        for i in range(rows.count):
            row = rows.data[i]
            start, end = self.scheduled[row], self.target[row]
            if end == start:
                continue
            if self.special[row]:
                self.place_special(step, i, row, copies, given, fetched)
            first, last = (start + size - 1) // size, (end + size - 1) // size
            if last > first:
                for group in self.groups:
                    if group.keeps_tokens:
                        for column in range(first, last):
                            self.take(step, group, row, column)
        step.before = copies
        if self.states:
            self.place_snapshots(step, rows)
        for number, page in given:  # not before: what is copied from is not to be taken
            self.pool.spaces[number].holders[page] += 1
            self.pool.release(number, page, False)
        for number, page in fetched:
            self.pool.release(number, page, False)

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
        given: list[tuple[int, int]],
        fetched: list[tuple[int, int]],
    ) -> None:
        """What a row needs beside new pages: a copy of its open page, states, a cross input.

        Args:
            copies: where to enter (group, from, to).
            given: where to enter open pages that are copied from; their holders are counted down.
            fetched: where to enter pages of states that are copied from.
        """
        start = self.scheduled[row]
        for group in self.groups:
            if group.keeps_tokens:
                page = group.open_page(row, start)
                if page:
                    copies.append(
                        (group.number, page, self.take(step, group, row, start // self.size))
                    )
                    group.space().holders[page] -= 1
                    given.append((group.number, page))
            elif group.keeps_state:
                if group.entry(row, 0) == 0:
                    for column in range(group.units * group.parts):
                        self.take(step, group, row, column)
            elif self.cross[row] and group.entry(row, 0) == 0:
                for column in range(self.columns(group, row)):
                    self.take(step, group, row, column)
                at = self.section(group.number, step.count, step.tokens) + step.count + place
                step.block[at] = 1
        fetches = self.fetches[row]
        self.fetches[row] = None
        for number, pages in fetches or ():
            self.place_fetched(self.groups[number], row, pages, copies, fetched)
        self.special[row] = 0

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
            stops, end = self.stops[row], self.target[row]
            if self.stop[row] <= end and end > self.scheduled[row]:
                if stops is not None and end in stops:
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
        for group in self.groups:
            if group.keeps_state and not self.has_room_for_state(group):
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

    # -- filling the block ---------------------------------------------------------------------

    def section(self, number: int, count: int, tokens: int) -> int:
        """Where in the block of ``count`` rows and ``tokens`` a group's addresses begin. O(groups)."""
        at = len(self.groups) + 7 * count + 1 + 2 * tokens
        for group in self.groups:
            if group.number == number:
                break
            if group.keeps_tokens:
                at += tokens
            elif group.keeps_state:
                at += count * group.parts * (1 + group.units)
            else:
                at += 2 * count
        return at

    def block_size(self, count: int, tokens: int) -> int:
        """Where all sections end, and the pages taken begin. O(groups)."""
        return self.section(-1, count, tokens)

    def begin_crosses(self, step: Pass, rows: Rows) -> None:
        """Lengths of cross inputs; none is to be written yet."""
        for group in self.groups:
            if group.keeps_cross:
                at = self.section(group.number, step.count, step.tokens)
                for i in range(rows.count):
                    step.block[at + i] = self.cross[rows.data[i]]
                    step.block[at + rows.count + i] = 0

    def fill(self, step: Pass, rows: Rows) -> None:
        """The arrays of a step whose pages are placed, and where its rows stand now."""
        block, n, tokens = step.block, rows.count, step.tokens
        self.fill_tokens(step, rows)
        for group in self.groups:
            at = self.section(group.number, n, tokens)
            if group.keeps_tokens:
                self.fill_slots(group, block, at, rows)
            elif group.keeps_state:
                self.fill_states(group, block, at, rows)
        for i in range(n):
            row = rows.data[i]
            end = self.target[row]
            self.opened[row] += 1
            if end > self.scheduled[row]:
                self.moving[row] += 1
                self.waiting[row] += block[len(self.groups) + 5 * n + i]
                self.scheduled[row] = end
                if self.states:
                    self.floor[row] = max(self.floor[row], end - self.rollback)
                    self.aim(row)

    def fill_tokens(self, step: Pass, rows: Rows) -> None:
        """All but the addresses of groups."""
        block, n = step.block, rows.count
        first = len(self.groups)
        query = first + 6 * n
        ids = query + n + 1
        positions = ids + step.tokens
        data = self.ids.data
        block[query] = at = 0
        for i in range(n):
            row = rows.data[i]
            start, end, known = self.scheduled[row], self.target[row], self.known[row]
            count = end - start
            there = max(0, min(end, known) - start)
            begin = self.ids.begin[row] + start
            if there > 16:
                copy(block, ids + at, data, begin, there)
            else:
                for j in range(there):
                    block[ids + at + j] = data[begin + j]
            for j in range(there, count):
                block[ids + at + j] = 0  # the engine knows these, the cache does not yet
            for j in range(count):
                block[positions + at + j] = start + j
            at += count
            wants = end > start and end >= known and known + self.waiting[row] < self.limit[row]
            block[first + i] = row
            block[first + n + i] = count
            block[first + 2 * n + i] = start
            block[first + 3 * n + i] = end
            block[first + 4 * n + i] = at - 1 if count else -1
            block[first + 5 * n + i] = 1 if wants else 0
            block[query + i + 1] = at

    def fill_slots(self, group: Group, block: Ints, at: int, rows: Rows) -> None:
        """Slots of all new positions: the page's first one, and one after the other."""
        size, table = self.size, group.table.data
        for i in range(rows.count):
            row = rows.data[i]
            position, end = self.scheduled[row], self.target[row]
            begin = group.table.begin[row]
            while position < end:
                column = position // size
                base = (table[begin + column] - column) * size
                stop = min(end, (column + 1) * size)
                while position < stop:
                    block[at] = base + position
                    at += 1
                    position += 1

    def fill_states(self, group: Group, block: Ints, at: int, rows: Rows) -> None:
        """The state each row starts from, and where the states after its last positions go."""
        parts = group.parts
        targets = at + rows.count * parts
        for i in range(rows.count):
            row = rows.data[i]
            column = group.unit(self.scheduled[row])
            for part in range(parts):
                block[at + i * parts + part] = group.entry(row, column + part)
            for back in range(group.units):
                column = group.unit(self.target[row] + group.units - back)
                for part in range(parts):
                    block[targets] = group.entry(row, column + part)
                    targets += 1

    # -- what a step shows later ---------------------------------------------------------------

    def is_row(self, step: Pass, place: int) -> bool:
        """Whether a row of a step is what it was: neither released nor preempted since. O(1)."""
        return self.epoch[step.block[len(self.groups) + place]] <= step.clock

    def gather(self, step: Pass, number: int) -> Any:
        """The page table of an open step in a group, int32[n, width]. O(rows x width)."""
        group: Group = self.groups[number]
        n, lengths = step.count, len(self.groups) + 3 * step.count
        width = step.width
        if group.keeps_cross:
            lengths = self.section(number, n, step.tokens)
            width = 0
            for i in range(n):
                width = max(width, (step.block[lengths + i] + self.size - 1) // self.size)
        array = np.empty((n, width), np.int32)
        self.gather_rows(view(array.reshape(-1)), step, group, width, lengths)
        array.flags.writeable = False
        return array

    @cython.boundscheck(False)
    def gather_rows(self, table: Ints, step: Pass, group: Group, width: int, lengths: int) -> None:
        """The rows of `gather`, which has made ``table``; C does not check each number of a row."""
        n, data = step.count, group.table.data
        for i in range(n):
            row = step.block[len(self.groups) + i]
            columns = (step.block[lengths + i] + self.size - 1) // self.size
            if not self.is_row(step, i) or group.table.room[row] < columns:
                columns = 0
            begin, at = group.table.begin[row], i * width
            if begin + columns > len(data) or at + width > len(table) or columns > width:
                raise IndexError(row)
            for column in range(columns):
                table[at + column] = data[begin + column]
            for column in range(columns, width):
                table[at + column] = 0

    def delta(self, step: Pass, number: int) -> Any:
        """Changed entries of a group's table, int32[3, k]: places, columns, pages; None: none.

        Places to which another row came are told whole, as an open step has them.

        Cost: O(changes).
        """
        if step.log is None:
            return None
        log: Any = step.log
        found: list[tuple[int, int, int]] = []
        for at in range(0, len(log), 4):
            if log[at + 1] == number:
                found.append((log[at], log[at + 2], log[at + 3]))
            elif log[at + 1] < 0:
                self.tell_row(step, self.groups[number], log[at], log[at + 2], found)
        return np.array(found, np.int32).reshape(-1, 3).T if found else None

    def tell_row(
        self, step: Pass, group: Group, place: int, width: int, found: list[tuple[int, int, int]]
    ) -> None:
        """All columns of a place, and nothing in what it had beyond."""
        columns = 0
        if place < step.count and self.is_row(step, place):
            row = step.block[len(self.groups) + place]
            columns = min(self.columns(group, row), group.table.room[row])
            for column in range(columns):
                found.append((place, column, group.entry(row, column)))
        for column in range(columns, width):
            found.append((place, column, 0))

    # -- commit --------------------------------------------------------------------------------

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
                    self.known[row] += count
                self.opened[row] -= 1
                if context > past:
                    self.moving[row] -= 1
                    self.waiting[row] -= wants
                    end = context if kept is None else past + valid[i]
                    self.keep(i, row, end, context)
            at += count
        self.publish_copies(step)
        step.is_open = False

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
        if every and len(numbers) != n:
            raise Refused(TOKENS, n, len(numbers))
        for i in range(n):
            row, past = block[first + i], block[first + 2 * n + i]
            context = block[first + 3 * n + i]
            count = given[i] if some else (block[first + 5 * n + i] if every else 0)
            if every:
                at = i
            if count < 0 or at + count > len(numbers):
                raise Refused(TOKENS, n, at + count)
            for j in range(at, at + count):
                if numbers[j] < 0:
                    raise Refused(TOKEN, j)
            at += count
            if partly and not 0 <= valid[i] <= context - past:
                raise Refused(KEPT, i, valid[i])
            if self.epoch[row] <= step.clock:
                end = past + valid[i] if partly else context
                self.check_row(i, row, count, past, end, context)
        if some and at != len(numbers):
            raise Refused(TOKENS, n, at)

    def check_row(
        self, place: int, row: int, count: int, past: int, end: int, context: int
    ) -> None:
        """Whether a row may learn ``count`` ids and be computed up to ``end``."""
        known = self.known[row] + count
        if known > self.limit[row]:
            raise Refused(LEARNS, place, known)
        if count and known > self.ids.room[row]:
            self.ids.reserve(row, known, self.known[row])
        if context == past:
            return
        if end > known:
            raise Refused(UNKNOWN, place, end, known)
        if end < context:
            if self.moving[row] > 1:
                raise Refused(LATER, place, end)
            self.reach(row, end)

    def keep(self, place: int, row: int, end: int, context: int) -> None:
        """Positions up to ``end`` are computed, those of the step beyond are given back."""
        later = self.moving[row] > 0
        if self.states and end < self.floor[row] and not later:
            self.settle(row, self.reach(row, end))
        else:
            before = self.span(row, self.computed[row])
            self.computed[row] = end
            if end < context:
                self.cut(row, end)
            after = self.span(row, end)
            if after > before:
                self.publish(place, row, before, after, later)
        if self.sliding:
            position = max(0, self.computed[row] - self.rollback)
            for group in self.groups:
                if group.slides():
                    self.dropped += group.slide(row, position, self.prompt[row], self.branch[row])

    def publish(self, place: int, row: int, first: int, stop: int, later: bool) -> None:
        """Full columns ``first`` to ``stop`` stand for nodes, new ones where there are none.

        An entry whose node has a page moves to that one, unless a ``later`` step reads its own.

        Cost: O(tokens + columns x groups).
        """
        index, tip, tags = self.index, self.tip[row], self.tags[row]
        begin = self.ids.begin[row]
        for column in range(first, stop):
            tag = 0 if tags is None else tags.get(column, 0)
            at = begin + column * self.size
            code = index.hash(tip, tag, at)
            node = index.find(tip, tag, code, at)
            if node == 0:
                node = index.add(tip, tag, code, at)
            index.users[node] += 1
            for group in self.groups:
                if group.keeps_tokens:
                    page = group.entry(row, column)
                    other = index.held[node * index.groups + group.number]
                    if other == 0 and page:
                        self.pool.publish(group.number, page, node)
                        self.published += 1
                        if self.stored is not None:
                            self.stored(group.number, node, page)
                    elif other != page and page and not later:
                        self.repoint(place, group, row, column, page, other)
            index.leave(tip)
            tip = node
        self.tip[row] = tip

    def repoint(self, place: int, group: Group, row: int, column: int, old: int, new: int) -> None:
        """Move an entry to the page its node has, unless what is owed needs the own copy. O(1)."""
        if self.guaranteed:
            self.ask()
            self.pool.pin(group.number, new)
            if self.pool.is_short(False):
                return
        self.pool.reuse(group.number, new)
        group.put(row, column, new)
        self.pool.release(group.number, old, False)
        self.repointed.append((place, group.number, column, old, new))

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
                    pages = group.held(row, self.columns(group, row))
                    self.pool.publish_bundle(group.number, tuple(pages), root)

    # -- abort ---------------------------------------------------------------------------------

    def abort(self, step: Pass) -> None:
        """The newest step never was: its slots are given back. O(rows + pages)."""
        block, n, first = step.block, step.count, len(self.groups)
        for i in range(n):
            row, past = block[first + i], block[first + 2 * n + i]
            if self.epoch[row] <= step.clock:
                self.opened[row] -= 1
                if block[first + n + i]:
                    self.moving[row] -= 1
                    self.waiting[row] -= block[first + 5 * n + i]
                    if past == self.computed[row]:
                        self.settle(row, self.reach(row, past))
                    else:
                        self.cut(row, past)
        for group in self.groups if self.crosses else ():
            if group.keeps_cross:
                self.take_back_crosses(step, group)
        for _, number, pages, _ in step.kept:
            self.drop_copies(self.groups[number], pages)
        step.kept = []
        step.is_open = False

    def take_back_crosses(self, step: Pass, group: Group) -> None:
        """Cross inputs this step was to write are not there: another step must. O(rows + pages)."""
        fresh = self.section(group.number, step.count, step.tokens) + step.count
        for i in range(step.count):
            row = step.block[len(self.groups) + i]
            if step.block[fresh + i] and self.is_row(step, i):
                group.cut(row, 0, self.columns(group, row))
                self.special[row] = 1
