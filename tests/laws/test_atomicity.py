"""A verb that raises has changed nothing; and the snapshot that shows it misses nothing."""

import pytest

from octavo import Cache, CapacityError, NeverFits, OutOfPages, Plan
from octavo.testing import snapshot


def filled():
    """Two idle prefixes of two pages and one live sequence in a pool of eleven pages."""
    cache = Cache(Plan.from_pages(12, 4), max_sequences=3)
    for token in (1, 2):
        row = cache.admit([token] * 8)
        cache.commit(cache.extend(row, 8))
        cache.release(row)
    row = cache.admit([3] * 6)
    cache.commit(cache.extend(row, 6), [4])
    return cache, row


PROMPTS = ([1] * 9, [2] * 9, [3] * 9)


def seen(cache, *rows, steps=()):
    """Everything observable of a filled cache."""
    return snapshot(cache, rows, steps=steps, prompts=PROMPTS)


def test_equal_histories_have_equal_snapshots():
    """Two caches that were told the same cannot be told apart."""
    assert seen(*filled()) == seen(*filled())


def test_looking_changes_nothing():
    """peek, fits, need, available, stats and check change nothing, recency included."""
    cache, row = filled()
    before = seen(cache, row)
    cache.peek([1] * 9)
    cache.fits([(row, 20), ([2] * 9, 12)])
    cache.need(row, 1)
    cache.available()
    cache.stats()
    cache.check()
    cache.batch([row])

    assert before == seen(cache, row)


def test_a_snapshot_changes_nothing():
    """Taking it twice gives the same, with a step open too."""
    cache, row = filled()
    step = cache.extend(row, 1)
    first = seen(cache, row, steps=[step])

    assert first == seen(cache, row, steps=[step])
    cache.commit(step, [5])
    cache.check()


CHANGES = {
    "admit": lambda cache, row: cache.release(cache.admit([9])),
    "reuse": lambda cache, row: cache.release(cache.admit([1] * 9)),
    "commit": lambda cache, row: cache.commit(cache.extend(row, 1), [5]),
    "truncate": lambda cache, row: cache.truncate(row, 6),
    "drop": lambda cache, row: cache.drop(row, 1),
    "prefix": lambda cache, row: cache.commit(cache.extend(row, 3, ahead=2), [[5, 5]]),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_what_a_verb_changes_is_seen(verb):
    """Each verb that succeeds leaves a trace in the snapshot, if only in the order of eviction."""
    cache, row = filled()
    before = seen(cache, row)
    CHANGES[verb](cache, row)

    assert before != seen(cache, row)


def test_an_open_step_is_seen():
    """Its arrays are part of the snapshot, and what it reserved too."""
    cache, row = filled()
    before = seen(cache, row)
    step = cache.extend(row, 1)

    assert before != seen(cache, row, steps=[step])


def test_the_order_of_eviction_is_seen():
    """Two caches that differ in nothing but recency differ in their supply."""
    one, other = filled(), filled()
    for cache, tokens in ((one[0], (1, 2)), (other[0], (2, 1))):
        for token in tokens:
            cache.release(cache.admit([token] * 9))
    left, right = seen(*one), seen(*other)

    assert left.reads == right.reads
    assert left.tables == right.tables
    assert left.supply != right.supply


def test_shortage_leaves_every_prefix():
    """An extend without enough pages evicts nothing, though evicting would have been the start."""
    cache, row = filled()
    other = cache.admit([5])
    cache.commit(cache.extend(other, 1))
    before = seen(cache, row, other)
    with pytest.raises(OutOfPages) as caught:
        cache.extend(row, 40, ahead=40)

    assert {"need": 9, "free": 4, "evictable": 4, "short": {"full": 1}} == vars(caught.value)
    assert before == seen(cache, row, other)
    assert [8, 8, 4] == [cache.peek(tokens).tokens for tokens in PROMPTS]


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (lambda c: c.admit([1] * 9, limit=45), NeverFits),
        (lambda c: c.admit([1] * 9, limit=8), CapacityError),
        (lambda c: c.admit([1] * 9, limit=44, guarantee=True), OutOfPages),
    ],
    ids=["never fits", "limit", "guarantee"],
)
def test_a_failing_admission_leaves_the_prefix_cache_untouched(verb, kind):
    """Not one page is evicted, nor does a matched one become younger."""
    cache, row = filled()
    before = seen(cache, row)
    with pytest.raises(kind):
        verb(cache)

    assert before == seen(cache, row)


def test_too_many_sequences_leave_the_prefix_cache_untouched():
    """The same for max_sequences."""
    cache, row = filled()
    rows = [row, cache.admit([5]), cache.admit([6])]
    before = seen(cache, *rows)
    with pytest.raises(CapacityError):
        cache.admit([1] * 9)

    assert before == seen(cache, *rows)
