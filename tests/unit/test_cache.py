"""The cache's verbs, one behaviour a test."""

import numpy as np
import pytest

from octavo import Cache, Media, OutOfPages, Plan

PAGE = 4


@pytest.fixture
def cache():
    """Eleven usable pages of four tokens."""
    return Cache(Plan.from_pages(12, PAGE), max_sequences=4)


def run(cache, row, token=0):
    """Compute all a sequence knows and learn one token where there is room for it."""
    step = cache.extend(row, row.length - row.computed)
    done = cache.commit(step, [token] if row.length < row.limit else None)
    cache.check()
    return done


def slots(cache, row):
    """The next slot of ``row``."""
    step = cache.extend(row, 1, ahead=1)
    cache.abort(step)
    return step.slots().tolist()


# -- admit -----------------------------------------------------------------------------------------


def test_a_new_sequence_knows_its_prompt_and_holds_nothing(cache):
    """No page is taken before extend."""
    row = cache.admit([3, 1, 2], limit=9, id="r")

    assert ("r", 9, 3, 0, 0, 0) == (
        row.id,
        row.limit,
        row.length,
        row.cached,
        row.computed,
        row.scheduled,
    )
    assert [3, 1, 2] == row.tokens().tolist()
    assert np.int32 == row.tokens().dtype
    assert 0 == cache.stats().live
    assert "<Sequence 'r': known 3, scheduled 0, computed 0, limit 9>" == repr(row)


@pytest.mark.parametrize(
    "tokens",
    [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array([1, 2], np.uint16), [np.int64(1), 2]],
    ids=repr,
)
def test_prompts_in_any_form(cache, tokens):
    """Lists, tuples, ranges and integer arrays are prompts."""
    assert [1, 2] == cache.admit(tokens).tokens().tolist()


def test_a_prompt_is_copied(cache):
    """Changing the caller's array, or what tokens() gave, changes no sequence."""
    prompt = np.array([1, 2], np.int32)
    row = cache.admit(prompt)
    prompt[0] = 9
    row.tokens()[0] = 9

    assert [1, 2] == row.tokens().tolist()


def test_the_default_limit_is_the_caches(cache):
    """Without a limit a sequence may grow to max_length."""
    assert 44 == cache.admit([1]).limit == cache.max_length
    assert 20 == Cache(Plan.from_pages(12, PAGE), max_length=20).admit([1]).limit
    assert 30 == Cache(Plan.from_pages(12, PAGE, max_length=30)).admit([1]).limit


def test_ids_are_given_where_none_is(cache):
    """Numbers count up and avoid names in use; a released id can be used again."""
    named = cache.admit([1], id=0)
    first, second = cache.admit([1]), cache.admit([1])

    assert 3 == len({named.id, first.id, second.id})
    cache.release(named)
    assert 0 == cache.admit([1], id=0).id


def test_at_least_one_token_is_left_to_compute(cache):
    """Eight cached tokens serve four of an equal prompt and eight of a longer one."""
    row = cache.admit(range(8))
    run(cache, row)

    assert 4 == cache.admit(range(8)).cached
    assert 8 == cache.admit(range(9)).cached


def test_prefixes_outlive_their_sequence(cache):
    """What a released sequence computed is found by the next prompt that begins alike."""
    row = cache.admit(range(8))
    run(cache, row)
    cache.release(row)
    again = cache.admit([*range(8), 77])

    assert (8, 8, 8) == (again.cached, again.computed, again.scheduled)
    assert 2 == cache.stats().live


def test_generated_tokens_are_found_too(cache):
    """A follow-up turn reuses the pages of prompt and answer."""
    row = cache.admit([1, 2, 3])
    for token in (4, 5, 6):
        run(cache, row, token)

    assert [1, 2, 3, 4, 5, 6] == row.tokens().tolist()
    assert 4 == cache.admit([1, 2, 3, 4, 5]).cached


def test_reuse_can_be_declined(cache):
    """reuse=False starts from nothing, and finds the pages there at its commit."""
    run(cache, cache.admit(range(8)))
    row = cache.admit(range(8), reuse=False)

    assert 0 == row.cached
    assert 2 == len(run(cache, row).repointed)


