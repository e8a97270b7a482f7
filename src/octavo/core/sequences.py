"""Sequences by row: what each knows, holds and is owed, and the moves that concern one alone.

For each row, as half-open ranges: ``[0, computed)`` has KV, ``[0, scheduled)`` has slots,
``[0, known)`` has token ids; computed <= scheduled, computed <= known. Where a group keeps states,
positions from ``floor`` on can be gone back to without a kept one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core import nocython as cython
from octavo.core.arena import Arena, copy, ints, larger, longs, view
from octavo.core.groups import Group
from octavo.core.index import PrefixIndex
from octavo.core.pages import Pool
from octavo.core.rows import TOKEN, WINDOW, Handle, Places, Refused, Rows

if TYPE_CHECKING:
    from octavo.core.arena import Ints

NEVER = 2**31 - 1


class Sequences:
    """The rows of one cache.

    Args:
        size: tokens of a page.
        rows: most sequences at once.
        index, pool, groups: theirs; the groups are made for as many rows.
        ids: the arena of token ids that the index reads.
        places: where rows stand in batches.
        rollback: positions that windows and states can go back.
        publishes: whether full pages are kept for later prompts.

    Attributes:
        known, scheduled, computed, limit: by row, positions; limit 0: the row is free.
        floor: by row, the lowest position its states reach back to.
        stop: by row, the next position a state should be kept at; ``stops`` has them all.
        tip: by row, the node of its last full page; ``root`` the one before the first.
        shared: by row, positions whose content is known: pages beyond are never shared.
        prompt, branch: by row, columns at whose end other prompts are likely to branch off.
        cross: by row, tokens of its cross input.
        epoch: by row, steps made before this count mean nothing to it.
        special: by row, whether its next step needs more than new pages: a page to copy, a state to
            take or fetch, a cross input to place.
        private: by row, whether its pages are kept to itself.
        promised: by row, whether pages up to its limit are reserved; ``guaranteed`` lists such rows.
        preempted: by row, whether it holds nothing until it is resumed.
        opened, moving, waiting: by row, the open steps it is in, those in which it has tokens, and
            the tokens these will teach it.
        tags: by row, the tags of its pages with media by column, or None.
        fetches: by row, (group, pages) of kept states it holds until they are copied, or None.
        pending: (group, from, to) of pages to be copied with the next step; ``from`` is held.
        wants, owed: by group, pages of the rows of a step, and of guaranteed rows beyond it.
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
    ) -> None:
        self.size = size
        self.rows = rows
        self.index = index
        self.pool = pool
        self.groups = groups
        self.ids = ids
        self.places = places
        self.rollback = rollback
        self.publishes = publishes
        self.states = False
        self.sliding = False
        self.crosses = False
        for group in groups:
            if group.keeps_state:
                self.states = True
            if group.keeps_cross:
                self.crosses = True
            if group.slides():
                self.sliding = True
        self.known = ints(rows)
        self.scheduled = ints(rows)
        self.computed = ints(rows)
        self.limit = ints(rows)
        self.floor = ints(rows)
        self.stop = ints(rows)
        self.tip = ints(rows)
        self.root = ints(rows)
        self.shared = ints(rows)
        self.prompt = ints(rows)
        self.branch = ints(rows)
        self.cross = ints(rows)
        self.epoch = longs(rows)
        self.special = ints(rows)
        self.private = ints(rows)
        self.promised = ints(rows)
        self.preempted = ints(rows)
        self.opened = ints(rows)
        self.moving = ints(rows)
        self.waiting = ints(rows)
        self.stops: list[set[int] | None] = [None] * rows
        self.tags: list[dict[int, int] | None] = [None] * rows
        self.fetches: list[list[tuple[int, tuple[int, ...]]] | None] = [None] * rows
        self.guaranteed: list[int] = []
        self.pending: list[tuple[int, int, int]] = []
        self.spare = ints(rows)  # rows that were in use and are free
        self.spares = 0
        self.touched = 0  # rows from here on were never in use
        self.clock = 0
        self.path = ints(64)
        self.chain = 0
        self.boundary = 0
        self.tokens_boundary = 0
        self.wants = longs(len(groups))
        self.owed = longs(len(groups))
        self.stored: Callable[[int, int, int], None] | None = None

    # -- token ids -----------------------------------------------------------------------------

    def read(self, tokens: Any, length: int) -> int:
        """Write a prompt where it belongs to nobody yet; returns where. O(length).

        Args:
            tokens: a list, or an array of int32 as numbers.

        Raises:
            Refused: an entry is no token id.
        """
        begin = self.ids.spare(length + length // 2 + 8)
        self.write(self.ids.data, begin, tokens, length)
        return begin

    def write(self, target: Ints, begin: int, tokens: Any, length: int) -> None:
        """Token ids into ``target`` from ``begin`` on; there is room. O(length).

        Args:
            tokens: a list, or an array of int32 as numbers.

        Raises:
            Refused: an entry is no token id.
        """
        if not isinstance(tokens, list):
            self.write_array(target, begin, tokens, length)
        elif cython.compiled:
            for i in range(length):
                item = tokens[i]
                if type(item) is not int or not 0 <= item <= NEVER:
                    raise Refused(TOKEN, i)
                target[begin + i] = item
        else:
            if set(map(type, tokens)) - {int} or (length and not 0 <= max(tokens) <= NEVER):
                raise Refused(TOKEN)
            self.write_array(target, begin, view(array("i", tokens)), length)

    def write_array(self, target: Ints, begin: int, tokens: Ints, length: int) -> None:
        """`write` of an array."""
        if cython.compiled:
            for i in range(length):
                if tokens[i] < 0:
                    raise Refused(TOKEN, i)
        elif length and min(tokens) < 0:
            raise Refused(TOKEN)
        copy(target, begin, tokens, 0, length)

    def learn(self, row: int, tokens: Any, length: int) -> None:
        """Token ids that follow what a row knows. O(length).

        Raises:
            Refused: an entry is no token id.
        """
        known = self.known[row]
        self.ids.reserve(row, known + length, known)
        begin = self.ids.begin[row] + known
        self.write(self.ids.data, begin, tokens, length)
        self.known[row] = known + length

    def tokens(self, row: int) -> Any:
        """A copy of the token ids a row knows, int32[known]. O(known)."""
        known = np.empty(self.known[row], np.int32)
        copy(view(known), 0, self.ids.data, self.ids.begin[row], self.known[row])
        return known

    # -- matching ------------------------------------------------------------------------------

    def match(self, begin: int, most: int, root: int, tags: dict[int, int] | None) -> int:
        """The longest boundary, in columns, that all groups can serve of the ids at ``begin``.

        A hit at b needs, of each group, the pages a query at b can see: all below b, those of a
        window and the sinks, those of b's chunk, or one state. Leaves the known nodes in ``path``
        (``chain`` of them), each group's own boundary in its ``alone``, and what all groups of
        tokens could serve in ``tokens_boundary``. Changes nothing else.

        Args:
            most: full pages to look for.
            root: the node before the first; -1: none is known.
            tags: of pages with media, by column; -1: such media are not known.

        Cost: O(tokens compared + columns x groups).
        """
        self.chain = 0
        self.boundary = 0
        self.tokens_boundary = 0
        for group in self.groups:
            group.run = 0
            group.alone = 0
        if root < 0 or not self.publishes:
            return 0
        if most > len(self.path):
            self.path = ints(2 * most)
        size, node, index = self.size, root, self.index
        for column in range(most):
            tag = 0 if tags is None else tags.get(column, 0)
            at = begin + column * size
            if tag < 0:
                break
            node = index.find(node, tag, index.hash(node, tag, at), at)
            if node == 0:
                break
            self.path[column] = node
            self.chain = column + 1
            self.serve(node, column)
        return self.boundary

    def serve(self, node: int, column: int) -> None:
        """Whether a hit that ends behind the node of ``column`` is possible, by group and in all."""
        every = tokens = True
        for group in self.groups:
            page = self.index.held[node * self.index.groups + group.number]
            if group.keeps_tokens:
                if page == 0:
                    group.run = NEVER if column < group.sinks else max(group.run, column + 1)
                good = group.floor((column + 1) * self.size) >= group.run
                tokens = tokens and good
            else:
                good = group.keeps_cross or page != 0
            if good:
                group.alone = column + 1
            every = every and good
        if every:
            self.boundary = column + 1
        if tokens:
            self.tokens_boundary = column + 1

    def hit(self, group: Group, boundary: int, root: int) -> list[int]:
        """Pages of a group that the hit at ``boundary`` after `match` would hold. O(columns)."""
        if group.keeps_cross:
            return list(self.index.bundles[group.number].get(root, ()))
        if boundary == 0:
            return []
        if group.keeps_state:
            return list(self.index.bundles[group.number][self.path[boundary - 1]])
        stop = group.floor(boundary * self.size)
        pages = []
        for column in range(boundary):
            if column < group.sinks or column >= stop:
                node = self.path[column]
                pages.append(self.index.held[node * self.index.groups + group.number])
        return pages

    def common(self, row: int, begin: int, length: int) -> int:
        """Leading ids at ``begin`` that a row which is computing knows too. O(these)."""
        if self.preempted[row] or self.computed[row] >= self.known[row]:
            return 0
        data, own = self.ids.data, self.ids.begin[row]
        length = min(length, self.known[row])
        for i in range(length):
            if data[own + i] != data[begin + i]:
                return i
        return length

    # -- beginning and ending ------------------------------------------------------------------

    def begin(self, begin: int, length: int, limit: int) -> int:
        """A row for the ids that `read` wrote at ``begin``; it holds nothing yet. O(1)."""
        if self.spares:
            self.spares -= 1
            row = self.spare[self.spares]
        else:
            row = self.touched
            self.touched += 1
        self.ids.begin[row] = begin
        self.ids.room[row] = length + length // 2 + 8
        self.ids.end = begin + self.ids.room[row]
        self.known[row] = length
        self.limit[row] = limit
        self.epoch[row] = self.clock
        self.shared[row] = NEVER
        self.stop[row] = NEVER
        return row

    def hold(self, row: int, boundary: int, root: int, cross: bool) -> None:
        """A row that holds nothing stands at a boundary that `match` found. O(columns).

        Args:
            root: the node its first page comes after.
            cross: whether it takes pages of a cross input that an earlier sequence has written.
        """
        start = boundary * self.size
        for group in self.groups:
            if group.keeps_tokens:
                self.hold_tokens(group, row, boundary)
            elif group.keeps_state:
                group.table.reserve(row, group.units * group.parts, 0)
                if boundary:
                    self.fetch(row, group, self.path[boundary - 1])
            else:
                group.table.reserve(row, self.columns(group, row), 0)
                if cross and self.cross[row]:
                    self.hold_cross(group, row, root)
        self.computed[row] = start
        self.scheduled[row] = start
        self.floor[row] = start
        self.root[row] = root
        self.tip[row] = self.path[boundary - 1] if boundary else root
        self.index.users[self.tip[row]] += 1
        self.prompt[row] = min(max(self.known[row] - 1, 0), self.shared[row]) // self.size
        self.branch[row] = self.tokens_boundary
        if self.states or self.cross[row]:
            self.special[row] = 1

    def hold_tokens(self, group: Group, row: int, boundary: int) -> None:
        """The pages of a hit in a group of tokens. O(columns)."""
        index, pool, number = self.index, self.pool, group.number
        stop = group.floor(boundary * self.size)
        group.first[row] = stop
        group.table.reserve(row, boundary, 0)
        for column in range(boundary):
            if column < group.sinks or column >= stop:
                page = index.held[self.path[column] * index.groups + number]
                pool.reuse(number, page)
                group.put(row, column, page)

    def hold_cross(self, group: Group, row: int, root: int) -> None:
        """The pages of a cross input, where they are kept. O(pages)."""
        kept = self.index.bundles[group.number]
        if self.publishes and root in kept:
            pages = kept[root]
            for column in range(len(pages)):
                self.pool.reuse(group.number, pages[column])
                group.put(row, column, pages[column])

    def fetch(self, row: int, group: Group, node: int) -> None:
        """Hold the state kept after a node until the row's next step has copied it. O(parts)."""
        kept = self.index.bundles[group.number]
        pages = kept.pop(node)
        kept[node] = pages  # used last
        for page in pages:
            self.pool.reuse(group.number, page)
        fetches = self.fetches[row]
        if fetches is None:
            fetches = []
            self.fetches[row] = fetches
        fetches.append((group.number, pages))

    def drop_fetches(self, row: int) -> None:
        """Let go of states that were to be copied. O(pages)."""
        fetches = self.fetches[row]
        self.fetches[row] = None
        for number, pages in fetches or ():
            for page in pages:
                self.pool.release(number, page, False)

    def let_go(self, row: int) -> None:
        """Give back everything a row holds and stands on, the last column first. O(pages)."""
        self.drop_fetches(row)
        for group in self.groups:
            if group.keeps_tokens:
                group.cut(row, 0, (self.scheduled[row] + self.size - 1) // self.size)
                group.first[row] = 0
            elif group.keeps_state:
                if self.pending:
                    self.forget_copies(group, row)
                group.cut(row, 0, group.units * group.parts)
            else:
                group.cut(row, 0, (self.cross[row] + self.size - 1) // self.size)
            group.table.free(row)
        self.index.leave(self.tip[row])
        self.computed[row] = 0
        self.scheduled[row] = 0
        self.floor[row] = 0
        self.special[row] = 0
        self.stop[row] = NEVER
        self.stops[row] = None
        self.opened[row] = 0
        self.moving[row] = 0
        self.waiting[row] = 0
        self.clock += 1
        self.epoch[row] = self.clock

    def preempt(self, row: int) -> None:
        """Take a row's pages; it keeps its ids. O(pages)."""
        self.let_go(row)
        self.preempted[row] = 1

    def end(self, row: int) -> None:
        """A row is free. O(pages)."""
        if not self.preempted[row]:
            self.let_go(row)
        if self.promised[row]:
            self.guaranteed.remove(row)
        tags = self.tags[row]
        for tag in () if tags is None else tags.values():
            self.index.tags.drop(tag)
        self.tags[row] = None
        self.ids.free(row)
        self.preempted[row] = 0
        self.promised[row] = 0
        self.private[row] = 0
        self.cross[row] = 0
        self.known[row] = 0
        self.limit[row] = 0
        self.spare[self.spares] = row
        self.spares += 1

    # -- handles and batches -------------------------------------------------------------------

    def bind(self, handle: Handle, row: int) -> None:
        """A handle names a row. O(1)."""
        handle.core = self
        handle.row = row

    def release(self, handle: Handle) -> None:
        """A handle's row ends; the handle keeps its numbers and ids. O(pages + known)."""
        row = handle.row
        handle.last = (self.known[row], self.scheduled[row], self.computed[row], self.limit[row])
        handle.left = self.tokens(row)
        handle.row = -1
        self.leave(row)

    def leave(self, row: int) -> None:
        """A row ends, in its batch too if it is in one. O(pages)."""
        place = self.places.place[row]
        if place >= 0:
            rows = self.places.rows[row]
            assert rows is not None
            rows.note(place, -1, self.width(row), 0)
            rows.data[place] = -1
            self.places.drop(row)
        self.end(row)

    def join(self, rows: Rows, row: int) -> None:
        """A row in no batch comes behind the last one of these. Amortised O(1)."""
        if rows.count == len(rows.data):
            rows.data = larger(rows.data, rows.count, 2 * rows.count + 8)
        rows.data[rows.count] = row
        self.places.put(row, rows, rows.count)
        rows.note(rows.count, -1, 0, 0)
        rows.count += 1

    def part(self, rows: Rows, place: int) -> None:
        """The row in a place leaves, and the last one moves there. O(1)."""
        row, last = rows.data[place], rows.count - 1
        moved = rows.data[last]
        if row >= 0:
            self.places.drop(row)
            rows.note(place, -1, self.width(row), 0)
        if place != last:
            rows.data[place] = moved
            rows.note(place, -1, 0, 0)
            if moved >= 0:
                self.places.put(moved, rows, place)
                rows.note(last, -1, self.width(moved), 0)
        rows.count -= 1

    def columns(self, group: Group, row: int) -> int:
        """Columns of a row's table in a group. O(1)."""
        if group.keeps_state:
            return group.units * group.parts
        length = self.cross[row] if group.keeps_cross else self.scheduled[row]
        return (length + self.size - 1) // self.size

    def width(self, row: int) -> int:
        """Most columns a row has in any group. O(groups)."""
        most = 0
        for group in self.groups:
            most = max(most, self.columns(group, row))
        return most

    # -- what is needed ------------------------------------------------------------------------

    def want(self, row: int, end: int) -> None:
        """Add to ``wants`` the pages a row must take to have slots up to ``end``. O(groups)."""
        start = self.scheduled[row]
        new = (end + self.size - 1) // self.size - (start + self.size - 1) // self.size
        for group in self.groups:
            if group.keeps_tokens:
                self.wants[group.number] += new
                if self.special[row] and group.open_page(row, start):
                    self.wants[group.number] += 1
            elif self.special[row] and not (group.keeps_cross and not self.cross[row]):
                if group.entry(row, 0) == 0:
                    self.wants[group.number] += self.columns(group, row)

    def lose(self, row: int) -> None:
        """Add to ``wants`` what a guaranteed row would need again if its state were lost.

        Positions since the last one kept are computed again: pages that others hold are not given
        back, and columns that windows dropped are needed anew. O(columns).
        """
        for group in self.groups:
            if group.keeps_tokens:
                first = group.first[row]
                self.wants[group.number] += first - min(first, group.sinks)
                space = group.space()
                for column in range(self.columns(group, row)):
                    page = group.entry(row, column)
                    if page and space.holders[page] > 1:
                        self.wants[group.number] += 1

    def owe(self) -> None:
        """Into ``owed``: pages by group still due to guaranteed rows. O(guaranteed rows)."""
        for number in range(len(self.groups)):
            self.owed[number] = 0
        for row in self.guaranteed:
            if not self.preempted[row]:
                self.clear_wants()
                self.want(row, self.limit[row])
                if self.states:
                    self.lose(row)
                for number in range(len(self.groups)):
                    self.owed[number] += self.wants[number]

    def clear_wants(self) -> None:
        """Nothing is wanted. O(groups)."""
        for number in range(len(self.groups)):
            self.wants[number] = 0

    def ask(self) -> None:
        """Begin a question to the pool with what is owed to guaranteed rows. O(guaranteed rows)."""
        self.pool.ask()
        if self.guaranteed:
            self.owe()
            for number in range(len(self.groups)):
                self.pool.need[number] = self.owed[number]

    # -- going back ----------------------------------------------------------------------------

    def span(self, row: int, computed: int) -> int:
        """Columns of so many computed positions that stand in the prefix index. O(1)."""
        if not self.publishes or self.private[row]:
            return 0
        return min(computed, self.shared[row]) // self.size

    def reach(self, row: int, computed: int) -> int:
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

    def can_fetch(self, node: int) -> bool:
        """Whether the state after a node is kept and can be held beside what is owed. O(parts)."""
        for group in self.groups:
            if group.keeps_state and node not in self.index.bundles[group.number]:
                return False
        if not self.guaranteed:
            return True
        self.ask()
        for group in self.groups:
            if group.keeps_state:
                for page in self.index.bundles[group.number][node]:
                    self.pool.pin(group.number, page)
        return not self.pool.is_short(False)

    def settle(self, row: int, reached: int) -> None:
        """Let ``reached`` positions be computed and scheduled; what is beyond is given back.

        O(pages given back).
        """
        before, after = self.span(row, self.computed[row]), self.span(row, reached)
        if after < before:
            tip = self.tip[row]
            self.tip[row] = self.index.ancestor(tip, before - after)
            self.index.users[self.tip[row]] += 1
            self.index.leave(tip)
        if self.states and reached < self.floor[row]:
            self.drop_fetches(row)
            self.floor[row] = reached
            if reached:
                for group in self.groups:
                    if group.keeps_state:
                        self.fetch(row, group, self.tip[row])
                self.special[row] = 1
        self.computed[row] = reached
        self.cut(row, reached)
        columns = (reached + self.size - 1) // self.size
        for group in self.groups:
            if group.keeps_tokens:
                group.first[row] = min(group.first[row], columns)
                if group.open_page(row, reached):
                    self.special[row] = 1

    def cut(self, row: int, end: int) -> None:
        """Slots beyond ``end`` are given back. O(pages)."""
        low = (end + self.size - 1) // self.size
        high = (self.scheduled[row] + self.size - 1) // self.size
        for group in self.groups:
            if group.keeps_tokens:
                group.cut(row, low, high)
        self.scheduled[row] = end
        self.aim(row)

    def truncate(self, row: int, length: int, reached: int) -> None:
        """Ids from ``length`` on are unknown, positions from ``reached`` on not computed."""
        self.known[row] = length
        self.settle(row, reached)

    # -- states --------------------------------------------------------------------------------

    def stop_at(self, row: int, positions: set[int]) -> None:
        """Ask for states after these positions, where steps end there. O(stops)."""
        stops = self.stops[row]
        self.stops[row] = positions if stops is None else stops | positions
        self.aim(row)

    def aim(self, row: int) -> None:
        """Note the next position a state should be kept at. O(stops)."""
        stops = self.stops[row]
        if stops is None:
            return
        start, best = self.scheduled[row], NEVER
        for stop in stops:
            if start < stop < best:
                best = stop
        self.stop[row] = best

    def has_room_for_state(self, group: Group) -> bool:
        """Whether one more state may be kept; gives up the one used longest ago where it must."""
        kept = self.index.bundles[group.number]
        if group.most < 0 or len(kept) + group.in_flight < group.most:
            return True
        return group.most > 0 and self.give_up_state(group)

    def give_up_state(self, group: Group) -> bool:
        """The state used longest ago that nobody holds is kept no more. O(states held)."""
        space = group.space()
        for pages in self.index.bundles[group.number].values():
            page = pages[0]
            if space.holders[page] == 0:
                self.pool.forget(group.number, page, False)
                return True
        return False

    def keep_state(self, group: Group, row: int, pages: tuple[int, ...]) -> None:
        """A copied state stands for the row's last full page, unless there is one. O(parts)."""
        kept, tip = self.index.bundles[group.number], self.tip[row]
        if tip in kept or group.most == 0:
            return
        if group.most > 0 and len(kept) >= group.most and not self.give_up_state(group):
            return
        self.pool.publish_bundle(group.number, pages, tip)
        stops = self.stops[row]
        if stops is not None:
            stops.discard(self.computed[row])
        if self.stored is not None:
            self.stored(group.number, tip, pages[0])

    def forget_copies(self, group: Group, row: int) -> None:
        """Whoever was to get copies into a row's states is gone. O(pending copies)."""
        targets = set(group.held(row, group.units * group.parts))
        kept = []
        for number, source, target in self.pending:
            if number == group.number and target in targets:
                self.pool.release(number, source, False)
            else:
                kept.append((number, source, target))
        self.pending = kept

    # -- forking -------------------------------------------------------------------------------

    def fork(self, row: int) -> int:
        """A row that knows and shares what ``row`` does; there is room for its states.

        Pages of tokens and cross inputs are shared: an open page is copied before its next write by
        any but its last holder. States are copied into pages of the child's own with the next step;
        those that are to be fetched anyway are not.

        Cost: O(columns + known).
        """
        length = self.known[row]
        begin = self.ids.spare(length + length // 2 + 8)
        copy(self.ids.data, begin, self.ids.data, self.ids.begin[row], length)
        child = self.begin(begin, length, self.limit[row])
        self.scheduled[child] = self.scheduled[row]
        self.computed[child] = self.computed[row]
        self.floor[child] = self.floor[row]
        self.tip[child] = self.tip[row]
        self.root[child] = self.root[row]
        self.shared[child] = self.shared[row]
        self.prompt[child] = self.prompt[row]
        self.branch[child] = self.branch[row]
        self.cross[child] = self.cross[row]
        self.private[child] = self.private[row]
        self.special[row] = 1
        self.special[child] = 1
        self.index.users[self.tip[row]] += 1
        tags = self.tags[row]
        if tags is not None:
            self.tags[child] = dict(tags)
            for tag in tags.values():
                self.index.tags.keep(tag)
        stops = self.stops[row]
        self.stops[child] = None if stops is None else set(stops)
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
                self.pool.due[group.number] += group.units * group.parts
        for group in self.groups:
            self.share(group, row, child)
        return child

    def share(self, group: Group, row: int, child: int) -> None:
        """A child's table in one group. O(columns)."""
        columns = self.columns(group, row)
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

    def copy_later(self, number: int, source: int, target: int) -> None:
        """Copy a page with the next step, whoever it is for; the source is held until then.

        A source that waits to be filled itself stands for what it will be filled from.
        """
        for other, origin, filled in self.pending:
            if other == number and filled == source:
                source = origin
        self.pool.retain(number, source)
        self.pending.append((number, source, target))
