"""Which ids a step lacks and whose sampled tokens they are, and ids for the rows that sample."""

import numpy as np
import pytest

from octavo import Attention, Cache, Plan, State
from octavo.errors import LengthError, StepError, TokenError

FORMS = [list, lambda ids: np.array(ids, np.int32), lambda ids: np.array(ids, np.int64), tuple]
by_form = pytest.mark.parametrize("form", FORMS, ids=["list", "int32", "int64", "tuple"])


def decoding(depth=2, rows=3, limit=None):
    """A cache, and a batch whose rows have computed five tokens each and know a sixth."""
    cache = Cache(Plan.from_pages(64, 4), depth=depth)
    batch = cache.batch([cache.admit([i] * 5, limit=limit) for i in range(1, rows + 1)])
    cache.commit(cache.extend(batch, 5), [9] * rows)
    return cache, batch


def unknown(step):
    """The three arrays as lists."""
    return [array.tolist() for array in step.unknown]


# -- what is not known -----------------------------------------------------------------------------


def test_a_step_that_knows_all():
    """No place, in int32."""
    cache, batch = decoding()
    step = cache.extend(batch)

    assert [[], [], []] == unknown(step)
    assert [6, 6, 6] == step.known.tolist()
    assert [np.int32] * 3 == [array.dtype for array in step.unknown]


def test_a_step_ahead_wants_what_the_one_before_samples():
    """Each row from its own row there, wherever it stands in the later step."""
    cache, batch = decoding()
    a, b, c = batch
    cache.extend(batch)
    step = cache.extend([c, a, b], ahead=1)

    assert [[0, 1, 2], [1, 1, 1], [2, 0, 1]] == unknown(step)
    assert [6, 6, 6] == step.known.tolist()
    step.input_ids[step.unknown.at] = np.array([70, 71, 72])[step.unknown.rows]
    assert [72, 70, 71] == step.input_ids.tolist()


def test_steps_two_before():
    """A row that sat out the last one wants what the one before that samples."""
    cache, batch = decoding(depth=3)
    cache.extend(batch)
    cache.extend(batch, [1, 0, 1], ahead=1)
    step = cache.extend(batch, ahead=2)

    assert [[0, 1, 2], [1, 2, 1], [0, 1, 2]] == unknown(step)


def test_drafts_are_the_engines():
    """What no open step samples: row -1; the token before them is the last step's."""
    cache, batch = decoding(rows=2)
    cache.extend(batch)
    step = cache.extend(batch, [3, 1], ahead=3)
    alone = Cache(Plan.from_pages(64, 4))
    drafts = alone.extend(alone.admit([1, 2, 3]), 5, ahead=2)

    assert [[0, 1, 2, 3], [1, 0, 0, 1], [0, -1, -1, 1]] == unknown(step)
    assert [[3, 4], [0, 0], [-1, -1]] == unknown(drafts)


def test_drafts_in_the_step_before():
    """The token behind all of them is what that step samples last."""
    cache, batch = decoding(rows=1)
    first = cache.extend(batch, 3, ahead=2)
    step = cache.extend(batch, 2, ahead=4)
    assert [[0, 1], [1, 0], [0, -1]] == unknown(step)
    cache.commit(first, [[4, 5, 6]])
    cache.commit(step, [[8]], kept=[1])
    assert [9, 4, 5, 6, 8] == next(iter(batch)).tokens()[-5:].tolist()


def test_prompts_beside_rows_that_decode():
    """A chunk of a prompt is known."""
    cache, batch = decoding(rows=2)
    batch.add(cache.admit([7] * 9))
    cache.extend(batch, [1, 1, 0])
    step = cache.extend(batch, [1, 1, 4], ahead=1)

    assert [[0, 1], [1, 1], [0, 1]] == unknown(step)


def test_what_was_read_stays_and_a_later_read_is_right():
    """Also when the step before was committed in between; not when this one was."""
    cache, batch = decoding()
    first = cache.extend(batch)
    step = cache.extend(batch, ahead=1)
    later = step.replace()
    cache.commit(first, [1, 2, 3])

    assert [[0, 1, 2], [1, 1, 1], [0, 1, 2]] == unknown(step) == unknown(later)
    cache.commit(step, [4, 5, 6])
    assert [[0, 1, 2], [1, 1, 1], [0, 1, 2]] == unknown(step)
    step = cache.extend(batch)
    cache.commit(step, [4, 5, 6])
    with pytest.raises(StepError, match="before its unknown ids were read"):
        _ = step.unknown


def test_rows_that_were_preempted_or_replaced_sample_nothing():
    """A token of theirs is thrown away; a new sequence in the place of one that left is another."""
    cache, batch = decoding(rows=2)
    first = cache.extend(batch)
    a, b = batch
    cache.preempt(a)
    cache.resume(a)
    batch.remove(b)
    cache.release(b)
    batch.add(cache.admit([8, 8, 8]))
    step = cache.extend(batch, [3, 4], ahead=1)

    assert [[2, 6], [0, 0], [-1, -1]] == unknown(step)
    cache.commit(first, [1, 2])
    assert 6 == a.length


