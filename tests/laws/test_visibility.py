"""Nothing is visible before it is computed, and what was rejected never is."""

import pytest

from octavo import Cache, Plan

PROMPT = list(range(16))


@pytest.fixture
def cache():
    """Plenty of pages of four tokens."""
    return Cache(Plan.from_pages(40, 4))


def found(cache, tokens=PROMPT):
    """Tokens of ``tokens`` that could be reused now."""
    return cache.peek([*tokens, 99]).tokens


def test_pages_appear_at_commit(cache):
    """Chunk by chunk: reserved is not visible, committed is, whole pages only."""
    row, seen = cache.admit(PROMPT), []
    for count in (3, 1, 6, 6):
        step = cache.extend(row, count)
        seen.append(found(cache))
        cache.commit(step)
        seen.append(found(cache))

    assert [0, 0, 0, 4, 4, 8, 8, 16] == seen


def test_aborted_pages_never_appear(cache):
    """Neither at the abort nor when the sequence goes on."""
    row = cache.admit(PROMPT)
    cache.abort(cache.extend(row, 16))

    assert 0 == found(cache)
    cache.commit(cache.extend(row, 5))
    assert 4 == found(cache)


def test_cancelled_pages_never_appear(cache):
    """A sequence released in the middle of its step leaves nothing behind."""
    row = cache.admit(PROMPT)
    step = cache.extend(row, 16)
    cache.release(row)
    cache.commit(step)

    assert 0 == found(cache)
    assert 39 == cache.stats().free


def test_an_equal_prompt_in_the_same_step_finds_nothing(cache):
    """Two equal prompts admitted together both compute; the third reuses."""
    rows = [cache.admit(PROMPT), cache.admit(PROMPT)]
    cache.commit(cache.extend(rows, 16))

    assert [0, 0, 12] == [row.cached for row in (*rows, cache.admit(PROMPT))]


@pytest.mark.parametrize("kept", range(1, 9))
def test_rejected_drafts_never_appear(cache, kept):
    """Of seven drafts kept - 1 were right: exactly the whole pages of kept tokens are found."""
    row = cache.admit([0])
    drafts = list(range(1, 8))
    step = cache.extend(row, 8, ahead=7)
    cache.commit(step, [[*drafts[: kept - 1], 50]], kept=[kept])

    assert kept // 4 * 4 == found(cache, list(range(8)))
    assert min(kept // 4 * 4, 8) == found(cache, [*range(kept), 50])


def test_nothing_is_published_of_a_page_cut_short(cache):
    """kept in the middle of a page leaves that page private."""
    row = cache.admit(PROMPT)
    cache.commit(cache.extend(row, 16), kept=[10])

    assert 8 == found(cache)


def test_truncated_pages_stay_what_they_were(cache):
    """After going back and on with other tokens, the old continuation and the new one are found."""
    row = cache.admit(PROMPT)
    cache.commit(cache.extend(row, 16))
    cache.truncate(row, 6)
    cache.commit(cache.extend(row, 2, ahead=2), [[70, 71]])

    assert 16 == found(cache)
    assert 8 == found(cache, [*range(6), 70, 71])
