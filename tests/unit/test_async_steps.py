"""Steps that are still open: what they were given stays as it is, whatever happens to rows."""

import gc

import numpy as np
import pytest

from octavo import Attention, Cache, OutOfPages, Plan, State


def decoding(depth=2, rows=3):
    """A cache, and a batch whose rows have computed five tokens each and know a sixth."""
    cache = Cache(Plan.from_pages(64, 4), depth=depth)
    batch = cache.batch([cache.admit([i] * 5) for i in range(1, rows + 1)])
    cache.commit(cache.extend(batch, 5), [9] * rows)
    return cache, batch


@pytest.mark.parametrize("change", ["remove", "truncate", "preempt", "release"])
def test_the_table_of_an_open_step_stays(change):
    """What happens to a row does not change the table a step was given."""
    cache, batch = decoding()
    first = cache.extend(batch)
    second = cache.extend(batch, ahead=1)
    table = second.group().table.copy()
    cache.commit(first, np.array([7, 7, 7]))
    middle = list(batch)[1]
    if change == "truncate":
        cache.commit(second, np.array([7, 7, 7]))
        cache.truncate(middle, 2)
    else:
        {"remove": batch.remove, "preempt": cache.preempt, "release": cache.release}[change](middle)
        if change == "release":
            batch.remove(middle)

    assert table.tolist() == second.group().table.tolist()


def test_ids_of_a_step_ahead_can_be_filled():
    """The engine fills ids that are not known yet; all other arrays are read-only."""
    cache, batch = decoding()
    cache.extend(batch)
    step = cache.extend(batch, ahead=1)
    step.input_ids[:] = [4, 5, 6]

    assert [4, 5, 6] == step.input_ids.tolist()
    for name in ("counts", "past", "context", "last", "wants_token", "query_start", "positions"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(step, name)[:] = 1
    for array in (*step.group(), step.slots()):
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 1


def test_a_row_that_sits_out_does_not_hold_a_step_back():
    """A later step in which a row sits out is committed after that row was cut."""
    cache = Cache(Plan.from_pages(60, 4), depth=2)
    a, b = cache.admit([1] * 5, limit=20), cache.admit([2] * 9, limit=20)
    cache.commit(cache.extend(a, 5), [1])
    drafts = cache.extend(a, 4, ahead=3)
    other = cache.extend([a, b], [0, 5])
    cache.commit(drafts, [[1]], kept=[1])
    cache.commit(other)

    assert (6, 5) == (a.computed, b.computed)


def lose(held):
    """Collect what a list alone holds, at once or as a circle."""
    held.clear()
    gc.collect()


def test_a_batch_collected_with_its_sequences_gives_their_pages_back():
    """Lost handles in a lost batch are found, and no other sequence is touched."""
    cache = Cache(Plan.from_pages(20, 4))
    keep = cache.admit([9] * 6)
    cache.commit(cache.extend(keep, 6), [1])
    batch = cache.batch([cache.admit([1] * 9)])
    cache.commit(cache.extend(batch, 9), [1])
    held = [batch]
    del batch
    with pytest.warns(ResourceWarning, match="was collected"):
        lose(held)
    cache.admit([5])
    cache.check()

    assert (7, 6) == (keep.length, keep.computed)
    assert 2 == cache.stats().live


@pytest.mark.parametrize("back", ["abort", "kept", "truncate"])
def test_going_back_never_takes_what_is_promised(back):
    """A sequence that falls back to a kept state leaves the pages promised to others."""
    cache = Cache(Plan.from_pages(4, 4, {"state": State(4)}))
    seq = cache.admit(list(range(12)), limit=20)
    cache.commit(cache.extend(seq, 8))
    step = cache.extend(seq, 4)
    sure = [cache.admit([5, 6 + i], limit=9, guarantee=True) for i in range(2)]
    if back == "abort":
        cache.abort(step)
    elif back == "kept":
        cache.commit(step, kept=[0])
    else:
        cache.commit(step)
        cache.truncate(seq, 8)
    cache.check()

    for one in sure:
        cache.commit(cache.extend(one, 2))


def test_fits_counts_window_pages_others_hold():
    """Pages of a window that others hold do not come free as it slides."""
    window = Attention(1, 1, 1, window=4)
    for usable in range(4, 12):
        cache = Cache(Plan.from_pages(usable + 1, 1, {"w": window}))
        try:
            a = cache.admit(list(range(8)), limit=9)
            for i in range(8):
                cache.commit(cache.extend(a, 1), [8] if i == 7 else None)
        except OutOfPages:
            continue
        prompt = [*range(8), 50]
        fits = bool(cache.fits([(prompt, 20)]))
        seq = cache.admit(prompt, limit=20)
        try:
            while seq.length < 20:
                wants = seq.length - seq.scheduled == 1
                cache.commit(cache.extend(seq, 1), [[3]] if wants else None)
            runs = True
        except OutOfPages:
            runs = False

        assert runs or not fits


def test_a_window_can_always_begin_again():
    """Truncating to nothing needs nothing that a window gave back."""
    cache = Cache(Plan.from_pages(20, 2, {"w": Attention(1, 1, 1, window=4)}))
    seq = cache.admit(list(range(12)))
    cache.commit(cache.extend(seq, 12))

    assert 0 == cache.truncate(seq, 0)
    cache.check()


def test_states_in_flight_count():
    """Copies of states that are under way count towards snapshot_bytes."""
    plan = Plan.from_pages(40, 4, {"f": Attention(1, 1, 1), "s": State(4)}, page_bytes={"s": 8})
    cache = Cache(plan, snapshot_bytes=8)
    rows = [cache.admit([i] * 9) for i in range(4)]
    step = cache.extend(rows, 8)

    assert 1 == step.snapshots["s"].target.size
    cache.commit(step)
    assert 1 == cache.stats().snapshots
