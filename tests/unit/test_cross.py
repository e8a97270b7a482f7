"""Cross inputs: taken whole, written once, shared by digest."""

import pytest

from octavo import (
    Adapter,
    Attention,
    Cache,
    Cross,
    CrossInput,
    IdentityError,
    OutOfPages,
    Plan,
    PlanError,
    Salt,
)
from octavo.testing import freeze

GROUPS = {"full": Attention(1, 1, 1), "cross": Cross(1, 1, 1)}


@pytest.fixture
def cache():
    """Thirty usable pages of four tokens."""
    return Cache(Plan.from_pages(31, 4, GROUPS), max_sequences=6)


def step_of(cache, *rows):
    """One step in which all rows compute what they know."""
    return cache.extend(rows, [row.length - row.computed for row in rows])


@pytest.mark.parametrize(("length", "pages"), [(1, 1), (4, 1), (5, 2), (30, 8)])
def test_pages_are_taken_whole_at_the_first_step(cache, length, pages):
    """As many as the input has, whatever the prompt; its step must write them."""
    row = cache.admit([1, 2], cross=("c", length))
    assert 0 == cache.stats().live
    step = step_of(cache, row)
    view = step.group("cross")

    assert [True] == view.fresh.tolist()
    assert [length] == view.lengths.tolist()
    assert (1, pages) == view.table.shape
    assert view.table.all()
    assert pages == step.fresh["cross"].size
    cache.commit(step, [3])
    later = step_of(cache, row).group("cross")
    assert [False] == later.fresh.tolist()
    assert view.table.tolist() == later.table.tolist()


def test_equal_inputs_share_their_pages(cache):
    """After the first commit; others read them and never write."""
    one = cache.admit([1], cross=("c", 6))
    cache.commit(step_of(cache, one), [2])
    two = cache.admit([5], cross=("c", 6))
    step = step_of(cache, one, two)
    view = step.group("cross")

    assert view.table[0].tolist() == view.table[1].tolist()
    assert [False, False] == view.fresh.tolist()
    assert 4 == cache.stats().live
    cache.check()


def test_nothing_is_shared_before_it_is_written(cache):
    """Two that begin in one step both write; the third reads."""
    rows = [cache.admit([n], cross=("c", 6)) for n in range(2)]
    step = step_of(cache, *rows)

    assert [True, True] == step.group("cross").fresh.tolist()
    cache.commit(step, [3, 4])
    third = cache.admit([9], cross=("c", 6))
    assert [False] == step_of(cache, third).group("cross").fresh.tolist()
    cache.check()


def test_an_aborted_or_cancelled_step_shares_nothing(cache):
    """The pages were never known to be written."""
    row = cache.admit([1], cross=("c", 6))
    step = step_of(cache, row)
    cache.release(row)
    cache.commit(step)
    other = cache.admit([1], cross=("c", 6))

    assert [True] == step_of(cache, other).group("cross").fresh.tolist()


@pytest.mark.parametrize("cross", [("d", 6), ("c", 5), (b"c", 6)])
def test_other_inputs_share_nothing(cache, cross):
    """Digest and length are compared whole, and a prompt depends on its input."""
    row = cache.admit(range(9), cross=("c", 6))
    cache.commit(step_of(cache, row), [3])
    same = cache.peek(range(9), extra=[CrossInput("c", 6)]).tokens
    other = cache.peek(range(9), extra=[CrossInput(*cross)]).tokens

    assert (8, 0, 0) == (same, other, cache.peek(range(9)).tokens)


def test_rows_without_an_input(cache):
    """Length 0 and an empty row beside one that has it."""
    rows = [cache.admit([1]), cache.admit([2], cross=("c", 6))]
    view = step_of(cache, *rows).group("cross")

    assert ([0, 6], [False, True]) == (view.lengths.tolist(), view.fresh.tolist())
    assert [[False, False], [True, True]] == (view.table > 0).tolist()


def test_inputs_outlive_their_sequence(cache):
    """Released pages stay for the next, until others need the room."""
    row = cache.admit([1], cross=("c", 6))
    cache.commit(step_of(cache, row), [2])
    cache.release(row)

    assert (0, 2) == (cache.stats().live, cache.stats().evictable)
    flood = cache.admit(range(117))
    cache.commit(step_of(cache, flood))
    cache.release(flood)
    again = cache.admit([1], cross=("c", 6))
    assert [True] == step_of(cache, again).group("cross").fresh.tolist()
    cache.check()


def test_losing_one_page_loses_the_input(cache):
    """An input is whole or not there."""
    row = cache.admit([1], cross=("c", 30))
    cache.commit(step_of(cache, row), [2])
    cache.release(row)
    flood = cache.admit(range(4 * 23))
    cache.extend(flood, 4 * 23)

    assert 7 == cache.stats().free
    assert 1 == cache.stats().evicted


def test_resumed_sequences_find_their_input(cache):
    """Or write it again where it is gone."""
    row = cache.admit([1], cross=("c", 6))
    cache.commit(step_of(cache, row), [2])
    cache.preempt(row)
    cache.resume(row)
    assert [False] == step_of(cache, row).group("cross").fresh.tolist()


def test_an_input_is_promised_too():
    """A guaranteed sequence has its input's pages set aside."""
    cache = Cache(Plan.from_pages(6, 4, GROUPS))
    kept = cache.admit([1], limit=8, guarantee=True, cross=("c", 9))
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.admit([2], limit=4, guarantee=True)

    assert before == freeze(cache)
    assert cache.extend(kept, 8, ahead=8)


@pytest.mark.parametrize(
    ("cross", "kind"),
    [
        (("", 3), IdentityError),
        ((None, 3), IdentityError),
        ("c", IdentityError),
        (("c",), IdentityError),
        (("c", 3, 4), IdentityError),
        (("c", 0), ValueError),
        (("c", 1.5), ValueError),
    ],
    ids=repr,
)
def test_malformed_inputs_are_refused(cache, cross, kind):
    """(digest, length), nothing else; nothing changes."""
    before = freeze(cache)
    with pytest.raises(kind):
        cache.admit([1], cross=cross)

    assert before == freeze(cache)


def test_a_plan_without_cross_attention():
    """Says so instead of ignoring the input."""
    cache = Cache(Plan.from_pages(6, 4))
    with pytest.raises(PlanError) as caught:
        cache.admit([1], cross=("c", 3))

    assert "cross" == caught.value.field


@pytest.mark.parametrize(
    "extras",
    [
        ([Adapter("a", 1)], [Adapter("b", 1)]),
        ([Adapter("a", 1)], [Adapter("a", 2)]),
        ([Salt("a")], [Salt("b")]),
        ([], [Salt("a")]),
        ([], [Adapter("a", 1)]),
    ],
    ids=repr,
)
def test_cross_pages_of_other_extras_never_meet(cache, extras):
    """A recording is written again under another adapter or salt, and shared under its own."""
    fresh = []
    for extra in (*extras, *extras):
        row = cache.admit([1] * 5, extra=extra, cross=("d", 10))
        step = cache.extend(row, row.length - row.computed)
        fresh.append(bool(step.group("cross").fresh[0]))
        cache.commit(step, [1])
        cache.release(row)

    assert [True, True, False, False] == fresh
