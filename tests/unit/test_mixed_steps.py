"""Steps of a batch with any counts: the same as its rows one by one, and what only a batch has."""

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


def build(kind, depth=1, rows=6, step=5, limit=90, **options):
    """Two caches alike, each with a batch of prompts of 1, 6, 11, ... tokens."""
    found = []
    for _ in range(2):
        plan = Plan.from_pages(900, 4, GROUPS[kind], pages_per_parent=PACKED.get(kind))
        cache = Cache(plan, depth=depth, **options)
        cross = {"cross": ("sound", 5)} if kind == "cross" else {}
        prompts = [[row + 1] * (1 + step * row) for row in range(rows)]
        found.append((cache, cache.batch([cache.admit(p, limit=limit, **cross) for p in prompts])))
    return found


def told(step):
    """All a step says, as plain lists; tables without what pads them."""
    arrays = [step.counts, step.input_ids, step.positions, step.query_start, step.past]
    arrays += [step.context, step.last, step.wants_token]
    arrays += [np.trim_zeros(v.ravel()) for name in step.groups for v in step.group(name)]
    moves = [pair for part in (step.copies, step.snapshots) for pair in part.values()]
    arrays += [side for pair in moves for side in pair] + list(step.fresh.values())
    return [array.tolist() for array in arrays]


def both(pair, counts, ahead=0):
    """The same step of a batch and of its rows as a list."""
    (cache, batch), (other, rows) = pair
    step = cache.extend(batch, counts, ahead=ahead)
    plain = other.extend([*rows], counts, ahead=ahead)
    assert told(plain) == told(step)
    return step, plain


def end(pair, steps, *args, **options):
    """Commit both; what is published and dropped is the same. Returns that."""
    done = [cache.commit(s, *args, **options) for (cache, _), s in zip(pair, steps, strict=True)]
    places = [[entry[1:] for entry in one.repointed] for one in done]
    assert (done[0].published, done[0].dropped) == (done[1].published, done[1].dropped)
    assert places[0] == places[1]
    for cache, _ in pair:
        cache.check()
    texts = [[row.tokens().tolist() for row in batch] for _, batch in pair]
    assert texts[0] == texts[1]
    return done[0]


def begin(pair):
    """Compute all prompts; each row then knows one token more. Returns what mirrors the batch."""
    mirror, steps = Mirror(), both(pair, [row.length for row in pair[0][1]])
    mirror.follow(steps[0])
    end(pair, steps, [9] * len(pair[0][1]))
    return mirror


def accept(pair, steps, chance):
    """Commit a step of drafts of which any number is accepted, and a token more."""
    kept = [int(chance.integers(1, n + 1)) if n else 0 for n in steps[0].counts.tolist()]
    learned = chance.integers(0, 50, sum(kept), np.int32)
    end(pair, steps, (learned, kept), kept=np.array(kept))


class Mirror:
    """A batch's tables as a rank has them that only gets what changed."""

    def __init__(self):
        self.pages = {}

    def follow(self, step):
        """Apply the changes; all entries of the step's tables are as mirrored."""
        for name, delta in step.delta.items():
            for row, column, page in zip(*map(np.ndarray.tolist, delta), strict=True):
                self.pages[name, row, column] = page
        for name in step.groups:
            table = step.group(name).table
            for (row, column), page in np.ndenumerate(table) if table.ndim == 2 else ():
                assert page == self.pages.get((name, row, column), 0)


@pytest.mark.parametrize("kind", GROUPS)
def test_chunks_beside_tokens_and_rows_that_sit_out(kind):
    """Prompts in chunks of every size, rows that decode and rows that wait, in one step."""
    pair = build(kind)
    chance = np.random.default_rng(3)
    for _ in range(60):
        rows = list(pair[0][1])
        left = [row.length - row.scheduled for row in rows]
        stops = [(row.next_stop or 99) - row.scheduled for row in rows]
        counts = [
            min(n, stop, int(chance.integers(0, 7))) for n, stop in zip(left, stops, strict=True)
        ]
        if any(counts):
            steps = both(pair, np.array(counts))
            learned = chance.integers(1, 50, len(rows))
            end(pair, steps, learned if steps[0].wants_token.any() else None)
    assert all(row.computed > 30 for row in pair[0][1])


