"""The page pool: which physical pages are free, live or evictable, as flat arrays.

A page is *free*, *live* (``refs`` > 0) or *evictable* (published and ``refs`` == 0). Page 0 is the
null page: never handed out, never written. The pool does not know sequences, tokens or what a page
holds; its caller says which pages are published and forgets what the pool evicts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.errors import IntegrityError, OutOfPages
from octavo.spec import check_int

Pages = NDArray[np.int32]


class PagePool:
    """Pages 1..num_pages-1 of one id space; no Python object a page.

    Taking, retaining and releasing ``k`` pages costs amortised O(k); building costs O(num_pages).

    Args:
        num_pages: physical pages, the null page included.

    Attributes:
        refs: int32[num_pages], holders of each page.
        published: bool[num_pages], whether the prefix index points at the page.
        evictable: number of published pages nobody holds.
    """

    def __init__(self, num_pages: int) -> None:
        check_int("num_pages", num_pages, 2, 2**31 - 1, "page 0 is the null page")
        self.refs = np.zeros(num_pages, np.int32)
        self.published = np.zeros(num_pages, np.bool_)
        self.evictable = 0
        self._stack = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._free = num_pages - 1
        self._stamps = np.zeros(num_pages, np.int64)
        self._clock = 0
        self._queue = np.empty(2 * num_pages, np.int32)
        self._queue_stamps = np.empty(2 * num_pages, np.int64)
        self._head = self._tail = 0

    @property
    def num_pages(self) -> int:
        """Physical pages, the null page included."""
        return self.refs.size

    @property
    def usable(self) -> int:
        """Pages that can be handed out."""
        return self.refs.size - 1

    @property
    def free(self) -> int:
        """Pages nobody holds and the prefix index does not know."""
        return self._free

    @property
    def live(self) -> int:
        """Pages somebody holds."""
        return self.usable - self._free - self.evictable

    def take(self, count: int) -> Pages:
        """Hand out ``count`` free pages with one holder each, consecutive where the stack has them.

        Raises:
            OutOfPages: fewer are free; nothing is changed.

        Cost: O(count).
        """
        if count > self._free:
            short = {"full": count - self._free - self.evictable}
            raise OutOfPages(count, self._free, self.evictable, short)
        self._free -= count
        pages = self._stack[self._free : self._free + count][::-1].copy()
        self.refs[pages] = 1
        return pages

    def retain(self, pages: Pages | Sequence[int]) -> None:
        """Add a holder to each of ``pages``, live or evictable and none twice. O(len(pages))."""
        index = np.asarray(pages, np.intp)
        held = self.refs[index]
        self.evictable -= int(np.count_nonzero(held == 0))
        self.refs[index] = held + 1

    def release(self, pages: Pages | Sequence[int]) -> None:
        """Take one holder away from each of ``pages``, once for every time it is listed.

        A published page that loses its last holder becomes evictable, listed first evicted first;
        any other becomes free.

        Raises:
            IntegrityError: a page would be released more often than it is held; nothing is changed.

        Cost: O(len(pages)).
        """
        index = np.asarray(pages, np.intp)
        np.subtract.at(self.refs, index, 1)
        held = self.refs[index]
        if (held < 0).any() or (index == 0).any():
            np.add.at(self.refs, index, 1)
            bad = int(index[(held < 0) | (index == 0)][0])
            raise IntegrityError(f"releases of page {bad} <= its holders", 1, 0)
        idle = index[held == 0]
        if idle.size > 1:
            _, first = np.unique(idle, return_index=True)
            idle = idle[np.sort(first)]
        kept = self.published[idle]
        self._push_free(idle[~kept])
        self._push_evictable(idle[kept])

    def publish(self, pages: Pages | Sequence[int]) -> None:
        """Mark live ``pages`` as known to the prefix index. O(len(pages))."""
        self.published[np.asarray(pages, np.intp)] = True

    def evict(self, count: int) -> Pages:
        """Free the ``count`` pages that became evictable longest ago; they are published no more.

        The caller has checked that there are as many, and forgets what they held.
        Amortised O(count).
        """
        found: list[Pages] = []
        while count > 0:
            chunk = slice(self._head, min(self._tail, self._head + 2 * count + 16))
            pages = self._queue[chunk]
            current = self._is_current(pages, self._queue_stamps[chunk])
            at = np.flatnonzero(current)[:count]
            exhausted = at.size < count
            self._head = chunk.stop if exhausted else chunk.start + int(at[-1]) + 1
            found.append(pages[at].copy())
            count -= at.size
        evicted = np.concatenate(found) if found else np.empty(0, np.int32)
        self.published[evicted] = False
        self.evictable -= evicted.size
        self._push_free(evicted[::-1].astype(np.intp))
        return evicted

    def check(self) -> None:
        """Raise IntegrityError unless free + live + evictable == usable, each page in one state.

        Cost: O(num_pages).
        """
        free = self._stack[: self._free]
        live = int(np.count_nonzero(self.refs > 0))
        evictable = int(np.count_nonzero((self.refs == 0) & self.published))
        _equal("distinct free pages == free", np.unique(free).size, self._free)
        _equal("holders of free pages == 0", int(self.refs[free].sum()), 0)
        _equal("published free pages == 0", int(np.count_nonzero(self.published[free])), 0)
        _equal("evictable pages == evictable", evictable, self.evictable)
        _equal("free + live + evictable == usable", self._free + live + evictable, self.usable)
        _equal("holders of the null page == 0", int(self.refs[0]), 0)
        queue = slice(self._head, self._tail)
        queued = self._queue[queue][self._is_current(self._queue[queue], self._queue_stamps[queue])]
        _equal("distinct queued pages == evictable", np.unique(queued).size, self.evictable)

    def _is_current(self, pages: Pages, stamps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Queue entries not overtaken by a later use of their page."""
        current: NDArray[np.bool_] = self.published[pages] & (self.refs[pages] == 0)
        current &= self._stamps[pages] == stamps
        return current

    def _push_free(self, pages: NDArray[np.intp]) -> None:
        self._stack[self._free : self._free + pages.size] = pages
        self._free += pages.size

    def _push_evictable(self, pages: NDArray[np.intp]) -> None:
        if self._tail + pages.size > self._queue.size:
            self._compact()
        end = self._tail + pages.size
        stamps = np.arange(self._clock, self._clock + pages.size)
        self._queue[self._tail : end] = pages
        self._queue_stamps[self._tail : end] = stamps
        self._stamps[pages] = stamps
        self._clock += pages.size
        self._tail = end
        self.evictable += pages.size

    def _compact(self) -> None:
        """Move the entries that still count to the front; at most num_pages of them remain."""
        queue = slice(self._head, self._tail)
        keep = self._is_current(self._queue[queue], self._queue_stamps[queue])
        pages, stamps = self._queue[queue][keep], self._queue_stamps[queue][keep]
        self._head, self._tail = 0, pages.size
        self._queue[: pages.size] = pages
        self._queue_stamps[: pages.size] = stamps


def _equal(equation: str, left: int, right: int) -> None:
    if left != right:
        raise IntegrityError(equation, left, right)
