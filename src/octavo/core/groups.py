"""Groups: the layers that keep what they hold for equally long, and the page table of each row.

A group of tokens keeps all of them, the last ``window`` and some sinks, or the query's own chunk; a
group of states keeps a ring of units by row, and one of cross inputs the pages of one input. A
*column* is a logical page of a row; its entry is the physical page, 0 where none is held::

    column     0   1   2   3   4   5   6         a window of 8 over pages of 4, one sink column;
    entry      7   0   0   0  12   3   9         columns 1 to 3 were given back: first = 4
"""

from __future__ import annotations

from octavo.core.arena import Arena, ints
from octavo.core.pages import PagePool
from octavo.core.rows import Places
from octavo.core.spaces import Space


class Group:
    """One group of a cache.

    Args:
        number: its place among the groups.
        keeps: "tokens", "state" or "cross".
        window, chunk: how many tokens; 0: no such rule.
        sinks: leading columns that are never given back.
        parts: pages of one state.
        units: states of the ring a row holds: one, and one for each position of rollback.
        size: tokens of a page.
        rows: how many there can be.
    """

    def __init__(
        self,
        number: int,
        keeps: str,
        window: int,
        chunk: int,
        sinks: int,
        parts: int,
        units: int,
        size: int,
        rows: int,
        pool: PagePool,
        places: Places,
    ) -> None:
        self.number = number
        self.keeps_tokens = keeps == "tokens"
        self.keeps_state = keeps == "state"
        self.keeps_cross = keeps == "cross"
        self.window = window
        self.chunk = chunk
        self.sinks = sinks
        self.parts = parts
        self.units = units
        self.size = size
        self.pool = pool
        self.places = places
        self.table = Arena(rows, 2 * self.space().size)
        self.first = ints(rows)  # by row, the first column behind the sinks that is held
        self.run = 0  # while matching: the first column of those without a gap up to here
        self.gap = False  # while matching: whether a sink column is missing
        self.alone = 0  # after matching: columns this group alone could serve
        self.most = -1  # states kept for later prompts, at most; -1: any number
        self.in_flight = 0  # states that open steps are copying

    def space(self) -> Space:
        """The ids of its pages. O(1)."""
        space: Space = self.pool.spaces[self.number]
        return space

    def slides(self) -> bool:
        """Whether it ever gives pages back while its sequence goes on. O(1)."""
        return self.window > 0 or self.chunk > 0

    def floor(self, position: int) -> int:
        """The first column, sinks apart, that a query at ``position`` or later can see. O(1)."""
        if position <= 0:
            return 0
        if self.window:  # a query at q sees q - window < k <= q
            return (position - self.window + 1) // self.size if position >= self.window else 0
        if self.chunk:
            return position // self.chunk * self.chunk // self.size
        return 0

    def entry(self, row: int, column: int) -> int:
        """The page of a column that was reserved. O(1)."""
        return self.table.data[self.table.begin[row] + column]

    def put(self, row: int, column: int, page: int) -> None:
        """Another page, or none, for a column. O(1)."""
        self.table.data[self.table.begin[row] + column] = page
        self.places.note(row, self.number, column, page)

    def take(self, row: int, column: int) -> int:
        """A page of its own for a column. O(1)."""
        self.pool.due[self.number] -= 1
        page = self.pool.take(self.number)
        self.put(row, column, page)
        return page

    def cut(self, row: int, low: int, high: int) -> None:
        """The pages of columns ``low`` to ``high`` go, the last one first. O(high - low)."""
        begin = self.table.begin[row]
        for column in range(high - 1, low - 1, -1):
            page = self.table.data[begin + column]
            if page:
                self.put(row, column, 0)
                self.pool.release(self.number, page, False)

    def open_page(self, row: int, position: int) -> int:
        """The page that holds ``position``, if others may read it too; else 0. O(1)."""
        if position % self.size == 0:
            return 0
        page = self.entry(row, position // self.size)
        return page if self.is_shared(page) else 0

    def is_shared(self, page: int) -> bool:
        """Whether a held page is published, or held by more than one. O(1)."""
        space = self.space()
        return space.holders[page] > 1 or space.node[page] != 0

    def slide(self, row: int, position: int, prompt: int, branch: int, back: int) -> int:
        """Give back what no query at ``position`` or later can see; returns how many pages.

        The last column first. Columns that a hit at a boundary of ``prompt`` or ``branch`` columns
        would hold, ``back`` positions before it included, wait with all other pages, the others at
        the cold end.

        Cost: O(columns given back).
        """
        stop, start = self.floor(position), max(self.first[row], self.sinks)
        if stop <= start:
            return 0
        self.first[row] = stop
        count = 0
        from_prompt = self.floor(prompt * self.size - back)
        from_branch = self.floor(branch * self.size - back)
        for warm in range(2):
            for column in range(stop - 1, start - 1, -1):
                page = self.entry(row, column)
                marked = from_prompt <= column < prompt or from_branch <= column < branch
                if page and marked == (warm == 1):
                    self.put(row, column, 0)
                    self.pool.release(self.number, page, warm == 0)
                    count += 1
        return count

    def unit(self, length: int) -> int:
        """The column of the state after ``length`` positions, its first part. O(1)."""
        return ((length + self.units - 1) % self.units) * self.parts

    def held(self, row: int, columns: int) -> list[int]:
        """The pages of a row's leading columns, those that are held. O(sinks + columns kept)."""
        pages, first = [], self.first[row]
        for column in range(min(first, self.sinks, columns)):
            pages.append(self.entry(row, column))
        for column in range(first, columns):
            page = self.entry(row, column)
            if page:
                pages.append(page)
        return pages
