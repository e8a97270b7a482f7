"""Recurrent states: where they are kept, how they are found again, and what that costs."""

import pytest

from octavo import Attention, Cache, Plan, PlanError, RollbackUnsupported, State, StepError
from octavo.testing import ModelStore, Shape, Text

HYBRID = {"full": Attention(1, 1, 1), "state": State(1)}
PAGE = 16


def hybrid(pages=2000, page_size=PAGE, parts=None, page_bytes=None, **options):
    """A cache with one full and one state group."""
    plan = Plan.from_pages(pages, page_size, HYBRID, parts=parts, page_bytes=page_bytes)
    return Cache(plan, **options)


def run(cache, row):
    """Compute a prompt in chunks that end at next_stop; the boundaries states were kept at."""
    before, kept = cache.stats().snapshots, 0
    while row.computed < row.length:
        stop = min(row.next_stop or row.length, row.length)
        cache.commit(cache.extend(row, stop - row.computed))
        kept = cache.stats().snapshots - before
    cache.check()
    return kept


def finished(cache, tokens):
    """(tokens found, states kept, why) of one request."""
    why = cache.explain_match(tokens)
    row = cache.admit(tokens)
    kept = run(cache, row)
    cache.release(row)
    return row.cached, kept, why


BASE = list(range(2_200))


def sibling(shared, number):
    """A prompt of 2,200 tokens that leaves the base after ``shared`` of them."""
    own = 10_000 * (shared + number)
    return BASE[:shared] + list(range(own, own + 2_200 - shared))


@pytest.mark.parametrize("state_pages", [1, 8])
@pytest.mark.parametrize("shared", [500, 1_500, 1_600])
def test_branches_are_reused_whatever_the_size_of_the_state(state_pages, shared):
    """Every sharer after the first of a boundary reuses over 95 % of what it shares."""
    cache = hybrid(parts={"state": state_pages})
    finished(cache, BASE)
    (found, kept, why), *others = (finished(cache, sibling(shared, n)) for n in range(1, 4))

    assert found < 0.95 * shared
    assert "state" == why.group
    at = shared // PAGE * PAGE
    told = f"no state was kept at {at}; one is taken when a prompt that branches there runs"
    assert told in str(why)
    for found, more, _ in others:
        assert at == found > 0.95 * shared
        assert more <= 2
    assert kept <= 2


def test_siblings_of_three_boundaries():
    """The same when all of them come by turns, three times each."""
    cache, seen = hybrid(), {}
    finished(cache, BASE)
    for number in range(1, 4):
        for shared in (500, 1_500, 1_600):
            found, kept, _ = finished(cache, sibling(shared, number))
            seen.setdefault(shared, []).append(found / shared)
            assert kept <= 2
    for shares in seen.values():
        assert all(share > 0.95 for share in shares[1:])


@pytest.mark.parametrize("shared", [500, 1_500, 1_600])
def test_a_grid_serves_the_second_request(shared):
    """States at boundaries at most a ninth apart: over 90 % from the second request on."""
    cache = hybrid(snapshots="grid")
    finished(cache, BASE)

    for number in range(1, 4):
        found, _, _ = finished(cache, sibling(shared, number))
        assert found > 0.9 * shared


@pytest.mark.parametrize("snapshots", ["branch", "grid"])
@pytest.mark.parametrize("most", [0, 1, 3])
def test_states_stay_within_their_bytes(snapshots, most):
    """The least recently used give way; with none allowed nothing is kept and nothing breaks."""
    cache = hybrid(page_bytes={"state": 100}, snapshots=snapshots, snapshot_bytes=100 * most + 50)
    for number in range(4):
        finished(cache, [number] * 100)

        assert cache.stats().snapshots <= most
    found = [cache.peek([number] * 101).tokens for number in range(4)]
    assert (96 if most else 0) == found[3]
    assert 0 == found[0]


def test_a_used_state_is_kept_longer():
    """Among states that fit the bytes the one used longest ago goes."""
    cache = hybrid(page_bytes={"state": 100}, snapshot_bytes=200)
    finished(cache, [1] * 20)
    finished(cache, [2] * 20)
    finished(cache, [1] * 20)
    finished(cache, [3] * 20)

    assert [16, 0, 16] == [cache.peek([n] * 20).tokens for n in (1, 2, 3)]


