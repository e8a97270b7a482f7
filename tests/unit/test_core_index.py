"""The prefix index by itself: nodes by value, kept while something stands on them."""

import itertools
import random

import pytest

from octavo import Salt
from octavo.core.arena import Arena, ints
from octavo.core.index import PrefixIndex, Tags


class Chains:
    """An index, and chains of pages of ``size`` token ids in it."""

    def __init__(self, size=1, groups=1):
        self.ids = Arena(1, 64)
        self.index = PrefixIndex(size, groups, self.ids, 4)

    def node(self, parent, tokens, tag=0, *, add=False):
        """The node of these tokens after ``parent``; 0: there is none."""
        for at, token in enumerate(tokens):
            self.ids.data[at] = token
        found = self.index.find(parent, tag, 0)
        return found or (self.index.add(parent, tag, 0) if add else 0)

    def enter(self, *pages, root=0, tags=()):
        """The nodes of a chain, made where they are missing; a sequence stands on the last one."""
        nodes = [root]
        for page, tag in itertools.zip_longest(pages, tags, fillvalue=0):
            nodes.append(self.node(nodes[-1], page, tag, add=True))
        self.index.users[nodes[-1]] += 1
        return nodes[1:]

    def walk(self, *pages, root=0, tags=()):
        """The nodes known of a chain."""
        nodes = [root]
        for page, tag in itertools.zip_longest(pages, tags, fillvalue=0):
            nodes.append(self.node(nodes[-1], page, tag))
            if not nodes[-1]:
                return nodes[1:-1]
        return nodes[1:]


def test_the_longest_chain_is_found():
    """Up to the first page that is not there; only after what it was entered after."""
    chains = Chains(2)
    nodes = chains.enter((1, 2), (3, 4), (5, 6))
    other = chains.enter((9, 9), (3, 4))

    assert nodes == chains.walk((1, 2), (3, 4), (5, 6), (7, 8))
    assert nodes[:2] == chains.walk((1, 2), (3, 4), (9, 9))
    assert [] == chains.walk((3, 4))
    assert [] == Chains(2).walk((1, 2))
    assert 5 == len({*nodes, *other}) == chains.index.count
    assert nodes == chains.enter((1, 2), (3, 4), (5, 6))


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 256), (256, 1)), ((0, 1), (2**24, 0)), ((2**31 - 1, 0), (2**31 - 2, 0))],
)
def test_one_bucket_holds_unequal_pages(one, other):
    """Every node but a first child in one bucket: pages are compared by value."""
    chains = Chains(2)
    chains.index.buckets = ints(1)
    chains.ids.data[0:2] = memoryview(bytearray(8)).cast("i")
    nodes = []
    for page in ((9, 9), one, other):
        for at, token in enumerate(page):
            chains.ids.data[at] = token
        assert chains.index.find(0, 0, 0) == 0
        nodes.append(chains.index.add(0, 0, 0))
        assert nodes[-1] == chains.index.find(0, 0, 0)
    for at, token in enumerate(one):
        chains.ids.data[at] = token

    assert nodes[1] == chains.index.find(0, 0, 0) != nodes[2]
    assert 0 == chains.index.find(0, 1, 0) == chains.index.find(nodes[0], 0, 0)


def test_a_node_stays_while_something_stands_on_it():
    """A sequence, a child or a page; then it goes, and what only it stood on."""
    chains = Chains()
    index = chains.index
    nodes = chains.enter((1,), (2,), (3,))
    index.users[nodes[1]] += 1  # as a page does
    index.leave(nodes[-1])

    assert nodes[:2] == chains.walk((1,), (2,), (3,))
    index.leave(nodes[1])
    assert 0 == index.count
    assert [] == chains.walk((1,))


def test_the_number_of_a_node_is_used_again():
    """For another context, with nothing of the first one left."""
    chains = Chains()
    nodes = chains.enter((1,), (2,))
    chains.index.named = True
    chains.index.names[nodes[1]] = b"the first"
    chains.index.leave(nodes[1])
    again = chains.enter((3,), (4,))

    assert set(nodes) == set(again)
    assert {} == chains.index.names
    assert [] == chains.walk((1,), (2,))
    assert again == chains.walk((3,), (4,))


def test_roots():
    """Each key has its own, which goes with the last node behind it; 0 is that of no key."""
    chains = Chains()
    index, key = chains.index, ((Salt("a"),),)
    root = index.enter_root(key)
    nodes = chains.enter((1,), root=root)

    assert root == index.enter_root(key) != 0 == index.enter_root(())
    assert [] == chains.walk((1,))
    assert nodes == chains.walk((1,), root=root)
    index.leave(nodes[0])
    assert ({}, {}, 0) == (index.roots, index.keys, index.count)


def test_ancestors():
    """Backwards from a node, over the place where a chain branches off."""
    chains = Chains()
    nodes = chains.enter((1,), (2,), (3,))
    branch = chains.enter((1,), (2,), (4,), (5,))

    assert nodes[:2] == branch[:2]
    assert [*branch[::-1], 0] == [chains.index.ancestor(branch[-1], steps) for steps in range(5)]


def test_tags_tell_equal_tokens_apart():
    """A page is found under its own media alone, and a tag is kept by its nodes."""
    chains = Chains()
    tags = chains.index.tags
    one, other = tags.hold(("a", 0, 1)), tags.hold(("b", 0, 1))
    plain = chains.enter((1,), (2,))
    nodes = chains.enter((1,), (2,), tags=(0, one))

    assert plain[0] == nodes[0]
    assert nodes == chains.walk((1,), (2,), tags=(0, one))
    assert plain == chains.walk((1,), (2,))
    assert plain[:1] == chains.walk((1,), (2,), tags=(0, other))
    tags.drop(one)
    assert one == tags.find(("a", 0, 1))
    chains.index.leave(nodes[1])
    assert -1 == tags.find(("a", 0, 1))


def test_tags_are_numbered_by_value_and_used_again():
    """One number a thing while somebody uses it."""
    tags = Tags()
    one = tags.hold("a")

    assert one == tags.hold("a") == tags.find("a") != tags.hold("b")
    tags.drop(one)
    assert one == tags.find("a")
    tags.drop(one)
    assert -1 == tags.find("a")
    assert one == tags.hold("c")


def test_against_a_dict_of_prefixes():
    """Random chains entered, walked and given up again: what is found is what a dict says."""
    chance, chains, there = random.Random(7), Chains(2), {}
    for _ in range(400):
        text = [(chance.randrange(2), chance.randrange(2)) for _ in range(chance.randint(1, 9))]
        heads = [tuple(text[: at + 1]) for at in range(len(text))]
        assert [there[head] for head in itertools.takewhile(there.get, heads)] == chains.walk(*text)
        nodes = chains.enter(*text)
        for head, node in zip(heads, nodes, strict=True):
            if head not in there:
                chains.index.users[node] += 1  # as its page does
                there[head] = node
        chains.index.leave(nodes[-1])
        leaves = [t for t in there if not any(o[: len(t)] == t != o for o in there)]
        for leaf in chance.sample(leaves, len(leaves) // 3):
            chains.index.leave(there.pop(leaf))
        assert len(there) == len(set(there.values())) == chains.index.count


def test_growing_loses_nothing():
    """Thousands of nodes: arrays and buckets are made anew, and every chain is still found."""
    chains = Chains()
    texts = [[(a,), (b,), (c,)] for a in range(12) for b in range(12) for c in range(12)]
    nodes = [chains.enter(*text) for text in texts]

    assert 12 + 12**2 + 12**3 == chains.index.count
    assert nodes == [chains.walk(*text) for text in texts]
