"""Slot mapping, and the Step an extend returns."""

import numpy as np
import pytest

from octavo import Attention, Cache, CapacityError, LengthError, Plan, State
from octavo.slots import slot_mapping

PAGES = [5, 2, 9]


def test_slots_follow_the_formula():
    """Positions go page by page, whatever order the pages are in."""
    assert [20, 21, 22, 23, 8, 9, 10, 11, 36, 37, 38, 39] == slot_mapping(PAGES, 4, 0, 12).tolist()
    assert [22, 23, 8] == slot_mapping(PAGES, 4, 2, 5).tolist()
    assert [11] == slot_mapping(PAGES, 4, 7, 8).tolist()
    assert [5, 2, 9] == slot_mapping(PAGES, 1, 0, 3).tolist()


@pytest.mark.parametrize("pages", [PAGES, tuple(PAGES), np.array(PAGES), np.array(PAGES, np.int32)])
@pytest.mark.parametrize("interval", [(0, 12), (3, 4), (5, 5)])
def test_slots_are_int32_whatever_the_pages_are(pages, interval):
    """Lists and arrays of pages give the same int32 slots."""
    slots = slot_mapping(pages, 4, *interval)

    assert np.int32 == slots.dtype
    assert slot_mapping(PAGES, 4, *interval).tolist() == slots.tolist()


@pytest.mark.parametrize("at", [0, 12])
def test_empty_intervals_have_no_slots(at):
    """Nothing asked, nothing given, at the very end too."""
    assert [] == slot_mapping(PAGES, 4, at, at).tolist()


@pytest.mark.parametrize("interval", [(0, 12), (2, 5), (7, 8), (3, 3)])
def test_out_is_written_and_nothing_behind_it(interval):
    """``out`` gets the slots and is returned cut to size; the rest of it is not touched."""
    out = np.full(16, -7, np.int32)
    slots = slot_mapping(PAGES, 4, *interval, out=out)
    count = interval[1] - interval[0]

    assert slot_mapping(PAGES, 4, *interval).tolist() == slots.tolist()
    assert np.shares_memory(slots, out) or not count
    assert [-7] * (16 - count) == out[count:].tolist()


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ((PAGES, 0, 0, 1), "page_size", 0),
        ((PAGES, -4, 0, 1), "page_size", -4),
        ((PAGES, 4, -1, 2), "start", -1),
        ((PAGES, 4, 3, 2), "start", 3),
        ((PAGES, 4, 0, 13), "stop", 13),
        ((PAGES, 4, 12, 13), "stop", 13),
        (([], 4, 0, 1), "stop", 1),
    ],
)
def test_intervals_outside_the_pages_are_refused(arguments, name, value):
    """A slot mapping is never shorter than asked: LengthError names the end that is wrong."""
    with pytest.raises(LengthError) as caught:
        slot_mapping(*arguments)

    assert (name, value) == (caught.value.name, caught.value.value)


def test_the_message_tells_how_much_the_pages_hold():
    """33 tokens do not fit into two pages of 16."""
    with pytest.raises(LengthError) as caught:
        slot_mapping([1, 2], 16, 0, 33)

    assert "stop is 33; it must be an int of at least 0 and at most 32 (2 pages of 16)" == str(
        caught.value
    )


@pytest.mark.parametrize("interval", [(0, 4), (0, 1)])
def test_a_small_out_is_refused_before_anything_is_written(interval):
    """CapacityError, and ``out`` as it was."""
    out = np.full(interval[1] - 1, -7, np.int32)
    with pytest.raises(CapacityError) as caught:
        slot_mapping(PAGES, 4, *interval, out=out)

    assert {"name": "stop - start", "value": interval[1], "limit": out.size} == vars(caught.value)
    assert [-7] * out.size == out.tolist()


