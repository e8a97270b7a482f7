"""The prefix index by itself."""

import numpy as np
import pytest

from octavo.errors import IntegrityError
from octavo.prefix import ROOT, Node, PrefixIndex


def ids(*tokens):
    """Token ids as the index takes them."""
    return np.array(tokens, np.int32).tobytes()


def grown(page_size, chain, first_page=1):
    """An index that holds ``chain`` in pages first_page, first_page + 1, ..."""
    index, parent = PrefixIndex(page_size), ROOT
    for at, tokens in enumerate(chain):
        parent = index.publish(parent, ids(*tokens), first_page + at).node
    return index


def test_an_empty_index_matches_nothing():
    """Nothing published, nothing found."""
    index = PrefixIndex(2)

    assert [] == index.match(ids(1, 2, 3, 4), 2)
    assert 0 == len(index)


def test_match_finds_the_longest_chain():
    """Pages are found one after the other, up to the first that is not there."""
    index = grown(2, [(1, 2), (3, 4), (5, 6)], first_page=7)

    assert [Node(1, 7), Node(2, 8), Node(3, 9)] == index.match(ids(1, 2, 3, 4, 5, 6), 3)
    assert [7, 8] == [node.page for node in index.match(ids(1, 2, 3, 4, 9, 9), 3)]
    assert [] == index.match(ids(3, 4), 1)
    index.check()


def test_match_stops_at_the_pages_asked_for():
    """No more than ``pages`` are looked at, and a page cut short is none."""
    index = grown(2, [(1, 2), (3, 4)])

    assert 1 == len(index.match(ids(1, 2, 3, 4), 1))
    assert 0 == len(index.match(ids(1, 2), 0))
    assert 1 == len(index.match(ids(1, 2, 3), 2))


def test_equal_tokens_in_another_context_are_another_node():
    """The same page of tokens after different tokens is published twice."""
    index = grown(2, [(1, 2), (9, 9)])
    other = index.publish(index.publish(ROOT, ids(3, 4), 3).node, ids(9, 9), 4)

    assert 4 == other.page
    assert 4 == len(index)
    assert [3, 4] == [node.page for node in index.match(ids(3, 4, 9, 9), 2)]


def test_publishing_twice_keeps_the_first_page():
    """The page that stands for the tokens already is returned and nothing is entered."""
    index = grown(2, [(1, 2)], first_page=5)

    assert Node(1, 5) == index.publish(ROOT, ids(1, 2), 6)
    assert 1 == len(index)
    assert [5] == list(index.pages())


def test_a_forgotten_page_is_not_found():
    """Children of a forgotten page are out of reach, and a number is never used again."""
    index = grown(2, [(1, 2), (3, 4)])
    index.forget([1])

    assert [] == index.match(ids(1, 2, 3, 4), 2)
    again = index.publish(ROOT, ids(1, 2), 1)
    assert 3 == again.node
    assert [Node(3, 1)] == index.match(ids(1, 2, 3, 4), 2)
    index.check()


def test_forget_takes_arrays():
    """Several pages are forgotten in one call."""
    index = grown(1, [(1,), (2,), (3,)])
    index.forget(np.array([3, 2], np.int32))

    assert [1] == list(index.pages())
    index.check()


def test_ancestors():
    """The node a number of pages before another; none before is itself."""
    index = grown(1, [(1,), (2,), (3,)])

    assert [3, 2, 1, ROOT] == [index.ancestor(3, steps) for steps in range(4)]


def test_tokens_are_compared_whole():
    """Tokens that differ only in their highest bytes do not match."""
    index = grown(1, [(1,)])

    assert [] == index.match(ids(1 + 2**24), 1)
    assert [] == index.match(ids(2**31 - 1), 1)


def test_check_sees_a_damaged_index():
    """An entry that its key does not find is reported."""
    index = grown(1, [(1,), (2,)])
    with pytest.raises(KeyError):
        index.forget([9])
    index.check()
    index.publish(ROOT, ids(7), 2)  # page 2 stands for other tokens already
    with pytest.raises(IntegrityError):
        index.check()
