"""What page-range slot mapping promises of an engine's cache, with one helper for all of it.

Allocation with a cached prefix, chunked prefill, speculative append and rollback, shortage: the
slots of a step are `slot_mapping` of its table, whatever the pages are.
"""

import random

import pytest

from octavo import Cache, LengthError, OutOfPages, Plan
from octavo.slots import slot_mapping
from octavo.testing import freeze


def slots_of(step, row=0):
    """A row's slots, after seeing that they are the helper's and the formula's."""
    view, size = step.group(), 4
    start, stop = int(step.past[row]), int(step.context[row])
    at = slice(int(step.query_start[row]), int(step.query_start[row + 1]))
    found = view.slots[at].tolist()
    pages = view.table[row].tolist()

    assert slot_mapping(pages, size, start, stop).tolist() == found
    assert [pages[i // size] * size + i % size for i in range(start, stop)] == found
    return found


def scattered(usable=60, seed=1):
    """A pool whose free pages are in no order."""
    cache, chance = Cache(Plan.from_pages(usable + 1, 4), prefix=True), random.Random(seed)
    rows = [cache.admit([n + 100]) for n in range(usable)]
    for row in rows:
        cache.commit(cache.extend(row, 1))
    chance.shuffle(rows)
    for row in rows:
        cache.release(row)
    return cache


@pytest.mark.parametrize("seed", range(5))
def test_allocation_behind_a_cached_prefix(seed):
    """The new part begins where the cached one ends, in pages of its own."""
    cache = scattered(seed=seed)
    first = cache.admit(range(20))
    cache.commit(cache.extend(first, 20))
    row = cache.admit([*range(10), *range(50, 57)])
    step = cache.extend(row, 9)
    table = step.group().table[0].tolist()

    assert 8 == row.cached
    assert 9 == len(slots_of(step))
    assert not {slot // 4 for slot in slots_of(step)} & set(table[:2])


@pytest.mark.parametrize("seed", range(5))
def test_speculative_append_and_rollback(seed):
    """Reserve, cut, append again: the same slots come again, and nothing else is touched."""
    cache, chance = scattered(seed=seed), random.Random(seed)
    row = cache.admit(range(7))
    cache.commit(cache.extend(row, 7), [7])
    free = cache.stats().free
    for _ in range(30):
        count = chance.randint(1, 12)
        step = cache.extend(row, count, ahead=count)
        first = slots_of(step)
        cache.commit(step, [[0]] if row.length < 8 else None, kept=[0])
        assert (7, free) == (row.computed, cache.stats().free)
        again = cache.extend(row, 1)
        assert first[:1] == slots_of(again)
        cache.abort(again)
        cache.check()


@pytest.mark.parametrize("length", range(13))
def test_exclusive_truncation(length):
    """Every page cut must be private and unpublished: else refused, with nothing changed."""
    cache = scattered()
    row = cache.admit(range(8))
    cache.commit(cache.extend(row, 8), [8])
    cache.commit(cache.extend(row, 4, ahead=3), [[9, 10, 11]], kept=[3])
    assert (12, 11) == (row.length, row.computed)
    before = freeze(cache)
    if length < 8:
        with pytest.raises(LengthError) as caught:
            cache.truncate(row, length, exclusive=True)
        assert ("length", length, 8) == (caught.value.name, caught.value.value, caught.value.low)
        assert before == freeze(cache)
    else:
        assert min(11, length) == cache.truncate(row, length, exclusive=True)
    cache.check()


@pytest.mark.parametrize("count", [10, 13, 40])
def test_shortage_leaves_everything_as_it_was(count):
    """No page, no prefix, no order changed; what fits can be had afterwards."""
    cache = Cache(Plan.from_pages(7, 4))
    cached = cache.admit(range(8))
    cache.commit(cache.extend(cached, 8))
    cache.release(cached)
    row, other = cache.admit([9] * 15, limit=17), cache.admit([5] * 17)
    cache.commit(cache.extend(row, 15), [9])
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.extend([row, other], [1, count], ahead=30)

    assert before == freeze(cache)
    assert 8 == cache.peek(range(9)).tokens
    step = cache.extend([row, other], [1, 8])
    assert (1, 8) == (len(slots_of(step, 0)), len(slots_of(step, 1)))
