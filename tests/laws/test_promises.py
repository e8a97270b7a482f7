"""What `fits` and `guarantee` promise is kept."""

import random

import pytest

from octavo import Cache, OutOfPages, Plan


def run_to_the_end(cache, rows, chance):
    """Steps of random sequences and chunks until all know and have computed their limit."""
    while unfinished := [row for row in rows if row.computed < row.limit]:
        row = chance.choice(unfinished)
        step = cache.extend(row, chance.randint(1, max(1, row.length - row.computed)))
        new = [chance.randint(0, 2)] if step.wants_token[0] and row.length < row.limit else []
        cache.commit(step, [new])


def prompts(chance):
    """A few prompts that share prefixes, with limits."""
    common = [chance.randint(0, 1) for _ in range(10)]
    for _ in range(chance.randint(1, 4)):
        tokens = [*common[: chance.randint(0, 10)], chance.randint(0, 2)]
        yield tokens, len(tokens) + chance.randint(0, 8)


@pytest.mark.parametrize("seed", range(60))
def test_what_fits_can_run(seed):
    """Where fits says yes, all run to their limits in any order without running out of pages."""
    chance = random.Random(seed)
    cache = Cache(Plan.from_pages(chance.randint(4, 16), 3), max_sequences=20)
    live = []
    for _ in range(12):
        asked = list(prompts(chance))
        if any(
            len(tokens) > cache.max_length or limit > cache.max_length for tokens, limit in asked
        ):
            continue
        if cache.fits([*((row, row.limit) for row in live), *asked]):
            live += [cache.admit(tokens, limit=limit) for tokens, limit in asked]
        if live and chance.random() < 0.5:
            run_to_the_end(cache, live, chance)
            while live:
                cache.release(live.pop())
        cache.check()


@pytest.mark.parametrize("seed", range(60))
def test_guaranteed_sequences_never_run_out(seed):
    """Beside neighbours that take whatever they get, no extend of a guaranteed sequence fails."""
    chance = random.Random(seed)
    cache = Cache(Plan.from_pages(chance.randint(4, 16), 3), max_sequences=20)
    safe, greedy = [], []
    for tokens, limit in [pair for _ in range(6) for pair in prompts(chance)]:
        if max(len(tokens), limit) > cache.max_length:
            continue
        try:
            guarantee = chance.random() < 0.5
            row = cache.admit(tokens, limit=limit, guarantee=guarantee)
        except (OutOfPages, ValueError):
            continue
        (safe if guarantee else greedy).append(row)
    for row in greedy:
        try:
            cache.commit(cache.extend(row, row.length - row.computed))
        except OutOfPages:
            cache.release(row)
    run_to_the_end(cache, safe, chance)

    assert all(row.length == row.limit for row in safe)
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
