"""The pool of pages by itself: what is given, what is kept, and what is given up first."""

import random
from itertools import count

import pytest

from octavo.core.arena import Arena
from octavo.core.index import PrefixIndex
from octavo.core.pages import PagePool
from octavo.errors import IntegrityError


class Pages:
    """A pool, and what it gives up as (group, page), in order.

    Args:
        per_parent: pages of a parent by group; None: one group of plain pages.
        lanes: above the cold one; reused pages wait in the highest.
    """

    def __init__(self, parents, per_parent=None, groups=1, lanes=1, excess=lambda lane, count: 0):
        self.ids, self.gone, self.tokens = Arena(1, 64), [], count(1)
        groups = len(per_parent) if per_parent else groups
        self.index = PrefixIndex(1, groups, self.ids, parents)
        self.pool = PagePool(
            parents, per_parent or [], groups, self.index, lanes + 1, 1, lanes, excess
        )
        self.pool.removed = self.hear

    def hear(self, group, page, evicted):
        """Before a node loses a page."""
        assert evicted
        self.gone.append((group, page))

    def node(self):
        """A new node, on which nothing stands."""
        self.ids.data[0] = next(self.tokens)
        return self.index.add(0, 0, 0)

    def take(self, number, group=0):
        """So many pages."""
        return [self.pool.take(group) for _ in range(number)]

    def published(self, number, group=0):
        """So many pages, each published."""
        pages = self.take(number, group)
        for page in pages:
            self.pool.publish(group, page, self.node())
        return pages

    def release(self, *pages, group=0, cold=False):
        """One holder less each."""
        for page in pages:
            self.pool.release(group, page, cold)

    def counts(self):
        """(free, live, evictable) parents."""
        return self.pool.free(), self.pool.busy(), self.pool.quiet.count

    def lacks(self, *needs, pinned=(), one_by_one=False):
        """Pages missing of each group, once the pinned (group, page) are held."""
        self.pool.ask()
        for group, page in pinned:
            self.pool.pin(group, page)
        for group, need in enumerate(needs):
            self.pool.need[group] = need
        assert self.pool.is_short(one_by_one) == any(self.pool.lack)
        return list(self.pool.lack)


def test_pages_come_in_order_and_never_the_null_page():
    """A fresh pool gives 1, 2, 3, ...; pages given back last first come in order again."""
    pages = Pages(7)

    assert [1, 2, 3, 4] == pages.take(4)
    assert (3, 4, 0) == pages.counts()
    pages.release(4, 3, 2, 1)
    assert [1, 2, 3, 4, 5, 6, 7] == pages.take(7)
    assert (0, 7, 0) == pages.counts()


def test_every_holder_counts():
    """A page retained twice is free after three releases; a fourth is refused."""
    pages = Pages(3)
    (page,) = pages.take(1)
    pages.pool.retain(0, page)
    pages.pool.retain(0, page)
    states = []
    for _ in range(3):
        pages.release(page)
        states.append(pages.counts())

    assert [(2, 1, 0), (2, 1, 0), (3, 0, 0)] == states
    for other in (page, 0, 2):
        with pytest.raises(IntegrityError):
            pages.release(other)
    assert (3, 0, 0) == pages.counts()


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_what_waited_longest_goes_first(lanes):
    """In the order of releases; held again a page goes to the end, cold it goes before all."""
    pages = Pages(6, lanes=lanes)
    pages.published(6)
    for page in (4, 6):
        pages.pool.reuse(0, page)
        pages.release(page)
    pages.release(3, 1, 5, 2)
    pages.release(6, 4, cold=True)
    pages.pool.retain(0, 3)
    pages.release(3)
    given = pages.take(6)

    assert [6, 4, 1, 5, 2, 3] == [page for _, page in pages.gone] == given
    assert 6 == pages.pool.evicted
    assert (0, 6, 0) == pages.counts()


def test_a_cold_page_that_is_held_again_is_cold_no_more():
    """Its next release puts it with the others."""
    pages = Pages(2)
    pages.published(2)
    pages.release(2, cold=True)
    pages.pool.retain(0, 2)
    pages.release(1, 2)
    pages.take(1)

    assert [(0, 1)] == pages.gone


def test_nothing_is_given_up_while_pages_are_free():
    """And what is held never is."""
    pages = Pages(4)
    pages.published(2)
    pages.release(1)
    pages.take(2)

    assert [] == pages.gone
    assert [1] == pages.take(1)
    assert (0, 4, 0) == pages.counts()


def test_giving_up_all_leaves_what_is_held():
    """Beside live pages of a parent too."""
    for per_parent in (None, [3]):
        pages = Pages(6, per_parent)
        pages.published(6)
        pages.release(*range(2, 7))
        pages.pool.give_up_all()

        assert {2, 3, 4, 5, 6} == {page for _, page in pages.gone}
        assert [1] == [page for page in range(7) if pages.pool.spaces[0].holders[page]]
        assert 1 == pages.index.count


