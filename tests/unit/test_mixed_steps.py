"""Steps of rows with any counts, given as a batch and as a list.

That both give the same is a law (laws/test_paths.py); here is what a step of many rows must do.
"""

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    Cross,
    LengthError,
    OctavoError,
    OutOfPages,
    Plan,
    State,
    StepError,
)
from octavo.testing import freeze

FULL, WINDOW = Attention(1, 1, 1), Attention(1, 1, 1, window=5)
SINKS, CHUNK = Attention(1, 1, 1, window=7, sink_tokens=3), Attention(1, 1, 1, chunk=6)
GROUPS = {
    "full": {"full": FULL},
    "window": {"full": FULL, "w": WINDOW},
    "state": {"full": FULL, "s": State(4)},
    "cross": {"full": FULL, "cross": Cross(1, 1, 1)},
    "windows": {"full": FULL, "w": WINDOW, "v": SINKS, "c": CHUNK},
    "packed": {"full": FULL, "w": WINDOW},
}
PACKED = {"packed": {"full": 2, "w": 3}}
SLIDING = ("window", "windows", "packed")


@pytest.fixture(params=["batch", "list"])
def build(request):
    """Makes a cache with ``rows`` prompts of 1, 1 + step, ... tokens, computed, and the rows.

    Each row knows one token more than it has computed, where ``begun``.
    """

    def make(kind="full", depth=1, rows=6, step=5, *, begun=True, **options):
        plan = Plan.from_pages(900, 4, GROUPS[kind], pages_per_parent=PACKED.get(kind))
        cache = Cache(plan, depth=depth, **options)
        cross = {"cross": ("sound", 5)} if kind == "cross" else {}
        prompts = [[row + 1] * (1 + step * row) for row in range(rows)]
        listed = [cache.admit(p, limit=90, **cross) for p in prompts]
        if begun:
            cache.commit(cache.extend(listed, [row.length for row in listed]), [9] * rows)
        return cache, cache.batch(listed) if request.param == "batch" else listed

    return make


def add(rows, row):
    """One row more, of a batch or a list."""
    rows.append(row) if isinstance(rows, list) else rows.add(row)


@pytest.mark.parametrize("kind", GROUPS)
def test_chunks_beside_tokens_and_rows_that_sit_out(build, kind):
    """Prompts in chunks of every size, rows that decode and rows that wait, in one step."""
    cache, rows = build(kind, begun=False)
    chance = np.random.default_rng(3)
    for _ in range(60):
        left = [row.length - row.scheduled for row in rows]
        stops = [(row.next_stop or 99) - row.scheduled for row in rows]
        counts = [
            min(n, stop, int(chance.integers(0, 7))) for n, stop in zip(left, stops, strict=True)
        ]
        if any(counts):
            step = cache.extend(rows, np.array(counts))
            learned = chance.integers(1, 50, len(rows))
            cache.commit(step, learned if step.wants_token.any() else None)
            cache.check()
    assert all(row.computed > 30 for row in rows)


@pytest.mark.parametrize("kind", GROUPS)
def test_a_fork_is_copied_in_its_turn(build, kind):
    """A row whose open page is shared gets its copy beside rows that only take pages."""
    cache, rows = build(kind, begun=False)
    counts = [row.length if not row.next_stop else row.next_stop for row in rows]
    cache.commit(cache.extend(rows, counts), [9] * 6)
    for row in list(rows)[2:4]:
        add(rows, cache.fork(row)[0])
    step = cache.extend(rows, [row.length - row.scheduled for row in rows])
    cache.commit(step, np.arange(8))
    cache.check()

    assert ("s" if kind == "state" else "full") in step.copies


def test_too_few_pages_change_nothing():
    """A mixed step that does not fit raises; the same step without the chunk then works."""
    cache = Cache(Plan.from_pages(9, 4))
    batch = cache.batch([cache.admit([1] * 4), cache.admit([2] * 30)])
    cache.commit(cache.extend(batch, [4, 4]), [7, 0])
    before = freeze(cache)
    with pytest.raises(OutOfPages):
        cache.extend(batch, [1, 26])

    assert before == freeze(cache)
    cache.commit(cache.extend(batch, [1, 4]), [8, 0])
    cache.check()


def test_rows_may_move_while_a_step_is_open():
    """Rows are removed and added before the step is committed: each learns its own id."""
    cache = Cache(Plan.from_pages(900, 4), depth=2)
    batch = cache.batch([cache.admit([row + 1] * (1 + 5 * row)) for row in range(6)])
    cache.commit(cache.extend(batch, [row.length for row in batch]), [9] * 6)
    rows = list(batch)
    step = cache.extend(batch)
    batch.remove(rows[0])
    cache.release(rows[2])
    batch.remove(rows[2])
    batch.add(rows[0])
    later = cache.extend(batch, ahead=1)
    cache.commit(step, np.arange(10, 16))
    cache.commit(later, np.arange(20, 25))
    cache.check()

    assert [10, 11, 13, 14, 15] == [rows[at].tokens()[-2] for at in (0, 1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([2, 1, 1, 1, 1, 1], "count is 2; .* at most 1 .sequence 0 knows 2 tokens"),
        (np.array([1, 1, 1, 1, 1, 2**40]), "at most 90 is possible: the limit of sequence 5"),
    ],
)
def test_what_is_not_known_is_refused_by_name(build, counts, words):
    """The error names the count and what would be right."""
    cache, rows = build()
    with pytest.raises((LengthError, CapacityError), match=words):
        cache.extend(rows, counts)


