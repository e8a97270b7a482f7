"""Pages are neither lost nor made: free + live + evictable == usable after every call."""

import gc

import pytest

from octavo import Attention, Cache, Plan, State
from octavo.testing import SHAPES, stress


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


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[7], SHAPES[12], SHAPES[-1]], ids=str)
def test_nothing_is_left_behind(shape):
    """After hundreds of rules everything is released: no page held, and after reset none kept."""
    report = stress(300, 9, (shape,))

    assert 300 == report.rules.total()


GROUPS = {
    "full": Attention(1, 1, 1),
    "w": Attention(1, 1, 1, window=6),
    "state": State(1),
}


@pytest.mark.parametrize("per_parent", [None, {"full": 2, "w": 3, "state": 1}])
@pytest.mark.parametrize("guarantee", [False, True])
@pytest.mark.parametrize("moment", ["new", "computed", "forked", "preempted", "resumed"])
def test_a_lost_handle_gives_its_pages_back(per_parent, guarantee, moment):
    """A handle collected while it holds pages warns, and the next verb takes them back."""
    plan = Plan.from_pages(60, 4, GROUPS, pages_per_parent=per_parent)
    cache = Cache(plan, max_sequences=2)
    row = cache.admit(range(9), limit=20, guarantee=guarantee, id="lost")
    while moment != "new" and row.computed < 9:
        cache.commit(cache.extend(row, min(9, row.next_stop or 9) - row.computed))
    if moment == "forked":
        cache.fork(row)  # its only handle is lost at once
    if moment in ("preempted", "resumed"):
        cache.preempt(row)
    if moment == "resumed":
        cache.resume(row)
    handles = [row]
    del row
    with pytest.warns(ResourceWarning, match="sequence 'lost' was collected before"):
        handles.clear()
    gc.collect()
    cache.check()
    stats = cache.stats()

    assert (0, 0) == (stats.live, stats.sequences)
    again = [cache.admit([1]), cache.admit([2], id="lost")]
    for sequence in again:
        cache.release(sequence)
    cache.reset()
    assert (stats.pages, 0, 0) == parts(cache)
