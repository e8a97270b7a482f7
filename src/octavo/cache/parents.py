"""The packed pool: pages of groups of different size, cut from parents of one size.

A parent is free, or bound to one group while any of its K pages is live or evictable; group g
numbers its pages 1 + parent * K_g + k, so each group has an id space of its own. Same verbs and
same silence about what pages hold as `octavo.cache.pages.PagePool`.

Feasibility is one equation, kept true after every call for what was promised: a group draws first
on the pages of parents it has live pages in, then on parents without any live page::

    sum_g ceil(max(0, need_g - own_g) / K_g) <= parents without a live page

Which parents have vacant pages is remembered in lists that are never mended: an entry that no
longer holds is dropped when it is met, so that a verb touches arrays and the lists it needs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.cache.lanes import LANE_BITS, Clock, Index, Queue, join
from octavo.cache.pages import OnEvict, Pages, SomePages, check_equal, ignore, unhold
from octavo.cache.policies import Policy, find_policy
from octavo.cache.spaces import Space
from octavo.checks import check_int
from octavo.errors import IntegrityError, OutOfPages

_FREE = -1


class ParentPool:
    """N parents shared by groups with K_g pages a parent.

    Taking, retaining and releasing pages costs amortised O(pages + K x parents they lie in), in
    array operations; a parent whose newest page is older than others that came before it, and a
    page that got a live neighbour after its turn to be given up, cost a heap operation each.

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
        chosen, clock = find_policy(policy), Clock()
        self.on_evict = on_evict
        self._spaces = [Space(check_int("K", k, 1), parents, chosen, clock) for k in per_parent]
        self._owner = np.full(parents, _FREE, np.int32)
        self._live = np.zeros(parents, np.int64)
        self._vacant = np.zeros(parents, np.int64)
        self._idle = Queue(parents, chosen.lanes + 1)
        self._stack = np.arange(parents, dtype=np.int32)
        self._bound = 0

    @property
    def usable(self) -> int:
        """Parents in all."""
        return self._stack.size

    @property
    def free(self) -> int:
        """Parents bound to no group."""
        return self._stack.size - self._bound

    @property
    def evictable(self) -> int:
        """Bound parents without a live page."""
        return self._bound - self.live

    @property
    def live(self) -> int:
        """Parents with a live page."""
        return sum([space.mixed for space in self._spaces])

    def state(self, group: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """(refs, published) of ``group``'s id space, by page. O(1)."""
        space = self._spaces[group]
        return space.refs, space.published

    def vacant(self, group: int) -> Index:
        """Ids of ``group`` that hold nothing, in parents no other group is bound to. O(pages)."""
        space = self._spaces[group]
        free = (space.refs[1:] == 0) & ~space.published[1:]
        bound = (self._owner == _FREE) | (self._owner == group)
        found: Index = (free & bound.repeat(space.per_parent)).nonzero()[0] + 1
        return found

    def live_in(self, group: int) -> int:
        """Pages of ``group`` somebody holds. O(1)."""
        return self._spaces[group].live

    def total(self, group: int) -> int:
        """Pages ``group`` could have if it had the pool for itself. O(1)."""
        return self.usable * self._spaces[group].per_parent

    def short(
        self,
        needs: Sequence[int],
        pinned: Sequence[SomePages] = (),
        *,
        one_by_one: bool = False,
    ) -> list[int]:
        """Pages missing by group to take ``needs`` of each at once, after holding ``pinned``.

        All zero exactly when they can be taken.

        Args:
            one_by_one: they will be taken little by little, each time as if nothing were needed
                later: free parents go before evictable pages beside live ones, so that only vacant
                ones of those count.

        Cost: O(groups + pinned); one by one O(parents).
        """
        room = self.usable - self.live
        held = [self._pin_cost(g, pages) for g, pages in enumerate(pinned)]
        held += [(0, 0)] * (len(self._spaces) - len(held))
        room -= sum(parents for _, parents in held)
        missing = []
        for group, (need, (pages, parents)) in enumerate(zip(needs, held, strict=True)):
            space = self._spaces[group]
            own = space.own + parents * space.per_parent - pages
            if one_by_one and need:
                own = self._vacant_beside_live(group)
            wanted = -(-max(0, need - own) // space.per_parent)
            there = own + max(0, room) * space.per_parent
            missing.append(min(need, max(0, need - there)))
            room -= wanted
        return missing

    def take(self, count: int, group: int = 0, due: Sequence[int] = ()) -> Pages:
        """Hand out ``count`` pages with one holder each.

        From the fullest partial parent of the group; then from its parents without live pages or
        a free one, while ``due`` stays possible; then its evictable pages beside live ones, the
        coldest first; then the coldest parent of any group.

        Args:
            due: pages by group that must still be there afterwards; empty: none.

        Raises:
            OutOfPages: fewer can be had; nothing is changed.

        Cost: amortised O(count + K), see the class.
        """
        space = self._spaces[group]
        short = count - space.own - (self.usable - self.live) * space.per_parent
        if short > 0:
            raise OutOfPages(count, self.free, self.evictable, {str(group): min(count, short)})
        taken: list[Index] = []
        while count:
            taken.append(self._fill(group, self._choose(group, count, due), count))
            count -= taken[-1].size
        return join(taken).astype(np.int32)

    def retain(self, pages: SomePages, group: int = 0) -> None:
        """Add a holder to each of ``pages``, live or evictable and none twice. O(len(pages))."""
        space, index = self._spaces[group], np.asarray(pages, np.intp)
        held = space.refs[index]
        idle = index.size - int(np.count_nonzero(held))
        if idle:
            self._enliven(group, index if idle == index.size else index[held == 0])
        held += 1
        space.refs[index] = held

    def mark_reused(self, pages: SomePages, group: int = 0) -> None:
        """Tell the policy, if it asks, that ``pages`` served another request. O(len(pages))."""
        lanes = self._spaces[group].lanes
        if lanes.asks_reuse:
            lanes.reused[np.asarray(pages, np.intp)] = True

    def release(
        self, pages: SomePages, group: int = 0, *, cold: bool = False, distinct: bool = False
    ) -> None:
        """Take one holder away from each of ``pages``; as `PagePool.release`.

        Raises:
            IntegrityError: a page would be released more often than it is held; nothing is changed.
        """
        space = self._spaces[group]
        index, held, idle = unhold(space.refs, pages, distinct=distinct)
        published, parents = space.published[idle], space.parents(idle)
        self._idle.reserve(idle.size)
        space.lanes.add(idle[published], cold=cold)
        space.refs[index] = held
        if idle.size:
            self._quieten(group, parents, parents[~published])

    def publish(self, pages: SomePages, group: int = 0) -> None:
        """Mark live ``pages`` as known to the prefix index. O(len(pages))."""
        self._spaces[group].published[np.asarray(pages, np.intp)] = True

    def unpublish(self, pages: SomePages, group: int = 0) -> None:
        """The prefix index gave ``pages`` up: idle ones become vacant. O(len(pages))."""
        space, index = self._spaces[group], np.asarray(pages, np.intp)
        idle = index[space.lanes.stamp[index] != 0]
        self._idle.reserve(idle.size)
        space.published[index] = space.lanes.reused[index] = False
        if idle.size:
            space.lanes.remove(idle)
            parents = space.parents(idle)
            np.add.at(self._vacant, parents, 1)
            self._settle(group, _once(parents))

    def evict_all(self) -> None:
        """Give up every evictable page. O(pages)."""
        for group, space in enumerate(self._spaces):
            idle = space.lanes.stamp.nonzero()[0]
            if idle.size:
                self._give_up(group, idle)

    def check(self) -> None:
        """Raise IntegrityError at the first equation between parents and pages that fails.

        Cost: O(pages).
        """
        free, bound = self._stack[self._bound :], (self._owner != _FREE).nonzero()[0]
        idle = bound[self._live[bound] == 0]
        check_equal("distinct free parents == free", np.unique(free).size, self.free)
        check_equal("bound free parents == 0", np.count_nonzero(self._owner[free] != _FREE), 0)
        check_equal("bound parents == all - free", bound.size, self._bound)
        check_equal("bound parents without live pages == idle", idle.size, self.evictable)
        waiting = self._idle.stamp.nonzero()[0]
        check_equal("waiting parents == idle", waiting.tolist(), idle.tolist())
        for group, space in enumerate(self._spaces):
            self._check_space(group, space)

    # -- which parents give pages --------------------------------------------------------------

    def _choose(self, group: int, count: int, due: Sequence[int]) -> list[int]:
        """Parents of the group, or free, with vacant pages: all but the last are used up."""
        space = self._spaces[group]
        parents, left = self._partial(group, count)
        if left > 0:
            parents += self._without_live(group, left, self._spare(group, count, due))
        if not parents and space.own:  # none of them vacant
            self._give_up(group, self._coldest_beside_live(space, count))
            parents, _ = self._partial(group, count)
        if not parents and (self.free or space.resting):
            parents = self._without_live(group, count, count)
        if not parents:
            self._give_up_parents(-(-count // space.per_parent))
            parents = self._without_live(group, count, count)
        return parents

    def _partial(self, group: int, count: int) -> tuple[list[int], int]:
        """The fullest parents with live and vacant pages, listed no longer, and what they lack."""
        space, found = self._spaces[group], list[int]()
        while count > 0 and space.fullest < space.per_parent:
            listed = space.partial[space.fullest]
            if not listed:
                space.fullest += 1
                continue
            parent, _ = listed.popitem()
            if self._has(group, parent, space.fullest) and self._live[parent]:
                found.append(parent)
                count -= space.fullest
        return found, count

    def _without_live(self, group: int, count: int, most: int) -> list[int]:
        """At most so many parents without live pages: the group's own, then free ones."""
        space, found = self._spaces[group], list[int]()
        while count > 0 and len(found) < most and space.resting:
            parent, _ = space.resting.popitem(last=False)
            vacant = int(self._vacant[parent])
            if vacant and self._has(group, parent, vacant) and not self._live[parent]:
                found.append(parent)
                count -= vacant
        fresh = max(0, min(most - len(found), -(-count // space.per_parent)))
        found += self._stack[self._bound : self._bound + fresh].tolist()
        return found

    def _has(self, group: int, parent: int, vacant: int) -> bool:
        return bool(self._owner[parent] == group and self._vacant[parent] == vacant)

    def _spare(self, group: int, count: int, due: Sequence[int]) -> int:
        """Parents without live pages that the group may use while ``due`` stays possible."""
        room, mine = self.usable - self.live, 0
        if not any(due):
            return room
        for number, (space, need) in enumerate(zip(self._spaces, due, strict=False)):
            extra = count if number == group else 0
            wanted = -(-max(0, need + extra - space.own) // space.per_parent)
            if number == group:
                mine = wanted
            else:
                room -= wanted
        return room if mine <= room else 0

    def _fill(self, group: int, parents: list[int], count: int) -> Index:
        """Hand out ``count`` vacant pages of ``parents``, or all they have, in their order."""
        space, chosen = self._spaces[group], np.array(parents, np.intp)
        pages = space.pages(chosen)
        pages = pages[space.vacant(pages)][:count]
        self._rouse(group, chosen)
        used = self._vacant[chosen]
        left = int(np.add.reduce(used)) - pages.size
        used[-1] -= left
        self._live[chosen] += used
        self._vacant[chosen] -= used
        space.live += pages.size
        space.refs[pages] = 1
        space.list_partial(parents[-1:], [left])
        return pages

    # -- giving up -----------------------------------------------------------------------------

    def _coldest_beside_live(self, space: Space, count: int) -> Index:
        """The ``count`` coldest evictable pages in parents with live ones, or all there are."""
        parts: list[Index] = []
        for lane in range(space.passed.size):
            if len(space.heap):
                parts.append(self._late_beside_live(space, count, (lane + 1) << LANE_BITS))
                count -= parts[-1].size
            while count and space.passed[lane] < space.lanes.end(lane):
                parts.append(self._next_beside_live(space, lane, count))
                count -= parts[-1].size
        return join(parts)

    def _late_beside_live(self, space: Space, count: int, end: int) -> Index:
        """Those that got a live neighbour after they were passed."""
        found: list[int] = []
        while len(found) < count and space.heap.lowest(end) < end:
            page = space.heap.pop()
            if self._live[(page - 1) // space.per_parent] and page not in found[-1:]:
                found.append(page)
        return np.array(found, np.intp)

    def _next_beside_live(self, space: Space, lane: int, count: int) -> Index:
        """Those among the next few of a lane, which are passed now."""
        pages, end = space.lanes.scan(lane, int(space.passed[lane]), 2 * count + 16)
        found: Index = pages[self._live[space.parents(pages)] != 0]
        space.passed[lane] = end if found.size <= count else space.lanes.stamp[found[count]]
        return found[:count]

    def _give_up_parents(self, count: int) -> None:
        """Free the parents without live pages whose newest page is oldest, at most ``count``."""
        parents = self._idle.pop(count)
        if not parents.size:
            raise IntegrityError("parents without live pages can be given up", 0, self.evictable)
        owners = self._owner[parents]
        for group in np.bincount(owners).nonzero()[0].tolist():
            space = self._spaces[group]
            pages = space.pages(parents[owners == group]).ravel()
            self._give_up(group, pages[space.lanes.stamp[pages] != 0])

    def _give_up(self, group: int, pages: Index) -> None:
        self.on_evict(group, pages)
        self.unpublish(pages, group)

    # -- what becomes of parents ---------------------------------------------------------------

    def _enliven(self, group: int, pages: Index) -> None:
        """Evictable ``pages`` get a holder."""
        space, parents = self._spaces[group], self._spaces[group].parents(pages)
        space.lanes.remove(pages)
        quiet = self._rouse(group, _once(parents))
        space.list_partial(quiet.tolist(), self._vacant[quiet].tolist())
        np.add.at(self._live, parents, 1)
        space.live += pages.size

    def _rouse(self, group: int, parents: Index) -> Index:
        """``parents`` are about to have live pages; returns those that had none."""
        space = self._spaces[group]
        quiet: Index = parents[self._live[parents] == 0]
        if quiet.size:
            space.mixed += quiet.size
            free = quiet[self._owner[quiet] == _FREE]
            self._owner[free] = group
            self._vacant[free] = space.per_parent
            self._bound += free.size
            self._idle.remove(quiet)
            space.expose(quiet)
        return quiet

    def _quieten(self, group: int, parents: Index, vacated: Index) -> None:
        """A page lost its last holder for each of ``parents``, and is vacant for ``vacated``."""
        space = self._spaces[group]
        np.subtract.at(self._live, parents, 1)
        if vacated.size:
            np.add.at(self._vacant, vacated, 1)
        space.live -= parents.size
        touched = _once(parents)
        space.mixed -= touched.size - int(np.count_nonzero(self._live[touched]))
        self._settle(group, touched)

    def _settle(self, group: int, parents: Index) -> None:
        """List distinct ``parents``, which lost live or evictable pages, where they belong now."""
        space = self._spaces[group]
        live, vacant = self._live[parents], self._vacant[parents]
        if np.count_nonzero(live):
            beside = live != 0
            space.list_partial(parents[beside].tolist(), vacant[beside].tolist())
            parents, vacant = parents[live == 0], vacant[live == 0]
        empty = vacant == space.per_parent
        count = np.count_nonzero(empty)
        if count:
            self._unbind(parents[empty])
        if count < parents.size:
            self._rest(space, parents[~empty], vacant[~empty])

    def _unbind(self, parents: Index) -> None:
        """Free ``parents``, to be bound again in this order."""
        self._idle.remove(parents)
        self._owner[parents] = _FREE
        self._stack[self._bound - parents.size : self._bound] = parents
        self._bound -= parents.size

    def _rest(self, space: Space, parents: Index, vacant: NDArray[np.int64]) -> None:
        """``parents`` have evictable pages and no live one: they can be given up whole."""
        warmth = space.warmth(parents)
        changed = (warmth != self._idle.stamp[parents]).nonzero()[0]
        if changed.size == parents.size:
            self._idle.add(parents, warmth)
        elif changed.size:
            self._idle.add(parents[changed], warmth[changed])
        if np.count_nonzero(vacant):
            space.list_resting(parents[vacant != 0])

    def _vacant_beside_live(self, group: int) -> int:
        """Vacant pages of the group in parents that have live ones. O(parents)."""
        mixed = (self._owner == group) & (self._live > 0)
        return int(self._vacant[mixed].sum())

    def _pin_cost(self, group: int, pages: SomePages) -> tuple[int, int]:
        """(evictable pages among ``pages``, parents that get their first live page by them)."""
        space, index = self._spaces[group], np.asarray(pages, np.intp)
        idle = index[space.refs[index] == 0]
        if not idle.size:
            return 0, 0
        parents = _once(space.parents(idle))
        return idle.size, parents.size - int(np.count_nonzero(self._live[parents]))

    def _check_space(self, group: int, space: Space) -> None:
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
        self._check_lists(space, bound[self._vacant[bound] > 0])

    def _check_lists(self, space: Space, parents: Index) -> None:
        """Of parents with vacant pages none is forgotten."""
        partial = parents[self._live[parents] > 0]
        vacant = self._vacant[partial].tolist()
        lost = [
            p for p, v in zip(partial.tolist(), vacant, strict=True) if p not in space.partial[v]
        ]
        check_equal("partial parents that are not listed", lost, [])
        check_equal(
            "fullest partial parent", min(vacant, default=space.fullest) >= space.fullest, True
        )
        resting = parents[self._live[parents] == 0].tolist()
        check_equal(
            "resting parents not listed", [p for p in resting if p not in space.resting], []
        )


def _once(parents: Index) -> Index:
    """``parents`` each once, ascending. O(parents x log parents)."""
    if parents.size < 2:
        return parents
    ordered = np.sort(parents)
    first = np.empty(ordered.size, np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