def test_no_prefix_cache():
    """With prefix=False nothing is published, kept or awaited."""
    cache = Cache(Plan.from_pages(12, PAGE), prefix=False)
    row = cache.admit(range(8))
    waiting = cache.peek(range(9))

    assert 0 == run(cache, row).published
    assert (0, 0) == (waiting.tokens, waiting.pending)
    assert 0 == cache.admit(range(9)).cached
    cache.release(row)
    assert 0 == cache.stats().evictable


# -- extend and commit -----------------------------------------------------------------------------


def test_a_page_is_taken_when_a_position_needs_it(cache):
    """Pages grow with the tokens, one at each multiple of the page size."""
    row = cache.admit([0])
    live = []
    for _ in range(9):
        run(cache, row)
        live.append(cache.stats().live)

    assert [1, 1, 1, 1, 2, 2, 2, 2, 3] == live


def test_chunks_and_one_pass_give_the_same(cache):
    """A prompt computed in chunks ends as one computed at once."""
    row = cache.admit(range(10))
    seen = []
    for count in (3, 4, 3):
        step = cache.extend(row, count)
        seen += step.group().slots.tolist()
        cache.commit(step)

    assert list(range(4, 14)) == seen
    assert 8 == cache.admit(range(10)).cached


def test_published_pages_are_counted(cache):
    """Committed tells how many full pages became available to others."""
    row = cache.admit(range(9))

    assert (2, (), 0) == run(cache, row)
    assert (0, (), 0) == run(cache, row)


def test_equal_pages_computed_side_by_side_become_one(cache):
    """The second sequence is moved to the page published first; the report says from where."""
    a, b = cache.admit(range(5)), cache.admit(range(5))
    step = cache.extend([a, b], 5)
    done = cache.commit(step, [9, 9])

    assert 1 == done.published
    assert [(b, "full", 0, 3, 1)] == list(done.repointed)
    assert 3 == cache.stats().live
    cache.check()


def test_extend_is_all_or_nothing(cache):
    """One row too many and no row gets a page."""
    rows = [cache.admit([n] * 20) for n in range(3)]
    with pytest.raises(OutOfPages) as caught:
        cache.extend(rows, 20)

    assert {"need": 15, "free": 11, "evictable": 0, "short": {"full": 4}} == vars(caught.value)
    assert [0, 0, 0] == [row.scheduled for row in rows]
    assert 11 == cache.stats().free


def test_a_row_may_sit_out(cache):
    """A count of 0 leaves a row as it is."""
    a, b = cache.admit([1]), cache.admit([2])
    cache.commit(cache.extend([a, b], [1, 0]), [3, 4])

    assert ([1, 3], [2]) == (a.tokens().tolist(), b.tokens().tolist())
    assert (1, 0) == (a.computed, b.computed)


def test_eviction_makes_room(cache):
    """Published pages nobody holds give way, the oldest first, and are found no more."""
    for token in (1, 2):
        row = cache.admit([token] * 8)
        run(cache, row)
        cache.release(row)
    row = cache.admit([3] * 32)
    run(cache, row)

    assert 1 == cache.stats().evicted
    assert (4, 8) == (cache.peek([1] * 9).tokens, cache.peek([2] * 9).tokens)


def test_drafts_are_scheduled_beyond_what_is_known(cache):
    """ahead reserves slots for ids the cache does not know; it hands out 0 for them."""
    row = cache.admit([1, 2])
    step = cache.extend(row, 5, ahead=3)

    assert [1, 2, 0, 0, 0] == step.input_ids.tolist()
    assert (5, 2) == (row.scheduled, row.length)
    assert step.wants_token.all()


def test_rejected_drafts_are_cut(cache):
    """Of three drafts one was right: two positions go back, one bonus token is known."""
    row = cache.admit([1, 2])
    step = cache.extend(row, 5, ahead=3)
    cache.commit(step, [[3, 9]], kept=[3])

    assert [1, 2, 3, 9] == row.tokens().tolist()
    assert (3, 3) == (row.computed, row.scheduled)
    assert 1 == cache.stats().live
    cache.check()