@pytest.mark.parametrize("count", [1, 4])
def test_slots_beyond_int32_are_refused(count):
    """The last page whose slots are int32 works, the next one raises and writes nothing."""
    last = 2**31 // 4 - 1
    out = np.full(4, -7, np.int32)

    assert 2**31 - 1 == slot_mapping([last], 4, 4 - count, 4)[-1]
    with pytest.raises(CapacityError) as caught:
        slot_mapping([last + 1], 4, 4 - count, 4, out=out)
    assert ("slot", 2**31 - 1) == (caught.value.name, caught.value.limit)
    assert [-7] * 4 == out.tolist()


@pytest.fixture
def step():
    """A prefill chunk of 3 of 5, a row that sits out, and a whole prompt of 6, pages of 4."""
    cache = Cache(Plan.from_pages(12, 4), max_sequences=4)
    rows = [cache.admit(range(10, 15)), cache.admit([7]), cache.admit(range(20, 26))]
    return cache.extend(rows, [3, 0, 6])


def test_step_describes_its_tokens(step):
    """T-long arrays go row by row: ids, positions, slots."""
    assert [10, 11, 12, 20, 21, 22, 23, 24, 25] == step.input_ids.tolist()
    assert [0, 1, 2, 0, 1, 2, 3, 4, 5] == step.positions.tolist()
    assert [4, 5, 6, 8, 9, 10, 11, 12, 13] == step.group().slots.tolist()
    assert [0, 3, 3, 9] == step.query_start.tolist()


def test_step_describes_its_rows(step):
    """n-long arrays have an entry per row; a row that sits out has no last token."""
    assert [3, 0, 6] == step.counts.tolist()
    assert [0, 0, 0] == step.past.tolist()
    assert [3, 0, 6] == step.context.tolist()
    assert [2, -1, 8] == step.last.tolist()
    assert [False, False, True] == step.wants_token.tolist()
    assert (6, 6) == (step.max_query, step.max_context)


def test_step_arrays_are_int32(step):
    """Kernels take int32; wants_token is a mask."""
    view = step.group()
    arrays = [step.counts, step.input_ids, step.positions, step.query_start, step.past]

    assert {np.dtype(np.int32)} == {
        array.dtype for array in (*arrays, step.context, step.last, *view)
    }
    assert np.bool_ == step.wants_token.dtype


def test_step_pads_tables_with_the_null_page(step):
    """Behind a row's pages stands page 0, and every table begins at position 0."""
    assert [[1, 0], [0, 0], [2, 3]] == step.group().table.tolist()
    assert [0, 0, 0] == step.group().base.tolist()


def test_groups_are_found_by_name(step):
    """The default is the first token group; an unknown name is a KeyError."""
    assert step.group() is step.group("full")
    with pytest.raises(KeyError):
        step.group("window_4")


def test_a_step_keeps_its_arrays():
    """A step's arrays stay as they were when the cache goes on."""
    cache = Cache(Plan.from_pages(12, 4), max_sequences=4)
    row = cache.admit([1, 2, 3])
    first = cache.extend(row, 3)
    seen = [array.copy() for array in (first.input_ids, first.positions, *first.group())]
    cache.commit(first, [4])
    cache.commit(cache.extend(row, 1), [5])

    for before, array in zip(seen, (first.input_ids, first.positions, *first.group()), strict=True):
        assert before.tolist() == array.tolist()


def test_common_pages():
    """Leading columns that all rows hold alike, as after a shared prefix."""
    cache = Cache(Plan.from_pages(40, 4), max_sequences=4)
    first = cache.admit(range(9))
    cache.commit(cache.extend(first, 9))
    rows = [first, cache.admit([*range(9), 50]), cache.admit([*range(8), 60])]
    step = cache.extend(rows, [1, 2, 1], ahead=1)

    assert 2 == step.common_pages
    cache.abort(step)
    alone = cache.extend(first, 1, ahead=1)
    assert 3 == alone.common_pages
    cache.abort(alone)
    assert 0 == cache.extend([first, cache.admit([7])], 1, ahead=1).common_pages


