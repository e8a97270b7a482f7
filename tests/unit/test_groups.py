"""Groups that keep tokens for different times: tables, hits and pages of windows and chunks."""

import itertools

import numpy as np
import pytest

from octavo import Attention, Cache, OutOfPages, Plan, PlanError, RollbackUnsupported
from octavo.testing import ModelStore, Shape, Text, freeze

FULL = Attention(1, 1, 1)


def window(size, sinks=0):
    """A windowed layer."""
    return Attention(1, 1, 1, window=size, sink_tokens=sinks)


def chunk(size):
    """A chunked layer."""
    return Attention(1, 1, 1, chunk=size)


KINDS = {
    "full": FULL,
    "w1": window(1),
    "w5": window(5),
    "w6s3": window(6, 3),
    "c1": chunk(1),
    "c6": chunk(6),
}


def started(cache, tokens):
    """A sequence that has computed its prompt and knows one token more."""
    row = cache.admit(tokens)
    cache.commit(cache.extend(row, row.length - row.computed), [7])
    return row


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(KINDS, 2)))
@pytest.mark.parametrize("packed", [False, True])
def test_two_kinds_side_by_side(one, other, packed):
    """Each reads what it can see, through prompts, chunks, decode steps and hits."""
    groups = {one: KINDS[one], other: KINDS[other]}
    shape = Shape("two", groups, 90, 3, {one: 2, other: 3} if packed else None)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(40))
    for length, counts in ((20, [7, 13]), (25, [9]), (31, [3])):
        row = cache.admit(text.tokens[:length])
        for count in [*counts, *([1] * 30)]:
            if row.computed == length:
                break
            step = cache.extend(row, min(count, length - row.computed))
            store.run(step, [text.contents[: int(step.context[0])]])
            cache.commit(step)
            cache.check()
        cache.release(row)
    found = cache.peek(text.tokens[:32])
    assert found.tokens == min(found.by_group.values()) == 30
    cache.reset()
    assert cache.stats().pages == cache.stats().free


@pytest.mark.parametrize(("size", "page_size"), [(5, 2), (8, 4), (1, 3), (16, 16)])
def test_a_window_holds_no_more_than_it_needs(size, page_size):
    """Running token by token never takes more than ceil((W - 1) / P) + 1 pages."""
    cache = Cache(Plan.from_pages(100, page_size, {"w": window(size)}))
    row = started(cache, range(3))
    most = 0
    for token in range(60):
        cache.commit(cache.extend(row, 1), [token])
        most = max(most, cache.stats().live)

    assert most == -(-(size - 1) // page_size) + 1


def test_dropped_columns_hold_the_null_page():
    """In the step's table and in its delta; sinks stay."""
    cache = Cache(Plan.from_pages(60, 2, {"w": window(4, 3)}))
    batch = cache.batch([started(cache, range(12))])
    table = cache.extend(batch).group().table[0]

    assert [True, True, False, False, True, True, True] == (table > 0).tolist()


@pytest.mark.parametrize("boundary", [4, 8, 12])
def test_a_hit_pins_only_what_it_needs(boundary):
    """Of the window's pages the last ceil((W-1)/P), of the full group's all."""
    cache = Cache(Plan.from_pages(60, 4, {"full": FULL, "w": window(6)}))
    row = started(cache, range(boundary))
    cache.release(row)
    again = cache.admit([*range(boundary), 99])

    assert boundary == again.cached
    assert boundary // 4 + min(boundary // 4, 2) == cache.stats().live


def test_the_group_that_set_the_boundary():
    """explain_match names it and says why."""
    groups = {"full": FULL, "w": window(6)}
    cache = Cache(Plan.from_pages(60, 4, groups))
    cache.release(started(cache, range(21)))
    middle = cache.explain_match([*range(12), 99])
    end = cache.explain_match(range(22))
    other = cache.explain_match([5] * 22)

    assert (20, 20, None) == (end.tokens, end.limit, end.group)
    assert "20 of 22 tokens found; the other 2 fill no whole page" == str(end)
    assert "0 of 22 tokens found: no page that goes on like this is kept" == str(other)
    assert middle.tokens == cache.peek([*range(12), 99]).tokens
    assert {"full": 12, "w": 12} == middle.by_group


def test_pages_left_behind_go_first():
    """What a window gave back is evicted before older prompts; ends of prompts are not."""
    cache = Cache(Plan.from_pages(17, 2, {"w": window(3)}))
    cache.release(started(cache, [1] * 6))
    row = cache.admit([2] * 12)
    for count in (6, 6):
        cache.commit(cache.extend(row, count))
    cache.release(row)
    other = cache.admit([3] * 14)
    cache.extend(other, 14)

    assert 4 == cache.peek([1] * 6).tokens
    assert 10 == cache.peek([2] * 12).tokens


def test_going_back_inside_a_window():
    """Within what is kept, and not beyond: the error names group and position."""
    cache = Cache(Plan.from_pages(60, 2, {"full": FULL, "w": window(5)}))
    row = started(cache, range(20))
    before = freeze(cache)
    with pytest.raises(RollbackUnsupported) as caught:
        cache.truncate(row, 19)

    assert ("w", 20) == (caught.value.group, caught.value.kept_from)
    assert before == freeze(cache)
    assert 20 == cache.truncate(row, 20)


@pytest.mark.parametrize("kind", [window(5), chunk(6)], ids=["window", "chunk"])
@pytest.mark.parametrize("rollback", [1, 3, 6])
def test_going_back_behind_a_hit(kind, rollback):
    """A row that found its prompt may go back as far as one that computed it."""
    cache = Cache(Plan.from_pages(60, 2, {"full": FULL, "w": kind}), rollback=rollback)
    started(cache, range(1, 22))
    row = cache.admit(range(1, 22))

    assert 20 == row.cached
    assert 20 - rollback == cache.truncate(row, 20 - rollback)
    cache.check()


@pytest.mark.parametrize("rollback", [1, 3, 6])
def test_going_back_within_the_rollback(rollback):
    """The window keeps as many positions more."""
    cache = Cache(Plan.from_pages(60, 2, {"w": window(5)}), rollback=rollback)
    row = started(cache, range(20))

    assert 20 - rollback == cache.truncate(row, 20 - rollback)
    with pytest.raises(RollbackUnsupported):
        cache.truncate(row, 20 - rollback - 4)
    cache.check()


def test_out_of_pages_names_the_group_that_is_short():
    """Packed: a group's parents cannot serve another."""
    plan = Plan.from_pages(6, 4, {"full": FULL, "w": window(9)}, pages_per_parent={"w": 3})
    cache = Cache(plan, max_length=12)
    row = started(cache, [1] * 3)
    other = cache.admit([2] * 9)
    before = freeze(cache)
    with pytest.raises(OutOfPages) as caught:
        cache.extend(other, 9)

    assert {"full": 0, "w": 1} == caught.value.short
    assert before == freeze(cache)
    assert 3 == row.computed


def test_available_by_group():
    """What one extend could take of one group alone."""
    plan = Plan.from_pages(6, 4, {"full": FULL, "w": window(9)}, pages_per_parent={"w": 3})
    cache = Cache(plan)

    assert {"full": 5, "w": 15} == cache.available()
    row = started(cache, [1] * 3)
    assert {"full": 3, "w": 11} == cache.available()
    cache.release(row)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"groups": {}}, PlanError),
        ({"pages_per_parent": {"x": 2}}, PlanError),
        ({"pages_per_parent": {"full": 0}}, ValueError),
        ({"parts": {"full": -1}}, ValueError),
        ({"parts": {"x": 1}}, PlanError),
    ],
)
def test_impossible_plans_are_refused(arguments, kind):
    """Groups there are not, and counts below 1."""
    with pytest.raises(kind):
        Plan.from_pages(10, 4, **{"groups": {"full": FULL}} | arguments)


