"""Failures of other engines, by id: what was tried and what must come out (data/cases.yaml)."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import octavo
from octavo import (
    Attention,
    BudgetTooSmall,
    Cache,
    CapacityError,
    DuplicateSequence,
    IntegrityError,
    LengthError,
    ModelSpec,
    NeverFits,
    OutOfPages,
    Plan,
    PlanError,
    UnknownSequence,
)
from octavo.planner import pools
from octavo.slots import slot_mapping

DATA = Path(__file__).parent / "data"


def pool(usable, page_size=4, **options):
    """A cache of ``usable`` pages."""
    return Cache(Plan.from_pages(usable + 1, page_size), **options)


def run(cache, *rows, token=0):
    """One step in which all rows compute what they know; each learns ``token`` if it may."""
    step = cache.extend(rows, [row.length - row.computed for row in rows])
    learned = [[token] if row.length < row.limit else [] for row in rows]
    done = cache.commit(step, learned)
    cache.check()
    return done


def finished(cache, tokens):
    """Run a prompt and release it; the tokens it found cached."""
    row = cache.admit(tokens)
    run(cache, row)
    cache.release(row)
    return row.cached


def test_every_case_is_tested():
    """The data and the tests name the same ids."""
    cases = yaml.safe_load((DATA / "cases.yaml").read_text(encoding="utf-8"))
    told = [case["id"] for section in cases.values() for case in section]
    files = Path(__file__).parent.glob("test_*.py")
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tested = re.findall(r"^def test_([a-g]\d\d)_", source, re.MULTILINE)

    assert set(told) == {name.upper() for name in tested}
    assert len(told) == len(set(told))


# -- sizing ----------------------------------------------------------------------------------------


def test_a13_values_narrower_than_keys():
    """Keys of 192 and values of 128 are 640 bytes per token, not twice the key."""
    plan = octavo.plan(ModelSpec("one layer", (Attention(1, 192, 128),)), "1MiB")

    assert 640 == plan.bytes_per_token


def test_a18_the_null_page_is_not_usable():
    """256 pages of 16 with the null page hold 4,080 tokens: 4,096 are refused, 257 pages needed."""
    with pytest.raises(LengthError) as caught:
        Plan.from_pages(256, 16, max_length=4096)
    spec = ModelSpec("one layer", (Attention(1, 64, 64),))
    page = 16 * 256
    with pytest.raises(BudgetTooSmall) as also:
        octavo.plan(spec, 256 * page, max_length=4096)

    assert ("num_pages", 256, 257) == (caught.value.name, caught.value.value, caught.value.low)
    assert 257 * page == also.value.need
    assert 4096 == Plan.from_pages(257, 16, max_length=4096).max_length


def test_a20_no_length_is_no_huge_number():
    """An unbounded model is bounded by its pages alone, whatever the number of sequences."""
    plan = octavo.plan(ModelSpec("unbounded", (Attention(1, 64, 64),)), "64MiB")

    assert plan.tokens == plan.max_length == pools.max_length_for(plan, 1)
    assert plan.usable_pages // 80 * 16 == pools.max_length_for(plan, 80)
    assert pools.max_length_for(plan, 80) * 80 <= plan.tokens


def test_a28_rounding_up_stays_inside_the_pool():
    """1,000 usable tokens mean a longest sequence of 1,000, however wide its row is."""
    cache = pool(125, 8)
    row = cache.admit([1] * 1000)
    step = cache.extend(row, 1000)

    assert 1000 == cache.max_length
    assert step.group().table.shape[1] >= 125
    assert 125 * 8 + 7 == int(step.group().slots.max())
    with pytest.raises(NeverFits):
        cache.admit([1] * 1001)


# -- pages -----------------------------------------------------------------------------------------


def test_b01_the_same_page_twice_in_one_release():
    """Refused, and the pool has as many pages as before."""
    row = pool(3).admit([1])
    row.core.pool.take(0)
    row.core.pool.release(0, 1, False)
    with pytest.raises(IntegrityError):
        row.core.pool.release(0, 1, False)

    assert 3 == row.core.pool.free()


def test_b02_usage_returns_to_zero():
    """Ten requests run to their end: nothing is in use then, and never more than there is."""
    cache = pool(12)
    for request in range(10):
        row = cache.admit([request] * 9, limit=14)
        while row.computed < row.limit:
            run(cache, row)
            assert cache.stats().live <= 12
        cache.release(row)

    assert 0 == cache.stats().live


def test_b03_a_held_page_is_never_evicted():
    """Under pressure only pages nobody holds go; the holder's page still matches afterwards."""
    cache = pool(4)
    holder = cache.admit([1] * 5)
    run(cache, holder)
    other = cache.admit([2] * 8)
    run(cache, other)
    cache.release(other)
    third = cache.admit([3] * 8)
    run(cache, third)

    assert (2, 4) == (cache.stats().evicted, cache.peek([1] * 5).tokens)
    with pytest.raises(OutOfPages):
        run(cache, cache.admit([4]))