def test_bytes_need_a_plan_that_knows_them():
    """A plan of page numbers alone cannot bound bytes."""
    with pytest.raises(PlanError) as caught:
        hybrid(snapshot_bytes=100)

    assert "snapshot_bytes" == caught.value.field


def test_no_states_without_room():
    """Where pages are short a state is not kept, and the prompt runs all the same."""
    cache = hybrid(pages=4, page_size=4, max_length=8)
    row = cache.admit([1] * 6)
    run(cache, row)

    assert (6, 0) == (row.computed, cache.stats().snapshots)


def test_snapshots_need_the_prefix_cache():
    """Without it there is nothing to keep them for."""
    cache = hybrid(prefix=False)
    row = cache.admit([1] * 40)

    assert row.next_stop is None
    assert 0 == run(cache, row)


@pytest.mark.parametrize("snapshots", ["", "none", None, 3])
def test_unknown_ways_to_keep_states(snapshots):
    """branch or grid."""
    with pytest.raises(PlanError):
        hybrid(snapshots=snapshots)


@pytest.mark.parametrize("rollback", [0, 1, 3])
@pytest.mark.parametrize("parts", [1, 3])
def test_where_states_go(rollback, parts):
    """The step starts from the last state and leaves those of its last positions."""
    cache = hybrid(page_size=4, parts={"state": parts}, rollback=rollback)
    row = cache.admit([1] * 6)
    first = cache.extend(row, 6)
    view = first.group("state")

    assert (1, parts) == view.source.shape
    assert (1, 1 + rollback, parts) == view.table.shape
    assert not view.has_state[0]
    cache.commit(first, [2])
    second = cache.extend(row, 1).group("state")
    assert second.has_state[0]
    assert view.table[0, 0].tolist() == second.source[0].tolist()
    assert (1 + rollback) * parts == len(set(view.table.ravel().tolist()))


@pytest.mark.parametrize("count", [1, 3, 6])
def test_an_aborted_step_may_cost_a_state(count):
    """The state before it was overwritten: back to the last boundary it was kept at."""
    shape = Shape("state", HYBRID, 60, 4)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(12))
    row = cache.admit(text.tokens)
    for stop in (8, 9):
        step = cache.extend(row, stop - row.computed)
        store.run(step, [text.contents])
        cache.commit(step)
    step = cache.extend(row, min(count, 3))
    store.run(step, [text.contents])
    cache.abort(step)

    assert (8, 8) == (row.computed, row.scheduled)
    step = cache.extend(row, 4)
    store.run(step, [text.contents])
    cache.commit(step)
    cache.check()


def test_an_abort_within_the_rollback_costs_nothing():
    """The state before the step still stands in the ring."""
    cache = hybrid(page_size=4, rollback=3)
    row = cache.admit([1] * 9)
    run(cache, row)
    cache.truncate(row, 9)
    for _ in range(3):
        step = cache.extend(row, 3, ahead=3)
        cache.abort(step)

        assert (9, 9) == (row.computed, row.scheduled)


def test_several_steps_open_need_states_to_come():
    """depth=2: a step on assumed tokens may run; a draft beyond what can be taken back may not."""
    cache = hybrid(page_size=4, depth=2)
    row = cache.admit([1] * 3)
    one = cache.extend(row, 3)
    with pytest.raises(RollbackUnsupported):
        cache.extend(row, 2, ahead=2)
    two = cache.extend(row, 1, ahead=1)
    with pytest.raises(StepError):
        cache.commit(one, [4], kept=[2])
    cache.commit(one, [4])
    cache.commit(two, [5])
    cache.check()

    assert 4 == row.computed


def test_states_alone():
    """A model without attention: no token pages, hits at kept states."""
    cache = Cache(Plan.from_pages(20, 4, {"state": State(1)}), max_length=1000)
    row = cache.admit([1] * 10)
    run(cache, row)
    cache.release(row)

    assert 8 == cache.peek([1] * 10).tokens
    assert 1 == cache.stats().evictable
    with pytest.raises(KeyError):
        cache.extend(cache.admit([2]), 1).group()