def test_drafts_are_clipped_at_the_limit(cache):
    """Running ahead never reserves a position beyond the limit."""
    row = cache.admit([1, 2], limit=4)
    step = cache.extend(row, 5, ahead=3)

    assert [4] == step.counts.tolist()


def test_a_page_freed_by_a_draft_is_taken_again(cache):
    """Speculative append, rollback and append again give the same slots."""
    row = cache.admit([1, 2, 3])
    run(cache, row, 4)
    first = cache.extend(row, 4, ahead=3)
    assert [7, 8, 9, 10] == first.slots().tolist()
    cache.commit(first, [[9]], kept=[1])

    assert [8] == cache.extend(row, 1).slots().tolist()


def test_abort_gives_back_what_was_reserved(cache):
    """After abort everything is as before, and the same slots come again."""
    row = cache.admit(range(6))
    step = cache.extend(row, 6)
    cache.abort(step)

    assert step.slots().tolist() == cache.extend(row, 6).slots().tolist()
    assert 0 == row.computed
    assert 2 == cache.stats().live


def test_nothing_is_published_by_abort(cache):
    """Pages of an aborted step are never found."""
    step = cache.extend(cache.admit(range(8)), 8)
    cache.abort(step)

    assert 0 == cache.peek(range(9)).tokens


def test_need_is_what_extend_takes(cache):
    """need tells the pages beforehand and takes none."""
    a, b = cache.admit(range(6)), cache.admit([1])

    assert {"full": 3} == cache.need([a, b], [6, 1])
    assert {"full": 1} == cache.need(a)
    assert {"full": 11} == cache.available()
    cache.extend([a, b], [6, 1])
    assert {"full": 8} == cache.available()


# -- going back and ending -------------------------------------------------------------------------


def test_truncate_inside_an_open_page(cache):
    """A private page is cut where asked."""
    row = cache.admit(range(6))
    run(cache, row)

    assert 5 == cache.truncate(row, 5)
    assert (5, 5, 5) == (row.length, row.computed, row.scheduled)
    assert [9] == slots(cache, row)


def test_truncate_inside_a_published_page_copies_it(cache):
    """Others may read the page: what is left of it is copied before the next write."""
    row = cache.admit(range(6))
    run(cache, row)

    assert 3 == cache.truncate(row, 3)
    assert (3, 3) == (row.length, row.computed)
    step = cache.extend(row, 1, ahead=1)
    assert [[1], [2]] == [pages.tolist() for pages in step.copies["full"]]
    assert [11] == step.group().slots.tolist()
    cache.commit(step, [[99]])
    assert 4 == cache.peek([0, 1, 2, 3, 4]).tokens
    assert 4 == cache.peek([0, 1, 2, 99, 4]).tokens


def test_truncate_at_a_page_boundary_keeps_the_pages(cache):
    """Published pages before the cut stay the sequence's own."""
    row = cache.admit(range(10))
    run(cache, row)

    assert 8 == cache.truncate(row, 8)
    assert 2 == cache.stats().live


def test_truncate_to_the_known_length_changes_nothing(cache):
    """Cutting nothing is allowed."""
    row = cache.admit(range(6))
    run(cache, row)

    assert 6 == cache.truncate(row, 7)
    assert 7 == row.length


def test_truncate_to_nothing(cache):
    """A sequence may lose all its tokens and go on with others."""
    row = cache.admit(range(6))
    run(cache, row)
    cache.truncate(row, 0)
    step = cache.extend(row, 1, ahead=1)
    cache.commit(step, [[5]])

    assert [5] == row.tokens().tolist()
    assert 1 == cache.stats().live


def test_exclusive_truncate_cuts_private_tokens(cache):
    """exclusive allows what touches no page of others."""
    row = cache.admit(range(6))
    run(cache, row)

    assert 4 == cache.truncate(row, 4, exclusive=True)


def test_drop_counts_from_the_end(cache):
    """drop(2) of six known tokens leaves four; more than there are leaves none."""
    row = cache.admit(range(6))

    assert 0 == cache.drop(row, 2)
    assert 4 == row.length
    cache.drop(row, 0)
    assert 4 == row.length
    cache.drop(row, 9)
    assert 0 == row.length