def test_b04_a_duplicate_id():
    """Refused; the first is unaffected, and the id is free again when it ends."""
    cache = pool(4)
    first = cache.admit([1, 2], id="r")
    with pytest.raises(DuplicateSequence):
        cache.admit([3], id="r")

    assert [1, 2] == first.tokens().tolist()
    cache.release(first)
    assert "r" == cache.admit([3], id="r").id


def test_b06_the_null_page_is_page_0():
    """Of eight pages seven are handed out, and none of them is page 0."""
    cache = pool(7)
    step = cache.extend([cache.admit([token]) for token in range(7)], 1)

    assert list(range(1, 8)) == sorted(step.group().table.ravel().tolist())
    assert 0 == cache.stats().free


def test_b08_never_a_page_past_the_limit():
    """64 tokens, limit 64, looking ahead by 4: four pages of 16 and no fifth."""
    cache = pool(8, 16, max_length=64)
    row = cache.admit([1] * 64)
    step = cache.extend(row, 68, ahead=4)

    assert [64] == step.counts.tolist()
    assert 4 == cache.stats().live


def test_b13_cancelled_and_released_again():
    """A sequence cancelled in its step is unknown to whoever picks it next; the pool adds up."""
    cache = pool(8)
    row = cache.admit([1] * 5)
    run(cache, row)
    step = cache.extend(row, 1)
    cache.release(row)
    with pytest.raises(UnknownSequence):
        cache.release(row)
    cache.commit(step, [2])
    cache.check()

    assert 0 == cache.stats().live


def test_b15_append_at_capacity():
    """A sequence of 16 with room for 16 is refused its 17th before anything is written."""
    cache = pool(4, max_length=16)
    row = cache.admit([1] * 16)
    run(cache, row)
    with pytest.raises(CapacityError) as caught:
        cache.extend(row, 1, ahead=1)

    assert {"name": "length", "value": 17, "limit": 16} == vars(caught.value)
    assert 16 == row.scheduled


def test_b20_published_is_what_was_owned():
    """A prefix of five pages of which three are the sequence's own: exactly three are entered."""
    cache = pool(12)
    finished(cache, [1] * 8)
    row = cache.admit([1] * 21)

    assert 8 == row.cached
    assert 3 == run(cache, row).published
    assert 20 == cache.peek([1] * 21).tokens


# -- prefix ----------------------------------------------------------------------------------------


def test_c02_only_equal_tokens_match():
    """Pages [1, 2] and [3, 4] never stand for each other, and losing one keeps the other."""
    cache = pool(2, 2)
    finished(cache, [1, 2])

    assert 0 == cache.peek([3, 4, 5]).tokens
    finished(cache, [3, 4])
    assert (2, 2) == (cache.peek([1, 2, 5]).tokens, cache.peek([3, 4, 5]).tokens)
    run(cache, cache.admit([9]))
    assert (0, 2) == (cache.peek([1, 2, 5]).tokens, cache.peek([3, 4, 5]).tokens)


def test_c10_a_fully_cached_prompt():
    """8 cached tokens serve 4 of an equal prompt and 8 of one that is a token longer."""
    cache = pool(8)
    finished(cache, range(8))
    again, longer = cache.admit(range(8)), cache.admit(range(9))

    assert (4, 8) == (again.cached, longer.cached)
    assert (4, 1) == (again.length - again.computed, longer.length - longer.computed)


def test_c11_a_page_not_written_yet_is_no_hit():
    """Two equal prompts in one step: the second finds 0 then and 4 of 8 after the commit."""
    cache = pool(12)
    rows = [cache.admit(range(8)), cache.admit(range(8))]
    step = cache.extend(rows, 8)

    assert (0, 0) == (rows[1].cached, cache.peek(range(8)).tokens)
    cache.commit(step)
    assert 4 == cache.admit(range(8)).cached


