"""Forks: sharing, copies before the first write, and what they cost."""

import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    Cross,
    CrossInput,
    LengthError,
    OutOfPages,
    Plan,
    Salt,
    State,
    StepError,
)
from octavo.testing import ModelStore, Shape, Text, freeze

FULL = Attention(1, 1, 1)
GROUPS = {
    "full": {"full": FULL},
    "window": {"w": Attention(1, 1, 1, window=5)},
    "state": {"full": FULL, "state": State(1)},
    "cross": {"full": FULL, "cross": Cross(1, 1, 1)},
}


@pytest.fixture
def cache():
    """Twenty usable pages of four tokens."""
    return Cache(Plan.from_pages(21, 4), max_sequences=6)


def started(cache, tokens, **options):
    """A sequence that has computed all it knows but one new token."""
    row = cache.admit(tokens, **options)
    cache.commit(cache.extend(row, row.length), [7])
    return row


def test_children_know_what_their_parent_knows(cache):
    """Tokens, numbers, limit and identity; names of their own."""
    row = started(cache, range(6), limit=9, extra=[Salt("s")], id="r")
    one, two = cache.fork(row, 2)

    for child in (one, two):
        assert row.tokens().tolist() == child.tokens().tolist()
        assert (7, 6, 6, 9) == (child.length, child.scheduled, child.computed, child.limit)
    assert 3 == len({row.id, one.id, two.id})
    assert 2 == cache.stats().live
    cache.check()


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("per_parent", [False, True])
@pytest.mark.parametrize("length", [5, 8, 10])
def test_parent_and_children_go_their_own_ways(kind, per_parent, length):
    """Whoever writes first, each reads what its own tokens wrote."""
    groups = GROUPS[kind]
    packing = dict.fromkeys(groups, 2) if per_parent else None
    shape = Shape(kind, groups, 60, 4, packing)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    cross = CrossInput("c", 6) if kind == "cross" else None
    extra = [cross] if cross else []
    text = Text(range(length), tuple(extra))
    row = cache.admit(text.tokens, extra=extra)
    step = cache.extend(row, length)
    store.run(step, [text.contents], [cross])
    cache.commit(step, [50])
    text.add([50])
    rows = [row, *cache.fork(row, 2)]
    texts = [text, text.copy(), text.copy()]
    for turn in range(9):
        order = [(turn + at) % 3 for at in range(3)][: 1 + turn % 3]
        step = cache.extend([rows[at] for at in order], 1)
        store.run(step, [texts[at].contents for at in order], [cross] * len(order))
        cache.commit(step, [100 * at + turn for at in order])
        for at in order:
            texts[at].add([100 * at + turn])
        cache.check()
    for sequence, own in zip(rows, texts, strict=True):
        assert own.tokens == sequence.tokens().tolist()
        cache.release(sequence)
    assert 0 == cache.stats().live


def test_a_fork_during_a_run_of_decode_steps(cache):
    """The parent decodes in a batch; after a fork its next write goes to a copy."""
    row = started(cache, range(5))
    batch = cache.batch([row])
    cache.commit(cache.extend(batch), [8])
    (child,) = cache.fork(row)
    step = cache.extend(batch)

    assert 1 == step.copies["full"].source.size
    cache.commit(step, [9])
    again = cache.extend(child, 1)
    assert {} == again.copies
    assert step.slots()[0] != again.slots()[0]
    cache.check()


def test_a_child_of_a_child(cache):
    """Three owners of one page: two copies, the last one writes in place."""
    row = started(cache, range(6))
    (child,) = cache.fork(row)
    (grandchild,) = cache.fork(child)
    step = cache.extend([row, child, grandchild], 1)

    assert 2 == step.copies["full"].source.size
    assert 3 == len(set(step.group().slots.tolist()))
    cache.commit(step, [1, 2, 3])
    cache.check()


def test_need_counts_copies(cache):
    """A fork's first append takes a page for all but the last owner."""
    row = started(cache, range(6))
    children = cache.fork(row, 2)

    assert {"full": 1} == cache.need(row)
    assert {"full": 2} == cache.need([row, *children])


