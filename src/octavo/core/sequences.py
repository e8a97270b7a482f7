"""Sequences by row: what each knows, holds and is owed.

For each row, as half-open ranges: ``[0, computed)`` has KV, ``[0, scheduled)`` has slots,
``[0, known)`` has token ids; computed <= scheduled, computed <= known. Where a group keeps states,
positions from ``floor`` on can be gone back to without a kept one.

One object is all of a cache's core, each module adding what it does to what the ones before do::

    sequences -> states -> prefixes -> moves -> blocks -> steps -> commits
    numbers      kept      hits and    going    a step's  extend   commit
    by row       states    publishing  back     arrays             and abort
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
from octavo.core.pages import PagePool
from octavo.core.rows import TOKEN, Handle, Places, Refused, Rows

if TYPE_CHECKING:
    from octavo.core.arena import Ints

NEVER = 2**31 - 1
"""A position nobody comes to."""


class Parts:
    """What a core is put together from.

    Attributes:
        size: tokens of a page.
        rows: most sequences at once.
        index, pool, groups: the groups are made for as many rows.
        ids: the arena of token ids that the index reads.
        places: where rows stand in batches.
        rollback: positions that windows and states can go back.
        publishes: whether full pages are kept for later prompts.
        names: of the groups, for what the cache hands out.
    """

    def __init__(
        self,
        size: int,
        rows: int,
        index: PrefixIndex,
        pool: PagePool,
        groups: list[Group],
        ids: Arena,
        places: Places,
        rollback: int,
        publishes: bool,
        names: list[str],
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
        self.names = names


class Sequences:
    """The rows of one cache: their numbers, token ids, places in batches, and what they are owed.

    Attributes:
        known, scheduled, computed, limit: by row, positions; limit 0: the row is free.
        floor: by row, the lowest position its states reach back to.
        stop: by row, the next position a state should be kept at; ``stops`` has all, sorted.
        tip: by row, the node of its last full page that is computed; ``front``, of the last that is
            known; ``root``, the one before the first.
        shared: by row, positions whose content is known: pages beyond are never shared.
        prompt, branch: by row, columns at whose end other prompts are likely to branch off.
        cross: by row, tokens of its cross input.
        epoch: by row, steps made before this count mean nothing to it.
        special: by row, whether its next step needs more than new pages: a page to copy, a state to
            take or fetch, a cross input to place.
        private: by row, whether its pages are kept to itself.
        promised: by row, whether pages up to its limit are reserved; ``guaranteed`` lists them.
        preempted: by row, whether it holds nothing until it is resumed.
        opened, moving, waiting: by row, the open steps it is in, those in which it has tokens, and
            the tokens these will teach it.
        tags: by row, the tags of its pages with media by column, or None.
        fetches: by row, (group, pages) of kept states it holds until they are copied, or None.
        size, rows, index, pool, groups, ids, places, rollback, publishes, names: as `Parts`.
        main: number of the first group of tokens; -1: there is none.
        states, sliding, crosses: whether any group keeps states, gives pages back, keeps inputs.
        clock: counts what a step may be older than: steps made, rows that ended or were preempted.
        stored: called with group, node and page when a page is published; None: nobody listens.
        forked: by row, whether it ever shared what it holds with a fork.
        pending: by (group, page), the page that the next step copies there; it is held till then.
        wants, owed: by group, pages of the rows of a step, and of guaranteed rows beyond it.
    """

    def __init__(self, parts: Parts) -> None:  # noqa: PLR0915, one line an array
        self.size = parts.size
        self.rows = parts.rows
        self.index = parts.index
        self.pool = parts.pool
        self.groups = parts.groups
        self.ids = parts.ids
        self.places = parts.places
        self.rollback = parts.rollback
        self.publishes = parts.publishes
        self.names = parts.names
        self.main = -1
        self.states = False
        self.sliding = False
        self.crosses = False
        for group in self.groups:
            if group.keeps_tokens and self.main < 0:
                self.main = group.number
            if group.keeps_state:
                self.states = True
            if group.keeps_cross:
                self.crosses = True
            if group.slides():
                self.sliding = True
        self.known = ints(parts.rows)
        self.scheduled = ints(parts.rows)
        self.computed = ints(parts.rows)
        self.limit = ints(parts.rows)
        self.floor = ints(parts.rows)
        self.stop = ints(parts.rows)
        self.tip = ints(parts.rows)
        self.front = ints(parts.rows)
        self.root = ints(parts.rows)
        self.shared = ints(parts.rows)
        self.prompt = ints(parts.rows)
        self.branch = ints(parts.rows)
        self.cross = ints(parts.rows)
        self.epoch = longs(parts.rows)
        self.special = ints(parts.rows)
        self.private = ints(parts.rows)
        self.promised = ints(parts.rows)
        self.forked = ints(parts.rows)
        self.preempted = ints(parts.rows)
        self.opened = ints(parts.rows)
        self.moving = ints(parts.rows)
        self.waiting = ints(parts.rows)
        self.stops: list[list[int] | None] = [None] * parts.rows
        self.tags: list[dict[int, int] | None] = [None] * parts.rows
        self.fetches: list[list[tuple[int, tuple[int, ...]]] | None] = [None] * parts.rows
        self.guaranteed: list[int] = []
        self.pending: dict[tuple[int, int], int] = {}
        self.spare = ints(parts.rows)  # rows that were in use and are free
        self.spares = 0
        self.touched = 0  # rows from here on were never in use
        self.clock = 0
        self.wants = longs(len(self.groups))
        self.owed = longs(len(self.groups))
        self.stored: Callable[[int, int, int], None] | None = None

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
            self.write_list(target, begin, tokens, length)
        else:
            if set(map(type, tokens)) - {int} or (length and not 0 <= max(tokens) <= NEVER):
                raise Refused(TOKEN)
            self.write_array(target, begin, view(array("i", tokens)), length)

    def write_list(self, target: Ints, begin: int, tokens: list[Any], length: int) -> None:
        """`write` of a list, in C."""
        for i in range(length):
            item = tokens[i]
            if type(item) is not int:
                raise Refused(TOKEN, i)
            try:
                number = item
            except OverflowError:  # C's numbers have 64 bits
                raise Refused(TOKEN, i) from None
            if number < 0 or number > 0x7FFFFFFF:
                raise Refused(TOKEN, i)
            target[begin + i] = number

    def write_array(self, target: Ints, begin: int, tokens: Ints, length: int) -> None:
        """`write` of an array."""
        if cython.compiled:
            if length > len(tokens):
                raise IndexError(length)
            signs = 0
            with cython.boundscheck(False):
                for i in range(length):
                    signs |= tokens[i]
            for i in range(length if signs < 0 else 0):
                if tokens[i] < 0:
                    raise Refused(TOKEN, i)
        elif length and min(tokens) < 0:
            raise Refused(TOKEN)
        copy(target, begin, tokens, 0, length)

    def tokens(self, row: int) -> Any:
        """`copy_ids` for callers from Python."""
        return self.copy_ids(row)

    def copy_ids(self, row: int) -> Any:
        """A copy of the token ids a row knows, int32[known]. O(known)."""
        known = np.empty(self.known[row], np.int32)
        copy(view(known), 0, self.ids.data, self.ids.begin[row], self.known[row])
        return known

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

    def span(self, row: int, positions: int) -> int:
        """Columns of so many positions that stand in the prefix index. O(1)."""
        if not self.publishes or self.private[row]:
            return 0
        return min(positions, self.shared[row]) // self.size

    def disband(self, rows: Rows) -> None:
        """Take the rows of a batch that was collected out of it. O(rows)."""
        for place in range(rows.count):
            if rows.data[place] >= 0:
                self.places.drop(rows.data[place])

    def columns(self, group: Group, row: int) -> int:
        """`width_in` for callers from Python."""
        return self.width_in(group, row)

    def width_in(self, group: Group, row: int) -> int:
        """Columns of a row's table in a group. O(1)."""
        if group.keeps_state:
            return group.units * group.parts
        length = self.cross[row] if group.keeps_cross else self.scheduled[row]
        return (length + self.size - 1) // self.size

    def width(self, row: int) -> int:
        """Most columns a row has in any group. O(groups)."""
        most = 0
        for group in self.groups:
            most = max(most, self.width_in(group, row))
        return most

    def bind(self, handle: Handle, row: int) -> None:
        """A handle names a row. O(1)."""
        handle.core = self
        handle.row = row

    def join(self, rows: Rows, row: int) -> None:
        """A row in no batch comes behind the last one of these. Amortised O(1)."""
        if rows.count == len(rows.data):
            rows.data = larger(rows.data, rows.count, 2 * rows.count + 8)
        rows.data[rows.count] = row
        self.places.put(row, rows, rows.count)
        rows.note_all(rows.count, 0)
        rows.count += 1

    def part(self, rows: Rows, place: int) -> None:
        """The row in a place leaves, and the last one moves there. O(1)."""
        row, last = rows.data[place], rows.count - 1
        moved = rows.data[last]
        rows.count = last
        if row >= 0:
            self.places.drop(row)
            rows.note_all(place, self.width(row))
        if place != last:
            rows.data[place] = moved
            rows.note_all(place, 0)
            if moved >= 0:
                self.places.put(moved, rows, place)
                rows.note_all(last, self.width(moved))

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
                    self.wants[group.number] += self.width_in(group, row)

    def lose(self, row: int) -> None:
        """Add to ``wants`` what a guaranteed row would need again if its state were lost.

        Positions since the last one kept are computed again: pages that others hold are not given
        back, and columns that windows dropped are needed anew. O(groups), of a fork O(columns):
        such a row shares with nobody else.
        """
        for group in self.groups:
            if group.keeps_tokens:
                first = group.first[row]
                self.wants[group.number] += first - min(first, group.sinks)
                space = group.space()
                for column in range(self.width_in(group, row) if self.forked[row] else 0):
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

    def question(self) -> None:
        """`ask` for callers from Python."""
        self.ask()

    def ask(self) -> None:
        """Begin a question to the pool with what is owed to guaranteed rows. O(guaranteed rows)."""
        self.pool.ask()
        if self.guaranteed:
            self.owe()
            for number in range(len(self.groups)):
                self.pool.need[number] = self.owed[number]