def test_steps_of_lists_have_no_delta():
    """There is no table to mirror."""
    cache = Cache(Plan.from_pages(40, 4))

    assert {} == cache.extend(cache.admit([1]), 1).delta


def test_a_delta_tells_what_changed():
    """New rows whole, then new pages alone; later entries for a place count."""
    cache = Cache(Plan.from_pages(40, 4))
    rows = [cache.admit([n] * 3) for n in range(2)]
    cache.commit(cache.extend(rows, 3), [1, 1])
    batch = cache.batch(rows)
    deltas = []
    for _ in range(3):
        step = cache.extend(batch)
        deltas.append({name: [a.tolist() for a in delta] for name, delta in step.delta.items()})
        cache.commit(step, [1, 1])

    assert {"full": [[0, 1], [0, 0], [1, 2]]} == deltas[0]
    assert {"full": [[0, 1], [1, 1], [3, 4]]} == deltas[1]
    assert {} == deltas[2]


def test_fresh_pages_are_told():
    """Pages taken for this step, whose old content means nothing."""
    cache = Cache(Plan.from_pages(40, 4))
    row = cache.admit([1] * 6)
    step = cache.extend(row, 6)

    assert {"full": [1, 2]} == {name: pages.tolist() for name, pages in step.fresh.items()}
    cache.commit(step, [1])
    assert {} == cache.extend(row, 1).fresh


def written(step):
    """By group, pages that copies and snapshots write."""
    found = {name: set() for name in step.group_names}
    for moves in (step.copies, step.snapshots):
        for name, pair in moves.items():
            found[name] |= set(pair.target.tolist())
    return found


@pytest.mark.parametrize("groups", [None, {"full": Attention(1, 1, 1), "state": State(1)}])
def test_no_fresh_page_is_written_by_copies_or_snapshots(groups):
    """Who clears fresh pages destroys nothing, be it before or after the copies."""
    cache = Cache(Plan.from_pages(60, 4, groups))
    row = cache.admit(list(range(10)))
    steps, targets = [cache.extend(row, 8)], 0
    targets += sum(map(len, written(steps[0]).values()))
    cache.commit(steps[0])
    cache.commit(cache.extend(row, 2), [1])
    rows = [row, *cache.fork(row, 2)]
    steps.append(cache.extend(rows, 1))
    targets += sum(map(len, written(steps[1]).values()))

    assert (2 if groups is None else 5) == targets  # two open pages; a snapshot, two states
    for step in steps:
        fresh = {name: set(step.fresh.get(name, [])) for name in step.group_names}
        assert all(not fresh[name] & pages for name, pages in written(step).items())
    assert groups is None or {"full", "state"} == set(steps[0].fresh)


@pytest.mark.parametrize("order", [">i4", ">i8", "<u4", ">u2"])
def test_pages_of_any_byte_order(order):
    """The numbers count, not how they are stored."""
    pages = np.array([200, 1], order)

    assert [*range(3200, 3216), 16] == slot_mapping(pages, 16, 0, 17).tolist()
    with pytest.raises(CapacityError):
        slot_mapping(np.array([2**31 - 1, 1], ">u4"), 256, 0, 300)


@pytest.mark.parametrize(
    "arguments",
    [
        ([1.9], 4, 0, 1),
        ("12", 4, 0, 1),
        ("12", 4, 0, 2),
        (None, 4, 0, 1),
        (np.int32(3), 4, 0, 1),
        (np.ones((2, 2), np.int32), 4, 0, 6),
        ([1], 4.0, 0, 1),
        ([1], 4, 0.5, 1.5),
        ([1], 4, 0, 1, np.zeros((2, 4), np.int32)),
        ([1], 4, 0, 1, [0]),
    ],
    ids=repr,
)
def test_what_is_no_page_and_no_position(arguments):
    """Refused by name, one token or many."""
    with pytest.raises(LengthError):
        slot_mapping(*arguments)
