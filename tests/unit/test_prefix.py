"""The prefix index by itself."""

import itertools
import random

import numpy as np
import pytest

from octavo import Adapter, Salt
from octavo.cache.identity import root_digest
from octavo.cache.prefix import ROOT, PrefixIndex
from octavo.cache.runs import Keys
from octavo.errors import IntegrityError


def keys(*pages, media=None):
    """Pages of token ids, as the index takes them."""
    raw = np.array(pages, np.int32).tobytes()
    return Keys(raw, 4 * len(pages[0]), media or {})


def grown(pages, first_page=1, groups=1):
    """An index in which a sequence stands behind pages first_page, first_page + 1, ..."""
    index = PrefixIndex([100] * groups)
    nodes = enter(index, *pages)
    index.attach(0, nodes, np.arange(first_page, first_page + len(nodes)))
    return index, list(nodes)


def enter(index, *pages, root=ROOT, media=None):
    """A sequence that comes to stand behind these pages; the nodes made for it."""
    index.hold(root)
    return index.enter(root, keys(*pages, media=media))[1]


def walk(index, *pages, root=ROOT, media=None):
    """Nodes known of these pages."""
    return index.walk(root, keys(*pages, media=media)).nodes()


def detach(index, *pages):
    """These pages are given up, one after the other."""
    for page in pages:
        index.detach(0, np.array([page]))


def test_an_empty_index_finds_nothing():
    """Nothing published, nothing found."""
    index = PrefixIndex([100])

    assert [] == walk(index, (1, 2))
    assert 0 == len(index)
    index.check({})


def test_the_longest_chain_is_found():
    """Pages are found one after the other, up to the first that is not there."""
    index, nodes = grown([(1, 2), (3, 4), (5, 6)], first_page=7)

    assert nodes == walk(index, (1, 2), (3, 4), (5, 6), (7, 8))
    assert nodes[:2] == walk(index, (1, 2), (3, 4), (9, 9))
    assert [] == walk(index, (3, 4))
    assert [7, 8, 9] == index.walk(ROOT, keys((1, 2), (3, 4), (5, 6))).pages(0).tolist()
    assert [7, 8, 9] == [index.page(0, node) for node in nodes]
    assert nodes[1] == index.node_of(0, 8)
    index.check({nodes[-1]: 1})


def test_equal_tokens_in_another_context_are_another_node():
    """The same page of tokens after different tokens is entered twice."""
    index, _ = grown([(1, 2), (9, 9)])
    other = enter(index, (3, 4), (9, 9))

    assert 2 == len(other)
    assert 4 == len(index)


def test_entering_twice_gives_the_same_nodes():
    """What is known is told, and nothing is made anew."""
    index, nodes = grown([(1, 2), (3, 4)])
    index.hold(ROOT)
    known, new = index.enter(ROOT, keys((1, 2), (3, 4), (5, 6)))

    assert (nodes, 1, 3) == (known.nodes(), len(new), len(index))
    index.attach(0, new, [9])
    index.check({nodes[-1]: 1, new[-1]: 1})
    index.hold(ROOT)
    known, new = index.enter(ROOT, keys((1, 2), (3, 4)))
    assert (nodes, 0) == (known.nodes(), len(new))
    index.check({nodes[-1]: 2, nodes[-1] + 1: 1})


def test_a_node_lives_while_something_needs_it():
    """A page, a child or a sequence; then it is gone, and its parents with it."""
    index, nodes = grown([(1,), (2,), (3,)])
    detach(index, 1, 2, 3)

    assert 3 == len(index)
    index.check({nodes[-1]: 1})
    index.unhold(nodes[-1])
    assert 0 == len(index)
    index.check({})


def test_a_number_is_never_used_again():
    """A page that comes back is another node, without the children of the first."""
    index, nodes = grown([(1,), (2,)])
    index.unhold(nodes[-1])
    detach(index, 2, 1)
    again = enter(index, (1,))

    assert not set(again) & set(nodes)
    assert [*again] == walk(index, (1,), (2,))


def test_a_number_is_never_used_again_within_what_is_left():
    """Where the end of a chain is given up and comes back, it is other nodes."""
    index, nodes = grown([(1,), (2,), (3,)])
    index.hold(nodes[0])
    index.unhold(nodes[-1])
    detach(index, 3, 2)
    known, new = index.enter(nodes[0], keys((2,), (3,)))

    assert 0 == known.size
    assert not set(new) & set(nodes)
    assert [nodes[0], *new] == walk(index, (1,), (2,), (3,))
    index.attach(0, new, [5, 6])
    index.check({new[-1]: 1})


@pytest.mark.parametrize("apart", [True, False])
def test_many_sequences_go_one_page_on(apart):
    """In bulk: new nodes, nodes known before, and two that go the same way."""
    index, nodes = grown([(1,), (2,)])
    tips = [nodes[-1], ROOT, ROOT]
    index.hold(ROOT)
    index.hold(ROOT)
    tokens = (5, 6, 7) if apart else (5, 1, 1)
    raws = [keys((token,)).raw for token in tokens]
    moved, others = index.advance(tips, raws, {0: np.array([10, 11, 12])})

    assert [1, 2] == others
    assert (3 if apart else 2) == len(set(moved))
    standing = {node: moved.count(node) for node in moved}
    if apart:
        for node, page in zip(moved[1:], (11, 12), strict=True):
            index.attach(0, range(node, node + 1), [page])
    index.check(standing)


