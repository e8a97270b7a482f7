"""The prefix index: which published page holds which tokens in which context, exact by value.

A *node* is one page of tokens in one context, numbered; a number is never reused. Its key is
(parent node, the page's token bytes, its media), compared by value, so no collision of hashes can
ever return another page. A node holds at most one page a group and lives while any group has its
page, a child exists, or a sequence stands on it. The index does not count a page's holders and does
not choose what is evicted.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from octavo.errors import IntegrityError
from octavo.identity import MediaKey, RootKey, page_digest, root_digest

ROOT = 0
"""The node before the first page of every sequence without salt and adapter."""
_NOWHERE = -1

PageKey = bytes | tuple[bytes, MediaKey]
"""What distinguishes a page after its parent: its token bytes, and its media where it has any."""
NodeKey = PageKey | RootKey
Held = int | tuple[int, ...]
"""One page of a token group, or the pages of one state."""
Pages = NDArray[np.integer[Any]] | Sequence[int]


class Chain(NamedTuple):
    """Nodes of consecutive pages; the first ``known`` of them were there before."""

    nodes: list[int]
    known: int


class PrefixIndex:
    """Exact map from token prefixes to physical pages; every operation is O(1) a page.

    Args:
        groups: how many groups keep pages.
    """

    def __init__(self, groups: int = 1) -> None:
        self._node_at: dict[tuple[int, NodeKey], int] = {}
        self._key_of: dict[int, tuple[int, NodeKey]] = {}
        self._holders: dict[int, int] = {ROOT: 0}  # but for nodes with exactly one
        self._pages: list[dict[int, Held]] = [{} for _ in range(groups)]
        self._node_of: list[dict[int, int]] = [{} for _ in range(groups)]
        self._digests: dict[int, bytes] = {}
        self._next = ROOT + 1

    def __len__(self) -> int:
        return len(self._key_of)

    # -- nodes ---------------------------------------------------------------------------------

    def find_root(self, root: RootKey) -> int | None:
        """The node before the first page of sequences with these salts and adapters, if any."""
        return self._node_at.get((_NOWHERE, root)) if root else ROOT

    def enter_root(self, root: RootKey) -> int:
        """`find_root`, made where there is none. O(1)."""
        return self._enter(_NOWHERE, root) if root else ROOT

    def walk(self, root: int, keys: Iterable[PageKey]) -> list[int]:
        """Nodes of the longest known chain after ``root`` that begins ``keys``. O(nodes found)."""
        found, node, get = [], root, self._node_at.get
        for key in keys:
            child = get((node, key))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def walk_tokens(self, root: int, raw: bytes, width: int) -> list[int]:
        """`walk` by pages of ``width`` bytes of token ids without media. O(nodes found)."""
        found, node, get = [], root, self._node_at.get
        for start in range(0, len(raw), width):
            child = get((node, raw[start : start + width]))
            if child is None:
                break
            found.append(child)
            node = child
        return found

    def enter(self, tip: int, keys: list[PageKey]) -> Chain:
        """Move a sequence that stands on ``tip`` on by ``keys``, making nodes where there are none.

        Cost: O(len(keys)).
        """
        nodes = self.walk(tip, keys)
        known, count = len(nodes), len(keys) - len(nodes)
        if count:
            first = self._next
            self._next = end = first + count
            before = nodes[-1] if nodes else tip
            new = list(zip((before, *range(first, end - 1)), keys[known:], strict=True))
            self._node_at.update(zip(new, range(first, end), strict=True))
            self._key_of.update(zip(range(first, end), new, strict=True))
            nodes.extend(range(first, end))
        if known:  # else what stood on the tip becomes its new child
            self.hold(nodes[known - 1])
            self.unhold(tip)
        return Chain(nodes, known)

    def advance(self, tips: list[int], keys: list[bytes]) -> tuple[list[int], list[int]]:
        """Move sequences that stand on ``tips`` one page on, each by its key.

        Returns:
            (the nodes they stand on now, places in the list of those that were there before).

        Cost: O(len(tips)).
        """
        pairs = list(zip(tips, keys, strict=True))
        if any(map(self._node_at.get, pairs)):
            return self._advance_each(pairs)
        new, before = range(self._next, self._next + len(pairs)), len(self._node_at)
        self._node_at.update(zip(pairs, new, strict=True))
        if len(self._node_at) < before + len(pairs):  # two sequences go the same way
            for pair in set(pairs):
                del self._node_at[pair]
            return self._advance_each(pairs)
        self._next = new.stop
        self._key_of.update(zip(new, pairs, strict=True))
        return list(new), []

    def _advance_each(self, pairs: list[tuple[int, bytes]]) -> tuple[list[int], list[int]]:
        """`advance` where some of the nodes are there, or two sequences go the same way."""
        nodes, known = [], []
        for at, pair in enumerate(pairs):
            node = self._node_at.get(pair)
            if node is None:
                node, self._next = self._next, self._next + 1
                self._node_at[pair] = node
                self._key_of[node] = pair
            else:
                self.hold(node)
                self._lose_holder(pair[0])
                known.append(at)
            nodes.append(node)
        return nodes, known

    def hold(self, node: int) -> None:
        """Keep ``node`` alive for a child, or a sequence that stands on it. O(1)."""
        self._set_holders(node, self._holders.get(node, 1) + 1)

    def unhold(self, node: int) -> None:
        """Undo one `hold`. O(1), and O(1) a node that dies."""
        self._lose_holder(node)
        self._prune(node)

    def ancestor(self, node: int, steps: int) -> int:
        """The node ``steps`` pages before ``node``. O(steps)."""
        for _ in range(steps):
            node = self._key_of[node][0]
        return node

    def path(self, node: int, count: int) -> list[int]:
        """The last ``count`` nodes up to and with ``node``, in order. O(count)."""
        nodes = []
        for _ in range(count):
            nodes.append(node)
            node = self._key_of[node][0]
        return nodes[::-1]

    def digest(self, node: int) -> bytes:
        """SHA-256 name of ``node``, equal in every process. O(nodes not named before)."""
        trail = []
        while node not in self._digests and node in self._key_of:
            trail.append(node)
            node = self._key_of[node][0]
        for item in reversed(trail):
            parent, key = self._key_of[item]
            self._digests[item] = self._name(parent, key)
        last = trail[0] if trail else node
        return root_digest(()) if last == ROOT else self._digests[last]

    # -- pages ---------------------------------------------------------------------------------

    def pages(self, group: int) -> dict[int, Held]:
        """Node to page (token groups) or pages (state groups); read-only. O(1)."""
        return self._pages[group]

    def node_of(self, group: int, page: int) -> int | None:
        """The node ``page`` stands for in ``group``. O(1)."""
        return self._node_of[group].get(page)

    def attach(self, group: int, nodes: Sequence[int], pages: Sequence[int]) -> None:
        """Let ``pages`` hold ``nodes``, none of which has a page in ``group``. O(len(nodes))."""
        self._pages[group].update(zip(nodes, pages, strict=True))
        self._node_of[group].update(zip(pages, nodes, strict=True))

    def attach_state(self, group: int, node: int, pages: tuple[int, ...]) -> None:
        """Let ``pages`` together hold the state after ``node``. O(pages)."""
        self._pages[group][node] = pages
        self._node_of[group].update(dict.fromkeys(pages, node))

    def detach(self, group: int, page: int) -> tuple[int, tuple[int, ...]]:
        """``page`` holds its node no more.

        Returns:
            The node, and the other pages of the same state, which hold it no more either.

        Cost: O(1), and O(1) a node that dies.
        """
        node = self._node_of[group].pop(page)
        held = self._pages[group].pop(node)
        others = () if isinstance(held, int) else tuple(p for p in held if p != page)
        for other in others:
            del self._node_of[group][other]
        return node, others

    def drop(self, group: int, pages: list[int]) -> None:
        """`detach` and prune for many pages of a token group. O(len(pages))."""
        node_of, held = self._node_of[group], self._pages[group]
        nodes = [node_of.pop(page) for page in pages]
        for node in nodes:
            del held[node]
        self.prune(nodes)

    def copies(self, node: int) -> int:
        """Groups in which ``node`` has a page. O(groups)."""
        return sum(node in pages for pages in self._pages)

    def prune(self, nodes: Iterable[int]) -> None:
        """Forget those of ``nodes`` nothing keeps alive. O(1) a node."""
        for node in nodes:
            self._prune(node)

    def check(self, standing: dict[int, int]) -> None:
        """Raise IntegrityError unless nodes, keys, pages and holders agree.

        Args:
            standing: node to number of sequences that stand on it.

        Cost: O(nodes).
        """
        holders = dict(standing)
        for node, (parent, _) in self._key_of.items():
            if parent != _NOWHERE:
                holders[parent] = holders.get(parent, 0) + 1
            if self._node_at.get(self._key_of[node]) != node:
                raise IntegrityError(f"node of the key of node {node}", node, None)
        if len(self._node_at) != len(self._key_of):
            raise IntegrityError("keys == nodes", len(self._node_at), len(self._key_of))
        counted = {node: holders.get(node, 0) for node in (ROOT, *self._key_of)}
        stored = {node: self._holders.get(node, 1) for node in counted}
        if counted != stored or not self._holders.keys() <= counted.keys():
            raise IntegrityError("children + sequences == holders", counted, self._holders)
        for group, held in enumerate(self._pages):
            self._check_pages(group, held)
        for node in self._key_of:
            if not self.copies(node) and node not in holders:
                raise IntegrityError(f"node {node} is kept alive", False, True)

    # -- inside --------------------------------------------------------------------------------

    def _enter(self, parent: int, key: NodeKey) -> int:
        node = self._node_at.get((parent, key))
        if node is None:
            node, self._next = self._next, self._next + 1
            self._node_at[parent, key] = node
            self._key_of[node] = (parent, key)
            self._holders[node] = 0
        return node

    def _set_holders(self, node: int, count: int) -> None:
        if count == 1:
            del self._holders[node]
        else:
            self._holders[node] = count

    def _lose_holder(self, node: int) -> None:
        self._set_holders(node, self._holders.get(node, 1) - 1)

    def _prune(self, node: int) -> None:
        while node in self._key_of and self._holders.get(node) == 0 and not self.copies(node):
            key = self._key_of.pop(node)
            del self._node_at[key], self._holders[node]
            self._digests.pop(node, None)
            node = key[0]
            if node != _NOWHERE:
                self._lose_holder(node)

    def _name(self, parent: int, key: NodeKey) -> bytes:
        if parent == _NOWHERE:
            return root_digest(cast("RootKey", key))
        before = root_digest(()) if parent == ROOT else self._digests[parent]
        tokens, media = (key, ()) if isinstance(key, bytes) else cast("tuple[bytes, MediaKey]", key)
        return page_digest(before, tokens, media)

    def _check_pages(self, group: int, held: dict[int, Held]) -> None:
        pairs = {}
        for node, pages in held.items():
            pairs.update(dict.fromkeys((pages,) if isinstance(pages, int) else pages, node))
            if node not in self._key_of:
                raise IntegrityError(f"node {node} of page {pages} is alive", False, True)
        if pairs != self._node_of[group]:
            raise IntegrityError("pages by node == nodes by page", pairs, self._node_of[group])
