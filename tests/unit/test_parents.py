"""The packed pool by itself."""

import random
import sys

import pytest

from octavo.cache.parents import ParentPool
from octavo.errors import IntegrityError, LengthError, OutOfPages


def counts(pool):
    """(free, live, evictable) parents."""
    pool.check()
    return pool.free, pool.live, pool.evictable


def test_each_group_numbers_its_own_pages():
    """Page 1 + parent * K + k: two groups may both have a page 1."""
    pool = ParentPool(3, [2, 3])

    assert [1, 2, 3] == pool.take(3, 0).tolist()
    assert [7, 8] == pool.take(2, 1).tolist()
    assert (0, 3, 0) == counts(pool)
    assert (3, 2) == (pool.live_in(0), pool.live_in(1))
    assert (6, 9) == (pool.total(0), pool.total(1))


def test_a_partial_parent_is_filled_first():
    """No new parent is bound while the group has a page to give in one of its own."""
    pool = ParentPool(4, [4, 4])
    pages = pool.take(5, 0)
    pool.release(pages[1:3], 0)

    assert {2, 3} == set(pool.take(2, 0).tolist())
    assert (2, 2, 0) == counts(pool)


def test_the_fullest_partial_parent_first():
    """So that emptier ones may become free."""
    pool = ParentPool(2, [4])
    pages = pool.take(8)
    pool.release(pages[:3])
    pool.release(pages[4:5])

    assert [5] == pool.take(1).tolist()


def test_an_empty_parent_is_free_for_any_group():
    """The last page released frees its parent, and another group may bind it."""
    pool = ParentPool(1, [2, 3])
    pages = pool.take(2, 0)
    with pytest.raises(OutOfPages):
        pool.take(1, 1)
    pool.release(pages, 0)

    assert (1, 0, 0) == counts(pool)
    assert [1, 2, 3] == pool.take(3, 1).tolist()


def test_the_parent_whose_newest_page_is_oldest_goes():
    """Of two wholly idle parents the one not touched for longer is given up, whole."""
    told = []
    pool = ParentPool(2, [2, 1], on_evict=lambda group, pages: told.append((group, pages.tolist())))
    pages = pool.take(4, 0)
    pool.publish(pages, 0)
    for page in (3, 1, 4, 2):
        pool.release([page], 0)
    pool.take(1, 1)

    assert [(0, [3, 4])] == told
    assert (0, 1, 1) == counts(pool)


def test_idle_pages_beside_live_ones_go_before_other_parents():
    """They cost nobody else anything."""
    told = []
    pool = ParentPool(2, [3], on_evict=lambda group, pages: told.extend(pages.tolist()))
    pages = pool.take(6)
    pool.publish(pages)
    pool.release(pages[3:])
    pool.release(pages[1:3])

    assert [2] == pool.take(1).tolist()
    assert [2] == told


@pytest.mark.parametrize(
    ("needs", "missing"),
    [([3, 0], 0), ([1, 3], 0), ([1, 6], 0), ([1, 7], 1), ([4, 4], 4), ([6, 0], 1), ([9, 9], 13)],
)
def test_what_is_missing(needs, missing):
    """Pages of own parents first, then whole parents: a group cannot use the rest of another's."""
    pool = ParentPool(3, [2, 3])
    pool.take(1, 0)

    assert missing == sum(pool.short(needs))


def test_taking_too_many_changes_nothing():
    """OutOfPages, and everything as before."""
    pool = ParentPool(2, [2, 2])
    pool.take(1, 0)
    with pytest.raises(OutOfPages) as caught:
        pool.take(4, 1)

    assert {"1": 2} == caught.value.short
    assert (1, 1, 0) == counts(pool)


@pytest.mark.parametrize("pages", [[1, 1], [2], [1, 2]])
def test_releasing_more_than_held_changes_nothing(pages):
    """IntegrityError, and every count as before."""
    pool = ParentPool(2, [2])
    pool.take(1)
    with pytest.raises(IntegrityError):
        pool.release(pages)

    assert (1, 1, 0) == counts(pool)


@pytest.mark.parametrize("arguments", [(0, [1]), (1.0, [1]), (2, [0]), (2, [1, -1])])
def test_impossible_pools_are_refused(arguments):
    """At least one parent, at least one page a parent."""
    with pytest.raises(LengthError):
        ParentPool(*arguments)