@pytest.mark.parametrize("kind", SLIDING)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", [0, 4, 5])
def test_windows_slide_together(build, kind, depth, step):
    """Rows that cross a page in one step give back what their windows leave."""
    cache, rows = build(kind, depth, step=step)
    opened, dropped = [], 0
    for turn in range(40):
        opened.append(cache.extend(rows, 1, ahead=len(opened)))
        if len(opened) == depth:
            dropped += cache.commit(opened.pop(0), np.full(6, turn)).dropped
            cache.check()
    assert dropped >= 6 * 7


@pytest.mark.parametrize("kind", SLIDING)
def test_a_page_that_several_windows_leave_at_once(build, kind):
    """Forks share pages; the last of them gives each back, though all leave it in one step."""
    cache, rows = build(kind, rows=2, step=3)
    for child in cache.fork(list(rows)[1], 3):
        add(rows, child)
    dropped = 0
    for turn in range(30):
        dropped += cache.commit(cache.extend(rows), np.full(5, turn)).dropped
        cache.check()
    for row in list(rows):
        cache.release(row)

    assert dropped >= 5 * 5
    assert 0 == cache.stats().live


def test_a_row_that_left_the_batch_is_cut_too():
    """It stands elsewhere when its drafts are rejected."""
    plan = Plan.from_pages(900, 4, GROUPS["window"])
    cache = Cache(plan, rollback=4)
    batch = cache.batch([cache.admit([row + 1] * (1 + 5 * row)) for row in range(6)])
    cache.commit(cache.extend(batch, [row.length for row in batch]), [9] * 6)
    step = cache.extend(batch, [5] * 6, ahead=4)
    batch.remove(list(batch)[2])
    cache.commit(step, [[row, 1] for row in range(6)], kept=[2] * 6)
    cache.check()

    rows = step.sequences
    assert {2} == {row.computed - past for row, past in zip(rows, step.past, strict=True)}
    assert [row.scheduled for row in rows] == [row.computed for row in rows]


@pytest.mark.parametrize(
    ("learned", "kept"),
    [
        ([[1]] * 5 + [[]], [1] * 5 + [3]),
        ([[1] * 90] + [[1]] * 5, [1] * 6),
        ([[1]] * 6, [1, 1, 6, 1, 1, 1]),
        ([[1]] * 5 + [[-1]], [1] * 6),
        (([1] * 6, [1] * 5 + [2]), [1] * 6),
        (([1] * 6, [1] * 5 + [2**63]), [1] * 6),
        ([[1]] * 6, [1] * 5 + [2**64]),
    ],
    ids=["not known", "limit", "kept", "token", "counts", "large count", "large kept"],
)
def test_what_cannot_be_committed_changes_nothing(build, learned, kept):
    """The step stays open, and can be committed then."""
    cache, rows = build(rollback=4)
    step = cache.extend(rows, [5] * 6, ahead=4)
    before = freeze(cache)
    with pytest.raises(OctavoError):
        cache.commit(step, learned, kept=kept)

    assert before == freeze(cache)
    cache.commit(step, [[1, 2]] * 6, kept=[2] * 6)
    cache.check()


def test_a_cut_is_refused_while_a_later_step_of_the_row_is_open(build):
    """Its positions are built upon; all stay, and the step can be committed whole."""
    cache, rows = build(depth=2, rollback=4)
    step = cache.extend(rows, [2] * 6, ahead=2)
    later = cache.extend(rows, [1, 0, 0, 0, 0, 0], ahead=3)
    with pytest.raises(StepError, match="a later step"):
        cache.commit(step, [[1]] * 6, kept=[1] * 6)
    cache.commit(step, [[1, 2]] + [[1]] * 5, kept=[2, 1, 1, 1, 1, 1])
    cache.commit(later, [[3]] + [[]] * 5)
    cache.check()


def test_what_a_step_says_is_read_while_it_is_open(build):
    """Tables and changes are copies, gathered when first read; the rest stays."""
    cache, rows = build(depth=2)
    read, unread = cache.extend(rows), cache.extend(rows, ahead=1)
    table, delta = read.group().table, read.delta
    assert read.replace().open
    copied = table.copy()
    for step in (read, unread):
        cache.commit(step, [1] * 6)
    cache.commit(cache.extend(rows, 1), [1] * 6)

    assert copied.tolist() == read.group().table.tolist()
    assert delta is read.delta
    assert read.slots().tolist() == read.group().slots.tolist()
    assert 6 == unread.slots().size == unread.positions.size
    with pytest.raises(StepError, match="before its tables were read"):
        unread.group()
    with pytest.raises(StepError, match="before its tables were read"):
        unread.replace()
    if unread.log is not None:
        with pytest.raises(StepError, match="before its changes were read"):
            _ = unread.delta
    copy = read.replace(counts=read.counts * 0)
    assert (copy.open, copy.counts.tolist()) == (False, [0] * 6)
    assert copy.group() is read.group()
