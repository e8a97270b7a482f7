"""The page pool: which physical pages are free, live or idle, as flat arrays.

A page is *free*, *live* (``refs`` > 0) or *evictable* (published and ``refs`` == 0). Page 0 is the
null page: never handed out, never written. All groups draw on one id space and a page belongs to
one of them at a time. The pool does not know sequences, tokens or what a page holds; whoever made
it is told through ``on_evict`` when it gives up a published page.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import IntegrityError, OutOfPages
from octavo.lanes import Index, Lanes
from octavo.policies import Policy, find_policy
from octavo.spec import check_int

Pages = NDArray[np.int32]
SomePages = NDArray[np.integer[Any]] | Sequence[int]
OnEvict = Callable[[int, Index], None]
"""Called with the group's number and the pages given up, before they can be handed out again."""


def ignore(group: int, pages: Index) -> None:
    """What a pool nobody listens to calls."""


class PagePool:
    """Pages 1..num_pages-1 of one id space; no Python object a page.

    Taking, retaining and releasing ``k`` pages costs amortised O(k); building costs O(num_pages).

    Args:
        num_pages: physical pages, the null page included.
        groups: how many groups draw on them.
        policy: which idle page is given up first, by name or as an object.
        on_evict: told of pages given up.

    Attributes:
        refs: int32[num_pages], holders of each page.
        published: bool[num_pages], whether the prefix index points at the page.
    """

    def __init__(
        self,
        num_pages: int,
        *,
        groups: int = 1,
        policy: str | Policy = "lru",
        on_evict: OnEvict = ignore,
    ) -> None:
        check_int("num_pages", num_pages, 2, 2**31 - 1, "page 0 is the null page")
        self.refs = np.zeros(num_pages, np.int32)
        self.published = np.zeros(num_pages, np.bool_)
        self.on_evict = on_evict
        self._groups = groups
        self._owner = np.zeros(num_pages, np.int32)
        self._live = [0] * groups
        self._lanes = Lanes(num_pages, num_pages - 1, find_policy(policy))
        self._stack = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._free = num_pages - 1

    @property
    def usable(self) -> int:
        """Pages that can be handed out: all but the null page."""
        return self.refs.size - 1

    @property
    def free(self) -> int:
        """Pages nobody holds and the prefix index does not know."""
        return self._free

    @property
    def evictable(self) -> int:
        """Published pages nobody holds."""
        return len(self._lanes)

    @property
    def live(self) -> int:
        """Pages somebody holds."""
        return self.usable - self._free - self.evictable

    def state(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(refs, published) of ``group``'s id space, by page. O(1)."""
        del group
        return self.refs, self.published

    def live_in(self, group: int) -> int:
        """Pages of ``group`` somebody holds. O(1)."""
        return self._live[group]

    def total(self, group: int) -> int:
        """Pages ``group`` could have if it had the pool for itself. O(1)."""
        del group
        return self.usable

    def idle_cost(self, group: int, pages: SomePages) -> int:
        """How many of ``pages`` are evictable: what holding them takes from the rest. O(pages)."""
        del group
        return int(np.count_nonzero(self.refs[np.asarray(pages, np.intp)] == 0))

    def short(self, needs: Sequence[int], pinned: Sequence[SomePages] = ()) -> list[int]:
        """Pages missing by group to take ``needs`` of each at once, after holding ``pinned``.

        All zero exactly when they can be taken. O(groups + pinned).
        """
        room = self._free + self.evictable
        room -= sum(self.idle_cost(group, pages) for group, pages in enumerate(pinned))
        missing = []
        for need in needs:
            missing.append(max(0, min(need, need - room)))
            room -= need
        return missing

    def take(self, count: int, group: int = 0, due: Sequence[int] = ()) -> Pages:
        """Hand out ``count`` pages with one holder each, free ones first, else the coldest.

        Args:
            due: of no matter here: any page will do for any group.

        Raises:
            OutOfPages: fewer are free and evictable; nothing is changed.

        Cost: O(count).
        """
        del due
        if count > self._free:
            self._evict(count - self._free, group)
        self._free -= count
        pages = self._stack[self._free : self._free + count][::-1].copy()
        self.refs[pages] = 1
        if self._groups > 1:
            self._owner[pages] = group
        self._live[group] += count
        return pages

    def retain(self, pages: SomePages, group: int = 0) -> None:
        """Add a holder to each of ``pages``, live or evictable and none twice. O(len(pages))."""
        index = np.asarray(pages, np.intp)
        held = self.refs[index]
        idle = index[held == 0]
        if idle.size:
            self._lanes.remove(idle)
            self._live[group] += idle.size
        self.refs[index] = held + 1

    def mark_reused(self, pages: SomePages, group: int = 0) -> None:
        """Tell the policy that ``pages`` served another request. O(len(pages))."""
        del group
        self._lanes.reused[np.asarray(pages, np.intp)] = True

    def release(
        self, pages: SomePages, group: int = 0, *, cold: bool = False, distinct: bool = False
    ) -> None:
        """Take one holder away from each of ``pages``, once for every time it is listed.

        A published page that loses its last holder becomes evictable, listed first given up first;
        any other becomes free.

        Args:
            cold: let them wait at the cold end.
            distinct: the caller knows that no page is listed twice.

        Raises:
            IntegrityError: a page would be released more often than it is held; nothing is changed.

        Cost: O(len(pages)).
        """
        index = np.asarray(pages, np.intp)
        if not index.size:
            return
        if not distinct:
            index = self._release_all_but_last(index)
        held = self.refs[index] - 1
        if np.minimum.reduce(held) < 0:
            self._refuse(index[held < 0])
        self.refs[index] = held
        idle = index[held == 0] if np.maximum.reduce(held) else index
        self._live[group] -= idle.size
        kept = self.published[idle]
        if not np.logical_and.reduce(kept):
            self._push(idle[~kept])
            idle = idle[kept]
        if idle.size:
            self._lanes.add(idle, cold=cold)

    def publish(self, pages: SomePages, group: int = 0) -> None:
        """Mark live ``pages`` as known to the prefix index. O(len(pages))."""
        del group
        self.published[np.asarray(pages, np.intp)] = True

    def unpublish(self, pages: SomePages, group: int = 0) -> None:
        """The prefix index gave ``pages`` up: idle ones become free. O(len(pages))."""
        del group
        index = np.asarray(pages, np.intp)
        self.published[index] = self._lanes.reused[index] = False
        idle = index[self._lanes.lane[index] >= 0]
        if idle.size:
            self._lanes.remove(idle)
            self._push(idle)

    def evict_all(self) -> None:
        """Give up every evictable page. O(evictable)."""
        if self.evictable:
            self._evict(self.evictable, 0)

    def check(self) -> None:
        """Raise IntegrityError unless free + live + evictable == usable, each page in one state.

        Cost: O(num_pages).
        """
        free = self._stack[: self._free]
        live = int(np.count_nonzero(self.refs > 0))
        idle = (self.refs == 0) & self.published
        check_equal("distinct free pages == free", np.unique(free).size, self._free)
        check_equal("holders of free pages == 0", int(self.refs[free].sum()), 0)
        check_equal("published free pages == 0", int(np.count_nonzero(self.published[free])), 0)
        check_equal("evictable pages == waiting", np.count_nonzero(idle), self.evictable)
        check_equal(
            "waiting in lanes == evictable", (self._lanes.lane >= 0).tolist(), idle.tolist()
        )
        check_equal("live pages by group == live", sum(self._live), live)
        check_equal(
            "free + live + evictable == usable", self._free + live + self.evictable, self.usable
        )
        check_equal("holders of the null page == 0", int(self.refs[0]), 0)

    def _release_all_but_last(self, index: Index) -> Index:
        """Release repeated listings here, so that each page is left listed once."""
        order = np.unique(index, return_index=True)[1]
        if order.size == index.size:
            return index
        pages, times = np.unique(index, return_counts=True)
        if (self.refs[pages] < times).any():
            self._refuse(pages[self.refs[pages] < times])
        self.refs[pages] -= (times - 1).astype(np.int32)
        return index[np.sort(order)]

    def _refuse(self, pages: Index) -> None:
        page = int(pages[0])
        raise IntegrityError(f"releases of page {page} <= its holders", 1, int(self.refs[page]))

    def _evict(self, count: int, group: int) -> None:
        if count > self.evictable:
            short = {str(group): count - self.evictable}
            raise OutOfPages(count + self._free, self._free, self.evictable, short)
        pages = self._lanes.pop(count)
        owners = self._owner[pages]
        for owner in np.unique(owners).tolist() if self._groups > 1 else (0,):
            self.on_evict(owner, pages[owners == owner])
        self.published[pages] = self._lanes.reused[pages] = False
        self._push(pages[::-1])

    def _push(self, pages: Index) -> None:
        self._stack[self._free : self._free + pages.size] = pages
        self._free += pages.size


def check_equal(equation: str, left: object, right: object) -> None:
    """Raise IntegrityError unless both sides of ``equation`` are equal. O(1)."""
    if left != right:
        raise IntegrityError(equation, left, right)
