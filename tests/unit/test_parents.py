"""The packed pool by itself."""

import random

import pytest

from octavo.errors import IntegrityError, LengthError, OutOfPages
from octavo.parents import ParentPool


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