def test_deltas_make_the_tables():
    """Whoever applies every delta has each group's table, windows and removed rows included."""
    groups = {"full": FULL, "w": window(5)}
    cache = Cache(Plan.from_pages(200, 2, groups))
    rows = [started(cache, [n] * (3 + 2 * n)) for n in range(5)]
    batch, mirror = cache.batch(rows), {}
    for turn in range(30):
        if turn % 7 == 5 and len(batch) > 2:
            cache.release(rows[turn // 7])
            batch.remove(rows[turn // 7])
        step = cache.extend(batch)
        for name, delta in step.delta.items():
            assert {np.dtype(np.int32)} == {part.dtype for part in delta}
            for row, column, page in zip(*(part.tolist() for part in delta), strict=True):
                mirror[name, row, column] = page
        for name in groups:
            table = step.group(name).table
            for row, column in itertools.product(*map(range, table.shape)):
                assert mirror.get((name, row, column), 0) == table[row, column]
        cache.commit(step, [turn] * len(batch))
    assert not step.delta or sum(delta.rows.size for delta in step.delta.values()) < 40


def test_a_pin_of_whole_chunks_keeps_the_prefix():
    """No page is needed at a chunk's end; the prefix stays known whatever comes."""
    cache = Cache(Plan.from_pages(12, 4, {"chunk": Attention(1, 1, 1, chunk=8)}))
    row = cache.admit(list(range(17)))
    cache.commit(cache.extend(row, 17))
    cache.release(row)
    pin = cache.pin(list(range(17)))
    for number in range(1, 9):
        other = cache.admit([100 * number + at for at in range(17)])
        cache.commit(cache.extend(other, 17))
        cache.release(other)
        cache.check()

    assert (16, 16) == (pin.tokens, cache.peek(list(range(17))).tokens)
    pin.release()
    cache.check()
    assert 0 == cache.peek(list(range(17))).tokens


def test_a_refused_cut_names_the_group_that_goes_back_least():
    """The length given is one that all groups can go back to, whichever of them comes first."""
    groups = {"chunk": Attention(1, 1, 1, chunk=8), "w": Attention(1, 1, 1, window=15)}
    for names in (["chunk", "w"], ["w", "chunk"]):
        cache = Cache(Plan.from_pages(60, 4, {name: groups[name] for name in names}))
        row = cache.admit(list(range(39)))
        cache.commit(cache.extend(row, 39))
        with pytest.raises(RollbackUnsupported) as caught:
            cache.truncate(row, 20)

        assert ("w", 38) == (caught.value.group, caught.value.kept_from)
        with pytest.raises(RollbackUnsupported):
            cache.truncate(row, 37)
        assert 38 == cache.truncate(row, 38)
