"""Lifetimes against what a query can see, position by position."""

import numpy as np
import pytest

from octavo.model.lifetimes import FULL, Chunked, Window

KINDS = [
    FULL,
    Window(window=1),
    Window(window=4),
    Window(window=7, sink_tokens=3),
    Chunked(chunk=1),
    Chunked(chunk=6),
]


def sees(life, query, key):
    """Whether a query at one position sees a key at another, by the definition of its kind."""
    if key > query:
        return False
    if isinstance(life, Window):
        return query - life.window < key or key < life.sink_tokens
    if isinstance(life, Chunked):
        return query // life.chunk == key // life.chunk
    return True


@pytest.mark.parametrize("life", KINDS, ids=repr)
def test_the_floor_is_the_first_key_seen(life):
    """Nothing between the sinks and the floor is seen from there on; the floor itself is."""
    for position in range(30):
        floor = life.floor(position)
        later = range(position, 40)
        seen = {key for query in later for key in range(40) if sees(life, query, key)}

        assert not seen & set(range(life.sinks, floor))
        assert floor in seen
        assert set(range(min(life.sinks, 40))) <= seen | set(range(position, 40))


@pytest.mark.parametrize("life", KINDS, ids=repr)
def test_many_floors_at_once(life):
    """The array form is the plain one."""
    positions = np.arange(50)

    assert [life.floor(p) for p in range(50)] == life.floors(positions).tolist()


@pytest.mark.parametrize("life", KINDS, ids=repr)
def test_how_far_back_a_floor_allows(life):
    """The lowest position whose floor is at least this one."""
    if life == FULL:
        assert 5 == life.first_after(5)
        return
    for floor in range(30):
        expected = next(p for p in range(200) if life.floor(p) >= floor)

        assert expected == life.first_after(floor)


@pytest.mark.parametrize("life", KINDS, ids=repr)
@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
@pytest.mark.parametrize("spare", [0, 1, 3])
def test_steady_pages_are_enough(life, page_size, spare):
    """Whatever the length, a sequence that runs token by token never holds more."""
    for length in range(1, 40):
        most = 0
        for position in range(length):
            first = life.floor(max(0, position - spare)) // page_size
            sinks = min(-(-life.sinks // page_size), first)
            most = max(most, sinks + position // page_size + 1 - first)

        assert most <= life.steady_pages(length, page_size, spare)
        assert life.steady_pages(length, page_size, spare) <= -(-length // page_size)


@pytest.mark.parametrize("life", KINDS, ids=repr)
def test_what_slides(life):
    """Windows and chunks drop tokens of a sequence that goes on; full attention never does."""
    assert (life != FULL) == life.slides