def test_states_too():
    """Groups do not matter."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    cache = Cache(Plan.from_pages(64, 4, groups), depth=2, rollback=1)
    rows = [cache.admit([1] * 4), cache.admit([2] * 4)]
    cache.extend(rows, 4)

    assert [[0, 1], [1, 1], [1, 0]] == unknown(cache.extend(rows[::-1], ahead=1))


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_an_engine_that_runs_ahead(depth):
    """Filled from what was sampled, every step has the ids that the sequences come to know."""
    cache, batch = decoding(depth=depth, rows=4)
    random, running, checked = np.random.default_rng(depth), [], 0
    for _ in range(60):
        if len(running) == depth or (running and random.random() < 0.3):
            step, sampled = running.pop(0)
            cache.commit(step, sampled)
            for row, sequence in enumerate(step.sequences):
                start = step.query_start[row]
                ids = step.input_ids[start : start + step.counts[row]].tolist()
                past = int(step.past[row])
                assert ids == sequence.tokens()[past : past + len(ids)].tolist()
                checked += len(ids)
            continue
        counts = random.integers(0, 2, 4)
        if not counts.any():
            continue
        step = cache.extend(batch, counts, ahead=depth)
        for at, back, row in zip(*step.unknown, strict=True):
            step.input_ids[at] = running[-back][1][row]
        running.append((step, random.integers(100, 200, 4).astype(np.int32)))
    assert checked > 50


# -- rows that sample ------------------------------------------------------------------------------


def chunked():
    """A cache, and a step in which rows 1 and 3 of four reach the end of what they know."""
    cache = Cache(Plan.from_pages(64, 4))
    rows = [cache.admit([n] * length) for n, length in enumerate([8, 3, 8, 2])]
    return cache, rows, cache.extend(rows, [4, 3, 4, 2])


def test_rows_that_sample():
    """Those of ``wants_token``, and where their last tokens stand."""
    _, _, step = chunked()

    assert ([1, 3], np.int32) == (step.sample.tolist(), step.sample.dtype)
    assert [6, 12] == step.last[step.sample].tolist()
    assert [1, 3] == step.replace().sample.tolist()
    with pytest.raises(ValueError, match="read-only"):
        step.sample[0] = 1


@by_form
def test_ids_for_the_rows_that_sample(form):
    """The others learn nothing; one id per row says the same."""
    for ids in (form([50, 51]), form([0, 50, 0, 51])):
        cache, rows, step = chunked()
        cache.commit(step, ids)

        assert [8, 4, 8, 3] == [row.length for row in rows]
        assert [50, 51] == [rows[1].tokens()[-1], rows[3].tokens()[-1]]


@pytest.mark.parametrize(
    "tokens", [[[50, 60], [51]], [np.array([50, 60]), np.array([51])], ([50, 60, 51], [2, 1])]
)
def test_several_ids_for_the_rows_that_sample(tokens):
    """A list of arrays, or flat ids and counts, for these rows alone."""
    cache, rows, step = chunked()
    cache.commit(step, tokens)

    assert [8, 5, 8, 3] == [row.length for row in rows]
    assert [50, 60] == rows[1].tokens()[-2:].tolist()


def test_no_row_samples():
    """No ids then."""
    cache = Cache(Plan.from_pages(64, 4))
    row = cache.admit([1] * 8)
    step = cache.extend(row, 4)
    assert [] == step.sample.tolist()
    cache.commit(step, [])

    assert (8, 4) == (row.length, row.computed)


@by_form
@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (
            [50],
            "len.tokens. is 1; .*one for each of the 2 rows that sample; sequence 3, row 3, lacks",
        ),
        ([], "sequence 1, row 1, lacks its id"),
        ([0, 50, 0], "len.tokens. is 3; .*sequence 3, row 3, lacks its id"),
        ([0, 50, 0, 51, 52], "len.tokens. is 5; it must be 4"),
    ],
)
def test_too_few_ids(form, ids, words):
    """The row that lacks its id is named, and nothing is changed."""
    cache, rows, step = chunked()
    with pytest.raises(LengthError, match=words):
        cache.commit(step, form(ids))
    assert step.open
    assert [8, 3, 8, 2] == [row.length for row in rows]
    cache.commit(step, form([50, 51]))


@pytest.mark.parametrize("bad", [-1, None, 2**31, 1.5])
def test_bad_ids_for_the_rows_that_sample(bad):
    """They are refused as any others."""
    cache, _, step = chunked()
    with pytest.raises(TokenError):
        cache.commit(step, [50, bad])
    if isinstance(bad, int):
        with pytest.raises(TokenError):
            cache.commit(step, np.array([50, bad]))
    assert step.open


def test_a_step_that_ran_ahead_keeps_no_earlier_row_alive():
    """A row of a committed step alone is collected, whatever step was made beside it."""
    cache = Cache(Plan.from_pages(20, 4), depth=2)
    lost, row = cache.admit([1, 2]), cache.admit([3, 4])
    first = cache.extend([lost, row], 2)
    ahead = cache.extend([row], 1, ahead=1)
    cache.commit(first, [7, 8])

    with pytest.warns(ResourceWarning, match="was collected"):
        del first, lost
    assert 1 == cache.stats().sequences
    assert ([1], [1]) == (ahead.unknown.back.tolist(), ahead.unknown.rows.tolist())
