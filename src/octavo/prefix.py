"""The prefix index: which published page holds which tokens in which context, exact by value.

A *node* is one page of tokens in one context, numbered; a number is never reused. Its key is
(parent node, the page's token bytes), compared by value, so no collision of hashes can ever return
another page. The index does not count holders and does not choose what is evicted.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import IntegrityError

ROOT = 0
"""The node before the first page of every sequence."""


class Node(NamedTuple):
    """A published page: its node number and the physical page that holds it."""

    node: int
    page: int


class _Entry(NamedTuple):
    parent: int
    tokens: bytes
    page: int


class PrefixIndex:
    """Exact map from token prefixes to physical pages; every operation is O(1) a page.

    Args:
        page_size: tokens a page holds.
    """

    def __init__(self, page_size: int) -> None:
        self._width = 4 * page_size
        self._children: dict[tuple[int, bytes], Node] = {}
        self._entries: dict[int, _Entry] = {}
        self._node_of: dict[int, int] = {}
        self._next = ROOT + 1

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, tokens: bytes, pages: int) -> list[Node]:
        """The longest chain of published pages that begins ``tokens``, at most ``pages`` long.

        Args:
            tokens: little-endian int32 token ids, 4 bytes each.

        Cost: O(pages matched).
        """
        found: list[Node] = []
        parent, width, children = ROOT, self._width, self._children
        for start in range(0, pages * width, width):
            node = children.get((parent, tokens[start : start + width]))
            if node is None:
                break
            found.append(node)
            parent = node.node
        return found

    def publish(self, parent: int, tokens: bytes, page: int) -> Node:
        """Enter ``page`` as the child of ``parent`` that holds ``tokens``, unless one is there.

        Returns:
            The node that now stands for these tokens: its page differs from ``page`` where they
            were published before, and then nothing was entered.

        Cost: O(1).
        """
        found = self._children.get((parent, tokens))
        if found is not None:
            return found
        node = Node(self._next, page)
        self._next += 1
        self._children[parent, tokens] = node
        self._entries[node.node] = _Entry(parent, tokens, page)
        self._node_of[page] = node.node
        return node

    def forget(self, pages: NDArray[np.int32] | Sequence[int]) -> None:
        """Remove the nodes of ``pages``; children stay unreachable until their own are removed.

        Cost: O(len(pages)).
        """
        for page in np.asarray(pages).tolist():
            entry = self._entries.pop(self._node_of.pop(page))
            del self._children[entry.parent, entry.tokens]

    def ancestor(self, node: int, steps: int) -> int:
        """The node ``steps`` pages before ``node``. O(steps)."""
        for _ in range(steps):
            node = self._entries[node].parent
        return node

    def pages(self) -> Iterator[int]:
        """The physical pages of all nodes, oldest node first. O(1) a page."""
        return (entry.page for entry in self._entries.values())

    def check(self) -> None:
        """Raise IntegrityError unless every node has its page and is found by its key. O(nodes)."""
        sizes = (len(self._children), len(self._entries), len(self._node_of))
        if len(set(sizes)) != 1:
            raise IntegrityError("keys == nodes == pages of the prefix index", sizes, sizes[0])
        for number, entry in self._entries.items():
            found = self._children.get((entry.parent, entry.tokens))
            if found != Node(number, entry.page) or self._node_of.get(entry.page) != number:
                raise IntegrityError(f"entry of node {number} == its key's", entry, found)
