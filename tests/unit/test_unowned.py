"""Unowned slots: free pages and the rest of open ones, and nothing anybody may read."""

import numpy as np
import pytest

from octavo import Attention, Cache, Cross, CrossInput, Plan, State
from octavo.testing import SHAPES, World, unowned_slots
from octavo.testing.drawing import Chance
from octavo.testing.rules import RULES
from octavo.testing.stress import choose


def test_a_new_cache_owns_nothing():
    """All pages but the null page."""
    assert (list(range(1, 8)), []) == unowned_slots(Cache(Plan.from_pages(8, 4)))


def test_open_pages_are_owned_up_to_what_is_scheduled():
    """Published pages are owned whole, idle ones too; a draft's slots are owned while it runs."""
    cache = Cache(Plan.from_pages(8, 4))
    row = cache.admit(range(6))
    step = cache.extend(row, 9, ahead=3)
    assert ([4, 5, 6, 7], [(3, 1)]) == unowned_slots(cache)
    cache.commit(step, [[7]], kept=[6])
    assert ([3, 4, 5, 6, 7], [(2, 2)]) == unowned_slots(cache)
    cache.release(row)

    assert ([2, 3, 4, 5, 6, 7], []) == unowned_slots(cache)


def test_a_shared_open_page():
    """Owned as far as the longest of its holders has come."""
    cache = Cache(Plan.from_pages(12, 4))
    row = cache.admit(range(7))
    cache.commit(cache.extend(row, 7), [1])
    (child,) = cache.fork(row)
    cache.truncate(child, 5)

    assert [(2, 3)] == unowned_slots(cache).tails


def test_what_is_left_of_a_published_page_is_owned_by_others():
    """A cut inside it leaves the rest to whoever finds it."""
    cache = Cache(Plan.from_pages(12, 4))
    row = cache.admit(range(7))
    cache.commit(cache.extend(row, 7), [1])
    cache.truncate(row, 2)

    assert [] == unowned_slots(cache).tails


def test_each_group_by_name():
    """Pages of states and cross inputs are owned whole, and parents bound to another group too."""
    groups = {"full": Attention(1, 1, 1), "state": State(1), "cross": Cross(1, 1, 1)}
    plan = Plan.from_pages(5, 4, groups, pages_per_parent={"full": 2, "state": 3})
    cache = Cache(plan)
    row = cache.admit(range(3), extra=[CrossInput("c", 3)])
    cache.extend(row, 3)

    assert [(5, 3)] == unowned_slots(cache).tails == unowned_slots(cache, "full").tails
    for name, pages in (("full", 1 + 2), ("state", 2 + 3), ("cross", 1)):
        assert pages == len(unowned_slots(cache, name).pages)
    assert [] == unowned_slots(cache, "state").tails
    with pytest.raises(KeyError, match="no group 'w'; the plan's groups are full, state, cross"):
        unowned_slots(cache, "w")


@pytest.mark.parametrize("shape", SHAPES[:3] + SHAPES[18:20], ids=str)
def test_nothing_unowned_is_ever_read(shape):
    """Contents of unowned slots are thrown away before every step: every read is still right."""

    class Poisoned(World):
        def extend(self, *arguments, **options):
            for group in self.shape.of_form("tokens"):
                held, size = self.store._held[group], self.shape.page_size
                pages, tails = unowned_slots(self.cache, group)
                for page, start in (*((page, 0) for page in pages), *tails):
                    for offset in range(start, size):
                        held.pop(page * size + offset, None)
            return super().extend(*arguments, **options)

    world, chance = Poisoned(shape), Chance(f"poison/{shape}")
    for _ in range(300):
        RULES[choose(world, chance)].act(world, chance)
        world.check()
    world.finish()


def test_arrays_can_be_indexed_with_them():
    """Pages as an index, tails one by one."""
    cache = Cache(Plan.from_pages(8, 4))
    cache.extend(cache.admit([1]), 1)
    memory, found = np.zeros((8, 4)), unowned_slots(cache)
    memory[found.pages] = np.nan
    for page, offset in found.tails:
        memory[page, offset:] = np.nan

    assert 4 + 1 == np.isfinite(memory).sum()
