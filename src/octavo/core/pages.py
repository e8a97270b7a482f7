"""The pages of all groups: free, live, or evictable in the order they were let go.

Pages are cut from *parents* of one size, K of a group's pages from each; where all groups share one
id space, K is 1 and a parent is a page::

    parent          0           1           2          a parent is free, or bound to one group while
    page, K = 1     1           2           3          any of its pages is live or evictable
    page, K = 3     1 2 3       4 5 6       7 8 9      page = 1 + parent * K + k; 0 is the null page

A page is *live* while somebody holds it, *evictable* when nobody does and a node stands for it,
and *vacant* otherwise. A bound parent without a live page is *quiet*: it waits to be given up
whole, in the order of `octavo.core.eviction`. So does, in its group, an evictable page whose parent
has live pages. A page that is taken comes, in this order, from

1. the fullest parent of the group that has live and vacant pages,
2. a quiet parent of the group with vacant pages or a free parent, while what is still `due` fits,
3. the group's evictable page beside live ones that was let go first,
4. the quiet parent that was let go first, whichever group it is bound to.

Every change is in such an order that an interrupt between two lines loses pages at worst: a page
has its holder before it is handed out and no holder before it can be taken again, and what counts
them never counts too many that can be taken.

Knows no sequences and no order of steps. One class has all that changes who holds a page: that is
why this module is long.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.arena import ints, longs
from octavo.core.eviction import Lanes
from octavo.core.index import PrefixIndex
from octavo.core.spaces import Space
from octavo.errors import IntegrityError

Excess = Callable[[int, int], int]
Removed = Callable[[int, int, bool], None]


class PagePool:
    """Parents, and who holds their pages.

    Args:
        parents: how many.
        per_parent: K of each group; empty: all ``groups`` share one id space, and K is 1.
        groups: how many groups there are.
        index: what published pages stand for.
        lanes: how many lanes the policy uses, the cold one, 0, included.
        first, again: lanes of a page that was never reused, and of one that was.
        excess: says how many of so many parents in a lane are too many.

    Attributes:
        owner: by parent, one more than the group it is bound to; 0: it is free.
        live, vacant: by bound parent, its live and vacant pages.
        chain, used: by bound parent, the first of its vacated pages, and how many were ever taken.
        lane: by quiet parent, where it waits.
        before, after: by quiet parent, its neighbours in its lane; a ring for each lane.
        left, right: by bound parent with vacant pages, its neighbours among the parents of its
            group that have live pages and as many vacant ones, or among the quiet ones; ``left``
            is -1 where it is in no such ring.
        waiting: by lane, quiet parents; ``quiet`` in all.
        peak: most parents with live pages so far; ``evicted``: pages given up so far.
        due: by group, pages that must still be there after the next is taken.
        need, lack, pinned, opening: by group, what `is_short` reads and answers.
        removed: called with group, page and whether it is evicted before a node loses a page.
        vacated: (group, page) of pages that hold nothing any more; None: nobody asks for them.
    """

    def __init__(
        self,
        parents: int,
        per_parent: list[int],
        groups: int,
        index: PrefixIndex,
        lanes: int,
        first: int,
        again: int,
        excess: Excess,
    ) -> None:
        self.parents = parents
        self.groups = groups
        self.index = index
        self.first = first
        self.again = again
        self.excess = excess
        self.removed: Removed | None = None
        self.vacated: set[tuple[int, int]] | None = None
        self.packed = bool(per_parent)
        self.spaces: list[Space] = []
        end = parents
        for number in range(groups):
            if self.packed:
                self.spaces.append(Space(parents, per_parent[number], lanes, end))
                end += per_parent[number]
            else:
                self.spaces.append(self.spaces[0] if number else Space(parents, 1, lanes, end))
        self.shared = self.spaces[0]  # where all groups share one id space, theirs
        self.owner = ints(parents)
        self.live = ints(parents)
        self.vacant = ints(parents)
        self.quiet = Lanes(parents, lanes)
        listed = end if self.packed else 0
        self.left = ints(listed)
        self.right = ints(listed)
        for ring in range(parents, listed):
            self.left[ring] = ring
            self.right[ring] = ring
        self.chain = ints(parents if self.packed else 0)
        self.used = ints(parents if self.packed else 0)
        self.mark = longs(parents if self.packed else 0)
        self.marks = 0
        self.stack = ints(parents)  # parents that were bound and are free
        self.stacked = 0
        self.touched = 0  # parents from here on were never bound
        self.evicted = 0
        self.peak = 0
        self.due = longs(groups)
        self.need = longs(groups)
        self.lack = longs(groups)
        self.pinned = longs(groups)
        self.opening = longs(groups)

    def space(self, group: int) -> Space:
        """The ids of a group. O(1)."""
        if not self.packed:
            return self.shared
        space: Space = self.spaces[group]
        return space

    def free(self) -> int:
        """Parents bound to no group. O(1)."""
        return self.parents - self.touched + self.stacked

    def busy(self) -> int:
        """Parents with a live page. O(1)."""
        return self.touched - self.stacked - self.quiet.count

    # -- taking --------------------------------------------------------------------------------

    def take(self, group: int) -> int:
        """A page with one holder; there must be one. O(1), O(K) where a parent is given up."""
        space = self.space(group)
        parent = self.choose(group, space)
        if parent < 0:
            raise IntegrityError("a page can be taken", 0, 1)
        if self.live[parent] == 0:
            self.rouse(group, space, parent)
        page = parent + 1
        if space.per_parent > 1 and self.left[parent] >= 0:
            self.unlist(parent)
        self.vacant[parent] -= 1
        if space.per_parent > 1:
            page = self.pop(space, parent)
        space.lane[page] = self.first
        self.enliven(space, parent)
        space.holders[page] = 1
        return page

    def choose(self, group: int, space: Space) -> int:
        """The parent that gives the next page: one with a vacant page, or a free one."""
        parent = self.fullest(space)
        if parent < 0 and (not self.packed or self.can_open(group)):
            parent = self.resting_or_free(space)
        if parent >= 0:
            return parent
        page = space.beside.coldest()
        if page >= 0:
            self.forget(group, page, True)
            return (page - 1) // space.per_parent
        parent = self.resting_or_free(space)
        if parent >= 0:
            return parent
        self.give_up_parent()
        return self.resting_or_free(space)

    def fullest(self, space: Space) -> int:
        """The parent with live and the fewest vacant pages; -1: there is none. Amortised O(1)."""
        while space.fullest < space.per_parent:
            parent = self.right[space.rings + space.fullest]
            if parent < self.parents:
                return parent
            space.fullest += 1
        return -1

    def resting_or_free(self, space: Space) -> int:
        """A quiet parent of the group with vacant pages, or a free one; -1: there is none."""
        if space.per_parent > 1:
            parent = self.right[space.rings]
            if parent < self.parents:
                return parent
        if self.stacked:
            return self.stack[self.stacked - 1]
        return self.touched if self.touched < self.parents else -1

    def can_open(self, group: int) -> bool:
        """Whether the group may use one more parent while all that is `due` stays possible."""
        room = self.parents - self.busy()
        mine = 0
        for number in range(self.groups):
            space = self.space(number)
            wanted = self.wanted(space, self.due[number] + (1 if number == group else 0), 0)
            if number == group:
                mine = wanted
            else:
                room -= wanted
        return room > 0 and mine <= room

    def wanted(self, space: Space, need: int, more: int) -> int:
        """Parents to be opened for ``need`` pages beside those there and ``more``. O(1)."""
        need -= space.mixed * space.per_parent - space.live + more
        return (need + space.per_parent - 1) // space.per_parent if need > 0 else 0

    def pop(self, space: Space, parent: int) -> int:
        """A vacant page of a bound parent: the one vacated last, or one never used."""
        page = self.chain[parent]
        if page:
            self.chain[parent] = space.below[page]
            return page
        self.used[parent] += 1
        return parent * space.per_parent + self.used[parent]

    def rouse(self, group: int, space: Space, parent: int) -> None:
        """A free or quiet parent is about to have a live page. O(1), a quiet one's O(K)."""
        if self.owner[parent]:
            self.quiet.leave(parent)
            if space.per_parent > 1:
                first = 1 + parent * space.per_parent
                for page in range(first + space.per_parent - 1, first - 1, -1):
                    if space.node[page]:
                        space.beside.leave(page)  # where an interrupt left it
                        space.beside.rejoin(page, space.lane[page])
            return
        self.vacant[parent] = space.per_parent
        if space.per_parent > 1:
            self.chain[parent] = 0
            self.used[parent] = 0
            self.left[parent] = -1
        if self.stacked:
            self.stacked -= 1
        else:
            self.touched += 1
        self.owner[parent] = group + 1

    def enliven(self, space: Space, parent: int) -> None:
        """A page of the parent is about to have its first holder. O(1)."""
        space.live += 1
        self.live[parent] += 1
        if space.per_parent > 1:
            self.list_vacant(space, parent)
        if self.live[parent] == 1:
            space.mixed += 1
        self.peak = max(self.peak, self.busy())

    # -- holding and letting go ----------------------------------------------------------------

    def retain(self, group: int, page: int) -> None:
        """One holder more of a live or evictable page. O(1), in a quiet parent O(K)."""
        space = self.space(group)
        if space.holders[page]:
            space.holders[page] += 1
            return
        parent = (page - 1) // space.per_parent
        if self.live[parent] == 0:
            self.rouse(group, space, parent)
        if space.per_parent > 1:
            space.beside.leave(page)
        if space.lane[page] == 0:
            space.lane[page] = self.first
        if self.index.bundled and space.node[page]:
            self.index.wake(group, page, space.node[page])
        self.enliven(space, parent)
        space.holders[page] = 1

    def reuse(self, group: int, page: int) -> None:
        """`retain`, as another request's: the policy may keep the page longer."""
        self.retain(group, page)
        space = self.space(group)
        space.lane[page] = self.again

    def release(self, group: int, page: int, cold: bool) -> None:
        """One holder less; without any the page waits to be given up, or is vacant.

        Args:
            cold: it waits at the cold end.

        Cost: O(1), and O(K) where its parent becomes quiet.
        """
        space = self.space(group)
        if space.holders[page] < 1:
            raise IntegrityError(f"releases of page {page} <= its holders", 1, 0)
        space.holders[page] -= 1
        if space.holders[page]:
            return
        parent = (page - 1) // space.per_parent
        if self.live[parent] == 1:
            space.mixed -= 1
        self.live[parent] -= 1
        if space.node[page]:
            if self.index.bundled:
                self.index.rest(group, page, space.node[page])
            if cold:
                space.lane[page] = 0
            if space.per_parent > 1:
                space.beside.join(page, space.lane[page])
        else:
            self.vacate(space, page, parent)
        if self.live[parent] == 0:
            self.quieten(space, parent)
        elif space.per_parent > 1:
            self.list_vacant(space, parent)
        space.live -= 1

    def quieten(self, space: Space, parent: int) -> None:
        """A parent lost its last live page: it waits where its warmest page would, or is free."""
        if self.vacant[parent] == space.per_parent:
            self.set_free(space, parent)
            return
        first, lane = 1 + parent * space.per_parent, 0
        for page in range(first, first + space.per_parent):
            if space.node[page]:
                if space.per_parent > 1:
                    space.beside.leave(page)
                lane = max(lane, space.lane[page])
        self.quiet.join(parent, lane)
        self.settle(space, parent)

    def settle(self, space: Space, parent: int) -> None:
        """A quiet parent without an evictable page is free; one with vacant pages is listed."""
        if self.vacant[parent] < space.per_parent:
            if space.per_parent > 1:
                self.list_vacant(space, parent)
            return
        self.quiet.leave(parent)
        self.set_free(space, parent)

    def set_free(self, space: Space, parent: int) -> None:
        """A parent of vacant pages is bound to no group any more. O(1)."""
        if space.per_parent > 1 and self.left[parent] >= 0:
            self.unlist(parent)
        self.owner[parent] = 0
        self.stack[self.stacked] = parent
        self.stacked += 1

    def vacate(self, space: Space, page: int, parent: int) -> None:
        """A page holds nothing any more. O(1)."""
        if self.vacated is not None:
            self.vacated.add((self.owner[parent] - 1, page))
        if space.per_parent > 1:
            space.below[page] = self.chain[parent]
            self.chain[parent] = page
        self.vacant[parent] += 1

    def take_vacated(self) -> list[tuple[int, int]]:
        """Those noted in ``vacated`` whose bytes are nobody's now, in order. O(noted)."""
        noted = self.vacated or set()
        found = [(group, page) for group, page in sorted(noted) if self.is_nobodys(group, page)]
        noted.difference_update(found)
        return found

    def used_pages(self) -> list[tuple[int, int]]:
        """(group, page) of all that ever held something and may do so still. O(pages)."""
        found = list(self.vacated or ())
        for parent in range(self.parents):
            if self.owner[parent]:
                count = self.space(self.owner[parent] - 1).per_parent
                first = 1 + parent * count
                found += [(self.owner[parent] - 1, page) for page in range(first, first + count)]
        return found

    def is_nobodys(self, group: int, page: int) -> bool:
        """Whether a page is vacant, and no other group has its parent. O(1)."""
        space = self.space(group)
        owner = self.owner[(page - 1) // space.per_parent]
        return owner in (0, group + 1) and not space.holders[page] and not space.node[page]

    # -- publishing and giving up --------------------------------------------------------------

    def publish(self, group: int, page: int, node: int) -> None:
        """A live page stands for a node, which has none in its group. O(1)."""
        space = self.space(group)
        self.index.users[node] += 1
        self.index.version += 1
        space.node[page] = node
        self.index.held[node * self.groups + group] = page

    def publish_bundle(self, group: int, pages: tuple[int, ...], node: int) -> None:
        """Live pages stand for a node together. O(pages)."""
        space = self.space(group)
        self.index.users[node] += 1
        for page in pages:
            space.node[page] = node
        self.index.bundles[group][node] = pages
        self.index.bundled += 1
        self.index.version += 1
        self.index.held[node * self.groups + group] = pages[0]

    def forget(self, group: int, page: int, evicted: bool) -> None:
        """The node of an evictable page loses it, and all of its bundle. O(pages)."""
        space, index = self.space(group), self.index
        node = space.node[page]
        at = node * self.groups + group
        pages: tuple[int, ...] | None = None
        if index.bundled:
            pages = index.bundles[group].get(node)
            if pages is not None and page not in pages:
                pages = None
        if pages is None and index.held[at] != page:  # an interrupt came between
            self.unpublish(space, page)
            return
        if self.removed is not None:
            self.removed(group, page, evicted)
        if evicted:
            self.evicted += 1
        index.held[at] = 0
        index.version += 1
        if pages is None:
            self.unpublish(space, page)
        else:
            self.unpublish_bundle(group, space, pages, node)
        index.leave(node)

    def unpublish_bundle(self, group: int, space: Space, pages: tuple[int, ...], node: int) -> None:
        """Pages of a node stand for nothing. O(pages)."""
        self.index.idle[group].pop(node, None)
        del self.index.bundles[group][node]
        self.index.bundled -= 1
        for page in pages:
            if space.node[page] == node:
                self.unpublish(space, page)

    def unpublish(self, space: Space, page: int) -> None:
        """A page stands for nothing: where nobody holds it either, it is vacant. O(1)."""
        space.node[page] = 0
        if space.holders[page]:
            return
        parent = (page - 1) // space.per_parent
        if self.live[parent] == 0:
            self.vacate(space, page, parent)
            self.settle(space, parent)
        elif space.per_parent > 1:
            space.beside.leave(page)
            self.vacate(space, page, parent)
            self.list_vacant(space, parent)

    def give_up_parent(self) -> None:
        """The quiet parent to be given up first is free. O(K)."""
        parent = self.quiet.coldest()
        if parent < 0:
            return
        group = self.owner[parent] - 1
        space = self.space(group)
        first = 1 + parent * space.per_parent
        for page in range(first, first + space.per_parent):
            if space.node[page]:
                self.forget(group, page, True)
        if self.quiet.lane[parent]:  # an interrupt left pages that are nobody's
            self.vacant[parent] = space.per_parent
            self.settle(space, parent)

    def give_up_all(self) -> None:
        """Every evictable page is vacant. O(pages)."""
        while self.quiet.count:
            self.give_up_parent()
        for group in range(self.groups):
            space = self.space(group)
            while space.beside.count:
                self.forget(group, space.beside.coldest(), True)

    # -- parents with vacant pages -------------------------------------------------------------

    def list_vacant(self, space: Space, parent: int) -> None:
        """Put a bound parent into the ring of its vacant pages, if it has any. O(1)."""
        if self.left[parent] >= 0:
            self.unlist(parent)
        vacant = self.vacant[parent]
        if vacant == 0:
            return
        ring = space.rings
        if self.live[parent]:
            ring += vacant
            space.fullest = min(space.fullest, vacant)
        last = self.left[ring]
        self.left[parent], self.right[parent] = last, ring
        self.right[last], self.left[ring] = parent, parent

    def unlist(self, parent: int) -> None:
        """Take a parent out of its ring. O(1)."""
        left, right = self.left[parent], self.right[parent]
        self.right[left], self.left[right], self.left[parent] = right, left, -1

    # -- what is there -------------------------------------------------------------------------

    def ask(self) -> None:
        """Set up `is_short`: nothing is needed, nothing will be pinned. O(groups)."""
        self.marks += 1
        for group in range(self.groups):
            self.need[group] = 0
            self.pinned[group] = 0
            self.opening[group] = 0

    def pin(self, group: int, page: int) -> None:
        """Count, in `is_short`, on this page being held beside all others. O(1)."""
        space = self.space(group)
        if space.holders[page]:
            return
        parent = (page - 1) // space.per_parent
        self.pinned[group] += 1
        if self.live[parent]:
            return
        if self.packed:
            if self.mark[parent] == self.marks:
                return
            self.mark[parent] = self.marks
        self.opening[group] += 1

    def is_short(self, one_by_one: bool) -> bool:
        """Whether ``need`` pages of each group cannot be taken; ``lack`` says how many are missing.

        Args:
            one_by_one: they are taken little by little, each time as if nothing were needed later:
                then free parents go before evictable pages beside live ones, so that of those only
                the vacant ones count.

        Cost: O(groups); one by one O(parents).
        """
        short, room = False, self.parents - self.busy()
        for group in range(self.groups):
            room -= self.opening[group]
        for group in range(self.groups):
            space, need = self.space(group), self.need[group]
            more = self.opening[group] * space.per_parent - self.pinned[group]
            if one_by_one and need and space.per_parent > 1:
                more = self.beside_live(space) - (space.mixed * space.per_parent - space.live)
            own = space.mixed * space.per_parent - space.live + more
            there = own + (room * space.per_parent if room > 0 else 0)
            lack = need - there if need > there else 0
            self.lack[group] = min(need, lack)
            if self.lack[group]:
                short = True
            room -= self.wanted(space, need, more)
        return short

    def beside_live(self, space: Space) -> int:
        """Vacant pages of parents that have live ones. O(parents)."""
        count = 0
        for vacant in range(1, space.per_parent):
            parent = self.right[space.rings + vacant]
            while parent < self.parents:
                count += vacant
                parent = self.right[parent]
        return count