def test_release_gives_everything_back(cache):
    """Private pages are free, published ones can be reused and evicted."""
    row = cache.admit(range(10))
    run(cache, row)
    cache.release(row)

    assert row.released
    stats = cache.stats()
    assert (0, 2, 9, 0) == (stats.live, stats.evictable, stats.free, stats.sequences)


def test_release_with_a_step_open_leaves_the_other_rows(cache):
    """A cancelled request drops out of the step; the commit ignores its entry."""
    a, b = cache.admit(range(8)), cache.admit([7])
    step = cache.extend([a, b], [8, 1])
    cache.release(a)
    cache.commit(step, [5, 6])

    assert [7, 6] == b.tokens().tolist()
    assert 0 == cache.peek(range(9)).tokens
    assert 1 == cache.stats().live
    cache.check()


def test_abort_after_a_release(cache):
    """A step can be aborted when one of its rows is gone."""
    a, b = cache.admit(range(8)), cache.admit([7])
    step = cache.extend([a, b], [8, 1])
    cache.release(a)
    cache.abort(step)

    assert 0 == cache.stats().live
    cache.check()


def test_reset_forgets_all_prefixes(cache):
    """After reset all pages are free and nothing is found."""
    row = cache.admit(range(8))
    run(cache, row)
    cache.release(row)
    cache.reset()

    assert 11 == cache.stats().free
    assert 0 == cache.peek(range(9)).tokens


# -- looking ---------------------------------------------------------------------------------------


def test_peek_tells_what_admit_would_find(cache):
    """By group too, and without holding anything."""
    run(cache, cache.admit(range(8)))
    found = cache.peek(range(9))

    assert (8, {"full": 8}, 0) == found
    assert 8 == cache.admit(range(9)).cached


def test_peek_tells_what_is_being_computed(cache):
    """Pages of a prompt that an admitted sequence has yet to compute are pending."""
    row = cache.admit(range(8))
    before = cache.peek(range(9))
    cache.commit(cache.extend(row, 4))
    between = cache.peek(range(9))
    run(cache, row)
    after = cache.peek(range(9))

    assert [(0, 2), (4, 1), (8, 0)] == [(m.tokens, m.pending) for m in (before, between, after)]


def test_pending_pages_are_compared_with_their_media(cache):
    """An image of its own is no page that somebody is computing."""
    cache.admit(range(8), extra=[Media("cat", 1, 3)])

    assert 2 == cache.peek(range(9), extra=[Media("cat", 1, 3)]).pending
    assert 0 == cache.peek(range(9), extra=[Media("dog", 1, 3)]).pending
    assert 0 == cache.peek(range(9)).pending


def test_pending_pages_come_and_go_with_what_is_known(cache):
    """Learned, taken back, preempted, resumed, forked and released."""

    def pending():
        return cache.peek(range(13)).pending

    row = cache.admit(range(6), limit=20)
    found = [pending()]
    cache.learn(row, range(6, 12))
    found.append(pending())
    cache.truncate(row, 9)
    found.append(pending())
    child = cache.fork(row)[0]
    cache.preempt(row)
    found.append(pending())
    cache.release(child)
    found.append(pending())
    cache.resume(row)
    found.append(pending())
    cache.check()
    cache.release(row)

    assert [1, 3, 2, 2, 0, 2, 0] == [*found, pending()]


def test_peek_does_not_touch_the_order_of_eviction(cache):
    """A page looked at is evicted as if nobody had looked."""
    for token in (1, 2):
        row = cache.admit([token] * 4)
        run(cache, row)
        cache.release(row)
    cache.peek([1] * 5)
    row = cache.admit([3] * 40)
    run(cache, row)

    assert (0, 4) == (cache.peek([1] * 5).tokens, cache.peek([2] * 5).tokens)