def test_c11_cancelled_first_leaves_nothing_published():
    """The first is cancelled before its commit: nothing of it is found."""
    cache = pool(12)
    row = cache.admit(range(8))
    step = cache.extend(row, 8)
    cache.release(row)
    cache.commit(step)

    assert 0 == cache.admit(range(8)).cached


def test_c12_a_page_taken_by_another():
    """One page: X was cached in it, Y took it, X is not found any more."""
    cache = pool(1)
    finished(cache, [1, 2, 3, 4])
    finished(cache, [5, 6, 7, 8])

    assert (0, 4) == (cache.peek([1, 2, 3, 4, 0]).tokens, cache.peek([5, 6, 7, 8, 0]).tokens)


def test_c13_a_revived_page_keeps_its_key():
    """X three times: 0, then 4, then 4 tokens found."""
    cache = pool(8)

    assert [0, 4, 4] == [finished(cache, range(8)) for _ in range(3)]


def test_c14_no_table_entry_is_a_free_page():
    """Both compute the same prefix; the second's table is rewritten before its pages are freed."""
    cache = pool(12)
    a, b = cache.admit(range(9)), cache.admit(range(9))
    step = cache.extend([a, b], 9)
    before = step.group().table[1].tolist()
    done = cache.commit(step, [1, 1])
    after = cache.extend([a, b], 1).group().table

    assert [(b, "full", 0, before[0], 1), (b, "full", 1, before[1], 2)] == list(done.repointed)
    assert after[0, :2].tolist() == after[1, :2].tolist()
    assert set(before[:2]).isdisjoint(after.ravel().tolist())
    cache.check()


def test_c19_the_tail_of_a_chain_goes_first():
    """Three pages, one needed: the third is evicted every time, the same prompt still finds two."""
    for _ in range(20):
        cache = pool(3)
        finished(cache, range(12))
        run(cache, cache.admit([99]))

        assert 8 == cache.peek([*range(12), 0]).tokens


def test_c22_only_full_pages_are_shared():
    """Six tokens, two readers that append: one page is common, each writes into its own."""
    cache = pool(8)
    finished(cache, range(6))
    a, b = cache.admit(range(6)), cache.admit(range(6))
    view = cache.extend([a, b], 2).group()

    assert (4, 4) == (a.cached, b.cached)
    assert view.table[0, 0] == view.table[1, 0]
    assert view.table[0, 1] != view.table[1, 1]
    assert 4 == len(set(view.slots.tolist()))


