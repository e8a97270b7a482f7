"""The page pool by itself."""

import random

import numpy as np
import pytest

from octavo.cache.pages import PagePool
from octavo.errors import IntegrityError, LengthError, OutOfPages


def counts(pool):
    """(free, live, evictable)."""
    pool.check()
    return pool.free, pool.live, pool.evictable


def test_a_new_pool_is_free():
    """All pages but the null page are free."""
    pool = PagePool(8)

    assert 7 == pool.usable
    assert (7, 0, 0) == counts(pool)


def test_take_gives_consecutive_pages():
    """A fresh pool hands out 1, 2, 3, ... as int32, and never page 0."""
    pool = PagePool(8)

    assert [1, 2, 3] == pool.take(3).tolist()
    assert [4, 5, 6, 7] == pool.take(4).tolist()
    assert np.int32 == pool.take(0).dtype
    assert (0, 7, 0) == counts(pool)


def test_take_too_many_changes_nothing():
    """OutOfPages tells what was needed and what there is."""
    pool = PagePool(4)
    pool.take(1)
    with pytest.raises(OutOfPages) as caught:
        pool.take(3)

    assert {"need": 3, "free": 2, "evictable": 0, "short": {"0": 1}} == vars(caught.value)
    assert (2, 1, 0) == counts(pool)


def test_released_pages_are_free_again():
    """A page nobody holds and nobody published is free, and handed out next."""
    pool = PagePool(4)
    pages = pool.take(3)
    pool.release(pages[:2])

    assert (2, 1, 0) == counts(pool)
    assert {1, 2} == set(pool.take(2).tolist())


def test_every_holder_counts():
    """A page retained twice is free after three releases."""
    pool = PagePool(4)
    page = pool.take(1)
    pool.retain(page)
    pool.retain(page)
    states = []
    for _ in range(3):
        pool.release(page)
        states.append(counts(pool))

    assert [(2, 1, 0), (2, 1, 0), (3, 0, 0)] == states


def test_one_release_may_list_a_page_twice():
    """Twice listed counts twice, and the page is freed once."""
    pool = PagePool(4)
    page = int(pool.take(1)[0])
    pool.retain([page])
    pool.release([page, page])

    assert (3, 0, 0) == counts(pool)


@pytest.mark.parametrize("pages", [[1, 1], [2], [0], [1, 2], [1, 0]])
def test_releasing_more_than_held_changes_nothing(pages):
    """IntegrityError, and every count as before; the null page is never held."""
    pool = PagePool(4)
    pool.take(1)
    with pytest.raises(IntegrityError):
        pool.release(pages)

    assert (2, 1, 0) == counts(pool)
    assert [0, 1, 0, 0] == pool.refs.tolist()


def test_published_pages_become_evictable():
    """A published page stays when its last holder goes, and can be held again."""
    pool = PagePool(4)
    page = pool.take(1)
    pool.publish(page)
    pool.release(page)

    assert (2, 0, 1) == counts(pool)
    pool.retain(page)
    assert (2, 1, 0) == counts(pool)


def given_up(pool, count):
    """The pages that taking ``count`` beyond the free ones evicts, in order; they are free then."""
    told = []
    pool.on_evict = lambda group, pages: told.extend(pages.tolist())
    pool.release(pool.take(pool.free + count))
    pool.on_evict = lambda group, pages: None
    return told


def test_eviction_takes_the_longest_idle_first():
    """The order is that of the releases, not of the page numbers."""
    pool = PagePool(6)
    pages = pool.take(5)
    pool.publish(pages)
    for page in (3, 1, 5, 2, 4):
        pool.release([page])

    assert [3, 1, 5] == given_up(pool, 3)
    assert (3, 0, 2) == counts(pool)
    assert [2, 4] == given_up(pool, 2)
    assert (5, 0, 0) == counts(pool)


def test_a_page_used_again_goes_to_the_end():
    """Holding and releasing a page again makes it the last to be evicted."""
    pool = PagePool(4)
    pages = pool.take(3)
    pool.publish(pages)
    pool.release(pages)
    pool.retain([1])
    pool.release([1])

    assert [2, 3, 1] == given_up(pool, 3)


def test_cold_pages_go_first():
    """A page released cold is evicted before all others, whenever it was used."""
    pool = PagePool(4)
    pages = pool.take(3)
    pool.publish(pages)
    pool.release([1, 2])
    pool.release([3], cold=True)

    assert [3, 1, 2] == given_up(pool, 3)


def test_held_pages_are_never_evicted():
    """Only pages nobody holds are candidates."""
    pool = PagePool(4)
    pages = pool.take(3)
    pool.publish(pages)
    pool.release(pages[:1])
    with pytest.raises(OutOfPages):
        pool.take(2)

    assert [1] == given_up(pool, 1)
    assert 2 == pool.live


def test_evicted_pages_are_handed_out():
    """Taking more than is free gives the evicted pages, no longer published."""
    pool = PagePool(3)
    pages = pool.take(2)
    pool.publish(pages)
    pool.release(pages)

    assert {1, 2} == set(pool.take(2).tolist())
    assert not pool.published.any()
    assert (0, 2, 0) == counts(pool)


def test_evicted_pages_come_out_ascending():
    """Whatever the order they became idle in, so that a prompt gets runs where there are some."""
    pool = PagePool(7)
    pages = pool.take(6)
    pool.publish(pages)
    pool.release(pages[::-1])

    assert [4, 5, 6] == pool.take(3).tolist()


def test_pages_given_back_last_first_come_out_ascending():
    """As a sequence gives its pages back."""
    pool = PagePool(7)
    pages = pool.take(4)
    pool.release(pages[::-1], distinct=True)

    assert [1, 2, 3, 4, 5, 6] == pool.take(6).tolist()


