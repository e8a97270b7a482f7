"""A match returns only pages whose whole token chain is equal."""

import itertools
import random

import pytest

from octavo import Cache, Plan


def computed(cache, tokens):
    """Run a prompt to its end and release it."""
    row = cache.admit(tokens)
    cache.commit(cache.extend(row, row.length - row.computed))
    cache.release(row)


def longest(prompt, known, page_size):
    """Tokens of the longest chain of whole pages that is known and leaves one token."""
    ends = range(page_size, len(prompt), page_size)
    return max(itertools.takewhile(lambda n: tuple(prompt[:n]) in known, ends), default=0)


@pytest.mark.parametrize("page_size", [1, 2, 3])
def test_every_short_prompt_is_found_exactly(page_size):
    """All prompts of six tokens over two ids: each finds what was computed and no more."""
    cache = Cache(Plan.from_pages(500, page_size))
    known = set()
    for prompt in itertools.product((0, 1), repeat=6):
        assert longest(prompt, known, page_size) == cache.peek(prompt).tokens
        computed(cache, prompt)
        known |= {prompt[:end] for end in range(page_size, 7, page_size)}


def test_random_prompts_against_a_set():
    """2,000 prompts of any ids: what is found is the longest chain computed before."""
    chance, cache, known = random.Random(3), Cache(Plan.from_pages(20_000, 4)), set()
    pool = [0, 1, 255, 256, 2**16, 2**31 - 1]
    for _ in range(2_000):
        prompt = [chance.choice(pool) for _ in range(chance.randint(1, 20))]

        assert longest(prompt, known, 4) == cache.peek(prompt).tokens
        computed(cache, prompt)
        known |= {tuple(prompt[:n]) for n in range(4, len(prompt) + 1, 4)}
    assert 0 == cache.stats().evicted


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 256], [256, 1]),
        ([0, 1], [2**24, 0]),
        ([0x01020304], [0x04030201]),
        ([0, 0, 0], [0, 0]),
        ([2**31 - 1], [2**31 - 2]),
        ([hash((0, 0)) % 2**31], [0]),
    ],
    ids=str,
)
def test_tokens_are_compared_as_numbers(first, second):
    """No byte order, page border or hash makes different tokens alike."""
    cache = Cache(Plan.from_pages(50, 1))
    computed(cache, first)
    common = len(
        list(itertools.takewhile(lambda ab: ab[0] == ab[1], zip(first, second, strict=False)))
    )

    assert common == cache.peek([*second, 9]).tokens


def test_the_same_page_in_another_context_is_not_found():
    """A page counts only together with every token before it."""
    cache = Cache(Plan.from_pages(50, 2))
    computed(cache, [1, 2, 3, 4])

    assert 0 == cache.peek([3, 4, 9]).tokens
    assert 2 == cache.peek([1, 2, 4, 3, 9]).tokens


def test_a_reused_page_adopts_nothing():
    """Children of an evicted page are not children of what is written into that page later."""
    cache = Cache(Plan.from_pages(4, 2))
    computed(cache, [1, 2, 3, 4])
    computed(cache, [5, 6, 7, 8])

    assert 2 == cache.peek([5, 6, 3, 4, 9]).tokens
    assert 4 == cache.peek([5, 6, 7, 8, 9]).tokens
