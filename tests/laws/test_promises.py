"""What fits says can be run, and what is guaranteed is never refused."""

import random

import pytest

from octavo import Cache, CrossInput, OutOfPages, Plan
from octavo.testing import SHAPES, Shape

FULL = SHAPES[0].groups
KINDS = [
    Shape("full", FULL, 0, 3),
    *(
        shape
        for shape in SHAPES
        if shape.name in ("window, sinks", "chunked", "state", "cross", "packed", "packed, state")
        or shape.name in ("packed, chunked", "all", "packed, all", "window, two steps")
    ),
]
EACH = pytest.mark.parametrize("shape", KINDS, ids=str)


def cache_of(shape, chance, **options):
    """A cache with the groups of a shape and few pages."""
    kinds = len(shape.groups)
    low = (4, 16) if kinds == 1 else (10 * kinds, 20 * kinds)
    if shape.per_parent:
        low = (5 * kinds, 9 * kinds)
    plan = Plan.from_pages(
        chance.randint(*low),
        shape.page_size,
        shape.groups,
        pages_per_parent=shape.per_parent,
        parts=shape.parts,
    )
    kept = {key: shape.options[key] for key in ("rollback", "policy") if key in shape.options}
    return Cache(plan, max_sequences=20, **kept | options)


def prompts(chance, shape):
    """A few prompts that share prefixes, with limits and extras."""
    common = [chance.randint(0, 1) for _ in range(10)]
    for _ in range(chance.randint(1, 4)):
        tokens = [*common[: chance.randint(0, 10)], chance.randint(0, 2)]
        extra = [CrossInput(chance.choice("ab"), 5)] if shape.of_form("cross") else []
        yield tokens, len(tokens) + chance.randint(0, 8), extra


def run_to_the_end(cache, rows, chance, *, most):
    """Steps of random sequences and chunks until all know and have computed their limit."""
    while unfinished := [row for row in rows if row.computed < row.limit]:
        advance(cache, chance.choice(unfinished), chance, most)


def advance(cache, row, chance, most):
    """One step of a sequence, that learns a token where it may."""
    ahead = int(row.computed == row.length)
    count = chance.randint(1, max(1, min(most, row.length - row.computed)))
    step = cache.extend(row, count, ahead=ahead)
    new = [chance.randint(0, 2)] * int(step.context[0] - row.length == 0 < row.limit - row.length)
    cache.commit(step, [[1] * ahead + new])
    cache.check()


@EACH
@pytest.mark.parametrize("seed", range(5))
def test_what_fits_can_run(shape, seed):
    """Where fits says yes, all run to their limits token by token, in any order."""
    chance = random.Random(f"{shape}/{seed}")
    cache, live, ran = cache_of(shape, chance), [], 0
    for _ in range(12):
        asked = [entry for entry in prompts(chance, shape) if entry[1] <= cache.max_length]
        try:
            fit = cache.fits([*((row, row.limit) for row in live), *asked])
        except OutOfPages:
            continue
        if fit and asked:
            live += [cache.admit(tokens, limit=n, extra=extra) for tokens, n, extra in asked]
        if live and chance.random() < 0.5:
            run_to_the_end(cache, live, chance, most=1)
            ran += len(live)
            while live:
                cache.release(live.pop())
        cache.check()
    assert ran


@EACH
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1, 50])
def test_guaranteed_sequences_never_run_out(shape, seed, most):
    """Beside neighbours that take whatever they get, no extend of a guaranteed sequence fails."""
    chance = random.Random(f"{shape}/{seed}/{most}")
    cache = cache_of(shape, chance)
    safe, greedy = [], []
    for tokens, limit, extra in [entry for _ in range(8) for entry in prompts(chance, shape)]:
        guarantee = chance.random() < 0.5
        try:
            row = cache.admit(tokens, limit=limit, extra=extra, guarantee=guarantee)
        except (OutOfPages, ValueError):
            continue
        (safe if guarantee else greedy).append(row)
    for _ in range(6):
        grab(cache, greedy, chance)
        some = chance.sample(safe, min(2, len(safe)))
        for row in some:
            if row.computed < row.length:
                advance(cache, row, chance, most)
    run_to_the_end(cache, safe, chance, most=most)

    assert all(row.length == row.limit for row in safe)


def grab(cache, rows, chance):
    """Whoever can runs, forks, gives up or comes back."""
    for row in list(rows):
        act = chance.choice(["run", "run", "fork", "preempt", "resume", "release"])
        try:
            if act == "run" and not row.preempted and row.computed < row.limit:
                advance(cache, row, chance, 50)
            elif act == "fork" and not row.preempted and cache.stats().sequences < 20:
                rows += cache.fork(row)
            elif act == "preempt" and not row.preempted:
                cache.preempt(row)
            elif act == "resume" and row.preempted:
                cache.resume(row)
            elif act == "release" and chance.random() < 0.3:
                cache.release(row)
                rows.remove(row)
        except OutOfPages:
            cache.check()


def test_two_that_each_need_one_page_more():
    """4 + 3 pages of 7 held and one more needed by each: fits says no, so nobody waits for ever."""
    cache = Cache(Plan.from_pages(8, 4))
    a, b = cache.admit([1] * 16, limit=20), cache.admit([2] * 12, limit=16)

    assert not cache.fits([(a, 20), (b, 16)])
    assert {"full": 2} == cache.fits([(a, 20), (b, 16)]).short
    assert cache.fits([(a, 20)])
    cache.commit(cache.extend([a, b], [16, 12]), [0, 0])
    assert not cache.fits([(a, 20), (b, 16)])


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_pair_never_deadlocks(order):
    """The younger is preempted, the older ends, the younger comes back and ends too."""
    cache = Cache(Plan.from_pages(8, 4))
    rows = {"a": cache.admit([1] * 16, limit=20), "b": cache.admit([2] * 12, limit=16)}
    cache.commit(cache.extend(list(rows.values()), [16, 12]), [0, 0])
    first, second = (rows[name] for name in order)
    with pytest.raises(OutOfPages):
        cache.extend([first, second], 1)
    cache.preempt(second)
    run_to_the_end(cache, [first], random.Random(1), most=1)
    assert not cache.fits([(second, second.limit), (first, first.limit + 4)])
    cache.release(first)
    assert cache.fits([(second, second.limit)])
    cache.resume(second)
    run_to_the_end(cache, [second], random.Random(1), most=50)

    assert second.limit == second.computed
