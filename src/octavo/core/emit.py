"""The arrays that attention kernels take, filled from the block and the page table of a step.

A `Source` knows where the numbers of a step lie, be they the core's or in arrays somebody made. A
`Target` is an array to fill, and its class says with what. A format is a list of targets::

    block of the step     counts past context query_start ids positions slots     a stretch each
    page table            row 0: 7 9 4 . .   row 1: 3 8 . . .                 a stretch a row
    a format's targets    Slots, Keys, Table; or Slots, PageStarts, Pages

Long, as sources and targets know each other: C needs both in one module.
"""

from __future__ import annotations

from typing import Any

from octavo.core import nocython as cython
from octavo.core.arena import copy, fill, ints, longs, view
from octavo.core.groups import Group
from octavo.core.rows import Pass

NO_INTS, NO_LONGS = ints(0), longs(0)


class Source:
    """A step as kernels see one of its groups of tokens.

    Args:
        size: tokens of a page.
        ratio: kernel pages of a page.
        window, chunk: tokens a query sees; 0: no such rule.
        lead: leading columns that all see.
        compact: whether columns behind those that no query sees are left out.

    Attributes:
        skip: leading kernel pages of all rows, which pages row after row leave out.
        count, tokens: rows and tokens of the step.
        width, pages: most kernel pages of a row, and of all rows.
        longest, keys: most keys of a row, and of all rows.
        most: most new tokens of a row.
        gone: rows with new tokens that are no longer what they were.
        lost: other such rows; they have no pages.
        log: changes since the step that targets were filled for, as of `Rows`.
        whole: whether targets of pages are written whole, not by these changes.
        moved: the first row that begins elsewhere among `Pages` than it did in that step.
    """

    def __init__(
        self, size: int, ratio: int, window: int, chunk: int, lead: int, compact: bool
    ) -> None:
        self.size = size
        self.ratio = ratio
        self.page = size // ratio
        self.window = window
        self.chunk = chunk
        self.lead = lead
        self.compact = compact
        self.skip = 0
        self.block = NO_INTS
        self.data = NO_INTS
        self.begin = NO_LONGS  # by row, where its pages begin in data; -1: it has none
        self.start = NO_LONGS  # by row, where they begin among `Pages`
        self.end = NO_INTS  # by row, its kernel pages
        self.first = 0
        self.ids = 0
        self.positions = 0
        self.slots = 0
        self.base = -1
        self.number = -1
        self.count = 0
        self.tokens = 0
        self.log = NO_INTS
        self.whole = True
        self.moved = 0
        self.behind = 0  # where `Pages` of that step end

    def read(self, step: Pass, number: int) -> None:
        """Look at a group of an open step. O(rows)."""
        core, n = step.core, step.count
        group: Group = core.groups[number]
        self.block = step.block
        self.data = group.table.data
        self.number = number
        self.first = len(core.groups)
        self.place(n, step.tokens)
        self.slots = core.section(number, n, step.tokens)
        for i in range(n):
            row = self.block[self.first + i]
            if core.epoch[row] <= step.clock:  # neither released nor preempted since
                self.begin[i] = group.table.begin[row]
        self.measure()

    def read_arrays(self, block: Any, count: int, tokens: int, table: Any, width: int) -> None:
        """Look at arrays. O(rows).

        Args:
            block: as of `Pass`, with no groups before, and where keys begin behind the slots.
            table: int32[count, width] as numbers; as wide as the longest context needs.
        """
        self.block = block
        self.data = table
        self.first = 0
        self.place(count, tokens)
        self.slots = self.positions + tokens
        self.base = self.slots + tokens
        for i in range(count):
            self.begin[i] = i * width
        self.measure()

    def place(self, count: int, tokens: int) -> None:
        """Where a block of so many rows and tokens has them; none has pages yet."""
        self.count = count
        self.tokens = tokens
        self.ids = self.first + 8 * count + 1
        self.positions = self.ids + tokens
        if len(self.begin) < count:
            self.begin = longs(count)
            self.end = ints(count)
        for i in range(count):
            self.begin[i] = -1

    def measure(self) -> None:
        """How much there is. O(rows)."""
        block, n = self.block, self.count
        counts = self.first + n
        self.width = 0
        self.pages = 0
        self.longest = 0
        self.keys = 0
        self.most = 0
        self.gone = 0
        self.lost = 0
        for i in range(n):
            keys = self.length(i)
            end = (keys + self.page - 1) // self.page
            self.end[i] = end
            self.width = max(self.width, end)
            self.pages += end
            self.longest = max(self.longest, keys)
            self.keys += keys
            self.most = max(self.most, block[counts + i])
            if self.begin[i] < 0:
                if block[counts + i]:
                    self.gone += 1
                else:
                    self.lost += 1

    # -- one row -------------------------------------------------------------------------------

    def shift(self, i: int) -> int:
        """Columns of a row that are left out behind the leading ones. O(1)."""
        if not self.compact:
            return 0
        position = self.block[self.first + 2 * self.count + i]
        floor = 0
        if self.window and position >= self.window:
            floor = (position - self.window + 1) // self.size
        elif self.chunk:
            floor = position // self.chunk * self.chunk // self.size
        return max(0, floor - self.lead)

    def new(self, i: int) -> int:
        """New tokens of a row. O(1)."""
        return self.block[self.first + self.count + i]

    def generates(self, i: int) -> bool:
        """Whether a row has one new token behind others. O(1)."""
        return self.new(i) == 1 and self.length(i) > 1

    def length(self, i: int) -> int:
        """Keys of a row. O(1)."""
        return self.block[self.first + 3 * self.count + i] - self.shift(i) * self.size

    # -- filling -------------------------------------------------------------------------------

    def write(self, targets: list[Target], log: Any, whole: bool) -> None:
        """Fill all targets, `Pages` after `PageStarts`.

        Args:
            log: changes since the step that these targets were filled for; None: none.
            whole: whether to write targets of pages whole, not by these changes.

        Cost: O(numbers in the targets); by changes O(rows + tokens + changes), and `Pages` behind
        the first row that begins elsewhere.
        """
        if log is not None:
            self.log = log
        self.whole = whole
        self.moved = 0 if whole else self.count
        for target in targets:
            target.write(self)
        self.log = NO_INTS


