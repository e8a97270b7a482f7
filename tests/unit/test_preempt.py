"""Preempting and resuming: pages go, ids stay, and exactly what is lost is computed again."""

import pytest

from octavo import Attention, Cache, OutOfPages, Plan, StaleSequence, State, StepError
from octavo.testing import freeze


@pytest.fixture
def cache():
    """Twelve usable pages of four tokens."""
    return Cache(Plan.from_pages(13, 4), max_sequences=4)


def started(cache, tokens, **options):
    """A sequence that has computed all it knows but one new token."""
    row = cache.admit(tokens, **options)
    cache.commit(cache.extend(row, row.length - row.computed), [7])
    return row


def test_pages_go_and_ids_stay(cache):
    """Nothing is held, what was published can be found, tokens and limit are as before."""
    row = started(cache, range(9), limit=20)
    cache.preempt(row)

    assert row.preempted
    assert (10, 0, 0, 20) == (row.length, row.scheduled, row.computed, row.limit)
    assert [*range(9), 7] == row.tokens().tolist()
    stats = cache.stats()
    assert (0, 2, 1, 1) == (stats.live, stats.evictable, stats.sequences, stats.preemptions)


def test_resuming_computes_what_is_lost(cache):
    """Published pages are found; the rest, and no more, runs again."""
    row = started(cache, range(9))
    cache.preempt(row)

    assert 8 == cache.resume(row)
    assert not row.preempted
    step = cache.extend(row, 2)
    assert ([8, 9], [8, 7]) == (step.positions.tolist(), step.input_ids.tolist())
    cache.commit(step, [1])
    assert 0 == row.cached


def test_resuming_after_eviction(cache):
    """What was given up meanwhile is computed again."""
    row = started(cache, range(9))
    cache.preempt(row)
    other = started(cache, [5] * 41, reuse=False)
    cache.release(other)

    assert 4 == cache.resume(row)


def test_a_published_page_is_found_to_the_last_token(cache):
    """With all 8 known tokens published a page is computed again: one token must be left to run."""
    row = cache.admit(range(8))
    cache.commit(cache.extend(row, 8))
    cache.preempt(row)

    assert 4 == cache.resume(row)


def test_a_sequence_without_tokens(cache):
    """Truncated to nothing, preempted, resumed."""
    row = started(cache, range(9))
    cache.truncate(row, 0)
    cache.preempt(row)

    assert 0 == cache.resume(row)


def test_preempting_with_a_step_open(cache):
    """The step's result for it is ignored; other rows are not touched."""
    row, other = started(cache, range(5)), started(cache, [3])
    step = cache.extend([row, other], 1)
    cache.preempt(row)
    cache.commit(step, [8, 9])

    assert ([*range(5), 7], [3, 7, 9]) == (row.tokens().tolist(), other.tokens().tolist())
    assert 4 == cache.resume(row)
    cache.check()


def test_resumed_while_the_old_step_is_open():
    """The old step's result is still ignored, the new one's counts."""
    cache = Cache(Plan.from_pages(13, 4), depth=2)
    row = started(cache, range(5))
    old = cache.extend(row, 1)
    cache.preempt(row)
    cache.resume(row)
    new = cache.extend(row, row.length - row.computed)
    cache.commit(old, [50])
    assert [*range(5), 7] == row.tokens().tolist()
    cache.commit(new, [60])

    assert [*range(5), 7, 60] == row.tokens().tolist()
    cache.check()


def test_aborting_a_step_of_a_preempted_row(cache):
    """Nothing of it is left to give back."""
    row, other = started(cache, range(5)), started(cache, [3])
    step = cache.extend([row, other], 1)
    cache.preempt(row)
    cache.abort(step)
    cache.check()

    assert (0, 1) == (row.scheduled, other.scheduled)


def test_a_preempted_row_of_a_batch(cache):
    """The batch keeps the row and cannot step until it is resumed or removed."""
    row, other = started(cache, range(5)), started(cache, [3])
    batch = cache.batch([row, other])
    cache.preempt(row)
    before = freeze(cache)
    for verb in (lambda: cache.extend(batch), lambda: cache.extend(row), lambda: cache.need(batch)):
        with pytest.raises(StepError, match="preempted"):
            verb()
        assert before == freeze(cache)
    cache.resume(row)
    assert cache.extend(batch, [2, 1])


def test_removing_a_preempted_row(cache):
    """It leaves the batch, and can be resumed and stepped outside."""
    row, other = started(cache, range(5)), started(cache, [3])
    batch = cache.batch([row, other])
    cache.preempt(row)

    assert (other, 0) == batch.remove(row)
    cache.commit(cache.extend(batch), [1])
    cache.resume(row)
    cache.commit(cache.extend(row, 2), [1])
    cache.check()


def test_a_preempted_sequence_can_be_released(cache):
    """Its handle is stale then."""
    row = started(cache, range(5), id="r")
    cache.preempt(row)
    cache.release(row)
    with pytest.raises(StaleSequence):
        cache.resume(row)

    assert 0 == cache.stats().sequences
    assert "r" == cache.admit([1], id="r").id


def test_what_is_preempted_has_no_promise(cache):
    """Its pages are anybody's; it is resumed with its promise or not at all."""
    row = started(cache, range(9), limit=40, guarantee=True)
    cache.preempt(row)
    other = started(cache, [5] * 16)
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.resume(row)

    assert before == freeze(cache)
    assert row.preempted
    cache.release(other)
    cache.resume(row)
    step = cache.extend(row, 40 - row.scheduled, ahead=40)
    cache.abort(step)


def test_states_are_fetched_again():
    """A hybrid goes on from the last boundary where a state was kept."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    cache = Cache(Plan.from_pages(40, 4, groups))
    row = cache.admit(range(10))
    for count in (8, 2):
        cache.commit(cache.extend(row, count), [1] if count == 2 else None)
    cache.preempt(row)

    assert 8 == cache.resume(row)
    assert 1 == cache.extend(row, 3).copies["state"].source.size


@pytest.mark.parametrize("verb", ["preempt", "resume"])
def test_twice_is_refused(cache, verb):
    """Preempting what is preempted, resuming what runs."""
    row = started(cache, range(5))
    if verb == "preempt":
        cache.preempt(row)
    before = freeze(cache)
    with pytest.raises(StepError, match="preempted"):
        getattr(cache, verb)(row)

    assert before == freeze(cache)


def test_resuming_without_publishing(cache):
    """What it computes from now on is kept for nobody, and is free as soon as it lets go of it."""
    row = started(cache, range(9), limit=20)
    cache.preempt(row)
    assert 0 == cache.resume(row, reuse=False, publish=False)
    cache.commit(cache.extend(row, 10), [3])
    cache.check()
    before = cache.stats()
    cache.release(row)

    assert (2, 2) == (before.evictable, cache.stats().evictable)  # of the time before
    assert 8 == cache.peek([*range(9), 7, 3]).tokens


def test_reset_beside_preempted_sequences(cache):
    """They hold nothing: the rest is forgotten, and they begin from their first token."""
    row, other = started(cache, range(9)), started(cache, range(20, 30))
    cache.preempt(row)
    with pytest.raises(StepError, match="1 sequences or pins hold pages"):
        cache.reset()
    cache.preempt(other)
    cache.reset()
    cache.check()

    assert (12, 2) == (cache.stats().free, cache.stats().sequences)
    assert [0, 0] == [cache.resume(each) for each in (row, other)]
    assert 10 == cache.extend(row, 10).tokens