def test_fits_adds_up_limits(cache):
    """Sequences and prompts together: the short figure says how many pages are missing."""
    a = cache.admit(range(8), limit=16)
    run(cache, a)
    fit = cache.fits([(a, 16), ([1] * 4, 28)])
    tight = cache.fits([(a, 16), ([1] * 4, 32)])

    assert fit
    assert {"full": 0} == fit.short
    assert not tight
    assert {"full": 1} == tight.short


def test_fits_counts_shared_pages_once(cache):
    """A prompt that begins like a live sequence needs only the rest."""
    a = cache.admit(range(8), limit=16)
    run(cache, a)

    assert cache.fits([(a, 16), (range(9), 36)])
    assert not cache.fits([(a, 16), (range(9), 40)])


def test_fits_pins_what_it_would_reuse(cache):
    """A page that a prompt will reuse cannot also be evicted for it."""
    a = cache.admit(range(8))
    run(cache, a)
    cache.release(a)

    assert cache.fits([(range(9), 44)])
    assert {"full": 1} == cache.fits([(range(9), 48)]).short


def test_guaranteed_pages_are_set_aside(cache):
    """Others see less available; the sequence itself always gets its pages."""
    kept = cache.admit([1], limit=20, guarantee=True)
    greedy = cache.admit([2] * 28)

    assert {"full": 6} == cache.available()
    with pytest.raises(OutOfPages):
        cache.extend(greedy, 28)
    run(cache, cache.admit([3] * 24))
    for token in range(19):
        run(cache, kept, token)
    assert 20 == kept.length


def test_a_guarantee_that_cannot_be_given_is_refused(cache):
    """Two guarantees for more than the pool: the second is refused, not broken later."""
    first = cache.admit([1], limit=24, guarantee=True)
    with pytest.raises(OutOfPages) as caught:
        cache.admit([2], limit=24, guarantee=True)

    assert {"need": 6, "free": 11, "evictable": 0, "short": {"full": 1}} == vars(caught.value)
    assert 1 == cache.stats().sequences
    cache.release(first)


def test_a_guarantee_holds_after_going_back():
    """Truncating below pages others still hold must not leave the sequence short later."""
    cache = Cache(Plan.from_pages(6, PAGE), max_sequences=4)
    kept = cache.admit([0] * 8, limit=16, guarantee=True)
    run(cache, kept)
    run(cache, cache.admit([0] * 9))
    try:
        cache.truncate(kept, 0)
    except OutOfPages:
        assert 9 == kept.length
    while kept.length < kept.limit:
        cache.commit(cache.extend(kept, 1, ahead=1), [[9]])

    assert 0 <= cache.available()["full"]


def test_stats_add_up(cache):
    """Live, evictable and free make up the pages; totals count prompts and hits."""
    a = cache.admit(range(9))
    run(cache, a)
    b = cache.admit(range(9))
    cache.release(a)
    cache.preempt(b)

    assert (11, 0, 2, 9, 3, 1, 18, 8, 0, 1, 0) == cache.stats()


def test_the_longest_possible_sequence():
    """One sequence can fill the pool to its last slot."""
    cache = Cache(Plan.from_pages(4, PAGE))
    row = cache.admit(range(12))
    run(cache, row)

    assert (12, 12, 3) == (row.limit, row.computed, cache.stats().live)


@pytest.mark.parametrize("page_size", [1, 2, 3, 16, 64])
def test_any_page_size(page_size):
    """Whole pages of a prompt are found again whatever their size."""
    cache = Cache(Plan.from_pages(100, page_size))
    row = cache.admit(range(70))
    run(cache, row)

    assert 69 // page_size * page_size == cache.admit(range(70)).cached


def test_a_prompt_is_as_long_as_it_was_admitted():
    """Whatever the sequence learns; a fork has the other's, and a released handle still says so."""
    cache = Cache(Plan.from_pages(30, 4))
    row = cache.admit([1] * 9, limit=20)
    assert (9, 0) == (row.prompt, row.scheduled)
    cache.commit(cache.extend(row, 9), [7])
    cache.learn(row, [8, 8])
    child = cache.fork(row)[0]
    cache.preempt(row)
    cache.resume(row)

    assert (9, 9) == (row.prompt, child.prompt)
    cache.release(row)
    assert 9 == row.prompt