class Target:
    """An array to fill.

    Args:
        array: int32 in one stretch, writeable; of several axes, all numbers in order.
        none: what stands where there is nothing.
    """

    def __init__(self, array: Any, none: int = 0) -> None:
        self.numbers = array if cython.compiled else view(array)
        self.none = none

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""

    def pad(self, at: int, none: int) -> None:
        """Nothing from ``at`` on."""
        fill(self.numbers, at, len(self.numbers), none)


# -- by token and by row ---------------------------------------------------------------------------


class Slots(Target):
    """Where each token's keys and values go."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        copy(self.numbers, 0, source.block, source.slots, source.tokens)
        self.pad(source.tokens, self.none)


class Ids(Target):
    """Token ids, as far as they are known."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        copy(self.numbers, 0, source.block, source.ids, source.tokens)
        self.pad(source.tokens, 0)


class Positions(Target):
    """Position of each token in its sequence."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        copy(self.numbers, 0, source.block, source.positions, source.tokens)
        self.pad(source.tokens, self.none)


class Last(Target):
    """Index of each row's last token; -1: it has none."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        n = source.count
        copy(self.numbers, 0, source.block, source.first + 4 * n, n)
        self.pad(n, -1)


class QueryStarts(Target):
    """Where each row's tokens begin, and where the last end."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        n = source.count
        copy(self.numbers, 0, source.block, source.first + 7 * n, n + 1)
        self.pad(n + 1, source.tokens)


class Base(Target):
    """Positions left out of each row."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            base = source.shift(i) * source.size
            if source.base >= 0 and not source.compact:
                base = source.block[source.base + i]
            self.numbers[i] = base
        self.pad(source.count, 0)


