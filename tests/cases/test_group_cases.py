"""Failures of other engines, by id, that need windows, states, media, forks or preemption."""

import numpy as np
import pytest

from octavo import (
    Adapter,
    Attention,
    Cache,
    Media,
    OutOfPages,
    Plan,
    RollbackUnsupported,
    Salt,
    State,
)
from octavo.model.lifetimes import Window
from octavo.testing import ModelStore, Shape, Text

FULL, STATE = Attention(1, 1, 1), State(1)


def window(size, sinks=0):
    """A windowed layer."""
    return Attention(1, 1, 1, window=size, sink_tokens=sinks)


def pool(usable, page_size=4, groups=None, **options):
    """A cache of ``usable`` pages."""
    return Cache(Plan.from_pages(usable + 1, page_size, groups), **options)


def run(cache, *rows, token=0):
    """Compute all these rows know, in chunks that end where states are kept; a token is learned."""
    for row in rows:
        while row.computed < row.length:
            stop = row.next_stop or row.length
            step = cache.extend(row, min(stop, row.length) - row.computed)
            more = step.context[0] == row.length < row.limit
            cache.commit(step, [[token] if more else []])
            cache.check()
            if more:
                break


def finished(cache, tokens, **options):
    """Run a prompt and release it; the tokens it found cached."""
    row = cache.admit(tokens, **options)
    run(cache, row)
    cache.release(row)
    return row.cached


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "tokens", "spare"), [(1, 4, 1), (1, 9, 3), (3, 4, 3), (2, 8, 3)])
def test_b16_all_or_nothing_over_groups(parts, tokens, spare):
    """A state could be had but not the pages beside it, or the reverse: nothing is taken."""
    need = parts + -(-tokens // 4)
    groups = {"full": FULL, "state": STATE}
    plan = Plan.from_pages(1 + need + spare, 4, groups, parts={"state": parts}, max_length=4)
    cache = Cache(plan) if tokens <= 4 else pool(need + spare, 4, groups)
    holder, blocked = cache.admit([1] * tokens), cache.admit([2] * tokens)
    cache.commit(cache.extend(holder, tokens))
    before = cache.stats()
    for _ in range(3):
        with pytest.raises(OutOfPages):
            cache.extend([blocked, cache.admit([3] * tokens)], tokens)
        cache.check()

    assert before.live == cache.stats().live
    assert before.free == cache.stats().free


@pytest.mark.parametrize("free", [3, 4, 5, 6])
def test_b18_resuming_what_cannot_run(free):
    """Five pages are needed and ``free`` are there: ``fits`` says so before anything is resumed."""
    cache = pool(4 + free)
    row = cache.admit([1] * 20, reuse=False)
    cache.commit(cache.extend(row, 20), kept=[0])
    cache.preempt(row)
    other = cache.admit([2] * 16)
    cache.commit(cache.extend(other, 16))

    assert (free >= 5) == bool(cache.fits([(row, 20)]))
    assert {"full": max(0, 5 - free)} == cache.fits([(row, 20)]).short
    assert row.preempted
    cache.release(other)
    assert cache.fits([(row, 20)])


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_b21_pages_of_all_groups_count(page_size):
    """Two groups of three pages each hold six distinct pages, none of them the null page."""
    groups = {"full": FULL, "w": window(100)}
    cache = pool(12, page_size, groups)
    step = cache.extend(cache.admit([1] * (3 * page_size)), 3 * page_size)
    pages = [step.group(name).table.ravel().tolist() for name in groups]

    assert 6 == cache.stats().live == len(set(pages[0] + pages[1]))
    assert 0 not in pages[0] + pages[1]


# -- prefix ----------------------------------------------------------------------------------------


def digests(tokens, extra=()):
    """Names of the pages of a prompt, as a fresh cache tells them."""
    told = []
    cache = pool(20, 2, on_event=told.append)
    finished(cache, tokens, extra=extra)
    return [event.digest for event in told]


def test_c01_names_do_not_rest_on_hash():
    """SHA-256 over framed fields, the same wherever it is computed; the root is a constant."""
    one, two = digests([1, 2, 3, 4, 5])

    assert "71e14cc5" != one.hex()[:8] != two.hex()[:8]
    assert {32} == {len(one), len(two)}
    assert [one, two] == digests([1, 2, 3, 4, 9])
    assert one != digests([2, 1, 0])[0]


def test_c02_a_constant_digest_changes_no_hit(monkeypatch):
    """Even if all digests were equal, [3, 4] does not hit what [1, 2] computed."""
    monkeypatch.setattr("octavo.cache.events.page_digest", lambda *_: b"same")
    cache = pool(4, 2, on_event=lambda event: None)
    finished(cache, [1, 2])

    assert 0 == cache.peek([3, 4, 5]).tokens
    finished(cache, [3, 4])
    assert (2, 2) == (cache.peek([1, 2, 5]).tokens, cache.peek([3, 4, 5]).tokens)


@pytest.mark.parametrize("common", [1, 4, 16, 64])
def test_c03_media_are_told_by_their_whole_identity(common):
    """Two digests that end alike are two media."""
    one, other = ("a" * 40 + "f" * common, "b" * 40 + "f" * common)
    cache = pool(20)
    finished(cache, [9] * 8, extra=[Media(one, 0, 4)])

    assert 4 == cache.peek([9] * 8, extra=[Media(one, 0, 4)]).tokens
    assert 0 == cache.peek([9] * 8, extra=[Media(other, 0, 4)]).tokens
    assert digests([9] * 8, [Media(one, 0, 4)]) != digests([9] * 8, [Media(other, 0, 4)])


PICTURES = [0, 1, 7, 7, 7, 7, 7, 2, 3, 8, 8, 8]


@pytest.mark.parametrize(
    ("first", "second", "hit"),
    [("aaa", "bbb", 8), ("ccc", "bbb", 0), ("aaa", "ddd", 8), (None, "bbb", 0), ("aaa", None, 8)],
)
def test_c04_placeholders_of_different_pictures(first, second, hit):
    """Equal placeholders hit only with equal pictures; what follows a picture depends on it."""
    cache = pool(30)
    finished(cache, PICTURES, extra=[Media("aaa", 2, 7), Media("bbb", 9, 12)])

    assert hit == cache.peek(PICTURES, extra=[Media(first, 2, 7), Media(second, 9, 12)]).tokens


def test_c04_a_picture_without_a_digest_is_never_shared():
    """Neither found by its like nor kept for anybody."""
    cache = pool(30)
    extra = [Media(None, 2, 7)]

    assert [0, 0] == [finished(cache, PICTURES, extra=extra) for _ in range(2)]
    assert 0 == cache.stats().evictable


@pytest.mark.parametrize("sides", [(252, 1008), (1, 2)])
def test_c05_processing_options_are_part_of_the_identity(sides):
    """The same picture at two resolutions: whoever makes the digest says so, and it is compared."""
    small, large = (f"sha256:00ff max_side={side}" for side in sides)
    cache = pool(20)
    finished(cache, [9] * 9, extra=[Media(small, 1, 6)])

    assert 0 == cache.peek([9] * 9, extra=[Media(large, 1, 6)]).tokens


@pytest.mark.parametrize(
    "extras",
    [
        ([Salt("a")], [Adapter("a")]),
        ([Adapter("a", 1)], [Adapter("a", "1")]),
        ([Adapter("a", 1)], [Adapter("a", 2)]),
        ([Salt("a")], []),
        ([Salt("ab"), Adapter("c")], [Salt("a"), Adapter("bc")]),
        ([Media("a", 0, 1)], [Media(b"a", 0, 1)]),
        ([Media("a", 0, 1)], [Media("a", 0, 2)]),
        ([Media("a", 0, 1)], [Salt("a")]),
    ],
    ids=repr,
)
def test_c09_extras_of_different_kinds_never_meet(extras):
    """A salt is no adapter of the same name: typed by value, framed in digests."""
    one, other = extras
    cache = pool(20, 2)
    finished(cache, [1] * 5, extra=one)

    assert 4 == cache.peek([1] * 5, extra=one).tokens
    assert 0 == cache.peek([1] * 5, extra=other).tokens
    assert not set(digests([1] * 5, one)) & set(digests([1] * 5, other))


def window_cache(page_size, size, usable=40):
    """One full and one window group."""
    return pool(usable, page_size, {"full": FULL, "w": window(size)})


def forget_page(cache, tokens, column):
    """Compute a prompt in pages of one token, and give up one of its pages."""
    row = cache.admit(tokens)
    step = cache.extend(row, len(tokens))
    page, pages = int(step.group().table[0, column]), row.core.pool
    cache.commit(step)
    cache.release(row)
    pages.forget(0, page, True)
    cache.check()


@pytest.mark.parametrize(("length", "hit"), [(6, 5), (5, 2)])
def test_c27_a_window_needs_only_its_last_pages(length, hit):
    """W=3, pages of 1, page 3 of five evicted: 6 tokens hit 5, 5 tokens hit 2 (page 4 needs 3)."""
    cache = pool(40, 1, {"w": window(3)})
    tokens = [1, 2, 3, 4, 5]
    forget_page(cache, tokens, 2)

    assert hit == cache.peek([*tokens, 6][:length]).tokens


@pytest.mark.parametrize("length", [6, 5])
def test_c27_full_attention_needs_all(length):
    """With page 3 of five evicted full attention hits 2, however long the prompt."""
    cache = pool(40, 1)
    tokens = [1, 2, 3, 4, 5]
    forget_page(cache, tokens, 2)

    assert 2 == cache.peek([*tokens, 6][:length]).tokens


@pytest.mark.parametrize(
    ("size", "page_size", "pages"),
    [(3, 1, 2), (4, 2, 2), (128, 16, 8), (1024, 16, 64), (4096, 16, 256), (1, 16, 0)],
)
def test_c27_contiguous_pages_a_hit_needs(size, page_size, pages):
    """ceil((W - 1) / page size)."""
    length = 2 * size + 3 * page_size
    cache = pool(2 * (length // page_size + 3), page_size, {"w": window(size)})
    tokens = np.arange(length, dtype=np.int32)
    finished(cache, tokens)
    boundary = (length - 1) // page_size * page_size
    row = cache.admit(tokens)

    assert boundary == row.cached
    assert pages == cache.stats().live


def test_c30_resuming_is_no_hit():
    """One request preempted and resumed alone: tokens found again are not counted as hits."""
    cache = pool(20)
    row = cache.admit([1] * 9)
    run(cache, row)
    for _ in range(3):
        cache.preempt(row)
        assert 8 == cache.resume(row)
        run(cache, row)

    assert (9, 0, 3) == (
        cache.stats().prompt_tokens,
        cache.stats().cached_tokens,
        cache.stats().preemptions,
    )


# -- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "page_size", "position", "pages"),
    [(4, 2, 10, 3), (4, 1, 10, 7), (4, 4, 10, 1), (4, 2, 3, 0), (1, 2, 10, 5), (128, 16, 1000, 54)],
)
def test_e07_a_window_counts_the_query_itself(size, page_size, position, pages):
    """W=4 at position 10 sees keys 7..10: pages wholly below 7 are given back, no other."""
    assert max(0, position - size + 1) == Window(window=size).floor(position)
    cache = pool(2000, page_size, {"w": window(size)})
    row = cache.admit([1] * position)
    done = cache.commit(cache.extend(row, position), [1])
    table = cache.extend(row, 1).group().table[0]

    assert pages == done.dropped
    assert [0] * pages == table[:pages].tolist()
    assert table[pages:].all()


@pytest.mark.parametrize("chunks", [[44, 32, 1], [1, 76], [77], [30] * 2 + [17]])
def test_e09_writes_across_a_full_window(chunks):
    """W=128: 384 tokens, then chunks of any size: what the window sees is what was written."""
    shape = Shape("ring", {"w": window(128)}, 40, 16)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(384 + 77))
    row = cache.admit(text.tokens)
    for count in [384, *chunks]:
        step = cache.extend(row, count)
        store.run(step, [text.contents[: int(step.context[0])]])
        cache.commit(step, [7])
        cache.check()

    assert 128 // 16 + 1 >= cache.stats().live


@pytest.mark.parametrize(("sinks", "recent", "length"), [(4, 8, 20), (3, 5, 40), (1, 2, 33)])
def test_e10_positions_stay_absolute(sinks, recent, length):
    """Sinks and window keep their own positions: table columns and positions never shift."""
    shape = Shape("sinks", {"w": window(recent, sinks)}, 60, 2)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(length))
    row = cache.admit(text.tokens[:5])
    step = cache.extend(row, 5)
    store.run(step, [text.contents[:5]])
    cache.commit(step, [5])
    for position in range(5, length - 1):
        step = cache.extend(row, 1)
        store.run(step, [text.contents[: position + 1]])
        assert [position] == step.positions.tolist()
        cache.commit(step, [position + 1])
        cache.check()
    table = cache.extend(row, 1).group().table[0]
    held = np.flatnonzero(table).tolist()
    first = (length - 1 - recent + 1) // 2

    assert [*range(-(-sinks // 2)), *range(first, (length - 1) // 2 + 1)] == held


# -- going back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_f04_a_full_window_takes_drafts_and_gives_them_back(kept):
    """W=4 and full, three drafts, some rejected: what a later query sees is still there."""
    shape = Shape("drafts", {"w": window(4)}, 20, 2)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(20))
    row = cache.admit(text.tokens[:9])
    step = cache.extend(row, 9)
    store.run(step, [text.contents[:9]])
    cache.commit(step, [9])
    step = cache.extend(row, 4, ahead=3)
    store.run(step, [text.contents[:13]])
    cache.commit(step, [list(range(10, 10 + kept))], kept=[kept])
    step = cache.extend(row, 1)
    store.run(step, [text.contents[: 10 + kept]])
    cache.check()

    assert 9 + kept == int(step.past[0])


@pytest.mark.parametrize(("rollback", "drafts"), [(0, 1), (0, 3), (2, 3), (3, 4)])
def test_f04_a_state_says_so_before_drafting(rollback, drafts):
    """More drafts than states can be taken back: RollbackUnsupported names group and position."""
    cache = pool(60, 4, {"full": FULL, "state": STATE}, rollback=rollback)
    row = cache.admit([1] * 6)
    run(cache, row)
    before = cache.stats()
    with pytest.raises(RollbackUnsupported) as caught:
        cache.extend(row, 1 + drafts, ahead=drafts)

    assert ("state", 7 + drafts - rollback) == (caught.value.group, caught.value.kept_from)
    assert before == cache.stats()
    assert cache.extend(row, 1 + rollback, ahead=rollback) if rollback else cache.extend(row, 1)


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_f04_states_within_the_rollback(kept):
    """rollback=3: three drafts, any of them rejected, and the state is the right one."""
    shape = Shape("drafts", {"full": FULL, "state": STATE}, 60, 4)
    cache, store = Cache(shape.plan(), rollback=3), ModelStore(shape)
    text = Text(range(20))
    row = cache.admit(text.tokens[:4])
    step = cache.extend(row, 4)
    store.run(step, [text.contents[:4]])
    cache.commit(step, [4])
    step = cache.extend(row, 4, ahead=3)
    store.run(step, [text.contents[:8]])
    cache.commit(step, [list(range(5, 5 + kept))], kept=[kept])
    step = cache.extend(row, 1)
    store.run(step, [text.contents[: 5 + kept]])

    assert {} == step.copies
    assert 4 + kept == row.computed


@pytest.mark.parametrize(("steps", "topk", "page_size"), [(3, 1, 16), (3, 4, 16), (5, 8, 4)])
def test_f06_a_tree_is_a_reservation_of_positions(steps, topk, page_size):
    """steps x topk positions are reserved at once and rounded up to pages a single time."""
    drafts = steps * topk
    cache = pool(40, page_size)
    row = cache.admit([1])
    step = cache.extend(row, 1 + drafts, ahead=drafts)
    width = -(-(1 + drafts) // page_size)

    assert (width, 1 + drafts) == (step.group().table.shape[1], step.group().slots.size)
    cache.commit(step, [[5]], kept=[1])
    assert 1 == cache.stats().live


@pytest.mark.parametrize("children", [1, 2, 3])
@pytest.mark.parametrize("tokens", [10, 9, 11])
def test_f07_a_fork_copies_only_the_open_page(children, tokens):
    """Three pages held by all; on the first append one copy for each but the last owner."""
    cache = pool(20)
    row = cache.admit(range(tokens))
    run(cache, row)
    others = cache.fork(row, children)

    assert 3 == cache.stats().live
    cache.release(row)
    holders = others[0].core.pool.spaces[0].holders
    assert [children] * 3 == list(holders)[1:4]
    step = cache.extend(others, 1)
    copied = step.copies["full"].source.size if step.copies else 0
    assert children - 1 == copied
    assert 2 + children == cache.stats().live
    cache.commit(step, [5] * children)
    cache.check()


def test_f07_a_full_page_is_never_copied():
    """Twelve tokens in three pages: children begin a page of their own."""
    cache = pool(20)
    row = cache.admit(range(12))
    cache.commit(cache.extend(row, 12), [1])
    others = cache.fork(row, 3)
    step = cache.extend([row, *others], 1)

    assert {} == step.copies
    assert 3 + 4 == cache.stats().live


@pytest.mark.parametrize("below", [10, 8, 5])
def test_f08_a_child_keeps_what_its_parent_gives_back(below):
    """W=4: the parent slides on; the child, forked below, still sees its own window."""
    shape = Shape("fork", {"w": window(4)}, 40, 2)
    cache, store = Cache(shape.plan()), ModelStore(shape)
    text = Text(range(30))
    row = cache.admit(text.tokens[:below])
    step = cache.extend(row, below)
    store.run(step, [text.contents[:below]])
    cache.commit(step, [below])
    (child,) = cache.fork(row)
    for position in range(below, below + 10):
        step = cache.extend(row, 1)
        store.run(step, [text.contents[: position + 1]])
        cache.commit(step, [position + 1])
        cache.check()
    step = cache.extend(child, 1)
    store.run(step, [text.contents[: below + 1]])

    assert below == int(step.past[0])


# -- states ----------------------------------------------------------------------------------------


def with_states(page_size=16, **options):
    """A hybrid cache."""
    return pool(200, page_size, {"full": FULL, "state": STATE}, **options)


@pytest.mark.parametrize(("page_size", "length"), [(16, 20), (4, 7), (3, 100)])
def test_f13_states_are_kept_at_boundaries_only(page_size, length):
    """A commit at 20 keeps the state of 16, by a copy into a page of its own."""
    cache = with_states(page_size)
    tokens = list(range(length))
    row = cache.admit(tokens)
    boundary = (length - 1) // page_size * page_size

    assert boundary == row.next_stop
    step = cache.extend(row, boundary)
    source, target = step.snapshots["state"]
    assert source.tolist() == step.group("state").table[0, 0].tolist()
    assert not set(source.tolist()) & set(target.tolist())
    cache.commit(step)
    run(cache, row)
    assert (boundary, 1) == (cache.peek([*tokens, 1]).by_group["state"], cache.stats().snapshots)
    again = cache.extend(cache.admit([*tokens, 1]), length + 1 - boundary)
    assert target.tolist() == again.copies["state"].source.tolist()
    assert target.tolist() != again.copies["state"].target.tolist()


def test_f13_a_step_past_a_boundary_keeps_nothing():
    """A prompt computed at once passes its boundaries: no state of 16 is made up afterwards."""
    cache = with_states()
    row = cache.admit(range(20))
    step = cache.extend(row, 20)

    assert {} == step.snapshots
    cache.commit(step, [1])
    assert 0 == cache.stats().snapshots


@pytest.mark.parametrize("keep", [20, 17, 31])
def test_f14_going_back_to_the_last_kept_state(keep):
    """States at 16 and 32, cut to 20: goes on from 16, and says so."""
    cache = with_states()
    for length in (17, 33):
        finished(cache, range(length))
    row = cache.admit(range(40))
    run(cache, row)

    assert 32 == row.cached
    assert 16 == cache.truncate(row, keep)
    assert (keep, 16) == (row.length, row.computed)
    step = cache.extend(row, keep - 16)
    assert keep - 16 == int(step.counts[0])
    assert 1 == step.copies["state"].source.size
    cache.check()