def test_a_state_of_several_pages_goes_whole():
    """Its pages stand for one node together."""
    pages = Pages(2, [2, 3])
    held = tuple(pages.take(3, 1))
    node = pages.node()
    pages.pool.publish_bundle(1, held, node)

    assert 1 == pages.index.copies(node)
    pages.release(*held, group=1)
    assert (1, 0, 1) == pages.counts()
    pages.pool.forget(1, held[1], True)
    assert (2, 0, 0) == pages.counts()
    assert 0 == pages.index.count
    assert {} == pages.index.bundles[1]


def test_reused_pages_wait_in_a_protected_share():
    """What a lane holds in excess moves down, oldest first, when somebody asks."""
    asked = []

    def excess(lane, waiting):
        asked.append((lane, waiting))
        return waiting - 2

    pages = Pages(6, lanes=2, excess=excess)
    pages.published(6)
    for page in (1, 2, 3):
        pages.release(page)
        pages.pool.reuse(0, page)
    pages.release(1, 2, 3, 4, 5, 6)

    assert [] == asked
    pages.pool.quiet.rebalance(pages.pool.excess)
    assert [(2, 3)] == asked
    assert [4, 5, 6, 1, 2, 3] == pages.take(6)


@pytest.mark.parametrize("answer", [10**6, -5])
def test_an_answer_beyond_what_waits(answer):
    """Moves all, or none; all lanes are asked before any page moves."""
    pages = Pages(3, lanes=3, excess=lambda lane, count: answer)
    pages.published(3)
    pages.release(1)
    pages.pool.reuse(0, 1)
    pages.release(1, 2, 3)
    pages.pool.quiet.rebalance(pages.pool.excess)

    assert [2, 3, 1] == pages.take(3)


# -- pages cut from parents ------------------------------------------------------------------------


def test_each_group_numbers_its_own_pages():
    """Page 1 + parent * K + k: two groups may both have a page 1."""
    pages = Pages(3, [2, 3])

    assert [1, 2, 3] == pages.take(3, 0)
    assert [7, 8] == pages.take(2, 1)
    assert [3, 2] == [space.live for space in pages.pool.spaces]
    assert (0, 3, 0) == pages.counts()


def test_an_empty_parent_is_free_for_any_group():
    """The last page released frees its parent."""
    pages = Pages(1, [2, 3])
    pages.release(*pages.take(2, 0))

    assert (1, 0, 0) == pages.counts()
    assert [1, 2, 3] == pages.take(3, 1)


def test_the_fullest_parent_gives_first():
    """So that emptier ones may become free."""
    pages = Pages(3, [4])
    pages.take(8)
    pages.release(1, 2, 3, 5)

    assert [5] == pages.take(1)
    assert {1, 2, 3} == set(pages.take(3))
    assert (1, 2, 0) == pages.counts()


def test_pages_beside_live_ones_go_before_other_parents():
    """They cost nobody else anything; the one let go first goes first."""
    pages = Pages(2, [3])
    pages.published(6)
    pages.release(4, 5, 6, 3, 2)

    assert [3, 2] == pages.take(2)
    assert [4, 5, 6] == sorted(pages.take(3))
    assert [(0, 3), (0, 2), (0, 4), (0, 5), (0, 6)] == pages.gone


def test_the_parent_that_was_quiet_first_goes():
    """Of any group, and whole, however busy its pages were before."""
    pages = Pages(3, [2, 1])
    pages.published(4, 0)
    pages.published(1, 1)
    pages.release(3, 1, 4)
    pages.release(3, group=1)
    pages.release(2)
    pages.take(1, 1)

    assert [(0, 3), (0, 4)] == pages.gone
    pages.take(1, 1)
    assert [(1, 3)] == pages.gone[2:]


def test_a_page_that_waited_in_a_quiet_parent_is_older():
    """A neighbour comes alive: it goes before what was let go beside live pages."""
    pages = Pages(2, [3])
    pages.published(6)
    pages.release(5)
    pages.release(2, 1, 3)
    pages.pool.retain(0, 3)
    pages.take(3)

    assert [(0, 1), (0, 2), (0, 5)] == pages.gone


def test_what_is_due_stays_possible():
    """A group takes no whole parent that others are owed; it gives up pages of its own instead."""
    pages = Pages(3, [2, 3])
    pages.published(2, 0)
    pages.release(2)
    pages.pool.due[1] = 6

    assert [2] == pages.take(1, 0)
    assert [0, 0] == pages.lacks(0, 6)
    pages.pool.due[1] = 3
    assert [3] == pages.take(1, 0)


