"""The prefix index: pages of tokens after pages of tokens, exact by value.

A *node* is one page of tokens in one context: the node before it, the page's token ids, and a *tag*
for the media in it. All are compared by value, so that no collision of hashes ever returns another
page. Roots stand before the first page: node 0, and one for each set of salts and adapters.

Most nodes have one child: it is found at its parent. Further ones are in a hash table, so that
walking a prompt goes through memory in order, and a root may have any number of children.

A node stays while something stands on it: a child, a page of a group, or a sequence, on the last
full page it knows. So the number of a node means one context for as long as anything names it;
afterwards it is used again. Hits end on nodes whose pages were computed; behind those may be nodes
that are *expected*: sequences are *coming* to them.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING

from octavo.core import nocython as cython
from octavo.core.arena import AT_ONCE, Arena, copy, ints, larger

if TYPE_CHECKING:
    from octavo.core.arena import Ints


class Tags:
    """Small numbers for things compared by value; 0 is nothing. A number is kept while it is used.

    Attributes:
        number: by thing.
        thing: by number.
        users: by number, how many use it.
    """

    def __init__(self) -> None:
        self.number: dict[Hashable, int] = {}
        self.thing: list[Hashable] = [None]
        self.users: list[int] = [1]
        self.spare: list[int] = []

    def find(self, thing: Hashable) -> int:
        """Its number, or -1 where nobody uses it. O(1)."""
        return self.number.get(thing, -1)

    def hold(self, thing: Hashable) -> int:
        """Its number, which has one user more. O(1)."""
        tag = self.number.get(thing, -1)
        if tag < 0:
            if self.spare:
                tag = self.spare.pop()
                self.thing[tag] = thing
            else:
                tag = len(self.thing)
                self.thing.append(thing)
                self.users.append(0)
            self.number[thing] = tag
        self.users[tag] += 1
        return tag

    def keep(self, tag: int) -> None:
        """One user more. O(1)."""
        self.users[tag] += 1

    def drop(self, tag: int) -> None:
        """One user less. O(1)."""
        self.users[tag] -= 1
        if self.users[tag] == 0:
            del self.number[self.thing[tag]]
            self.thing[tag] = None
            self.spare.append(tag)


class PrefixIndex:
    """Nodes, and the page each has in each group.

    Args:
        size: tokens of a page.
        groups: how many groups have pages.
        ids: the arena of token ids; tokens are named by where they lie in it.
        pages: how many can be published: there is room for their nodes from the start.

    Attributes:
        parent, tag: by node, what it is; ``tokens`` has the ids, from ``node * size`` on.
        child, siblings: by node, one child, and how many others there are, which are in buckets.
        code: by node in a bucket, its hash.
        users: by node, how much stands on it.
        expected: by node, 1 until a sequence has computed its page.
        coming: by node, how many sequences know its page and have not computed it.
        following: by node, the next one in its bucket, or among the spare ones.
        held: page of ``node * groups + group``, of a state or cross input its first; 0: none.
        bundles: by group, of states and cross inputs: all pages by node; ``bundled`` says how many.
        idle: by group, the nodes of those that nobody holds, let go longest ago first.
        roots: node by root key; ``keys`` is its inverse.
        version: counts what a match could tell apart: nodes, their pages, who is coming.
        names: digests by node, where ``named``; see `octavo.cache.events`.
    """

    def __init__(self, size: int, groups: int, ids: Arena, pages: int) -> None:
        self.size = size
        self.groups = groups
        self.ids = ids
        room = max(2, min(pages + 1, AT_ONCE // size))
        self.parent = ints(room)
        self.child = ints(room)
        self.siblings = ints(room)
        self.code = ints(room)
        self.tag = ints(room)
        self.users = ints(room)
        self.expected = ints(room)
        self.coming = ints(room)
        self.following = ints(room)
        self.held = ints(room * groups)
        self.tokens = ints(room * size)
        self.buckets = ints(2 * room)
        self.salt = int.from_bytes(os.urandom(3))  # so that nobody can aim at one bucket
        self.end = 1
        self.spare = 0
        self.count = 0
        self.version = 0
        self.users[0] = 1
        self.tags = Tags()
        self.bundles: list[dict[int, tuple[int, ...]]] = [{} for _ in range(groups)]
        self.idle: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(groups)]
        self.bundled = 0
        self.roots: dict[Hashable, int] = {}
        self.keys: dict[int, Hashable] = {}
        self.names: dict[int, bytes] = {}
        self.named = False

    def hash(self, parent: int, tag: int, at: int) -> int:
        """Of a page of tokens; differs between the two modes, which nothing shows."""
        if not cython.compiled:
            return hash((parent, tag, bytes(self.ids.data[at : at + self.size]))) & 0x7FFFFFFF
        code = self.salt
        code = ((code ^ parent) * 0x5BD1E995 ^ tag) * 0x5BD1E995
        for i in range(at, at + self.size):
            code = (code ^ self.ids.data[i]) * 0x5BD1E995
            code ^= code >> 29
        return code & 0x7FFFFFFF

    def find(self, parent: int, tag: int, at: int) -> int:
        """The node of the page of tokens at ``at`` after ``parent``, or 0. O(size)."""
        node = self.child[parent]
        if node and self.tag[node] == tag and self.same(node, at):
            return node
        if self.siblings[parent] == 0:
            return 0
        code = self.hash(parent, tag, at)
        node = self.buckets[code % len(self.buckets)]
        while node:
            if (
                self.code[node] == code
                and self.parent[node] == parent
                and self.tag[node] == tag
                and self.same(node, at)
            ):
                return node
            node = self.following[node]
        return 0

    def same(self, node: int, at: int) -> bool:
        """Whether the node's tokens are those at ``at``. O(size)."""
        own = node * self.size
        if not cython.compiled:
            return self.tokens[own : own + self.size] == self.ids.data[at : at + self.size]
        for i in range(self.size):
            if self.tokens[own + i] != self.ids.data[at + i]:
                return False
        return True

    def add(self, parent: int, tag: int, at: int) -> int:
        """A new node, on which nothing stands yet. Amortised O(size)."""
        node = self.new()
        copy(self.tokens, node * self.size, self.ids.data, at, self.size)
        self.parent[node] = parent
        self.tag[node] = tag
        if tag:
            self.tags.keep(tag)
        self.users[parent] += 1
        if self.child[parent] == 0:
            self.child[parent] = node
            return node
        self.siblings[parent] += 1
        code = self.hash(parent, tag, at)
        bucket = code % len(self.buckets)
        self.code[node] = code
        self.following[node] = self.buckets[bucket]
        self.buckets[bucket] = node
        return node

    def come(self, parent: int, tag: int, at: int) -> int:
        """The node of the page of tokens at ``at``, to which one more is coming. O(size)."""
        node = self.find(parent, tag, at)
        if node == 0:
            node = self.add(parent, tag, at)
            self.expected[node] = 1
        self.await_one(node, 1)
        return node

    def await_one(self, node: int, more: int) -> None:
        """One sequence ``more``, or less, is coming to a node. O(1)."""
        self.coming[node] += more
        self.version += 1

    def enter_root(self, key: Hashable) -> int:
        """The root of sequences with this key, made where there is none. O(1)."""
        if key == ():
            return 0
        node = self.roots.get(key, 0)
        if node == 0:
            node = self.new()
            self.parent[node] = -1
            self.keys[node] = key
            self.roots[key] = node
        return node

    def new(self) -> int:
        """A number that names no node."""
        node = self.spare
        if node:
            self.spare = self.following[node]
        else:
            if self.end == len(self.parent):
                self.grow()
            node = self.end
            self.end += 1
        self.users[node] = 0
        self.child[node] = 0
        self.siblings[node] = 0
        self.expected[node] = 0
        self.coming[node] = 0
        self.count += 1
        self.version += 1
        return node

    def leave(self, node: int) -> None:
        """One that stood on a node goes; a node on which nothing stands goes too, then its parent.

        Amortised O(1).
        """
        self.users[node] -= 1
        while node and self.users[node] == 0:
            parent = self.parent[node]
            if parent < 0:
                del self.roots[self.keys.pop(node)]
            else:
                self.unlink(node)
            if self.named:
                self.names.pop(node, None)
            self.following[node] = self.spare
            self.spare = node
            self.count -= 1
            self.version += 1
            if parent < 0:
                return
            node = parent
            self.users[node] -= 1

    def unlink(self, node: int) -> None:
        """No longer its parent's child, nor in a bucket."""
        parent, tag = self.parent[node], self.tag[node]
        if self.child[parent] == node:
            self.child[parent] = 0
        else:
            self.leave_bucket(node)
            self.siblings[parent] -= 1
        if tag:
            self.tags.drop(tag)

    def leave_bucket(self, node: int) -> None:
        """No longer in a bucket. O(nodes in it)."""
        bucket = self.code[node] % len(self.buckets)
        other = self.buckets[bucket]
        if other == node:
            self.buckets[bucket] = self.following[node]
        else:
            while self.following[other] != node:
                other = self.following[other]
            self.following[other] = self.following[node]

    def rest(self, group: int, page: int, node: int) -> None:
        """Nobody holds a page of a node any more: what it is the first page of is idle. O(1)."""
        if self.bundles[group] and self.held[node * self.groups + group] == page:
            self.idle[group][node] = None

    def wake(self, group: int, page: int, node: int) -> None:
        """Somebody holds a page of a node that nobody held. O(1)."""
        if self.bundles[group] and self.held[node * self.groups + group] == page:
            self.idle[group].pop(node, None)

    def ancestor(self, node: int, steps: int) -> int:
        """The node ``steps`` pages before. O(steps)."""
        for _ in range(steps):
            node = self.parent[node]
        return node

    def copies(self, node: int) -> int:
        """Groups in which the node has a page. O(groups)."""
        count = 0
        for group in range(self.groups):
            if self.held[node * self.groups + group]:
                count += 1
        return count

    def reserve(self, count: int) -> None:
        """Room for so many nodes more, so that adding them cannot fail. Amortised O(count)."""
        while self.count + 1 + count > len(self.parent):
            self.grow()

    def grow(self) -> None:
        """Room for twice as many nodes. O(nodes)."""
        old, count = self.end, 2 * len(self.parent)
        held = larger(self.held, old * self.groups, count * self.groups)
        tokens = larger(self.tokens, old * self.size, count * self.size)
        buckets = ints(2 * count)
        parent, child = larger(self.parent, old, count), larger(self.child, old, count)
        siblings, code = larger(self.siblings, old, count), larger(self.code, old, count)
        tag, users = larger(self.tag, old, count), larger(self.users, old, count)
        expected, coming = larger(self.expected, old, count), larger(self.coming, old, count)
        following = larger(self.following, old, count)
        self.move(buckets, following)  # nothing is changed before all of it is there
        self.held, self.tokens = held, tokens
        self.child, self.siblings, self.code, self.tag = child, siblings, code, tag
        self.expected, self.coming = expected, coming
        self.buckets, self.following, self.parent, self.users = buckets, following, parent, users

    def move(self, buckets: Ints, following: Ints) -> None:
        """The nodes in all buckets into as many others. O(nodes)."""
        for bucket in range(len(self.buckets)):
            node = self.buckets[bucket]
            while node:
                place = self.code[node] % len(buckets)
                following[node] = buckets[place]
                buckets[place] = node
                node = self.following[node]