def test_two_new_ones_that_go_the_same_way():
    """The second finds what the first has just made."""
    index = PrefixIndex([100])
    for _ in range(3):
        index.hold(ROOT)
    raws = [keys((token,)).raw for token in (1, 2, 1)]
    moved, others = index.advance([ROOT] * 3, raws, {0: np.array([1, 2, 3])})

    assert ([0, 1, 2], 2) == (others, len(index))
    assert moved[0] == moved[2] != moved[1]


def test_roots_of_salts_and_adapters():
    """Each has its own; nothing is found under another's."""
    index = PrefixIndex([100])
    one, other = ((Salt("a"),), (Adapter("a"),))
    nodes = enter(index, (1,), root=index.enter_root(one))
    index.attach(0, nodes, [1])

    assert index.find_root(other) is None
    assert [*nodes] == walk(index, (1,), root=index.find_root(one))
    assert [] == walk(index, (1,))
    assert ROOT == index.find_root(()) == index.enter_root(())


def test_ancestors():
    """Backwards from a node, over the place where a chain branches off."""
    index, nodes = grown([(1,), (2,), (3,)])
    branch = [*nodes[:2], *enter(index, (1,), (2,), (4,), (5,))]

    assert [*nodes[::-1], ROOT] == [index.ancestor(nodes[-1], steps) for steps in range(4)]
    assert [*branch[::-1], ROOT] == [index.ancestor(branch[-1], steps) for steps in range(5)]


def test_a_state_of_several_pages():
    """Detaching one of them detaches all."""
    index, nodes = grown([(1,)], groups=2)
    index.attach_state(1, nodes[0], (4, 5, 6))

    assert 2 == index.copies(nodes[0])
    assert (4, 5, 6) == index.state(1, nodes[0]) == index.detach_state(1, nodes[0])
    assert [None] * 3 == [index.node_of(1, page) for page in (4, 5, 6)]
    assert 1 == index.copies(nodes[0])
    index.check({nodes[0]: 1})


def test_media_tell_equal_tokens_apart():
    """A page is found under its own media, at its place in a run and at the start of one."""
    index = PrefixIndex([100])
    plain = enter(index, (1,), (2,), (3,))
    other = enter(index, (1,), (2,), (3,), media={1: (("a", 0, 1),)})

    assert [*plain] == walk(index, (1,), (2,), (3,))
    assert [plain[0], *other] == walk(index, (1,), (2,), (3,), media={1: (("a", 0, 1),)})
    assert [plain[0]] == walk(index, (1,), (2,), (3,), media={1: (("b", 0, 1),)})
    assert 3 == len({index.digest(node) for node in (plain[1], plain[2], other[-1])})


def test_against_a_dict_of_prefixes():
    """Random chains entered, walked and given up again: what is found is what a dict says."""
    chance = random.Random(7)
    index, there, pages = PrefixIndex([5_000]), {}, itertools.count(1)
    for _ in range(400):
        text = [(chance.randrange(2), chance.randrange(2)) for _ in range(chance.randint(1, 9))]
        found = walk(index, *text)
        heads = [tuple(text[: at + 1]) for at in range(len(text))]
        assert [there[head] for head in itertools.takewhile(there.get, heads)] == found
        index.hold(ROOT)
        known, new = index.enter(ROOT, keys(*text))
        index.attach(0, new, [next(pages) for _ in new]) if new else None
        for at, node in enumerate([*known.nodes(), *new]):
            there[tuple(text[: at + 1])] = node
        index.unhold(index.walk(ROOT, keys(*text)).node(len(text) - 1))
        leaves = [t for t in there if not any(o[: len(t)] == t != o for o in there)]
        for leaf in chance.sample(leaves, len(leaves) // 3):
            detach(index, index.page(0, there.pop(leaf)))
        index.check({})
    assert len(there) == len(index)


def test_digests_are_lazy_and_equal_everywhere():
    """Computed when asked for, from the tokens alone: another index names equal pages equally."""
    (one, ours), (other, theirs) = grown([(1,), (2,), (3,)]), grown([(9,), (1,)])
    theirs = enter(other, (1,), (2,), (3,))
    assert not any(run.digests for run in one._runs.values())

    assert [one.digest(n) for n in ours] == [other.digest(n) for n in theirs]
    assert root_digest(()) == one.digest(ROOT)
    assert 3 == len({one.digest(node) for node in ours})


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index._run_at.clear(),
        lambda index: index._runs.pop(1),
        lambda index: index.hold(1 << 24),
        lambda index: index._runs[1].pages[0].pop(),
        lambda index: index._node_of[0].fill(0),
        lambda index: index.attach(0, range(1 << 24, (1 << 24) + 1), np.array([9])),
        lambda index: index._runs[1].append(keys((3,)), 0),
    ],
)
def test_check_sees_a_damaged_index(damage):
    """Keys, nodes, pages and holders that do not agree are reported."""
    index, nodes = grown([(1,), (2,)])
    index.check({nodes[-1]: 1})
    damage(index)
    with pytest.raises(IntegrityError):
        index.check({nodes[-1]: 1})