@pytest.mark.parametrize(
    ("needs", "lack"),
    [([3, 0], 0), ([1, 3], 0), ([1, 6], 0), ([1, 7], 1), ([4, 4], 4), ([6, 0], 1), ([9, 9], 13)],
)
def test_what_is_missing_of_parents(needs, lack):
    """Own parents first, then whole ones: a group cannot use the rest of another's."""
    pages = Pages(3, [2, 3])
    pages.take(1, 0)

    assert lack == sum(pages.lacks(*needs))


@pytest.mark.parametrize(
    ("needs", "pinned", "lack"),
    [
        ([7, 0], [], [0, 0]),
        ([4, 3], [], [0, 0]),
        ([4, 4], [], [0, 1]),
        ([9, 2], [], [2, 2]),
        ([6, 0], [1], [0, 0]),
        ([6, 1], [1], [0, 1]),
    ],
)
def test_what_is_missing_of_pages(needs, pinned, lack):
    """Free and evictable pages less those that will be held; the missing go to the last in line."""
    pages = Pages(7, groups=2)
    pages.release(*pages.published(3))

    assert lack == pages.lacks(*needs, pinned=[(0, page) for page in pinned])


def test_one_by_one_only_vacant_pages_count_beside_live_ones():
    """Nothing is owed later then, so that a free parent goes before them."""
    pages = Pages(2, [3, 1])
    pages.published(2, 0)
    pages.release(2)

    assert [0, 0] == pages.lacks(2, 1)
    assert [0, 1] == pages.lacks(2, 1, one_by_one=True)


# -- against plain containers ----------------------------------------------------------------------


class Plain:
    """The same pool out of dicts.

    Attributes:
        held: by space, page -> holders.
        idle: by space, page -> (lane, since when) of evictable pages.
        lane: by space, page -> where it would wait.
        quiet: (space, parent) -> (lane, since when).
    """

    def __init__(self, parents, per_parent, lanes):
        self.parents, self.per_parent, self.lanes = parents, per_parent, lanes
        self.held, self.idle, self.lane = ([{} for _ in per_parent] for _ in range(3))
        self.published = [set() for _ in per_parent]
        self.quiet, self.times, self.before = {}, count(), count(-1, -1)

    def pages(self, space, parent):
        """The pages of a parent."""
        k = self.per_parent[space]
        return range(1 + parent * k, 1 + (parent + 1) * k)

    def parent(self, space, page):
        """Where a page is cut from."""
        return (page - 1) // self.per_parent[space]

    def live(self, space, parent):
        """Whether a parent has a live page."""
        return any(page in self.held[space] for page in self.pages(space, parent))

    def vacant(self, space, parent):
        """Its vacant pages."""
        used = self.held[space].keys() | self.idle[space].keys()
        return [page for page in self.pages(space, parent) if page not in used]

    def bound(self):
        """(space, parent) of all that are not free."""
        return {
            (space, self.parent(space, page))
            for space in range(len(self.per_parent))
            for page in (*self.held[space], *self.idle[space])
        }

    def source(self, space):
        """(pages one of which is taken, pages given up before), where nothing is due."""
        mine = [parent for other, parent in self.bound() if other == space]
        partial = [p for p in mine if self.live(space, p) and self.vacant(space, p)]
        if partial:
            least = min(len(self.vacant(space, p)) for p in partial)
            some = [p for p in partial if len(self.vacant(space, p)) == least]
            return [page for p in some for page in self.vacant(space, p)], []
        bound = {parent for _, parent in self.bound()}
        resting = [p for p in mine if self.vacant(space, p)]
        resting += [p for p in range(self.parents) if p not in bound]
        if resting:
            return [page for p in resting for page in self.vacant(space, p)], []
        idle = self.idle[space]
        beside = [page for page in idle if self.live(space, self.parent(space, page))]
        if beside:
            page = min(beside, key=idle.get)
            return [page], [(space, page)]
        other, parent = min(self.quiet, key=self.quiet.get)
        gone = [(other, page) for page in self.pages(other, parent) if page in self.idle[other]]
        return self.pages(space, parent), gone

    def hold(self, space, page, lane):
        """One holder more."""
        parent = self.parent(space, page)
        if self.quiet.pop((space, parent), None):
            for other in reversed(self.pages(space, parent)):
                if other in self.idle[space]:
                    self.idle[space][other] = (self.lane[space][other], next(self.before))
        self.held[space][page] = self.held[space].get(page, 0) + 1
        self.idle[space].pop(page, None)
        self.lane[space][page] = lane

    def release(self, space, page, cold):
        """One holder less."""
        held = self.held[space]
        held[page] -= 1
        if held[page]:
            return
        del held[page]
        if page in self.published[space]:
            self.lane[space][page] *= not cold
            self.idle[space][page] = (self.lane[space][page], next(self.times))
        self.settle(space, self.parent(space, page))

    def settle(self, space, parent):
        """It may be quiet now, or free."""
        idle = [page for page in self.pages(space, parent) if page in self.idle[space]]
        if self.live(space, parent) or not idle:
            self.quiet.pop((space, parent), None)
        elif (space, parent) not in self.quiet:
            lane = max(self.lane[space][page] for page in idle)
            self.quiet[space, parent] = (lane, next(self.times))

    def forget(self, space, page):
        """A page is published no more."""
        self.published[space].discard(page)
        self.idle[space].pop(page, None)
        self.settle(space, self.parent(space, page))

    def rebalance(self, share):
        """Each upper lane keeps so many parents."""
        for lane in range(self.lanes, 1, -1):
            waiting = sorted(k for k, (own, _) in self.quiet.items() if own == lane)
            waiting.sort(key=self.quiet.get)
            for key in waiting[: max(0, len(waiting) - share)]:
                self.quiet[key] = (lane - 1, next(self.times))