def test_c24_each_row_writes_behind_its_own_prefix():
    """Row 0 has 8 cached tokens, row 1 none: slots begin at 8 and at 0, in no shared page."""
    cache = pool(12)
    finished(cache, range(8))
    rows = [cache.admit(range(10)), cache.admit([5] * 3)]
    step = cache.extend(rows, [2, 3])
    view, shared = step.group(), step.group().table[0, :2].tolist()

    assert [8, 9, 0, 1, 2] == step.positions.tolist()
    assert slot_mapping(view.table[0], 4, 8, 10).tolist() == view.slots[:2].tolist()
    assert slot_mapping(view.table[1], 4, 0, 3).tolist() == view.slots[2:].tolist()
    assert set(shared).isdisjoint((view.slots // 4).tolist())


def test_c33_identical_prompts_turn_by_turn():
    """Two equal 8-token prompts schedule 16 tokens, the next turn prompt + 1 each."""
    cache, history, scheduled = pool(60), list(range(8)), []
    for _ in range(2):
        rows = [cache.admit(history), cache.admit(history)]
        step = cache.extend(rows, [row.length - row.computed for row in rows])
        scheduled.append(int(step.counts.sum()))
        cache.commit(step, [50, 50])
        cache.check()
        history = [*rows[0].tokens().tolist(), *range(100, 108)]
        for row in rows:
            cache.release(row)

    assert [16, 18] == scheduled


def test_c34_a_hit_is_read_at_its_own_positions():
    """Nine tokens of which eight are cached: one query at position 8 over nine keys."""
    cache = pool(8)
    finished(cache, range(8))
    step = cache.extend(cache.admit(range(9)), 1)

    assert ([1], [9], [8], [8]) == tuple(
        array.tolist() for array in (step.counts, step.context, step.positions, step.past)
    )


# -- index -----------------------------------------------------------------------------------------


def test_d05_a_position_outside_the_row():
    """Position 16 of a row with one page is refused; it never reads the neighbour's page."""
    assert [80] == slot_mapping([5], 16, 0, 1).tolist()
    assert [28, 31] == [slot_mapping([7], 4, at, at + 1)[0] for at in (0, 3)]
    for pages, page_size, at in (([5], 16, 16), ([7], 4, 130)):
        with pytest.raises(LengthError):
            slot_mapping(pages, page_size, at, at + 1)


def test_d09_decode_positions():
    """A prompt of 9, then three decode steps: past 0, 9, 10, 11 and positions 9, 10, 11."""

    def told(cache):
        row, seen = cache.admit([1] * 9), []
        for _ in range(4):
            step = cache.extend(row, row.length - row.computed)
            seen.append((step.past.tolist(), step.positions.tolist()))
            cache.commit(step, [2])
        return seen

    alone, cache = told(pool(8)), pool(8)
    finished(cache, [7] * 11)

    assert [[0], [9], [10], [11]] == [past for past, _ in alone]
    assert [[9], [10], [11]] == [positions for _, positions in alone[1:]]
    assert alone == told(cache)


def test_d17_rows_are_wide_enough_for_drafts():
    """Eight pages of content and two of drafts make a row of ten."""
    cache = pool(12)
    step = cache.extend(cache.admit([1] * 32), 40, ahead=8)

    assert (1, 10) == step.group().table.shape
    assert np.all(step.group().table > 0)


def test_d22_a_mapping_is_never_shorter_than_the_tokens():
    """33 tokens and two pages of 16: an error that says 32, and no cut."""
    with pytest.raises(LengthError) as caught:
        slot_mapping([1, 2], 16, 0, 33)

    assert ("stop", 33, 32) == (caught.value.name, caught.value.value, caught.value.high)


def test_e18_too_long_is_refused_up_front():
    """A prompt of 1,167 and 1,023 to come do not fit into 1,024 slots: refused before any work."""
    cache = pool(64, 16)
    with pytest.raises(NeverFits) as caught:
        cache.admit([1] * 1167, limit=1167 + 1023)
    step = cache.extend(cache.admit([1] * 200), 200)

    assert (137, 64) == (caught.value.need, caught.value.total)
    assert (1, 13) == step.group().table.shape


# -- going back and edges --------------------------------------------------------------------------


def test_f03_two_verbs_for_going_back():
    """Of three tokens truncate(0) leaves none, (5) and (-1) are errors, drop(5) drops all."""
    cache = pool(4)
    row = cache.admit([1, 2, 3])
    for length in (5, -1):
        with pytest.raises(LengthError):
            cache.truncate(row, length)

    assert 3 == row.length
    cache.truncate(row, 0)
    assert 0 == row.length
    other = cache.admit([1, 2, 3])
    cache.drop(other, 5)
    assert 0 == other.length


@pytest.mark.parametrize(("drafts", "pages"), [(3, 1), (3 * 4, 1), (16, 2)])
def test_f06_drafts_are_rounded_to_pages_once(drafts, pages):
    """steps x topk positions beyond the known are reserved, rounded up to pages a single time."""
    cache = pool(8, 16)
    row = cache.admit([1])
    step = cache.extend(row, 1 + drafts, ahead=drafts)

    assert pages == cache.stats().live == step.group().table.shape[1]
    assert 1 + drafts == row.scheduled == step.group().slots.size


def test_g01_an_empty_prompt():
    """A ValueError for that request alone; a good one beside it runs."""
    cache = pool(4)
    good = cache.admit([1])
    with pytest.raises(ValueError, match="a prompt has at least one token"):
        cache.admit([])
    run(cache, good)

    assert [1, 0] == good.tokens().tolist()


@pytest.mark.parametrize("page_size", [1, 8])
def test_g05_a_page_size_the_kernel_does_not_take(page_size):
    """Refused when it is planned, with the sizes that the kernel takes."""
    spec = ModelSpec("one layer", (Attention(1, 64, 64),))
    with pytest.raises(PlanError, match=f"page_size is {page_size}; vllm takes multiples of 16"):
        octavo.plan(spec, "1MiB", page_size=page_size, kernel="vllm")
    assert 16 == octavo.plan(spec, "1MiB", page_size=16, kernel="vllm").page_size


def test_g04_a_request_that_cannot_fit_says_so():
    """A prompt of 100 pages, a pool of 10: OutOfPages with both figures, no empty answer."""
    cache = pool(10)
    with pytest.raises(OutOfPages) as caught:
        cache.admit([1] * 400)

    assert (100, 10) == (caught.value.need, caught.value.total)
    assert "need 100 pages but the whole pool has 10: this can never fit" == str(caught.value)
