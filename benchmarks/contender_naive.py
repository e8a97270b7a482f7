"""What an engine's author would write in an afternoon: a dict of hashes, lists, no checks.

Hashes are trusted, and what a kernel reads are lists. A slot mapping is a list of page ranges.
"""

from typing import Any

from workloads import PAGE_SIZE, Contender, as_list


class Blocks:
    """Free pages, and full pages by the hash of all tokens up to their end."""

    def __init__(self, pages: int) -> None:
        self.free = list(range(pages))
        self.holders, self.keys = [0] * pages, [0] * pages
        self.known: dict[int, int] = {}
        self.idle: dict[int, None] = {}  # published pages nobody holds, the oldest first

    def take(self) -> int:
        """A page to write, that of the oldest prefix where none is free."""
        if self.free:
            page = self.free.pop()
        else:
            page = next(iter(self.idle))
            del self.idle[page], self.known[self.keys[page]]
            self.keys[page] = 0
        self.holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more sequence reads it."""
        if not self.holders[page]:
            del self.idle[page]
        self.holders[page] += 1

    def publish(self, page: int, key: int) -> None:
        """Let others find it."""
        if key not in self.known:
            self.known[key], self.keys[page] = page, key

    def release(self, page: int) -> None:
        """One sequence fewer reads it."""
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if self.keys[page]:
            self.idle[page] = None
        else:
            self.free.append(page)


class Row:
    """A sequence: its ids, its pages, and the hash of its full pages."""

    def __init__(self, ids: list[int]) -> None:
        self.ids, self.pages, self.key, self.found = list(ids), list[int](), 1, 0


class Naive(Contender):
    """`Blocks`, and a loop over rows."""

    name = "naive"
    version = "(this repository)"

    def build(self, pages: int) -> Blocks:
        """It has no null page."""
        return Blocks(pages)

    def prepare(self, tokens: Any) -> list[int]:
        """A list."""
        return as_list(tokens)

    def admit(self, request: list[int]) -> Row:
        """One pass over the pages of the prompt."""
        blocks, row = self.manager, Row(request)
        size, matching = len(request), True
        for begin in range(0, size, PAGE_SIZE):
            part = tuple(request[begin : begin + PAGE_SIZE])
            full = len(part) == PAGE_SIZE
            if full:
                row.key = hash((row.key, part))
            matching = matching and begin + PAGE_SIZE < size and row.key in blocks.known
            if matching:
                page = blocks.known[row.key]
                blocks.hold(page)
                row.found += PAGE_SIZE
            else:
                page = blocks.take()
                if full:
                    blocks.publish(page, row.key)
            row.pages.append(page)
        row.ids.append(1)
        return row

    def hit(self, handle: Row) -> int:
        """The row remembers."""
        return handle.found

    def finish(self, handle: Row) -> None:
        """The last page first, so that beginnings stay longest."""
        for page in reversed(handle.pages):
            self.manager.release(page)

    def step(self, tokens: list[int]) -> None:
        """Slots, tables and lengths are lists."""
        blocks, slots, tables, lengths = self.manager, [], [], []
        for row, token in zip(self.rows, tokens, strict=True):
            at = len(row.ids) - 1
            if at % PAGE_SIZE == 0:
                row.pages.append(blocks.take())
            slots.append(row.pages[-1] * PAGE_SIZE + at % PAGE_SIZE)
            tables.append(row.pages)
            lengths.append(at + 1)
            if at % PAGE_SIZE == PAGE_SIZE - 1:
                row.key = hash((row.key, tuple(row.ids[-PAGE_SIZE:])))
                blocks.publish(row.pages[-1], row.key)
            row.ids.append(token)
        self.read = slots, tables, lengths

    def slots(self, pages: list[int], page_size: int, start: int, stop: int) -> list[int]:
        """One range a page; one token has its own way."""
        if stop - start == 1:
            return [pages[start // page_size] * page_size + start % page_size]
        found: list[int] = []
        while start < stop:
            page, offset = divmod(start, page_size)
            count = min(page_size - offset, stop - start)
            first = pages[page] * page_size + offset
            found.extend(range(first, first + count))
            start += count
        return found
