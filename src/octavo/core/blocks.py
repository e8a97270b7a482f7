"""The block of a step: filled when the step is made; tables and changes gathered when read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.core import nocython as cython
from octavo.core.arena import copy, count_up, ints, longs, view
from octavo.core.groups import Group
from octavo.core.moves import Moves
from octavo.core.rows import Pass, Rows
from octavo.core.sequences import Parts

if TYPE_CHECKING:
    from octavo.core.arena import Ints


class StepBlocks(Moves):
    """The rows of one cache, and the arrays their steps show.

    Attributes:
        target: by row, where it comes to in the step that is made.
        zeros: int32[rows], read-only.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.target = ints(parts.rows)
        self.zeros = np.zeros(parts.rows, np.int32)
        self.zeros.setflags(write=False)

    def section(self, number: int, count: int, tokens: int) -> int:
        """Where a group's addresses begin in the block of so many rows and tokens. O(groups)."""
        at = len(self.groups) + 8 * count + 1 + 2 * tokens
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
        wants = len(self.groups) + 5 * n
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
                self.waiting[row] += block[wants + i]
                self.scheduled[row] = end
                if self.states:
                    self.floor[row] = max(self.floor[row], end - self.rollback)
                    self.aim(row)

    def fill_tokens(self, step: Pass, rows: Rows) -> None:
        """All but the addresses of groups."""
        block, n = step.block, rows.count
        first = len(self.groups)
        query = first + 7 * n
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
            count_up(block, positions + at, start, count)
            at += count
            wants = end > start and end >= known and known + self.waiting[row] < self.limit[row]
            block[first + i] = row
            block[first + n + i] = count
            block[first + 2 * n + i] = start
            block[first + 3 * n + i] = end
            block[first + 4 * n + i] = at - 1 if count else -1
            block[first + 5 * n + i] = 1 if wants else 0
            block[first + 6 * n + i] = known
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
                count_up(block, at, base + position, stop - position)
                at += stop - position
                position = stop

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

    def unknown(self, step: Pass, earlier: list[Pass]) -> Any:
        """Ids a step did not know, int32[3, k]: where, how many steps before it, and which row.

        Args:
            earlier: steps that were open when it was made, oldest first. A token they want is the
                one behind their context; what none of them samples has 0 steps and row -1.

        Cost: O(rows + ids), and O(rows) a step of ``earlier``.
        """
        block, n, first, total = step.block, step.count, len(self.groups), 0
        start, begin, place = ints(n), longs(n), ints(self.rows)
        for i in range(n):
            start[i] = max(block[first + 2 * n + i], block[first + 6 * n + i])
            begin[i] = total
            place[block[first + i]] = i + 1
            total += max(0, block[first + 3 * n + i] - start[i])
        array = np.zeros((3, total), np.int32)
        array[2] = -1
        found = view(array.reshape(-1))
        for i in range(n):
            at = block[first + 7 * n + i] + start[i] - block[first + 2 * n + i]
            for j in range(block[first + 3 * n + i] - start[i]):
                found[begin[i] + j] = at + j
        back = len(earlier)
        for other in earlier:
            m = other.count
            for j in range(m):
                i = place[other.block[first + j]] - 1
                if i >= 0 and other.block[first + 5 * m + j] and self.is_row(other, j):
                    end = other.block[first + 3 * m + j]
                    if start[i] <= end < block[first + 3 * n + i]:
                        at = begin[i] + end - start[i]
                        found[total + at] = back
                        found[2 * total + at] = j
            back -= 1
        return array

    def gone(self, step: Pass) -> list[int]:
        """Places of rows with new tokens that were released or preempted since. O(rows)."""
        counts = len(self.groups) + step.count
        found = []
        for place in range(step.count):
            if step.block[counts + place] and not self.is_row(step, place):
                found.append(place)
        return found

    def is_row(self, step: Pass, place: int) -> bool:
        """Whether a row of a step is what it was: neither released nor preempted since. O(1)."""
        return self.epoch[step.block[len(self.groups) + place]] <= step.clock

    def slots(self, step: Pass, number: int) -> Any:
        """int32[T], where the tokens of a step go in a group of tokens. O(1)."""
        at = self.section(number, step.count, step.tokens)
        return step.array[at : at + step.tokens]

    def state_units(self, step: Pass, number: int) -> tuple[Any, Any]:
        """int32[n, parts], int32[n, units, parts]: a step's states to read and to write. O(1)."""
        group: Group = self.groups[number]
        n, parts, units = step.count, group.parts, group.units
        at = self.section(number, n, step.tokens)
        targets = at + n * parts
        stop = targets + n * units * parts
        source = step.array[at:targets].reshape(n, parts)
        return source, step.array[targets:stop].reshape(n, units, parts)

    def cross_inputs(self, step: Pass, number: int) -> tuple[Any, Any]:
        """int32[n] each: tokens of cross inputs, and 1 where this step writes them. O(1)."""
        n = step.count
        at = self.section(number, n, step.tokens)
        return step.array[at : at + n], step.array[at + n : at + 2 * n]

    def taken(self, step: Pass, number: int) -> Any:
        """int32, pages that a step took in a group. O(groups)."""
        at = self.block_size(step.count, step.tokens)
        for before in range(number):
            at += step.block[before]
        return step.array[at : at + step.block[number]]

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
        flat: Any = np.empty(n * width, np.int32)
        self.gather_rows(view(flat), step, group, width, lengths)
        flat.setflags(False)
        return flat.reshape(n, width)

    def gather_rows(self, table: Ints, step: Pass, group: Group, width: int, lengths: int) -> None:
        """The rows of `gather`, which has made ``table``; C does not check each number of a row."""
        n, data, first = step.count, group.table.data, len(self.groups)
        for i in range(n):
            row = step.block[first + i]
            columns = (step.block[lengths + i] + self.size - 1) // self.size
            if self.epoch[row] > step.clock or group.table.room[row] < columns:
                columns = 0
            begin = group.table.begin[row]
            at = i
            at *= width
            if (
                begin < 0
                or begin + columns > len(data)
                or at + width > len(table)
                or columns > width
            ):
                raise IndexError(row)
            with cython.boundscheck(False):
                for column in range(columns):
                    table[at + column] = data[begin + column]
                for column in range(columns, width):
                    table[at + column] = 0

    def delta(self, step: Pass, number: int) -> Any:
        """Changed entries of a group's table, int32[3, k]: places, columns, pages; None: none.

        Places to which another row came are given whole, as an open step has them.

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
                self.list_row(step, self.groups[number], log[at], log[at + 2], found)
        return np.array(found, np.int32).reshape(-1, 3).T if found else None

    def list_row(
        self, step: Pass, group: Group, place: int, width: int, found: list[tuple[int, int, int]]
    ) -> None:
        """All columns of a place, and nothing in what it had beyond."""
        columns = 0
        if place < step.count and self.is_row(step, place):
            row = step.block[len(self.groups) + place]
            columns = min(self.width_in(group, row), group.table.room[row])
            for column in range(columns):
                found.append((place, column, group.entry(row, column)))
        for column in range(columns, width):
            found.append((place, column, 0))