def test_check_names_the_equation_that_fails():
    """A count that does not add up is reported with both sides."""
    pool = ParentPool(2, [2])
    pool.take(1)
    pool.state(0)[0][2] = 1
    with pytest.raises(IntegrityError, match="live pages"):
        pool.check()


@pytest.mark.parametrize("per_parent", [[1], [3], [2, 3], [4, 1, 2]])
@pytest.mark.parametrize("seed", [1, 2])
def test_parents_against_plain_sets(per_parent, seed):
    """Thousands of random calls: a page has one holder count, and what can be had is had."""
    chance, parents = random.Random(seed), 9
    held = [{} for _ in per_parent]
    idle = [set() for _ in per_parent]
    pool = ParentPool(
        parents,
        per_parent,
        on_evict=lambda group, pages: idle[group].difference_update(pages.tolist()),
    )
    for _ in range(2_000):
        group = chance.randrange(len(per_parent))
        act = chance.choice(["take", "retain", "release", "release", "publish", "unpublish"])
        mine = held[group]
        if act == "take":
            need = [0] * len(per_parent)
            need[group] = chance.randint(1, 4)
            before = [set(pages) for pages in idle]
            try:
                pages = pool.take(need[group], group).tolist()
            except OutOfPages:
                assert pool.short(need)[group]
                assert before == idle
                continue
            assert not set(pages) & (mine.keys() | idle[group])
            mine.update(dict.fromkeys(pages, 1))
        elif act == "retain" and (mine or idle[group]):
            page = chance.choice(sorted(mine.keys() | idle[group]))
            pool.retain([page], group)
            mine[page] = mine.get(page, 0) + 1
            idle[group].discard(page)
        elif act == "release" and mine:
            page = chance.choice(sorted(mine))
            pool.release([page], group)
            mine[page] -= 1
            if not mine[page]:
                del mine[page]
                if pool.state(group)[1][page]:
                    idle[group].add(page)
        elif act == "publish" and mine:
            pool.publish([chance.choice(sorted(mine))], group)
        elif act == "unpublish" and (mine or idle[group]):
            page = chance.choice(sorted(mine.keys() | idle[group]))
            pool.unpublish([page], group)
            idle[group].discard(page)
        pool.check()
        owners = [
            {(page - 1) // k for page in held[g].keys() | idle[g]} for g, k in enumerate(per_parent)
        ]
        assert sum(map(len, owners)) == len(set.union(*owners)) == parents - pool.free
        assert [len(pages) for pages in held] == [pool.live_in(g) for g in range(len(per_parent))]


class Slow:
    """A packed pool that is a few dicts and no other structure.

    Attributes:
        held: by group, page -> holders.
        idle: by group, page -> (0 if cold else 1, since when).
    """

    def __init__(self, parents, per_parent):
        self.parents, self.per_parent = parents, per_parent
        self.held = [{} for _ in per_parent]
        self.idle = [{} for _ in per_parent]
        self.published = [set() for _ in per_parent]
        self.time = 0

    def pages(self, group, parent):
        """The pages of a parent in the numbers of a group."""
        k = self.per_parent[group]
        return range(1 + parent * k, 1 + (parent + 1) * k)

    def of(self, group, parent):
        """(live, evictable, vacant pages) of a parent, were it the group's."""
        pages = self.pages(group, parent)
        live = [page for page in pages if page in self.held[group]]
        idle = [page for page in pages if page in self.idle[group]]
        return live, idle, [page for page in pages if page not in live and page not in idle]

    def bound(self, group):
        """The parents of a group, with what `of` says."""
        counts = {parent: self.of(group, parent) for parent in range(self.parents)}
        return {parent: kinds for parent, kinds in counts.items() if kinds[0] or kinds[1]}

    def own(self, group):
        """Vacant and evictable pages in parents with live ones."""
        return sum(len(i) + len(v) for live, i, v in self.bound(group).values() if live)

    def quiet(self):
        """Parents without live pages, free ones among them."""
        groups = range(len(self.per_parent))
        return self.parents - sum(bool(k[0]) for g in groups for k in self.bound(g).values())

    def fits(self, needs):
        """The equation of the pool."""
        wanted = sum(
            -(-max(0, need - self.own(g)) // k)
            for g, (need, k) in enumerate(zip(needs, self.per_parent, strict=True))
        )
        return wanted <= self.quiet()

    def given_up(self, count, group):
        """By group, the pages that taking ``count`` must give up, where nothing is promised."""
        gone = [set() for _ in self.per_parent]
        bound, k = self.bound(group), self.per_parent[group]
        free = self.parents - sum(len(self.bound(g)) for g in range(len(gone)))
        count -= sum(len(vacant) for _, _, vacant in bound.values()) + free * k
        beside = [page for live, idle, vacant in bound.values() if live or vacant for page in idle]
        gone[group].update(sorted(beside, key=self.idle[group].get)[: max(0, count)])
        count -= len(gone[group])
        whole = [
            (max(self.idle[g][page] for page in idle), g, idle)
            for g in range(len(gone))
            for live, idle, vacant in self.bound(g).values()
            if not live and not (g == group and vacant)
        ]
        for _, g, pages in sorted(whole)[: max(0, -(-count // k))]:
            gone[g].update(pages)
        return gone

    def unpublish(self, pages, group):
        """The index gave them up."""
        self.published[group] -= set(pages)
        for page in pages:
            self.idle[group].pop(page, None)


class Both:
    """A pool and a slow one, told the same."""

    def __init__(self, parents, per_parent, seed):
        self.chance, self.per_parent = random.Random(seed), per_parent
        self.told = [set() for _ in per_parent]
        self.pool = ParentPool(parents, per_parent, on_evict=self.hear)
        self.slow = Slow(parents, per_parent)
        self.evicted = 0

    def hear(self, group, pages):
        """Of pages given up, each once."""
        assert not self.told[group] & set(pages.tolist())
        self.told[group].update(pages.tolist())
        self.evicted += pages.size

    def some(self, pages):
        """A few, in any order."""
        return self.chance.sample(sorted(pages), self.chance.randint(0, len(pages)))

    def take(self, group):
        """Some pages or OutOfPages, and those given up that had to be."""
        count = self.chance.randint(1, 3 * self.per_parent[group] + 2)
        needs = [count * (g == group) for g in range(len(self.per_parent))]
        due = [self.chance.choice([0, 0, self.chance.randint(1, 4)]) for _ in self.per_parent]
        if not self.slow.fits(needs):
            with pytest.raises(OutOfPages):
                self.pool.take(count, group)
            assert not any(self.told)
            return
        gone, promised = self.slow.given_up(count, group), any(due)
        promised = promised and self.slow.fits([a + b for a, b in zip(needs, due, strict=True)])
        pages = self.pool.take(count, group, due if promised else ()).tolist()
        assert promised or gone == self.told
        assert count == len(set(pages) - self.slow.held[group].keys())
        assert not set(pages) & (self.slow.idle[group].keys() - self.told[group])
        if not any(self.told):
            assert_fullest_first(self.slow, pages, group)
        for g, lost in enumerate(self.told):
            self.slow.unpublish(lost, g)
            lost.clear()
        self.slow.held[group].update(dict.fromkeys(pages, 1))
        assert not promised or not any(self.pool.short(due))

    def retain(self, group):
        """Live ones and evictable ones."""
        held, idle = self.slow.held[group], self.slow.idle[group]
        pages = self.some(held) + self.some(idle)
        self.pool.retain(pages, group)
        for page in pages:
            held[page] = held.get(page, 0) + 1
            idle.pop(page, None)

    def release(self, group):
        """One holder less each."""
        held, slow = self.slow.held[group], self.slow
        pages, cold = self.some(held), self.chance.random() < 0.3
        self.pool.release(pages, group, cold=cold, distinct=True)
        for page in pages:
            held[page] -= 1
            if not held[page]:
                del held[page]
                if page in slow.published[group]:
                    slow.idle[group][page] = (0 if cold else 1, slow.time)
                    slow.time += 1

    def publish(self, group):
        """Live ones."""
        pages = self.some(self.slow.held[group])
        self.pool.publish(pages, group)
        self.slow.published[group].update(pages)

    def unpublish(self, group):
        """Live ones and evictable ones."""
        pages = self.some(self.slow.published[group])
        self.pool.unpublish(pages, group)
        self.slow.unpublish(pages, group)

    def check(self):
        """Both have the same, and say the same of what can be had."""
        self.pool.check()
        assert self.pool.free + self.pool.evictable == self.slow.quiet()
        for group, held in enumerate(self.slow.held):
            refs, _ = self.pool.state(group)
            assert held == {page: n for page, n in enumerate(refs.tolist()) if n}
            assert len(held) == self.pool.live_in(group)
        needs = [self.chance.randint(0, 4 * k) for k in self.per_parent]
        assert self.slow.fits(needs) == (not any(self.pool.short(needs)))


def assert_fullest_first(slow, pages, group):
    """Of the parents with live and vacant pages, the fullest gave theirs before any other."""
    vacant = {p: set(kinds[2]) for p, kinds in slow.bound(group).items() if kinds[0] and kinds[2]}
    used = {parent for parent, some in vacant.items() if some & set(pages)}
    if set(pages) - set().union(*vacant.values()):
        assert used == set(vacant)
    least = min((len(vacant[parent]) for parent in vacant if parent not in used), default=99)
    assert max((len(vacant[parent]) for parent in used), default=0) <= least
    assert sum(not vacant[parent] <= set(pages) for parent in used) <= 1


@pytest.mark.parametrize("per_parent", [[1], [5], [2, 3], [4, 16, 1]])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_pages_at_once_against_dicts(per_parent, seed):
    """Bulk calls of random size: the equation, the order of taking, and who is given up."""
    both = Both(12, per_parent, seed)
    acts = [both.take, both.publish, both.release, both.retain, both.unpublish]
    for _ in range(1_000):
        act = both.chance.choices(acts, (8, 8, 8, 2, 1))[0]
        act(both.chance.randrange(len(per_parent)))
        both.check()

    assert both.evicted > 100


def test_the_coldest_parent_of_any_group():
    """Groups are compared by when their pages were let go, however busy each of them is."""
    told = []
    pool = ParentPool(3, [1, 1], on_evict=lambda group, pages: told.append((group, pages.tolist())))
    pages = [pool.take(1, group) for group in (0, 1, 0)]
    for page, group in zip(pages, (0, 1, 0), strict=True):
        pool.publish(page, group)
    for _ in range(5):
        pool.release(pages[0], 0)
        pool.retain(pages[0], 0)
    pool.release(pages[0], 0)
    pool.release(pages[1], 1)
    pool.release(pages[2], 0)
    pool.take(2, 1)

    assert [(0, [1]), (1, [2])] == told


def test_a_page_passed_over_is_found_when_a_neighbour_comes_alive():
    """It was idle among idle ones when colder pages were looked for."""
    told = []
    pool = ParentPool(3, [2], on_evict=lambda group, pages: told.extend(pages.tolist()))
    pages = pool.take(6)
    pool.publish(pages)
    pool.release([1, 2, 3])
    pool.take(1)
    pool.retain([2])
    pool.release([5])
    pool.take(1)

    assert [3, 1] == told


def test_one_listing_counts_for_each_holder():
    """A page listed twice loses two holders, and waits where it is listed first."""
    pool = ParentPool(2, [3])
    pages = pool.take(6)
    pool.publish(pages)
    pool.retain(pages[:1])
    pool.release([4, 1, 5, 1, 6, 2, 3])

    assert (0, 0, 2) == counts(pool)
    assert [4, 5, 6] == pool.take(3).tolist()


def calls(act):
    """Calls, of Python or C functions, that ``act`` makes."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("group", [0, 1, 2])
def test_many_pages_cost_the_calls_of_few(group):
    """Taking, publishing, releasing, retaining and evicting 640 pages is as many calls as of 64."""

    def run(count):
        pool = ParentPool(700, [4, 16, 1])
        pages = pool.take(count, group)
        pool.publish(pages, group)
        pool.release(pages[::-1], group, distinct=True)
        pool.retain(pages, group)
        pool.release(pages[::-1], group, distinct=True)
        pool.take(pool.total(group), group)

    assert calls(lambda: run(640)) <= calls(lambda: run(64)) + 60
