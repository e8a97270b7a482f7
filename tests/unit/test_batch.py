"""Batches: rows that stay put, and counts that are checked."""

import numpy as np
import pytest

from octavo import Cache, DuplicateSequence, LengthError, Plan, StaleSequence, UnknownSequence
from octavo.batch import check_counts


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

    assert "sequence 'a' is in this batch already" == str(caught.value)
    assert [a] == list(batch)
    with pytest.raises(DuplicateSequence):
        cache.batch([a, a])


def test_removing_what_is_not_there(cache):
    """A KeyError, and the batch as it was."""
    a, b = cache.admit([1]), cache.admit([2])
    batch = cache.batch([a])
    with pytest.raises(KeyError):
        batch.remove(b)

    assert [a] == list(batch)


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
    """All forms give plain ints, one a row."""
    assert expected == check_counts(counts, 2)


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
        ("11", "count", "1"),
        ([True, 1], "count", True),
        (np.array([1.0, 2.0]), "count", 1.0),
        ([1], "len(counts)", 1),
        ([1, 1, 1], "len(counts)", 3),
        (np.array(1), "len(counts)", 0),
        ([], "len(counts)", 0),
    ],
)
def test_other_counts_are_refused(counts, name, value):
    """Negative, fractional, too few, too many, or none above 0: LengthError names it."""
    with pytest.raises(LengthError) as caught:
        check_counts(counts, 2)

    assert (name, value) == (caught.value.name, caught.value.value)
