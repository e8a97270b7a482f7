"""What `fits` says is so: whoever is told yes never runs out of pages, in any order."""

import random

import pytest

from octavo import Attention, Cache, OutOfPages, Plan, State

FULL, STATE, WINDOW = Attention(1, 1, 1), State(1), Attention(1, 1, 1, window=5)
GROUPS = {
    "full": {"full": FULL},
    "window": {"window": WINDOW},
    "full, window": {"full": FULL, "window": WINDOW},
    "full, state": {"full": FULL, "state": STATE},
    "sinks": {"sinks": Attention(1, 1, 1, window=7, sink_tokens=3)},
    "chunk, full": {"chunk": Attention(1, 1, 1, chunk=6), "full": FULL},
    "all": {"full": FULL, "window": WINDOW, "state": STATE},
}


def random_cache(chance, groups):
    """A small pool of one id space."""
    pages, size = chance.randint(7, 22), chance.choice([1, 2, 4])
    return Cache(Plan.from_pages(pages, size, groups), max_sequences=6)


def prompt(chance):
    """Few different tokens, so that prompts share prefixes."""
    return [chance.randrange(2) for _ in range(chance.randint(1, 9))]


def run(cache, row, count):
    """One step of ``row``; it learns a token where it may."""
    step = cache.extend(row, count)
    cache.commit(step, [1] if step.wants_token[0] else None)


def fill(cache):
    """Sequences of one token, until nothing is left for another one."""
    rows = []
    try:
        while True:
            rows.append(cache.admit([2], reuse=False))
            run(cache, rows[-1], 1)
    except OutOfPages:
        return rows


def some_before(chance, cache, *, reuse):
    """What was there before: rows that are released, run on or are preempted; those left."""
    asked = []
    for _ in range(chance.randint(0, 3)):
        tokens = prompt(chance)
        limit = len(tokens) + chance.randint(0, 4)
        if not cache.fits([*asked, (tokens, limit)], reuse=reuse):
            continue
        row = cache.admit(tokens, limit=limit, reuse=reuse)
        while row.computed < len(tokens):
            run(cache, row, 1)
        if chance.random() < 0.6:
            cache.release(row)
            continue
        asked.append((row, row.limit))
        if chance.random() < 0.3:
            cache.preempt(row)
    return asked


@pytest.mark.parametrize("groups", GROUPS)
def test_yes_is_kept(groups):
    """Sequences and prompts that fit run token by token to their limits, in any interleaving."""
    told = 0
    for seed in range(160):
        chance, reuse = random.Random(f"{groups}/{seed}"), seed % 4 > 0
        cache = random_cache(chance, GROUPS[groups])
        asked = some_before(chance, cache, reuse=reuse)
        wanted = [(tokens, len(tokens) + 3) for tokens in (prompt(chance), prompt(chance))]
        if not cache.fits([*asked, *wanted], reuse=reuse):
            continue
        told += 1
        for row in [row for row, _ in asked if row.preempted]:
            cache.resume(row, reuse=reuse)
        rows = [row for row, _ in asked]
        rows += [cache.admit(tokens, limit=limit, reuse=reuse) for tokens, limit in wanted]
        while rows:
            row = chance.choice(rows)
            if row.computed == row.length:
                rows.remove(row)
                continue
            run(cache, row, 1)
        cache.check()
    assert told > 15


def test_what_two_windows_share_is_counted_once():
    """Two that go on from the same pages take no more than two windows, and fit as long as so."""
    cache = Cache(Plan.from_pages(7, 4, {"near": Attention(1, 1, 1, window=9)}))
    one = cache.admit(range(9), limit=60)
    cache.commit(cache.extend(one, 9), [9])
    two = cache.admit(range(9), limit=60)

    assert 8 == two.cached
    assert cache.fits([(one, 60), (two, 60)])
    assert {"near": 1} == cache.fits([(one, 60), (two, 60)], spare=1).short
    for _ in range(50):
        cache.commit(cache.extend([one, two], [1, 1]), [1, 1])
        assert cache.fits([(one, 60), (two, 60)])


def test_what_is_guaranteed_stays_so_whoever_is_named():
    """Naming a guaranteed sequence does not free what is reserved for it."""
    cache = Cache(Plan.from_pages(16, 2, {"w": WINDOW}), max_sequences=4)
    row = cache.admit([1, 2, 3], limit=25, guarantee=True)

    assert cache.fits([([4, 5, 6], 11)]).short == cache.fits([(row, 25), ([4, 5, 6], 11)]).short
    assert not cache.fits([(row, 25), ([4, 5, 6], 11)])


@pytest.mark.parametrize("kind", [FULL, WINDOW, Attention(1, 1, 1, window=9)], ids=repr)
def test_forks_need_only_what_they_will_write(kind):
    """Both are where they are; one token more is one copy, for all but the last holder."""
    cache = Cache(Plan.from_pages(4, 4, {"group": kind}), max_sequences=2)
    row = cache.admit(range(7))
    run(cache, row, 7)
    (child,) = cache.fork(row)

    assert cache.fits([(row, 7), (child, 7)])
    assert cache.fits([(row, 8), (child, 8)])
    run(cache, child, 1) if child.length > child.computed else None
    cache.check()


@pytest.mark.parametrize("packed", [None, {"w": 2, "s": 1}])
@pytest.mark.parametrize("back", ["abort", "kept"])
@pytest.mark.parametrize("kind", [WINDOW, Attention(1, 1, 1, chunk=4)], ids=repr)
def test_a_lost_state_was_promised_for(kind, back, packed):
    """A guaranteed sequence that must compute again what its windows dropped has the pages."""
    groups = {"w": kind, "s": STATE}
    cache = Cache(Plan.from_pages(16, 2, groups, pages_per_parent=packed, max_length=20))
    row = cache.admit([1] * 10, limit=20, guarantee=True)
    for _ in range(10):
        run(cache, row, 1)
    others = fill(cache)
    step = cache.extend(row, 1)
    cache.abort(step) if back == "abort" else cache.commit(step, kept=[0])

    cache.check()
    assert 0 == row.computed
    while row.computed < row.length:
        run(cache, row, 1)
    assert others


def test_a_fork_leaves_what_is_promised_to_its_parent():
    """The child's state does not take the parent of pages that the first one needs copies from."""
    groups = {"full": FULL, "state": STATE}
    per_parent = {"full": 2, "state": 4}
    cache = Cache(Plan.from_pages(7, 4, groups, pages_per_parent=per_parent, max_length=16))
    one, two = cache.admit([0] * 9, limit=11), cache.admit([1], limit=8, guarantee=True)
    run(cache, one, 8)
    run(cache, two, 1)
    three = cache.admit([1] * 8, limit=11, guarantee=True)
    run(cache, three, 8)
    cache.fork(three)

    cache.check()
    for row in (two, three):
        cache.commit(cache.extend(row, 1), [1])
