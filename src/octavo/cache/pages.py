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

from octavo.cache.lanes import Index, Lanes
from octavo.cache.policies import Policy, find_policy
from octavo.checks import check_int
from octavo.errors import IntegrityError, OutOfPages

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
        self._stack = np.arange(1, num_pages, dtype=np.int32)
        self._used = 0

    @property
    def usable(self) -> int:
        """Pages that can be handed out: all but the null page."""
        return self._stack.size

    @property
    def free(self) -> int:
        """Pages nobody holds and the prefix index does not know."""
        return self._stack.size - self._used

    @property
    def evictable(self) -> int:
        """Published pages nobody holds."""
        return len(self._lanes)

    @property
    def live(self) -> int:
        """Pages somebody holds."""
        return sum(self._live)

    def state(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(refs, published) of ``group``'s id space, by page. O(1)."""
        del group
        return self.refs, self.published

    def vacant(self, group: int) -> Index:
        """Ids of ``group`` that hold nothing: neither live nor evictable. O(num_pages)."""
        del group
        found: Index = ((self.refs[1:] == 0) & ~self.published[1:]).nonzero()[0] + 1
        return found

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

    def short(
        self,
        needs: Sequence[int],
        pinned: Sequence[SomePages] = (),
        *,
        one_by_one: bool = False,
    ) -> list[int]:
        """Pages missing by group to take ``needs`` of each at once, after holding ``pinned``.

        All zero exactly when they can be taken. O(groups + pinned).

        Args:
            one_by_one: of no matter here: whatever is taken first, the rest is as large.
        """
        del one_by_one
        room = self.free + self.evictable
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
        if count > self.free:
            self._evict(count - self.free, group)
        pages = self._stack[self._used : self._used + count].copy()
        index = pages.astype(np.intp)
        if self._groups > 1:
            self._owner[index] = group
        self.refs[index] = 1
        self._used += count
        self._live[group] += count
        return pages

    def retain(self, pages: SomePages, group: int = 0) -> None:
        """Add a holder to each of ``pages``, live or evictable and none twice. O(len(pages))."""
        index = np.asarray(pages, np.intp)
        held = self.refs[index]
        idle = index.size - int(np.count_nonzero(held))
        if idle:
            self._lanes.remove(index if idle == index.size else index[held == 0])
            self._live[group] += idle
        held += 1
        self.refs[index] = held

    def mark_reused(self, pages: SomePages, group: int = 0) -> None:
        """Tell the policy, if it asks, that ``pages`` served another request. O(len(pages))."""
        del group
        if self._lanes.asks_reuse:
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
        index, held, idle = unhold(self.refs, pages, distinct=distinct)
        freed = self._let_wait(idle, cold=cold)
        self.refs[index] = held
        self._live[group] -= idle.size
        self._push(freed[::-1])

    def publish(self, pages: SomePages, group: int = 0) -> None:
        """Mark live ``pages`` as known to the prefix index. O(len(pages))."""
        del group
        self.published[np.asarray(pages, np.intp)] = True

    def unpublish(self, pages: SomePages, group: int = 0) -> None:
        """The prefix index gave ``pages`` up: idle ones become free. O(len(pages))."""
        del group
        index = np.asarray(pages, np.intp)
        idle = index[self._lanes.stamp[index] != 0]
        self.published[index] = self._lanes.reused[index] = False
        if idle.size:
            self._lanes.remove(idle)
            self._push(idle[::-1])

    def evict_all(self) -> None:
        """Give up every evictable page. O(evictable)."""
        if self.evictable:
            self._evict(self.evictable, 0)

    def check(self) -> None:
        """Raise IntegrityError unless free + live + evictable == usable, each page in one state.

        Cost: O(num_pages).
        """
        free = self._stack[self._used :]
        live = int(np.count_nonzero(self.refs > 0))
        idle = (self.refs == 0) & self.published
        check_equal("distinct free pages == free", np.unique(free).size, self.free)
        check_equal("holders of free pages == 0", int(self.refs[free].sum()), 0)
        check_equal("published free pages == 0", int(np.count_nonzero(self.published[free])), 0)
        check_equal("evictable pages == waiting", np.count_nonzero(idle), self.evictable)
        waiting = self._lanes.stamp != 0
        check_equal("waiting in lanes == evictable", waiting.tolist(), idle.tolist())
        check_equal("live pages by group == live", sum(self._live), live)
        check_equal(
            "free + live + evictable == usable", self.free + live + self.evictable, self.usable
        )
        check_equal("holders of the null page == 0", int(self.refs[0]), 0)

    def _let_wait(self, idle: Index, *, cold: bool) -> Index:
        """Let those of ``idle`` wait that are published, and return the others."""
        published = self.published[idle]
        count = np.count_nonzero(published)
        if count == idle.size:
            self._lanes.add(idle, cold=cold)
            return idle[:0]
        if count:
            self._lanes.add(idle[published], cold=cold)
        return idle[~published] if count else idle

    def _evict(self, count: int, group: int) -> None:
        if count > self.evictable:
            short = {str(group): count - self.evictable}
            raise OutOfPages(count + self.free, self.free, self.evictable, short)
        pages = self._lanes.pop(count)
        for owner, given_up in self._by_owner(pages):
            self.on_evict(owner, given_up)
        self.published[pages] = self._lanes.reused[pages] = False
        self._push(np.sort(pages))

    def _by_owner(self, pages: Index) -> list[tuple[int, Index]]:
        """``pages`` in their order, by the group they belong to."""
        if self._groups == 1:
            return [(0, pages)]
        owners = self._owner[pages]
        present = np.bincount(owners).nonzero()[0].tolist()
        return [(owner, pages[owners == owner]) for owner in present]

    def _push(self, pages: Index) -> None:
        """``pages`` become free, to be handed out in this order."""
        if pages.size:
            self._stack[self._used - pages.size : self._used] = pages
            self._used -= pages.size


def unhold(
    refs: NDArray[np.int32], pages: SomePages, *, distinct: bool
) -> tuple[Index, NDArray[np.int32], Index]:
    """What releasing ``pages`` leaves: (each once, holders left of each, those left with none).

    Changes nothing. O(len(pages)).

    Raises:
        IntegrityError: a page is listed more often than it is held.
    """
    index = np.asarray(pages, np.intp)
    times: int | NDArray[np.int32] = 1
    if not distinct and index.size > 1:
        index, times = _count_listings(index)
    held = refs[index]
    held -= times
    if not np.count_nonzero(held):
        return index, held, index
    if np.minimum.reduce(held) < 0:
        page = int(index[held < 0][0])
        raise IntegrityError(f"releases of page {page} <= its holders", 1, int(refs[page]))
    return index, held, index[held == 0]


def _count_listings(index: Index) -> tuple[Index, int | NDArray[np.int32]]:
    """(``index`` each once where listed first, how often each is listed)."""
    ordered = np.sort(index)
    if not np.count_nonzero(ordered[1:] == ordered[:-1]):
        return index, 1
    _, first, times = np.unique(index, return_index=True, return_counts=True)
    order = np.argsort(first)
    return index[first[order]], times[order].astype(np.int32)


def check_equal(equation: str, left: object, right: object) -> None:
    """Raise IntegrityError unless both sides of ``equation`` are equal. O(1)."""
    if left != right:
        raise IntegrityError(equation, left, right)
