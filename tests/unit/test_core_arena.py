"""Stretches of one array: what they hold stays, and nobody pays for what others held."""

import random
from itertools import pairwise

import pytest

from octavo import Attention, Cache, Plan
from octavo.core.arena import Arena


def write(arena, row, numbers, used=0):
    """Let a row hold these."""
    arena.reserve(row, len(numbers), used)
    for at, number in enumerate(numbers):
        arena.data[arena.begin[row] + at] = number


def read(arena, row, count):
    """What it holds."""
    return [arena.data[arena.begin[row] + at] for at in range(count)]


def test_an_arena_against_lists():
    """Random growth and ends: each row holds what a list of its own would."""
    chance, arena, rows = random.Random(1), Arena(5, 64), [[] for _ in range(5)]
    for number in range(3_000):
        row = chance.randrange(5)
        if chance.random() < 0.05:
            arena.free(row)
            rows[row] = []
        else:
            more = [number] * chance.choice([1, 2, chance.randint(1, 60)])
            write(arena, row, rows[row] + more, used=len(rows[row]))
            rows[row] += more
        assert rows == [read(arena, at, len(own)) for at, own in enumerate(rows)]
        spans = sorted((arena.begin[at], arena.room[at]) for at in range(5) if arena.room[at])
        assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))


def test_what_nobody_holds_is_written_behind_all():
    """A prompt is read there before it belongs to a row."""
    arena = Arena(2, 64)
    write(arena, 0, range(900))
    at = arena.spare(2_000)

    assert at >= arena.begin[0] + 900
    assert len(arena.data) >= at + 2_000
    assert list(range(900)) == read(arena, 0, 900)


def test_an_arena_shrinks_to_what_is_held():
    """What a long row held is given back when stretches move together."""
    arena = Arena(2, 64)
    write(arena, 0, [1] * 100_000)
    arena.free(0)
    for _ in range(1_000):
        write(arena, 1, [2] * 300)
        arena.free(1)

    assert len(arena.data) < 5_000


def moves(cache):
    """How often the stretches of a sequence lie elsewhere while it goes from 40 to 600 tokens."""
    row, places = cache.admit([1] * 40, limit=600, reuse=False), []
    arenas = [row.core.ids, *(group.table for group in row.core.groups)]
    while row.computed < row.limit:
        count = row.length - row.computed
        cache.commit(cache.extend(row, count), [[2] if row.length < row.limit else []])
        places.append([(arena.begin[row.row], len(arena.data)) for arena in arenas])
    cache.release(row)
    return sum(a != b for a, b in pairwise(places))


@pytest.mark.parametrize("ended", [True, False])
def test_a_neighbour_of_a_million_tokens_costs_nothing(ended):
    """A sequence moves no more beside one of a million tokens, there or gone, than alone."""
    groups = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=64)}
    cache = Cache(Plan.from_pages(130_000, 16, groups), max_sequences=4)
    alone = moves(cache)
    long = cache.admit([1] * 10**6, reuse=False)
    for _ in range(4):
        cache.commit(cache.extend(long, 250_000))
    if ended:
        cache.release(long)

    assert 2 <= moves(cache) <= alone
    assert moves(cache) <= alone
    if not ended:
        cache.release(long)


def test_nothing_is_copied_from_a_stretch_that_is_gone():
    """A row that was freed begins where the array, made anew for fewer numbers, may have ended."""
    arena = Arena(2, 64)
    arena.reserve(0, 5000, 0)
    arena.reserve(1, 10, 0)
    arena.free(0)
    arena.free(1)
    gone = arena.begin[1]
    arena.compact(0)
    assert gone > len(arena.data)
    arena.reserve(1, 10, 0)

    assert 0 == arena.begin[1]
