"""A verb that raises has changed nothing; and the comparison that shows it misses nothing."""

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    Cross,
    CrossInput,
    NeverFits,
    OutOfPages,
    Plan,
    State,
    StepError,
)
from octavo.core import arena
from octavo.testing import freeze

PROMPTS = ([1] * 9, [2] * 9, [3] * 9)


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


def test_equal_histories_are_equal():
    """Two caches that were told the same cannot be told apart."""
    (one, _row), (other, _other_row) = filled(), filled()

    assert freeze(one) == freeze(other)


def test_looking_changes_nothing():
    """Reads change nothing, recency included."""
    cache, row = filled()
    before = freeze(cache)
    cache.peek([1] * 9)
    cache.explain_match([1] * 9)
    cache.fits([(row, 20), ([2] * 9, 12)])
    cache.need(row, 1)
    cache.available()
    cache.stats()
    cache.check()

    assert before == freeze(cache)


CHANGES = {
    "admit": lambda cache, row: cache.release(cache.admit([9])),
    "reuse": lambda cache, row: cache.release(cache.admit([1] * 9)),
    "commit": lambda cache, row: cache.commit(cache.extend(row, 1), [5]),
    "truncate": lambda cache, row: cache.truncate(row, 6),
    "drop": lambda cache, row: cache.drop(row, 1),
    "prefix": lambda cache, row: cache.commit(cache.extend(row, 3, ahead=2), [[5, 5]]),
    "fork": lambda cache, row: [cache.release(child) for child in cache.fork(row)],
    "preempt": lambda cache, row: cache.preempt(row),
    "pin": lambda cache, row: cache.pin([1] * 9).release(),
    "open": lambda cache, row: cache.extend(row, 1),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_what_a_verb_changes_is_seen(verb):
    """Each verb that succeeds leaves a trace, if only in the order of eviction."""
    cache, row = filled()
    before = freeze(cache)
    CHANGES[verb](cache, row)

    assert before != freeze(cache)


def test_the_order_of_eviction_is_seen():
    """Two caches that differ in nothing but recency differ."""
    (one, _row), (other, _other_row) = filled(), filled()
    for cache, tokens in ((one, (1, 2)), (other, (2, 1))):
        for token in tokens:
            cache.release(cache.admit([token] * 9))

    assert one.stats() == other.stats()
    assert freeze(one) != freeze(other)


def test_shortage_leaves_every_prefix():
    """An extend without enough pages evicts nothing, though evicting would have been the start."""
    cache, row = filled()
    other = cache.admit([5])
    cache.commit(cache.extend(other, 1))
    before = freeze(cache)
    with pytest.raises(OutOfPages) as caught:
        cache.extend(row, 38, ahead=40)

    assert {"need": 9, "free": 4, "evictable": 4, "short": {"full": 1}} == vars(caught.value)
    assert before == freeze(cache)
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
    cache, _row = filled()
    before = freeze(cache)
    with pytest.raises(kind):
        verb(cache)

    assert before == freeze(cache)


def test_too_many_sequences_leave_the_prefix_cache_untouched():
    """The same for max_sequences."""
    cache, row = filled()
    rows = [row, cache.admit([5]), cache.admit([6])]
    before = freeze(cache)
    with pytest.raises(CapacityError):
        cache.admit([1] * 9)

    assert before == freeze(cache)
    assert 3 == len(rows)


MIX = {
    "full": Attention(1, 1, 1),
    "w": Attention(1, 1, 1, window=6),
    "state": State(1),
    "cross": Cross(1, 1, 1),
}


@pytest.mark.parametrize("per_parent", [None, {"full": 2, "w": 3, "state": 4, "cross": 1}])
@pytest.mark.parametrize("pages", range(5, 16))
def test_a_step_of_several_groups_is_all_or_nothing(per_parent, pages):
    """Whichever group runs short, the others have given nothing."""
    plan = Plan.from_pages(pages, 4, MIX, pages_per_parent=per_parent)
    cache = Cache(plan, max_length=12)
    rows = []
    for token in range(4):
        try:
            rows.append(cache.admit([token] * 9, extra=[CrossInput(f"{token}", 5)]))
        except NeverFits:
            return
    before, need = freeze(cache), cache.need(rows, 9)
    parents = [-(-count // (per_parent or {}).get(name, 1)) for name, count in need.items()]
    if sum(parents) <= cache.stats().free:
        assert cache.extend(rows, 9)
        return
    with pytest.raises(OutOfPages) as caught:
        cache.extend(rows, 9)

    assert before == freeze(cache)
    assert sum(need.values()) == caught.value.need
    assert any(caught.value.short.values())


def test_verbs_out_of_order_change_nothing():
    """Commits newest first and aborts oldest first are refused, whatever they bring."""
    cache = Cache(Plan.from_pages(20, 4), depth=2)
    row = cache.admit([1] * 6)
    steps = [cache.extend(row, 6), cache.extend(row, 1, ahead=1)]
    before = freeze(cache)
    for verb in (
        lambda: cache.commit(steps[1], [3]),
        lambda: cache.abort(steps[0]),
        lambda: cache.extend(row, 1, ahead=2),
        lambda: cache.commit(steps[0], [3], kept=[5]),
        lambda: cache.truncate(row, 2),
        lambda: cache.fork(row),
        cache.reset,
    ):
        with pytest.raises(StepError):
            verb()
        assert before == freeze(cache)
    cache.commit(steps[0], [3])
    cache.commit(steps[1], [4])
    assert [1] * 6 + [3, 4] == row.tokens().tolist()


class Exhausted:
    """NumPy without memory for one more array."""

    def __getattr__(self, name):
        return getattr(np, name)

    def zeros(self, *_):
        """There is no room."""
        raise MemoryError


@pytest.mark.parametrize(
    "verb",
    [
        lambda cache, row: cache.admit([2] * 5_000),
        lambda cache, row: cache.peek([1] * 5_000),
        lambda cache, row: cache.extend(row, 1 + 3_000, ahead=3_000),
        lambda cache, row: cache.learn(row, [3] * 5_000),
    ],
    ids=["admit", "peek", "extend", "learn"],
)
def test_an_allocation_that_fails_changes_nothing(monkeypatch, verb):
    """Room is made before anything is changed; the same can be had later."""
    plan = Plan.from_pages(800, 4, {"w": Attention(1, 1, 1, window=8)})
    cache = Cache(plan, max_sequences=4, max_length=10_000)  # longer than there was room for
    row = cache.admit([1] * 1_500)
    cache.commit(cache.extend(row, 1_500), [7])
    before = freeze(cache)
    monkeypatch.setattr(arena, "np", Exhausted())
    with pytest.raises(MemoryError):
        verb(cache, row)
    monkeypatch.undo()

    assert before == freeze(cache)
    cache.check()
    done = verb(cache, row)
    cache.check()
    del done
