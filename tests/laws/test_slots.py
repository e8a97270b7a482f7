"""For any page table and interval, the mapping equals the one-line formula."""

import random

import numpy as np
import pytest

from octavo.slots import slot_mapping


def formula(pages, page_size, start, stop):
    """One token at a time."""
    return [pages[i // page_size] * page_size + i % page_size for i in range(start, stop)]


def test_random_intervals():
    """2,000 seeded random tables, page sizes and intervals, fresh and into ``out``."""
    chance = random.Random(20)
    for _ in range(2_000):
        page_size = chance.choice([1, 2, 3, 5, 16, 64, 256])
        pages = chance.sample(range(1, 1_000), chance.randint(1, 40))
        stop = chance.randint(0, len(pages) * page_size)
        start = chance.randint(0, stop)
        expected = formula(pages, page_size, start, stop)
        out = np.full(stop - start + chance.randint(0, 3), -1, np.int32)
        array = np.array(pages, chance.choice([np.int32, np.int64]))

        assert expected == slot_mapping(pages, page_size, start, stop).tolist()
        assert expected == slot_mapping(array, page_size, start, stop).tolist()
        assert expected == slot_mapping(array, page_size, start, stop, out=out).tolist()
        assert [-1] * (out.size - len(expected)) == out[len(expected) :].tolist()


@pytest.mark.parametrize("page_size", [1, 2, 3, 16, 256])
@pytest.mark.parametrize("pages", [[1], [9, 8, 7, 6], [3, 1, 4, 15, 9]], ids=str)
def test_boundary_intervals(page_size, pages):
    """Every pair of positions at and around a page border."""
    total = len(pages) * page_size
    around = {border + by for border in range(0, total + 1, page_size) for by in (-1, 0, 1)}
    positions = sorted(position for position in around if 0 <= position <= total)
    for start in positions:
        for stop in (position for position in positions if position >= start):
            expected = formula(pages, page_size, start, stop)

            assert expected == slot_mapping(pages, page_size, start, stop).tolist()


@pytest.mark.parametrize("page_size", [16, 256])
@pytest.mark.parametrize("tokens", [1, 128, 4096])
def test_reversed_pages_from_offset_seven(page_size, tokens):
    """The tables that page-range lists are timed with."""
    pages = list(range(-(-(7 + tokens) // page_size), 0, -1))

    assert (
        formula(pages, page_size, 7, 7 + tokens)
        == slot_mapping(pages, page_size, 7, 7 + tokens).tolist()
    )


def test_one_token_is_the_same_as_that_token_of_many():
    """The single-token path and the vectorised one agree."""
    pages = [12, 4, 30]
    many = slot_mapping(pages, 8, 0, 24).tolist()

    assert many == [slot_mapping(pages, 8, i, i + 1).tolist()[0] for i in range(24)]
