"""The packed pool: pages of groups of different size, cut from parents of one size.

A parent is free, or bound to one group while any of its K pages is live or evictable; group g
numbers its pages 1 + parent * K_g + k, so each group has an id space of its own. Same verbs and
same silence about what pages hold as `octavo.pages.PagePool`.

Feasibility is one equation, kept true after every call for what was promised: a group draws first
on the pages of parents it has live pages in, then on parents without any live page::

    sum_g ceil(max(0, need_g - own_g) / K_g) <= parents without a live page
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from octavo.errors import IntegrityError, OutOfPages
from octavo.lanes import Clock, Lanes
from octavo.pages import OnEvict, Pages, SomePages, check_equal, ignore
from octavo.policies import Policy, find_policy
from octavo.spec import check_int

_FREE = -1
_SLACK = 64


class _Space:
    """One group's ids: holders, publication, and which parents it draws on."""

    def __init__(self, per_parent: int, parents: int, policy: Policy, clock: Clock) -> None:
        size = 1 + parents * per_parent
        self.per_parent = per_parent
        self.refs = np.zeros(size, np.int32)
        self.published = np.zeros(size, np.bool_)
        self.lanes = Lanes(size, size - 1, policy, clock)
        self.live = 0
        self.mixed = 0
        self.partial: list[dict[int, None]] = [{} for _ in range(per_parent + 1)]
        self.resting: dict[int, None] = {}
        self.heap: list[tuple[int, int]] = []

    def parent(self, page: int) -> int:
        return (page - 1) // self.per_parent

    def pages(self, parent: int) -> range:
        first = 1 + parent * self.per_parent
        return range(first, first + self.per_parent)

    def is_vacant(self, page: int) -> bool:
        return not self.refs[page] and self.lanes.stamp[page] == 0