def test_a_release_without_room_to_wait_changes_nothing(monkeypatch):
    """Rings grow before holders change."""
    pool = PagePool(200)
    pages = pool.take(199)
    pool.publish(pages)

    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr("octavo.cache.lanes.np.zeros", exhausted)
    with pytest.raises(MemoryError):
        pool.release(pages)
    monkeypatch.undo()

    assert (0, 199, 0) == counts(pool)
    pool.release(pages)
    assert (0, 0, 199) == counts(pool)


def test_a_page_listed_twice_waits_where_it_is_listed_first():
    """Each listing counts; the order is that of the first ones."""
    pool = PagePool(4)
    pages = pool.take(3)
    pool.publish(pages)
    pool.retain([2, 3])
    pool.release([3, 1, 2, 3])

    assert [0, 0, 1, 0] == pool.refs.tolist()
    assert [3, 1] == given_up(pool, 2)


def test_policies_that_do_not_ask_are_not_told_of_reuse():
    """LRU treats all pages alike: there is nothing to remember."""
    for policy, told in (("lru", 0), ("slru", 2)):
        pool = PagePool(4, policy=policy)
        pool.publish(pool.take(3))
        pool.mark_reused([1, 3])

        assert told == np.count_nonzero(pool._lanes.reused)


def test_evicting_all():
    """Every idle page is free afterwards; held ones stay."""
    pool = PagePool(5)
    pages = pool.take(4)
    pool.publish(pages)
    pool.release(pages[1:])
    pool.evict_all()

    assert (3, 1, 0) == counts(pool)


def test_unpublished_pages_are_free():
    """The index gives an idle page up: it is free at once, a held one when it is released."""
    pool = PagePool(4)
    pages = pool.take(2)
    pool.publish(pages)
    pool.release(pages[:1])
    pool.unpublish(pages)

    assert (2, 1, 0) == counts(pool)
    pool.release(pages[1:])
    assert (3, 0, 0) == counts(pool)


def test_groups_share_the_pages():
    """Each group is told of its own evictions, and counts its own live pages."""
    told = []
    pool = PagePool(8, groups=2, on_evict=lambda group, pages: told.append((group, pages.tolist())))
    one, other = pool.take(3, 0), pool.take(3, 1)
    for pages, group in ((one, 0), (other, 1)):
        pool.publish(pages, group)
        pool.release(pages, group)
    pool.retain(one[:1], 0)

    assert (1, 0) == (pool.live_in(0), pool.live_in(1))
    pool.take(4, 1)
    assert [(0, [2, 3]), (1, [4])] == told
    assert (1, 4) == (pool.live_in(0), pool.live_in(1))
    counts(pool)


@pytest.mark.parametrize(
    ("needs", "pinned", "missing"),
    [
        ([7, 0], [], [0, 0]),
        ([4, 3], [], [0, 0]),
        ([4, 4], [], [0, 1]),
        ([9, 2], [], [2, 2]),
        ([6, 0], [[1], []], [0, 0]),
        ([6, 1], [[1], []], [0, 1]),
    ],
)
def test_what_is_missing(needs, pinned, missing):
    """Free and evictable pages less those that will be held; the missing go to the last in line."""
    pool = PagePool(8, groups=2)
    pages = pool.take(3)
    pool.publish(pages)
    pool.release(pages)

    assert missing == pool.short(needs, pinned)


@pytest.mark.parametrize("num_pages", [1, 0, -1, 2**31, 2.0, None])
def test_impossible_pools_are_refused(num_pages):
    """At least the null page and one other; ids are int32."""
    with pytest.raises(LengthError) as caught:
        PagePool(num_pages)

    assert ("num_pages", num_pages, 2, 2**31 - 1) == (
        caught.value.name,
        caught.value.value,
        caught.value.low,
        caught.value.high,
    )


def test_check_names_the_equation_that_fails():
    """A count that does not add up is reported with both sides."""
    pool = PagePool(4)
    pool.take(1)
    pool.refs[2] = 1
    with pytest.raises(IntegrityError) as caught:
        pool.check()

    assert {"equation": "holders of free pages == 0", "left": 1, "right": 0} == vars(caught.value)
    assert "holders of free pages == 0: 1 != 0" == str(caught.value)


def test_a_pool_against_sets_and_a_list():
    """10,000 random calls give what three plain Python containers give."""
    chance, pool = random.Random(5), PagePool(20)
    held, idle, published = {}, [], set()
    for _ in range(10_000):
        act = chance.choice(["take", "retain", "release", "release", "publish", "evict"])
        if act == "take" and pool.free:
            for page in pool.take(chance.randint(1, pool.free)).tolist():
                assert page not in held
                assert page not in idle
                held[page] = 1
        elif act == "retain" and (held or idle):
            page = chance.choice([*held, *idle])
            pool.retain([page])
            held[page] = held.get(page, 0) + 1
            idle = [other for other in idle if other != page]
        elif act == "release" and held:
            some = chance.sample(sorted(held), chance.randint(1, len(held)))
            pool.release(some)
            for page in some:
                held[page] -= 1
                if not held[page]:
                    del held[page]
                    idle += [page] if page in published else []
        elif act == "publish" and held:
            page = chance.choice(sorted(held))
            pool.publish([page])
            published.add(page)
        elif act == "evict" and idle:
            count = chance.randint(1, len(idle))
            assert idle[:count] == given_up(pool, count)
            published -= set(idle[:count])
            idle = idle[count:]
        assert (19 - len(held) - len(idle), len(held), len(idle)) == counts(pool)