class Keys(Target):
    """Keys of each row."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            self.numbers[i] = source.length(i)
        self.pad(source.count, 0)


class PastKeys(Target):
    """Keys of each row before the step."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            self.numbers[i] = source.length(i) - source.new(i)
        self.pad(source.count, 0)


class KeyStarts(Target):
    """Where each row's keys begin, and where the last end."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        total = 0
        self.numbers[0] = 0
        for i in range(source.count):
            total += source.length(i)
            self.numbers[i + 1] = total
        self.pad(source.count + 1, total)


class Requests(Target):
    """TensorRT-LLM's kinds of requests: 1, one that generates, 0, one in its context phase."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            self.numbers[i] = 1 if source.generates(i) else 0
        self.pad(source.count, 0)


class RequestPast(Target):
    """TensorRT-LLM's past lengths: keys before the step, in the context phase those behind it."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            keys = source.length(i)
            self.numbers[i] = keys - 1 if source.generates(i) else keys
        self.pad(source.count, 0)


class RequestContext(Target):
    """TensorRT-LLM's context lengths: new tokens, of one that generates the keys before."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            new = source.new(i)
            self.numbers[i] = source.length(i) - 1 if source.generates(i) else new
        self.pad(source.count, 0)


# -- pages -----------------------------------------------------------------------------------------


class LastLengths(Target):
    """Tokens in each row's last page; 1: it has none."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        for i in range(source.count):
            end, tokens = source.end[i], 1
            if end > source.skip:
                tokens = source.length(i) - (end - 1) * source.page
            self.numbers[i] = tokens
        self.pad(source.count, 1)


class PageStarts(Target):
    """Where each row's pages begin among `Pages`, and where the last end."""

    def write(self, source: Source) -> None:
        """Fill it. O(numbers)."""
        total = 0
        if len(source.start) < source.count:
            source.start = longs(source.count)
        source.behind = self.numbers[len(self.numbers) - 1]
        self.numbers[0] = 0
        for i in range(source.count):
            source.start[i] = total
            total += source.end[i] - source.skip
            if self.numbers[i + 1] != total:
                source.moved = min(source.moved, i)
            self.numbers[i + 1] = total
        self.pad(source.count + 1, total)


class PageTarget(Target):
    """Pages of rows, each row in a stretch of its own.

    Args:
        array, none: as `Target`.
        width, row: numbers of a stretch, and from one to the next; 0: as many as a row has pages,
            where ``source.start`` says.
        scale: a page p is written as ``p * scale``.
    """

    def __init__(
        self, array: Any, none: int = 0, width: int = 0, row: int = 0, scale: int = 1
    ) -> None:
        Target.__init__(self, array, none)
        self.width = width
        self.row = row
        self.scale = scale

    def at(self, source: Source, i: int) -> int:
        """Where a row's stretch begins. O(1)."""
        return i * self.row if self.row else source.start[i]

    def held(self, source: Source, i: int) -> int:
        """Kernel pages to write of a row. O(1)."""
        if i >= source.count or source.begin[i] < 0:
            return 0
        return min(source.end[i], self.width) if self.row else source.end[i] - source.skip

    def put_rows(self, source: Source, low: int, high: int) -> None:
        """Rows ``low`` to ``high``, and nothing behind their pages. O(numbers)."""
        same = source.ratio == 1 and self.scale == 1 and self.none == 0 and not source.compact
        if same:
            self.copy_rows(source, low, high)
        else:
            self.convert_rows(source, low, high, 0, 0)

    def copy_rows(self, source: Source, low: int, high: int) -> None:
        """Rows of pages that are written as they stand: what most steps have most of. O(numbers).

        C checks each row, not each number.
        """
        numbers, data = self.numbers, source.data
        for i in range(low, high):
            at = self.at(source, i)
            stop = at + self.held(source, i)
            behind = at + self.width if self.row else stop
            start = source.begin[i] + (0 if self.row else source.skip) if stop > at else 0
            if at < 0 or behind > len(numbers) or start + stop - at > len(data):
                raise IndexError(i)
            if cython.compiled:
                with cython.boundscheck(False):
                    for j in range(stop - at):
                        numbers[at + j] = data[start + j]
                    for j in range(stop, behind):
                        numbers[j] = 0
            else:
                copy(numbers, at, data, start, stop - at)
                fill(numbers, stop, behind, 0)

    def convert_rows(self, source: Source, low: int, high: int, offset: int, more: int) -> None:
        """Rows of kernel pages, of compact ones, or of blocks, ``offset`` further on. O(numbers).

        Args:
            more: what is added to an entry that has a page.
        """
        numbers, data, ratio, none = self.numbers, source.data, source.ratio, self.none
        skip = 0 if self.row else source.skip
        for i in range(low, high):
            at = self.at(source, i) + offset
            stop = at + self.held(source, i)
            column, part, shift = skip // ratio, skip % ratio, 0
            if stop > at:
                shift = source.shift(i)
            for j in range(at, stop):
                moved = column + shift if column >= source.lead else column
                page = data[source.begin[i] + moved]
                numbers[j] = (page * ratio + part) * self.scale + more if page else none
                part += 1
                if part == ratio:
                    part = 0
                    column += 1
            if self.row:
                fill(numbers, stop, at + self.width, none)