@pytest.mark.parametrize("kind", ["full", "window", "cross"])
def test_drafts_of_some_rows(kind):
    """Rows with drafts beside rows without; some drafts are kept."""
    pair = build(kind, rollback=4)
    end(pair, both(pair, [row.length for row in pair[0][1]]), [9] * 6)
    for turn in range(12):
        counts = [1 + (row + turn) % 4 for row in range(6)]
        steps = both(pair, counts, ahead=3)
        kept = [1 + (count - 1) // 2 for count in steps[0].counts.tolist()]
        end(pair, steps, [[turn] * keep for keep in kept], kept=kept)


@pytest.mark.parametrize("kind", ["full", "window", "cross"])
@pytest.mark.parametrize("depth", [2, 3])
def test_several_open_steps_with_rows_that_sit_out(kind, depth):
    """Steps are made ahead of what is learned; each row takes part in some of them."""
    pair = build(kind, depth)
    end(pair, both(pair, [row.length for row in pair[0][1]]), [9] * 6)
    opened = []
    for turn in range(24):
        counts = np.array([(row + turn) % 5 > 0 for row in range(6)], np.int64)
        opened.append(both(pair, counts, ahead=len(opened)))
        if len(opened) == depth:
            end(pair, opened.pop(0), np.full(6, turn))
    while opened:
        end(pair, opened.pop(0), np.full(6, 77))


@pytest.mark.parametrize("kind", GROUPS)
def test_a_fork_in_the_batch_is_copied_in_its_turn(kind):
    """A row whose open page is shared gets its copy beside rows that only take pages."""
    pair = build(kind)
    counts = [row.length if not row.next_stop else row.next_stop for row in pair[0][1]]
    end(pair, both(pair, counts), [9] * 6)
    for cache, batch in pair:
        for row in list(batch)[2:4]:
            batch.add(cache.fork(row)[0])
    counts = [row.length - row.scheduled for row in pair[0][1]]
    step, _ = steps = both(pair, counts)
    end(pair, steps, np.arange(8))

    assert ("s" if kind == "state" else "full") in step.copies


def test_a_copied_page_leaves_earlier_tables_as_they_are():
    """The table of an earlier step shows the page it was computed in."""
    cache, batch = build("full")[0]
    step = cache.extend(batch, [row.length for row in batch])
    cache.commit(step, [9] * 6)
    fork = cache.fork(list(batch)[1])[0]
    table = step.group().table.copy()
    later = cache.extend(batch)

    assert "full" in later.copies
    assert table.tolist() == step.group().table.tolist()
    cache.release(fork)


def test_too_few_pages_change_nothing():
    """A mixed step that does not fit raises; the same step without the chunk then works."""
    cache = Cache(Plan.from_pages(9, 4))
    batch = cache.batch([cache.admit([1] * 4), cache.admit([2] * 30)])
    cache.commit(cache.extend(batch, [4, 4]), [7, 0])
    before = cache.stats()
    with pytest.raises(OutOfPages):
        cache.extend(batch, [1, 26])

    assert before == cache.stats()
    cache.commit(cache.extend(batch, [1, 4]), [8, 0])
    cache.check()


def test_rows_may_move_while_a_step_is_open():
    """Rows are removed and added before the step is committed: each learns its own id."""
    cache, batch = build("full", depth=2)[0]
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


@pytest.mark.parametrize("counts", [[2, 1, 1, 1, 1, 1], np.array([1, 1, 1, 1, 1, 2**40])])
def test_what_is_not_known_is_refused_by_name(counts):
    """The error names the count and what would be right, as for a list of rows."""
    errors = []
    for cache, rows in build("full"):
        cache.commit(cache.extend(rows, [row.length for row in rows]), [9] * 6)
        what = rows if not errors else [*rows]
        with pytest.raises((LengthError, CapacityError)) as caught:
            cache.extend(what, counts)
        errors.append(str(caught.value))

    assert errors[0] == errors[1]


def test_a_run_after_a_draft_of_one_token():
    """A step of one draft a row is no decode step: what is not known stays 0, as for a list."""
    pair = build("full")
    end(pair, both(pair, [row.length for row in pair[0][1]]), None)
    for turn in range(9):
        end(pair, both(pair, 1, ahead=1), [turn] * 6)
    end(pair, both(pair, 1, ahead=1), [[40, 41]] * 6)
    for turn in range(9):
        end(pair, both(pair, 1), [turn] * 6)


@pytest.mark.parametrize("kind", SLIDING)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", [0, 4, 5])
def test_windows_slide_together(kind, depth, step):
    """Rows that cross a page in one step give back what their windows leave, as a list does."""
    pair = build(kind, depth, step=step)
    mirror = begin(pair)
    opened, dropped = [], 0
    for turn in range(40):
        opened.append(both(pair, 1, ahead=len(opened)))
        mirror.follow(opened[-1][0])
        if len(opened) == depth:
            dropped += end(pair, opened.pop(0), np.full(6, turn)).dropped
    assert dropped >= 6 * 7


@pytest.mark.parametrize("kind", SLIDING)
def test_a_page_that_several_windows_leave_at_once(kind):
    """Forks share pages; the last of them gives each back, though all leave it in one step."""
    pair = build(kind, rows=2, step=3)
    begin(pair)
    for cache, batch in pair:
        for child in cache.fork(list(batch)[1], 3):
            batch.add(child)
    dropped = 0
    for turn in range(30):
        dropped += end(pair, both(pair, 1), np.full(5, turn)).dropped
    for cache, batch in pair:
        for row in list(batch):
            cache.release(row)
        cache.reset()
    assert dropped >= 5 * 5
    assert [0, 0] == [cache.stats().live for cache, _ in pair]


@pytest.mark.parametrize("kind", ["full", "state", "cross", *SLIDING])
@pytest.mark.parametrize("drafts", [1, 4, 9])
def test_drafts_accepted_at_random(kind, drafts):
    """Drafts within a page, over its end and over several pages; any number is kept."""
    pair, chance = build(kind, rollback=drafts, limit=400), np.random.default_rng(drafts)
    mirror = begin(pair)
    for _ in range(40):
        counts = [row.length - row.scheduled + drafts for row in pair[0][1]]
        steps = both(pair, counts, ahead=drafts)
        mirror.follow(steps[0])
        accept(pair, steps, chance)


@pytest.mark.parametrize("kind", ["full", *SLIDING])
def test_drafts_of_two_open_steps(kind):
    """Some rows take part in one step, the others in the next: each may be cut."""
    pair, chance = build(kind, depth=2, rollback=3, limit=400), np.random.default_rng(2)
    begin(pair)
    for _ in range(30):
        takes = chance.integers(0, 2, 6)
        takes[:2] = 0, 1
        opened = [both(pair, takes * 4, ahead=3), both(pair, (1 - takes) * 4, ahead=3)]
        for steps in opened:
            accept(pair, steps, chance)


def test_a_cut_leaves_earlier_tables_as_they_are():
    """The table of a step shows the pages it wrote, those of rejected drafts too."""
    pair = build("full", rollback=4)
    begin(pair)
    step, _ = steps = both(pair, [5] * 6, ahead=4)
    table = step.group().table.copy()
    end(pair, steps, [[1]] * 6, kept=[1] * 6)

    assert table.tolist() == step.group().table.tolist()


def test_a_row_that_left_the_batch_is_cut_too():
    """It stands elsewhere when its drafts are rejected."""
    pair = build("window", rollback=4)
    begin(pair)
    steps = both(pair, [5] * 6, ahead=4)
    for _, batch in pair:
        batch.remove(list(batch)[2])
    rows = steps[0].sequences
    end(pair, steps, [[row, 1] for row in range(6)], kept=[2] * 6)

    assert {2} == {row.computed - past for row, past in zip(rows, steps[0].past, strict=True)}
    assert [row.scheduled for row in rows] == [row.computed for row in rows]


@pytest.mark.parametrize(
    ("told", "kept"),
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
def test_what_cannot_be_committed_changes_nothing(told, kept):
    """The batch and its rows as a list are refused with the same words."""
    pair, errors = build("full", rollback=4), []
    begin(pair)
    steps = both(pair, [5] * 6, ahead=4)
    for (cache, batch), step in zip(pair, steps, strict=True):
        before = [(row.length, row.computed, row.scheduled) for row in batch]
        with pytest.raises(OctavoError) as caught:
            cache.commit(step, told, kept=kept)
        errors.append((type(caught.value), str(caught.value)))
        assert before == [(row.length, row.computed, row.scheduled) for row in batch]
    end(pair, steps, [[1, 2]] * 6, kept=[2] * 6)

    assert errors[0] == errors[1]


def test_a_cut_is_refused_while_a_later_step_of_the_row_is_open():
    """Its positions are built upon; all stay, and the step can be committed whole."""
    pair = build("full", depth=2, rollback=4)
    begin(pair)
    steps = both(pair, [2] * 6, ahead=2)
    later = both(pair, [1, 0, 0, 0, 0, 0], ahead=3)
    for (cache, _), step in zip(pair, steps, strict=True):
        with pytest.raises(StepError, match="a later step"):
            cache.commit(step, [[1]] * 6, kept=[1] * 6)
    end(pair, steps, [[1, 2]] + [[1]] * 5, kept=[2, 1, 1, 1, 1, 1])
    end(pair, later, [[3]] + [[]] * 5)