class ParentPool:
    """N parents shared by groups with K_g pages a parent.

    Taking, retaining and releasing a page costs amortised O(K + log pages).

    Args:
        parents: parents, all usable; the null page is apart from them.
        per_parent: K_g of each group.
        policy: which idle page of a group is given up first.
        on_evict: told of pages given up.
    """

    def __init__(
        self,
        parents: int,
        per_parent: Sequence[int],
        *,
        policy: str | Policy = "lru",
        on_evict: OnEvict = ignore,
    ) -> None:
        check_int("parents", parents, 1, 2**31 - 1)
        chosen = find_policy(policy)
        self.on_evict = on_evict
        clock = Clock()
        self._spaces = [_Space(check_int("K", k, 1), parents, chosen, clock) for k in per_parent]
        self._owner = np.full(parents, _FREE, np.int32)
        self._live = np.zeros(parents, np.int32)
        self._vacant = np.zeros(parents, np.int32)
        self._free = list(range(parents))[::-1]
        self._idle: list[tuple[int, int]] = []
        self._idle_count = 0

    @property
    def usable(self) -> int:
        """Parents in all."""
        return self._owner.size

    @property
    def free(self) -> int:
        """Parents bound to no group."""
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Bound parents without a live page."""
        return self._idle_count

    @property
    def live(self) -> int:
        """Parents with a live page."""
        return self.usable - self.free - self.evictable

    def state(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(refs, published) of ``group``'s id space, by page. O(1)."""
        space = self._spaces[group]
        return space.refs, space.published

    def live_in(self, group: int) -> int:
        """Pages of ``group`` somebody holds. O(1)."""
        return self._spaces[group].live

    def total(self, group: int) -> int:
        """Pages ``group`` could have if it had the pool for itself. O(1)."""
        return self.usable * self._spaces[group].per_parent

    def short(self, needs: Sequence[int], pinned: Sequence[SomePages] = ()) -> list[int]:
        """Pages missing by group to take ``needs`` of each at once, after holding ``pinned``.

        All zero exactly when they can be taken. O(groups + pinned).
        """
        room = len(self._free) + self._idle_count
        held = [self._pin_cost(g, pages) for g, pages in enumerate(pinned)]
        held += [(0, 0)] * (len(self._spaces) - len(held))
        room -= sum(parents for _, parents in held)
        missing = []
        for space, need, (pages, parents) in zip(self._spaces, needs, held, strict=True):
            own = (space.mixed + parents) * space.per_parent - space.live - pages
            wanted = -(-max(0, need - own) // space.per_parent)
            there = own + max(0, room) * space.per_parent
            missing.append(min(need, max(0, need - there)))
            room -= wanted
        return missing

    def take(self, count: int, group: int = 0, due: Sequence[int] = ()) -> Pages:
        """Hand out ``count`` pages with one holder each.

        From the fullest partial parent of the group; then from its parents without live pages or
        a free one, while ``due`` stays possible; then its evictable pages beside live ones; then
        the coldest parent of any group.

        Args:
            due: pages by group that must still be there afterwards; empty: none.

        Raises:
            OutOfPages: fewer can be had; nothing is changed.
        """
        needs = [0] * len(self._spaces)
        needs[group] = count
        if self.short(needs)[group]:
            short = {str(group): self.short(needs)[group]}
            raise OutOfPages(count, self.free, self.evictable, short)
        due = list(due) or [0] * len(self._spaces)
        due[group] += count
        pages = []
        for _ in range(count):
            due[group] -= 1
            pages.append(self._take_one(group, due))
        return np.array(pages, np.int32)

    def retain(self, pages: SomePages, group: int = 0) -> None:
        """Add a holder to each of ``pages``, live or evictable and none twice."""
        space = self._spaces[group]
        for page in np.asarray(pages).tolist():
            if not space.refs[page]:
                space.lanes.remove(np.array([page], np.intp))
                self._count_live(group, space.parent(page), 1)
            space.refs[page] += 1

    def mark_reused(self, pages: SomePages, group: int = 0) -> None:
        """Tell the policy that ``pages`` served another request. O(len(pages))."""
        self._spaces[group].lanes.reused[np.asarray(pages, np.intp)] = True

    def release(
        self, pages: SomePages, group: int = 0, *, cold: bool = False, distinct: bool = False
    ) -> None:
        """Take one holder away from each of ``pages``; as `PagePool.release`.

        Raises:
            IntegrityError: a page would be released more often than it is held; nothing is changed.
        """
        del distinct
        space, listed = self._spaces[group], np.asarray(pages, np.intp)
        distinct_pages, times = np.unique(listed, return_counts=True)
        over = distinct_pages[space.refs[distinct_pages] < times]
        if over.size:
            page = int(over[0])
            have = int(space.refs[page])
            raise IntegrityError(f"releases of page {page} <= its holders", have + 1, have)
        for page in listed.tolist():
            space.refs[page] -= 1
            if not space.refs[page]:
                self._drop(group, page, cold=cold)

    def publish(self, pages: SomePages, group: int = 0) -> None:
        """Mark live ``pages`` as known to the prefix index. O(len(pages))."""
        self._spaces[group].published[np.asarray(pages, np.intp)] = True

    def unpublish(self, pages: SomePages, group: int = 0) -> None:
        """The prefix index gave ``pages`` up: idle ones become vacant. O(len(pages))."""
        space = self._spaces[group]
        for page in np.asarray(pages).tolist():
            space.published[page] = space.lanes.reused[page] = False
            if space.lanes.stamp[page] != 0:
                space.lanes.remove(np.array([page], np.intp))
                self._count_vacant(group, space.parent(page), 1)

    def evict_all(self) -> None:
        """Give up every evictable page. O(pages)."""
        for group, space in enumerate(self._spaces):
            idle = np.flatnonzero(space.lanes.stamp != 0)
            if idle.size:
                self.on_evict(group, idle)
                self.unpublish(idle, group)

    def check(self) -> None:
        """Raise IntegrityError at the first equation between parents and pages that fails.

        Cost: O(pages).
        """
        bound = self.usable - len(self._free)
        check_equal("distinct free parents == free", len(set(self._free)), len(self._free))
        check_equal(
            "owners of free parents", {int(self._owner[p]) for p in self._free} - {_FREE}, set()
        )
        check_equal("bound parents == all - free", int((self._owner != _FREE).sum()), bound)
        idle = int(((self._owner != _FREE) & (self._live == 0)).sum())
        check_equal("bound parents without live pages == idle", idle, self._idle_count)
        for group, space in enumerate(self._spaces):
            self._check_space(group, space)

    # -- one page at a time --------------------------------------------------------------------

    def _take_one(self, group: int, due: list[int]) -> int:
        space = self._spaces[group]
        page = self._vacant_page(space)
        if page is None and (space.resting or self._free) and self._can_spare_parent(group, due):
            page = self._bind(group)
        if page is None:
            page = self._evict_beside_live(group)
        if page is None:
            page = self._bind(group)
        parent = space.parent(page)
        self._count_vacant(group, parent, -1)
        space.refs[page] = 1
        self._count_live(group, parent, 1)
        return page

    def _can_spare_parent(self, group: int, due: list[int]) -> bool:
        """Whether ``due`` is still possible after a page from a parent without live pages."""
        room = len(self._free) + self._idle_count - 1
        for number, (space, need) in enumerate(zip(self._spaces, due, strict=True)):
            own = space.mixed * space.per_parent - space.live
            own += space.per_parent - 1 if number == group else 0
            room -= -(-max(0, need - own) // space.per_parent)
        return room >= 0

    def _vacant_page(self, space: _Space) -> int | None:
        """A vacant page of the fullest parent that has both live and vacant pages."""
        for parents in space.partial[1:]:
            for parent in parents:
                return next(page for page in space.pages(parent) if space.is_vacant(page))
        return None

    def _evict_beside_live(self, group: int) -> int | None:
        """The coldest evictable page in a parent that has live pages."""
        space = self._spaces[group]
        while space.heap:
            stamp, page = heappop(space.heap)
            if space.lanes.stamp[page] == 0 or not self._live[space.parent(page)]:
                continue
            if space.lanes.stamp[page] == stamp:
                self._give_up(group, [page])
                return page
            heappush(space.heap, (int(space.lanes.stamp[page]), page))
        return None

    def _bind(self, group: int) -> int:
        """A vacant page of a parent without live pages: the group's own, a free or the coldest."""
        space = self._spaces[group]
        for parent in space.resting:
            return next(page for page in space.pages(parent) if space.is_vacant(page))
        if not self._free:
            self._give_up_parent()
        parent = self._free.pop()
        self._owner[parent] = group
        self._vacant[parent] = space.per_parent
        self._idle_count += 1
        return space.pages(parent)[0]

    def _give_up_parent(self) -> None:
        """Free the parent without live pages whose warmest page is coldest."""
        while True:
            stamp, parent = heappop(self._idle)
            if not self._is_idle(parent):
                continue
            if self._warmth(parent) == stamp:
                break
            self._offer(parent)
        group = int(self._owner[parent])
        space = self._spaces[group]
        idle = [page for page in space.pages(parent) if space.lanes.stamp[page] != 0]
        self._give_up(group, idle)

    def _give_up(self, group: int, pages: list[int]) -> None:
        index = np.array(pages, np.intp)
        self.on_evict(group, index)
        self.unpublish(index, group)

    def _drop(self, group: int, page: int, *, cold: bool) -> None:
        """``page`` lost its last holder."""
        space, parent = self._spaces[group], self._spaces[group].parent(page)
        if space.published[page]:
            space.lanes.add(np.array([page], np.intp), cold=cold)
            self._count_live(group, parent, -1)
            if self._live[parent]:
                self._wait(space, page)
        else:
            self._count_live(group, parent, -1)
            self._count_vacant(group, parent, 1)

    # -- what a parent counts ------------------------------------------------------------------

    def _count_live(self, group: int, parent: int, change: int) -> None:
        space = self._spaces[group]
        self._unlist(space, parent)
        before = int(self._live[parent])
        self._live[parent] = before + change
        space.live += change
        if not before:
            space.mixed += 1
            self._idle_count -= 1
            self._expose(space, parent)
        elif before + change == 0:
            space.mixed -= 1
            self._idle_count += 1
            self._offer(parent)
        self._list(space, parent)

    def _count_vacant(self, group: int, parent: int, change: int) -> None:
        space = self._spaces[group]
        self._unlist(space, parent)
        self._vacant[parent] += change
        if self._vacant[parent] == space.per_parent:
            self._owner[parent] = _FREE
            self._idle_count -= 1
            self._free.append(parent)
            return
        self._list(space, parent)
        if not self._live[parent]:
            self._offer(parent)

    def _list(self, space: _Space, parent: int) -> None:
        if self._live[parent] and self._vacant[parent]:
            space.partial[self._vacant[parent]][parent] = None
        elif self._vacant[parent]:
            space.resting[parent] = None

    def _unlist(self, space: _Space, parent: int) -> None:
        space.partial[self._vacant[parent]].pop(parent, None)
        space.resting.pop(parent, None)

    def _expose(self, space: _Space, parent: int) -> None:
        """A parent got its first live page: its evictable pages can now be given up singly."""
        for page in space.pages(parent):
            if space.lanes.stamp[page] != 0:
                self._wait(space, page)

    def _wait(self, space: _Space, page: int) -> None:
        """An evictable page beside live ones can be given up; stale entries are swept at times."""
        heappush(space.heap, (int(space.lanes.stamp[page]), page))
        if len(space.heap) > 2 * space.refs.size + _SLACK:
            idle = np.flatnonzero(space.lanes.stamp != 0).tolist()
            space.heap = [
                (int(space.lanes.stamp[p]), p) for p in idle if self._live[space.parent(p)]
            ]
            heapify(space.heap)

    def _offer(self, parent: int) -> None:
        """A parent without live pages can be given up whole."""
        if self._is_idle(parent):
            heappush(self._idle, (self._warmth(parent), parent))
        if len(self._idle) > 2 * self.usable + _SLACK:
            self._idle = [
                (self._warmth(bound), bound) for bound in range(self.usable) if self._is_idle(bound)
            ]
            heapify(self._idle)

    def _is_idle(self, parent: int) -> bool:
        return bool(self._owner[parent] != _FREE and not self._live[parent])

    def _warmth(self, parent: int) -> int:
        lanes, pages = self._lanes_of(parent)
        return int(lanes.stamp[pages.start : pages.stop].max())

    def _lanes_of(self, parent: int) -> tuple[Lanes, range]:
        space = self._spaces[int(self._owner[parent])]
        return space.lanes, space.pages(parent)

    def _pin_cost(self, group: int, pages: SomePages) -> tuple[int, int]:
        """(evictable pages among ``pages``, parents that get their first live page by them)."""
        space = self._spaces[group]
        idle = [page for page in np.asarray(pages).tolist() if not space.refs[page]]
        parents = {space.parent(page) for page in idle}
        return len(idle), sum(not self._live[parent] for parent in parents)

    def _check_space(self, group: int, space: _Space) -> None:
        bound = np.flatnonzero(self._owner == group)
        live = (space.refs[1:] > 0).reshape(-1, space.per_parent)
        idle = (space.lanes.stamp[1:] != 0).reshape(-1, space.per_parent)
        vacant = space.per_parent - live[bound].sum(1) - idle[bound].sum(1)
        check_equal("live pages by parent", live[bound].sum(1).tolist(), self._live[bound].tolist())
        check_equal("vacant pages by parent", vacant.tolist(), self._vacant[bound].tolist())
        check_equal("live pages of the group", int(live.sum()), space.live)
        check_equal("live pages are in bound parents", int(live[bound].sum()), space.live)
        check_equal("parents with live pages", int(live.any(1).sum()), space.mixed)
        idle_pages = (space.refs == 0) & space.published
        check_equal("evictable == waiting", idle_pages.tolist(), (space.lanes.stamp != 0).tolist())
        total = int(live.sum() + idle.sum()) + int(vacant.sum())
        check_equal("live + evictable + vacant == K * bound", total, space.per_parent * bound.size)
        listed = sorted(p for parents in space.partial for p in parents)
        partial = bound[(self._live[bound] > 0) & (self._vacant[bound] > 0)].tolist()
        check_equal("listed partial parents", listed, partial)
