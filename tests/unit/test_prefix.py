"""The prefix index by itself."""

import numpy as np
import pytest

from octavo import Adapter, Salt
from octavo.errors import IntegrityError
from octavo.identity import root_digest
from octavo.prefix import ROOT, PrefixIndex


def key(*tokens):
    """One page of token ids, as the index takes it."""
    return np.array(tokens, np.int32).tobytes()


def grown(pages, first_page=1, groups=1):
    """An index in which a sequence stands behind pages first_page, first_page + 1, ..."""
    index = PrefixIndex(groups)
    nodes = enter(index, *pages).nodes
    index.attach(0, nodes, range(first_page, first_page + len(nodes)))
    return index, nodes


def enter(index, *pages, root=ROOT):
    """A sequence that comes to stand behind these pages."""
    index.hold(root)
    return index.enter(root, [key(*tokens) for tokens in pages])


def test_an_empty_index_finds_nothing():
    """Nothing published, nothing found."""
    index = PrefixIndex()

    assert [] == index.walk(ROOT, [key(1, 2)])
    assert 0 == len(index)
    index.check({})


def test_the_longest_chain_is_found():
    """Pages are found one after the other, up to the first that is not there."""
    index, nodes = grown([(1, 2), (3, 4), (5, 6)], first_page=7)

    assert nodes == index.walk(ROOT, [key(1, 2), key(3, 4), key(5, 6), key(7, 8)])
    assert nodes[:2] == index.walk(ROOT, [key(1, 2), key(3, 4), key(9, 9)])
    assert [] == index.walk(ROOT, [key(3, 4)])
    assert [7, 8, 9] == [index.pages(0)[node] for node in nodes]
    assert nodes[1] == index.node_of(0, 8)
    index.check({nodes[-1]: 1})


def test_equal_tokens_in_another_context_are_another_node():
    """The same page of tokens after different tokens is entered twice."""
    index, _ = grown([(1, 2), (9, 9)])
    other = enter(index, (3, 4), (9, 9))

    assert 0 == other.known
    assert 4 == len(index)


def test_entering_twice_gives_the_same_nodes():
    """What is known is told, and nothing is made anew."""
    index, nodes = grown([(1, 2), (3, 4)])
    chain = enter(index, (1, 2), (3, 4), (5, 6))

    assert (nodes, 2, 3) == (chain.nodes[:2], chain.known, len(index))
    index.check({nodes[-1]: 1, chain.nodes[-1]: 1})
    again = enter(index, (1, 2), (3, 4))
    assert (nodes, 2) == again
    index.check({nodes[-1]: 2, chain.nodes[-1]: 1})


def test_a_node_lives_while_something_needs_it():
    """A page, a child or a sequence; then it is gone, and its parents with it."""
    index, nodes = grown([(1,), (2,), (3,)])
    for page in (1, 2, 3):
        index.detach(0, page)
    index.prune(nodes)

    assert 3 == len(index)
    index.check({nodes[-1]: 1})
    index.unhold(nodes[-1])
    assert 0 == len(index)
    index.check({})


def test_a_number_is_never_used_again():
    """A page that comes back is another node, without the children of the first."""
    index, nodes = grown([(1,), (2,)])
    index.unhold(nodes[-1])
    for page in (2, 1):
        node, _ = index.detach(0, page)
        index.prune([node])
    again = enter(index, (1,)).nodes

    assert not set(again) & set(nodes)
    assert again == index.walk(ROOT, [key(1), key(2)])


@pytest.mark.parametrize("apart", [True, False])
def test_many_sequences_go_one_page_on(apart):
    """In bulk: new nodes, nodes known before, and two that go the same way."""
    index, nodes = grown([(1,), (2,)])
    tips = [nodes[-1], ROOT, ROOT]
    index.hold(ROOT)
    index.hold(ROOT)
    keys = [key(5), key(6) if apart else key(1), key(7) if apart else key(1)]
    moved, known = index.advance(tips, keys)

    assert [] == known if apart else [1, 2] == known
    assert (3 if apart else 2) == len(set(moved))
    standing = {node: moved.count(node) for node in moved}
    for node in moved[: 3 if apart else 1]:
        index.attach(0, [node], [10 + node])
    index.check(standing)


def test_two_new_ones_that_go_the_same_way():
    """The second finds what the first has just made."""
    index = PrefixIndex()
    for _ in range(3):
        index.hold(ROOT)
    moved, known = index.advance([ROOT] * 3, [key(1), key(2), key(1)])

    assert ([2], 2) == (known, len(index))
    assert moved[0] == moved[2] != moved[1]


def test_roots_of_salts_and_adapters():
    """Each has its own; nothing is found under another's."""
    index = PrefixIndex()
    one, other = ((Salt("a"),), (Adapter("a"),))
    nodes = enter(index, (1,), root=index.enter_root(one)).nodes
    index.attach(0, nodes, [1])

    assert index.find_root(other) is None
    assert nodes == index.walk(index.find_root(one), [key(1)])
    assert [] == index.walk(ROOT, [key(1)])
    assert ROOT == index.find_root(()) == index.enter_root(())


def test_ancestors_and_paths():
    """Backwards from a node, and forwards to it."""
    index, nodes = grown([(1,), (2,), (3,)])

    assert [*nodes[::-1], ROOT] == [index.ancestor(nodes[-1], steps) for steps in range(4)]
    assert nodes[1:] == index.path(nodes[-1], 2)


def test_a_state_of_several_pages():
    """Detaching one of them detaches all."""
    index, nodes = grown([(1,)], groups=2)
    index.attach_state(1, nodes[0], (4, 5, 6))

    assert 2 == index.copies(nodes[0])
    assert (nodes[0], (4, 6)) == index.detach(1, 5)
    assert [None] * 3 == [index.node_of(1, page) for page in (4, 5, 6)]
    assert 1 == index.copies(nodes[0])
    index.check({nodes[0]: 1})


def test_digests_are_lazy_and_equal_everywhere():
    """Computed when asked for, from the tokens alone: another index names equal pages equally."""
    (one, ours), (other, theirs) = grown([(1,), (2,), (3,)]), grown([(9,), (1,)])
    theirs = enter(other, (1,), (2,), (3,)).nodes
    assert not one._digests

    assert [one.digest(n) for n in ours] == [other.digest(n) for n in theirs]
    assert root_digest(()) == one.digest(ROOT)
    assert 3 == len({one.digest(node) for node in ours})


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index._node_at.clear(),
        lambda index: index._key_of.pop(2),
        lambda index: index.hold(1),
        lambda index: index._pages[0].pop(1),
        lambda index: index._node_of[0].pop(1),
        lambda index: index.attach(0, [99], [9]),
    ],
)
def test_check_sees_a_damaged_index(damage):
    """Keys, nodes, pages and holders that do not agree are reported."""
    index, nodes = grown([(1,), (2,)])
    index.check({nodes[-1]: 1})
    damage(index)
    with pytest.raises(IntegrityError):
        index.check({nodes[-1]: 1})