class Pages(PageTarget):
    """Pages row after row."""

    def write(self, source: Source) -> None:
        """Rows from the first that begins elsewhere on, and changed entries before. O(these)."""
        n, numbers = source.count, self.numbers
        self.put_rows(source, source.moved, n)
        total = source.start[n - 1] + source.end[n - 1] - source.skip
        fill(numbers, total, len(numbers) if source.whole else min(len(numbers), source.behind), 0)
        log = source.log
        for entry in range(0, len(log), 4):
            place, column = log[entry], log[entry + 2]
            if place >= source.moved:
                continue  # written already
            if log[entry + 1] < 0:
                self.put_rows(source, place, place + 1)
            elif log[entry + 1] == source.number and column < source.end[place]:
                numbers[source.start[place] + column] = log[entry + 3]


class Table(PageTarget):
    """A rectangle of pages."""

    def write(self, source: Source) -> None:
        """Fill it, or write what changed. O(numbers), O(changes)."""
        if self.row == 0:
            return  # there are no columns
        rows = len(self.numbers) // self.row
        if source.whole:
            self.put_rows(source, 0, rows)
        else:
            self.change(source, rows)

    def change(self, source: Source, rows: int) -> None:
        """Entries that changed, and rows in places where others stood. O(changes)."""
        log = source.log
        for entry in range(0, len(log), 4):
            place, column = log[entry], log[entry + 2]
            if place < rows:  # else it is neither a row nor padding
                if log[entry + 1] < 0:
                    self.put_rows(source, place, place + 1)
                elif log[entry + 1] == source.number and column < self.width:
                    self.put(place * self.row + column, log[entry + 3])

    def put(self, at: int, page: int) -> None:
        """One entry. O(1)."""
        self.numbers[at] = page or self.none


class PageBlocks(Table):
    """For each row the blocks of its pages' keys, and behind them those of the values.

    Args:
        array: of rows, two and columns.
        scale: blocks of a page.
        more: the values' block is so much behind the keys'.
    """

    def __init__(self, array: Any, width: int, scale: int, more: int) -> None:
        PageTarget.__init__(self, array, 0, width, 2 * width, scale)
        self.more = more

    def put_rows(self, source: Source, low: int, high: int) -> None:
        """Rows ``low`` to ``high``, and nothing behind their pages. O(numbers)."""
        self.convert_rows(source, low, high, 0, 0)
        self.convert_rows(source, low, high, self.width, self.more)

    def put(self, at: int, page: int) -> None:
        """One entry. O(1)."""
        self.numbers[at] = page * self.scale
        self.numbers[at + self.width] = page * self.scale + self.more if page else 0