def test_a_released_parent_leaves_its_page_to_its_child(cache):
    """The only holder left writes in place."""
    row = started(cache, range(6))
    (child,) = cache.fork(row)
    cache.release(row)

    assert {} == cache.extend(child, 1).copies


def test_states_are_copied_at_the_next_step():
    """By that step's copies, whoever it is for; a child forked and released copies nothing."""
    cache = Cache(Plan.from_pages(40, 4, GROUPS["state"]))
    row, other = started(cache, range(3)), started(cache, [9])
    kept, lost = cache.fork(row, 2)
    cache.release(lost)
    step = cache.extend(other, 1)

    assert 1 == step.copies["state"].source.size
    cache.commit(step, [1])
    again = cache.extend([row, kept], 1)
    assert {} == {name: pair for name, pair in again.copies.items() if name == "state"}
    cache.check()


REFUSED = {
    "n": (lambda cache, row: cache.fork(row, 0), LengthError),
    "float": (lambda cache, row: cache.fork(row, 1.0), LengthError),
    "room": (lambda cache, row: cache.fork(row, 6), CapacityError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_forks_change_nothing(cache, case):
    """Counts below 1 or beyond max_sequences."""
    verb, kind = REFUSED[case]
    row = started(cache, range(6))
    before = freeze(cache)
    with pytest.raises(kind):
        verb(cache, row)

    assert before == freeze(cache)


def test_a_fork_needs_a_closed_step(cache):
    """With a step of the sequence open, and while it is preempted, there is nothing to share."""
    row, other = started(cache, range(6)), started(cache, [5])
    step = cache.extend(row, 1)
    before = freeze(cache)
    with pytest.raises(StepError, match="is open"):
        cache.fork(row)
    assert before == freeze(cache)
    children = cache.fork(other)
    cache.commit(step, [1])
    cache.preempt(row)
    before = freeze(cache)
    with pytest.raises(StepError, match="preempted"):
        cache.fork(row)
    assert before == freeze(cache)
    assert 1 == len(children)


def test_no_room_for_states_changes_nothing():
    """A child needs a state of its own."""
    cache = Cache(Plan.from_pages(4, 4, GROUPS["state"]), max_length=4)
    row = started(cache, range(3))
    children = cache.fork(row)
    before = freeze(cache)
    with pytest.raises(OutOfPages) as caught:
        cache.fork(row)

    assert {"full": 0, "state": 1} == caught.value.short
    assert before == freeze(cache)
    assert 1 == len(children)


def test_a_guaranteed_parent_keeps_its_promise():
    """Sharing its open page would cost it a copy: refused where no page is left for that."""
    cache = Cache(Plan.from_pages(5, 4))
    kept = started(cache, range(6), limit=12, guarantee=True)
    greedy = started(cache, [9] * 3)
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.fork(kept)

    assert before == freeze(cache)
    cache.release(greedy)
    (child,) = cache.fork(kept)
    cache.abort(cache.extend(kept, 6, ahead=6))
    cache.release(child)


def test_forks_of_several_state_groups_leave_room_for_each_other():
    """Where groups of a packed plan share parents, a child takes none that a later one needs."""
    groups = {"s0": State(1), "s1": State(1), "full": Attention(1, 1, 1)}
    plan = Plan.from_pages(9, 4, groups, pages_per_parent={"s0": 4, "s1": 1, "full": 1})
    cache = Cache(plan)
    row = cache.admit(range(13))
    while row.computed < 13:
        stop = row.next_stop or 13
        cache.keep(row, row.computed + 4) if row.computed + 4 <= 12 else None
        cache.commit(cache.extend(row, min(stop, row.computed + 4, 13) - row.computed))
    other = cache.admit([9] * 3)
    cache.commit(cache.extend(other, 3))
    cache.release(other)
    try:
        children = cache.fork(row, 3)
    except OutOfPages:
        children = []
    cache.check()

    assert len(children) in (0, 3)
