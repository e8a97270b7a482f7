"""Moves of one row outside steps: going back, ending, being preempted, forking."""

from __future__ import annotations

from octavo.core.arena import copy
from octavo.core.groups import Group
from octavo.core.prefixes import SharedPrefixes
from octavo.core.rows import WINDOW, Handle, Refused
from octavo.core.sequences import NEVER


class Moves(SharedPrefixes):
    """The rows of one cache, and how they go back, end and fork."""

    def reach(self, row: int, computed: int) -> int:
        """`end_of_cut` for callers from Python; within a loop this would look for overrides."""
        return self.end_of_cut(row, computed)

    def end_of_cut(self, row: int, computed: int) -> int:
        """Where a cut to ``computed`` positions comes to, given what windows and states keep.

        Raises:
            Refused: a window dropped what a query there must see.

        Cost: O(groups); O(columns) where a state has to be found.
        """
        if self.states and computed < self.floor[row]:
            return self.state_boundary(row, computed)
        number = self.first_lost(row, computed)
        if number >= 0:
            raise Refused(WINDOW, number, row)
        return computed

    def first_lost(self, row: int, computed: int) -> int:
        """The first group that gave back what a query at ``computed`` must see; -1: none did."""
        for group in self.groups if computed and self.sliding else ():
            first = group.first[row]
            if group.floor(computed) < first and group.sinks < first:
                return group.number
        return -1

    def state_boundary(self, row: int, computed: int) -> int:
        """The longest boundary up to ``computed`` with a kept state and all window pages, or 0."""
        span = self.span(row, self.computed[row])
        columns = min(span, computed // self.size)
        node = self.index.ancestor(self.tip[row], span - columns)
        while columns:
            if self.first_lost(row, columns * self.size) < 0 and self.can_fetch(node):
                return columns * self.size
            node = self.index.parent[node]
            columns -= 1
        return 0

    def settle(self, row: int, reached: int) -> None:
        """Let ``reached`` positions be computed and scheduled; what is beyond is given back.

        Nothing is given back before the row can do without it: where an interrupt comes between,
        the row publishes nothing any more, or its state is lost.

        O(pages given back).
        """
        before, after = self.span(row, self.computed[row]), self.span(row, reached)
        shared, lost = self.shared[row], self.states and reached < self.floor[row]
        self.mark_shared(row, reached)
        if after < before:
            self.shared[row] = 0
            for _ in range(after, before):
                self.index.await_one(self.tip[row], 1)
                self.tip[row] = self.index.parent[self.tip[row]]
        self.computed[row] = reached
        self.shared[row] = shared
        self.cut(row, reached)
        columns = (reached + self.size - 1) // self.size
        if self.sliding:
            for group in self.groups:
                if group.keeps_tokens:
                    group.first[row] = min(group.first[row], columns)
        if lost:
            self.drop_fetches(row)
            if reached:
                for group in self.groups:
                    if group.keeps_state:
                        self.fetch(row, group, self.tip[row])
                self.special[row] = 1
            self.floor[row] = reached

    def mark_shared(self, row: int, position: int) -> None:
        """Note where a row that goes on from ``position`` needs a copy of its page. O(groups)."""
        for group in self.groups:
            if group.keeps_tokens and group.open_page(row, position):
                self.special[row] = 1

    def cut(self, row: int, end: int) -> None:
        """Slots beyond ``end`` are given back. O(pages)."""
        low = (end + self.size - 1) // self.size
        high = (self.scheduled[row] + self.size - 1) // self.size
        self.scheduled[row] = end
        for group in self.groups:
            if group.keeps_tokens:
                group.cut(row, low, high)
        self.aim(row)

    def slide(self, row: int, position: int) -> None:
        """Windows give back what no query at ``position`` or later sees. O(pages given back)."""
        columns = (self.scheduled[row] + self.size - 1) // self.size
        for group in self.groups:
            if group.slides():
                stop = min(group.floor(position), columns)
                if stop > group.first[row]:
                    group.cut(row, max(group.first[row], group.sinks), stop)
                    group.first[row] = stop

    def truncate(self, row: int, length: int, reached: int) -> None:
        """Ids from ``length`` on are unknown, positions from ``reached`` on not computed."""
        self.settle(row, reached)
        count = self.span(row, self.known[row]) - self.span(row, length)
        shared = self.shared[row]
        self.shared[row] = 0
        if not self.preempted[row]:
            self.turn_back(row, count)
        self.known[row] = length
        self.shared[row] = shared
        self.known[row] = length

    def let_go(self, row: int) -> None:
        """Give back everything a row holds and stands on, the last column first. O(pages)."""
        self.clock += 1
        self.epoch[row] = self.clock
        self.opened[row] = 0
        self.moving[row] = 0
        self.waiting[row] = 0
        columns = (self.scheduled[row] + self.size - 1) // self.size
        known, computed = self.span(row, self.known[row]), self.span(row, self.computed[row])
        self.computed[row] = 0
        self.scheduled[row] = 0
        self.floor[row] = 0
        self.special[row] = 0
        self.stop[row] = NEVER
        self.stops[row] = None
        self.drop_fetches(row)
        for group in self.groups:
            if group.keeps_tokens:
                group.cut(row, 0, columns)
                group.first[row] = 0
            elif group.keeps_state:
                if self.pending:
                    self.forget_copies(group, row)
                group.cut(row, 0, group.units * group.parts)
            else:
                group.cut(row, 0, (self.cross[row] + self.size - 1) // self.size)
            group.table.free(row)
        self.turn_back(row, known - computed)
        self.index.leave(self.front[row])

    def preempt(self, row: int) -> None:
        """Take a row's pages; it keeps its ids. O(pages)."""
        self.preempted[row] = 1
        self.let_go(row)

    def end(self, row: int) -> None:
        """A row is free. O(pages)."""
        if self.promised[row]:
            self.guaranteed.remove(row)
        if not self.preempted[row]:
            self.let_go(row)
        tags = self.tags[row]
        for tag in () if tags is None else tags.values():
            self.index.tags.drop(tag)
        self.tags[row] = None
        self.ids.free(row)
        self.preempted[row] = 0
        self.promised[row] = 0
        self.forked[row] = 0
        self.private[row] = 0
        self.cross[row] = 0
        self.known[row] = 0
        self.limit[row] = 0
        self.spare[self.spares] = row
        self.spares += 1

    def release(self, handle: Handle) -> None:
        """A handle's row ends; the handle keeps its numbers and ids. O(pages + known)."""
        row = handle.row
        self.part_from(handle)
        self.go(row)

    def part_from(self, handle: Handle) -> None:
        """A handle keeps its numbers and ids, and names no row any more. O(known)."""
        row = handle.row
        handle.left = self.copy_ids(row)
        handle.last = (self.known[row], self.scheduled[row], self.computed[row], self.limit[row])
        handle.row = -1

    def leave(self, row: int) -> None:
        """`go` for callers from Python."""
        self.go(row)

    def go(self, row: int) -> None:
        """A row ends, in its batch too if it is in one. O(pages)."""
        place = self.places.place[row]
        if place >= 0:
            rows = self.places.rows[row]
            assert rows is not None
            rows.data[place] = -1
            rows.note(place, -1, self.width(row), 0)
            self.places.drop(row)
        self.end(row)

    def fork(self, row: int, left: int) -> int:
        """A row that knows and shares what ``row`` does; there is room for its states.

        Pages of tokens and cross inputs are shared: an open page is copied before its next write by
        any but its last holder. States are copied into pages of the child's own with the next step;
        those that are to be fetched anyway are not.

        Args:
            left: rows still to be forked, this one included.

        Cost: O(columns + known).
        """
        length = self.known[row]
        begin = self.ids.spare(length + length // 2 + 8)
        copy(self.ids.data, begin, self.ids.data, self.ids.begin[row], length)
        child = self.begin(begin, length, self.limit[row])
        self.scheduled[child] = self.scheduled[row]
        self.computed[child] = self.computed[row]
        self.floor[child] = self.floor[row]
        self.index.users[self.front[row]] += 1
        self.tip[child] = self.tip[row]
        self.front[child] = self.front[row]
        self.root[child] = self.root[row]
        self.shared[child] = self.shared[row]
        self.prompt[child] = self.prompt[row]
        self.branch[child] = self.branch[row]
        self.cross[child] = self.cross[row]
        self.private[child] = self.private[row]
        self.special[row] = 1
        self.special[child] = 1
        self.forked[row] = 1
        self.forked[child] = 1
        node = self.front[row]
        while node != self.tip[row]:
            self.index.await_one(node, 1)
            node = self.index.parent[node]
        tags = self.tags[row]
        if tags is not None:
            self.tags[child] = dict(tags)
            for tag in tags.values():
                self.index.tags.keep(tag)
        stops = self.stops[row]
        self.stops[child] = None if stops is None else list(stops)
        self.aim(child)
        fetches = self.fetches[row]
        self.fetches[child] = None if fetches is None else list(fetches)
        for number, pages in fetches or ():
            for page in pages:
                self.pool.retain(number, page)
        self.ask()
        for group in self.groups:
            self.pool.due[group.number] = self.pool.need[group.number]
            if group.keeps_state:
                self.pool.due[group.number] += left * group.units * group.parts
        for group in self.groups:
            self.share(group, row, child)
        return child

    def share(self, group: Group, row: int, child: int) -> None:
        """A child's table in one group. O(columns)."""
        columns = self.width_in(group, row)
        group.table.reserve(child, columns, 0)
        group.first[child] = group.first[row]
        state = group.keeps_state
        for column in range(columns):
            page = group.entry(row, column)
            if page and not state:
                self.pool.retain(group.number, page)
                group.put(child, column, page)
            elif page:
                target = group.take(child, column)
                if self.fetches[row] is None:
                    self.copy_later(group.number, page, target)
