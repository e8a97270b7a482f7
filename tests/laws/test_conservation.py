"""Pages are neither lost nor made: free + live + evictable == usable after every call."""

import pytest

from octavo import Cache, Plan
from octavo.testing import Shape, World, stress


def parts(cache):
    """(free, live, evictable), checked against the pool."""
    cache.check()
    stats = cache.stats()
    assert stats.free + stats.live + stats.evictable == stats.pages
    return stats.free, stats.live, stats.evictable


@pytest.mark.parametrize("prefix", [True, False])
def test_every_verb_conserves(prefix):
    """The three sum to the usable pages through the life of two sequences."""
    cache = Cache(Plan.from_pages(12, 4), prefix=prefix)
    a, b = cache.admit(range(9)), cache.admit(range(9))
    story = [parts(cache)]
    step = cache.extend([a, b], 9)
    story.append(parts(cache))
    cache.commit(step, [1, 2])
    story.append(parts(cache))
    cache.truncate(a, 4)
    story.append(parts(cache))
    cache.abort(cache.extend(b, 1))
    story.append(parts(cache))
    cache.release(b)
    story.append(parts(cache))
    cache.release(a)
    story.append(parts(cache))
    cache.reset()

    shared = [(11, 0, 0), (5, 6, 0), (7, 4, 0), (8, 3, 0), (8, 3, 0), (9, 1, 1), (9, 0, 2)]
    alone = [(11, 0, 0), (5, 6, 0), (5, 6, 0), (7, 4, 0), (7, 4, 0), (10, 1, 0), (11, 0, 0)]
    assert (shared if prefix else alone) == story
    assert (11, 0, 0) == parts(cache)


def test_nothing_is_left_behind():
    """After thousands of rules, releasing everything leaves no page held."""
    worlds = []

    class Kept(World):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            worlds.append(self)

    stress(2_000, 9, (Shape(24, 4, 6), Shape(24, 4, 6, prefix=False)), world_type=Kept)
    for world in worlds:
        for pair in list(world.live):
            world.release(pair)
        stats = world.cache.stats()

        assert (0, 0) == (stats.live, stats.sequences)
        assert stats.pages == stats.free + stats.evictable
        world.cache.reset()
        assert stats.pages == world.cache.stats().free