class Both:
    """A pool and a plain one, to which the same is done."""

    def __init__(self, parents, per_parent, seed):
        self.chance, self.lanes = random.Random(seed), 1 + seed % 3
        self.groups, self.packed = len(per_parent or "ab"), bool(per_parent)
        excess = lambda lane, waiting: waiting - 2  # noqa: E731
        self.pages = Pages(parents, per_parent, self.groups, self.lanes, excess)
        self.plain, self.pool = Plain(parents, per_parent or [1], self.lanes), self.pages.pool

    def some(self, pages):
        """One of them."""
        return self.chance.choice(sorted(pages))

    def take(self, group, space):
        """A page, and what is given up for it, where there is one."""
        if self.pages.lacks(*(int(g == group) for g in range(self.groups)))[group]:
            return
        some, gone = self.plain.source(space)
        page = self.pool.take(group)
        assert page in some
        assert [there for _, there in gone] == [there for _, there in self.pages.gone]
        for at, other in gone:
            self.plain.forget(at, other)
        self.plain.hold(space, page, 1)

    def release(self, group, space):
        """One holder less, now and then at the cold end."""
        if self.plain.held[space]:
            page, cold = self.some(self.plain.held[space]), self.chance.random() < 0.2
            self.pool.release(group, page, cold)
            self.plain.release(space, page, cold)

    def publish(self, group, space):
        """One that is held."""
        mine = self.plain.held[space].keys() - self.plain.published[space]
        if mine:
            page = self.some(mine)
            group = group if self.packed else self.pool.owner[page - 1] - 1
            self.pool.publish(group, page, self.pages.node())
            self.plain.published[space].add(page)

    def retain(self, group, space):
        """One that is held or evictable; mostly it is the same request's."""
        held, idle = self.plain.held[space], self.plain.idle[space]
        if not held and not idle:
            return
        page, again = self.some({*held, *idle}), self.chance.random() < 0.5
        lane = self.plain.lane[space][page]
        (self.pool.reuse if again else self.pool.retain)(group, page)
        lane = self.lanes if again else lane if page in held else max(lane, 1)
        self.plain.hold(space, page, lane)

    def forget(self, group, space):
        """An evictable page goes."""
        if self.plain.idle[space] and self.packed:
            page = self.some(self.plain.idle[space])
            self.pool.forget(group, page, True)
            self.plain.forget(space, page)

    def rebalance(self, _group, _space):
        """Each upper lane keeps two parents."""
        self.pool.quiet.rebalance(self.pool.excess)
        self.plain.rebalance(2)

    def check(self):
        """Both have the same."""
        plain, bound = self.plain, self.plain.bound()
        busy = sum(plain.live(*place) for place in bound)
        free = plain.parents - len({parent for _, parent in bound})
        assert (free, busy, len(plain.quiet)) == self.pages.counts()
        for mine, space in zip(plain.held, self.pool.spaces, strict=False):
            assert mine == {page: n for page, n in enumerate(space.holders) if n}
            assert len(mine) == space.live
        assert sum(map(len, plain.published)) == self.pages.index.count


@pytest.mark.parametrize("per_parent", [None, [1], [5], [2, 3], [4, 16, 1]])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pool_against_dicts(per_parent, seed):
    """Random verbs: who gives the next page, who is given up for it, and who holds what."""
    both = Both(12, per_parent, seed)
    verbs = [both.take, both.release, both.publish, both.retain, both.forget, both.rebalance]
    for _ in range(1_200):
        group = both.chance.randrange(both.groups)
        both.pages.gone.clear()
        both.chance.choices(verbs, (6, 7, 6, 2, 1, 1))[0](group, group if per_parent else 0)
        both.check()
    assert both.pool.evicted > 20
