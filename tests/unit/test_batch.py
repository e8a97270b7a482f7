"""Batches: rows that stay put, and counts that are checked."""

import numpy as np
import pytest

from octavo import (
    Cache,
    CapacityError,
    DuplicateSequence,
    LengthError,
    Plan,
    StaleSequence,
    UnknownSequence,
)
from octavo.cache.arguments import read_counts


@pytest.fixture
def cache():
    """Room for four short sequences."""
    return Cache(Plan.from_pages(12, 4), max_sequences=4)


def test_rows_keep_their_order(cache):
    """A batch lists its sequences in the order they were added."""
    a, b, c = (cache.admit([n]) for n in range(3))
    batch = cache.batch([b, a])

    assert 2 == batch.add(c)
    assert [b, a, c] == list(batch)
    assert 3 == len(batch)
    assert a in batch


def test_removing_moves_the_last_row(cache):
    """The last row fills the gap; the answer says which moved and where to."""
    a, b, c = (cache.admit([n]) for n in range(3))
    batch = cache.batch([a, b, c])

    assert (c, 0) == batch.remove(a)
    assert [c, b] == list(batch)
    assert (None, 1) == batch.remove(b)
    assert [c] == list(batch)
    assert b not in batch


def test_a_sequence_stands_in_a_batch_once(cache):
    """Adding it again raises and leaves the batch as it was."""
    a = cache.admit([1], id="a")
    batch = cache.batch([a])
    with pytest.raises(DuplicateSequence) as caught:
        batch.add(a)

    assert "sequence 'a' is in a batch already; remove it there first" == str(caught.value)
    assert [a] == list(batch)
    with pytest.raises(DuplicateSequence):
        cache.batch([a, a])


def test_a_batch_takes_sequences_of_its_cache(cache):
    """Foreign and released sequences are refused."""
    stale = cache.admit([1])
    cache.release(stale)
    foreign = Cache(Plan.from_pages(12, 4)).admit([1])
    with pytest.raises(StaleSequence):
        cache.batch([stale])
    with pytest.raises(UnknownSequence):
        cache.batch([foreign])


def test_a_batch_steps_like_a_list(cache):
    """Batch, list, tuple, generator and a single sequence are all rows."""
    a, b = cache.admit([1, 2]), cache.admit([3, 4])
    seen = []
    for rows in (cache.batch([a, b]), [a, b], (a, b), (row for row in (a, b))):
        step = cache.extend(rows, 2)
        seen.append((step.sequences, sorted(step.group().slots.tolist())))
        cache.abort(step)
    single = cache.extend(a, 1)

    assert [seen[0]] * 4 == seen
    assert (a,) == single.sequences


def test_an_empty_batch_cannot_step(cache):
    """A step has at least one row."""
    with pytest.raises(LengthError) as caught:
        cache.extend(cache.batch(), 1)

    assert {"name": "len(rows)", "value": 0, "low": 1, "high": None} == vars(caught.value)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (2, [2, 2]),
        ([1, 0], [1, 0]),
        ((1, 2), [1, 2]),
        (np.array([1, 2]), [1, 2]),
        (np.int32(3), [3, 3]),
        (iter([1, 2]), [1, 2]),
    ],
)
def test_counts_may_be_one_number_or_one_a_row(counts, expected):
    """One number for all rows, or int32 numbers, one per row."""
    each, listed = read_counts(counts, 2)

    assert expected == ([each, each] if listed is None else list(listed))


@pytest.mark.parametrize(
    ("counts", "name", "value"),
    [
        (0, "sum(counts)", 0),
        ([0, 0], "sum(counts)", 0),
        (-1, "count", -1),
        ([1, -1], "count", -1),
        ([1, 1.0], "count", 1.0),
        (1.5, "count", 1.5),
        (None, "count", None),
        ("11", "counts", "11"),
        ([True, 1], "count", True),
        (np.array([1.0, 2.0]), "count", 1.0),
        ([1], "len(counts)", 1),
        ([1, 1, 1], "len(counts)", 3),
        (np.array(1), "counts", np.array(1)),
        ([], "len(counts)", 0),
    ],
)
def test_other_counts_are_refused(counts, name, value):
    """Negative, fractional, too few, too many, or none above 0: LengthError names it."""
    with pytest.raises(LengthError) as caught:
        read_counts(counts, 2)

    assert (name, value) == (caught.value.name, caught.value.value)


def started(cache, tokens, **options):
    """A sequence that has computed its prompt and knows one token more."""
    row = cache.admit(tokens, **options)
    cache.commit(cache.extend(row, row.length - row.computed), [7])
    return row


def test_a_sequence_is_in_one_batch(cache):
    """A second batch does not take it; after leaving the first it does."""
    a = started(cache, [1], id="a")
    one, two = cache.batch([a]), cache.batch()
    with pytest.raises(DuplicateSequence) as caught:
        two.add(a)

    assert "a" == caught.value.id
    assert 0 == len(two)
    one.remove(a)
    assert 0 == two.add(a)
    cache.commit(cache.extend(two), [8])
    assert [1, 7, 8] == a.tokens().tolist()


def test_a_batch_is_made_whole_or_not_at_all(cache):
    """One bad sequence among good ones: the good ones are in no batch afterwards."""
    a, stale = cache.admit([1]), cache.admit([2])
    cache.release(stale)
    with pytest.raises(StaleSequence):
        cache.batch([a, stale])

    assert 0 == cache.batch().add(a)


def test_released_sequences_count(cache):
    """They keep their rows until they are removed: the batch is full before that."""
    rows = [cache.admit([n]) for n in range(4)]
    batch = cache.batch(rows)
    cache.release(rows[0])
    late = cache.admit([9])
    with pytest.raises(CapacityError) as caught:
        batch.add(late)

    assert ("len(batch)", 5, 4) == (caught.value.name, caught.value.value, caught.value.limit)
    batch.remove(rows[0])
    assert 3 == batch.add(late)
    cache.check()


def test_removing_a_sequence_it_does_not_hold(cache):
    """UnknownSequence, a KeyError, as any verb says of what it does not know."""
    batch = cache.batch([cache.admit([1], id="a")])
    with pytest.raises(UnknownSequence) as caught:
        batch.remove(cache.admit([2], id="b"))

    assert "sequence 'b' is not in this batch" == str(caught.value)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_pages_are_published_under_their_own_tokens(depth, page_size):
    """However many steps are ahead, what a page is found by is what it was computed from."""
    cache = Cache(Plan.from_pages(200, page_size), depth=depth)
    rows = [started(cache, [n] * (n + 2)) for n in range(3)]
    batch, opened = cache.batch(rows), []
    for turn in range(20):
        opened.append(cache.extend(batch, 1, ahead=len(opened)))
        table = opened[-1].group().table.copy()
        if len(opened) == depth:
            cache.commit(opened.pop(0), np.full(3, turn))
            cache.check()
    while opened:
        cache.commit(opened.pop(0), np.full(3, 50))
    for row, own in zip(rows, table, strict=True):
        again = cache.admit([*row.tokens().tolist()[: row.computed], 99])
        step = cache.extend(again, again.length - again.computed)
        found, full = step.group().table[0].tolist(), row.computed // page_size

        assert full * page_size == again.cached
        assert own.tolist()[:full] == found[:full]
        cache.abort(step)
        cache.release(again)


def test_a_batch_that_was_collected_lets_its_rows_go(cache):
    """They can be rows of another batch, and step there."""
    row = cache.admit(range(6))
    batch = cache.batch([row])
    del batch
    other = cache.batch([row])

    assert 6 == cache.extend(other, 6).counts[0]
    cache.check()
