"""The prefix index: which published page holds which tokens in which context, exact by value.

A node's key is (parent node, the page's token bytes, its media), compared by value, so no collision
of hashes can ever return another page. A node holds at most one page a group and lives while any
group has its page, a child exists, or a sequence stands on it. Nodes are kept in
`octavo.cache.runs`; the dict here says where a run begins after a node. The index does not count a
page's holders and does not choose what is evicted.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.identity import RootKey, page_digest, root_digest
from octavo.cache.runs import LONGEST, OFFSET, SHIFT, Chain, Keys, NodeKey, Piece, Run, place
from octavo.errors import IntegrityError

ROOT = 0
"""The node before the first page of every sequence without salt and adapter."""
_NOWHERE = -1

Ints = NDArray[np.int32]
Index = NDArray[np.intp]
Nodes = NDArray[np.int64]


class PrefixIndex:
    """Exact map from token prefixes to physical pages; every operation is O(1) a page, or less.

    Args:
        sizes: by group, how many ids its pages have, the null page included.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._groups = len(sizes)
        self._run_at: dict[tuple[int, NodeKey], Run] = {}
        self._runs: dict[int, Run] = {}
        self._node_of: list[Nodes] = [np.zeros(size, np.int64) for size in sizes]
        self._next = 0
        self._make_root(())

    def __len__(self) -> int:
        return sum(run.size for run in self._runs.values()) - 1

    # -- nodes ---------------------------------------------------------------------------------

    def find_root(self, root: RootKey) -> int | None:
        """The node before the first page of sequences with these salts and adapters, if any."""
        if not root:
            return ROOT
        run = self._run_at.get((_NOWHERE, root))
        return None if run is None else run.base

    def enter_root(self, root: RootKey) -> int:
        """`find_root`, made where there is none. O(1)."""
        found = self.find_root(root)
        return self._make_root(root) if found is None else found

    def walk(self, start: int, keys: Keys) -> Chain:
        """The longest known chain after node ``start`` that begins ``keys``.

        Cost: O(bytes compared + runs).
        """
        pieces: list[Piece] = []
        at, total = 0, len(keys.raw) // keys.width
        run, first = self._runs[start >> SHIFT], (start & OFFSET) + 1
        while at < total:
            count = run.common(first, keys, at) if first < run.size else 0
            if not count:
                begun = self._run_at.get((run.base + first - 1, keys.parts(at)))
                if begun is None:
                    break
                run, first = begun, 0
                count = run.common(0, keys, at)
            pieces.append(Piece(run, first, count))
            at, first = at + count, first + count
        return Chain(pieces, at)

    def enter(self, tip: int, keys: Keys) -> tuple[Chain, range]:
        """Move a sequence that stands on ``tip`` on by ``keys``, making nodes where there are none.

        Returns:
            (the chain of those that were there before, the numbers of the new ones).

        Cost: O(bytes).
        """
        known = self.walk(tip, keys)
        end = known.node(known.size - 1) if known.size else tip
        new = self._grow(end, keys, known.size) if known.size < len(keys) else range(0)
        self.hold(new[-1] if new else end)
        self.unhold(tip)
        return known, new

    def _grow(self, node: int, keys: Keys, at: int) -> range:
        """New nodes after ``node``: in its run where that ends there, else in one of their own."""
        number, offset = place(node)
        run = self._runs[number]
        if run.closed or offset + 1 < run.size or run.size + len(keys) - at > LONGEST:
            run = self._begin(node, keys.parts(at))
            self.hold(node)
        return run.append(keys, at)

    def advance(
        self, tips: list[int], keys: list[bytes], pages: dict[int, Index]
    ) -> tuple[list[int], list[int]]:
        """Move sequences that stand on ``tips`` one page without media on, each by its key.

        Args:
            pages: by group, the page each of them has filled, to be attached to its new node.

        Returns:
            (the nodes they stand on now, places in the list of those whose node may have been there
            before, which got no page).

        Cost: O(len(tips)).
        """
        nodes: list[int] = []
        others: list[int] = []
        none = [0] * len(tips)
        columns = [pages[g].tolist() if g in pages else none for g in range(self._groups)]
        for at, tip in enumerate(tips):
            run = self._runs[tip >> SHIFT]
            if run.base + run.size - 1 == tip and not run.closed and run.size < LONGEST:
                run.grow(keys[at], columns, at)
                nodes.append(tip + 1)
            else:
                others.append(at)
                found, new = self.enter(tip, Keys(keys[at], len(keys[at]), {}))
                nodes.append(new[0] if new else found.node(0))
        numbers = np.delete(np.array(nodes), others) if others else np.array(nodes)
        for group, column in pages.items():
            self._node_of[group][np.delete(column, others) if others else column] = numbers
        return nodes, others

    def hold(self, node: int) -> None:
        """Keep ``node`` alive for a child, or a sequence that stands on it. O(1)."""
        holds, offset = self._runs[node >> SHIFT].holds, node & OFFSET
        holds[offset] = holds.get(offset, 0) + 1

    def unhold(self, node: int) -> None:
        """Undo one `hold`. O(1), and O(1) a node that dies."""
        number, offset = place(node)
        run = self._runs[number]
        self._let_go(run, offset)
        if offset == run.size - 1:
            self._prune(run)

    def ancestor(self, node: int, steps: int) -> int:
        """The node ``steps`` pages before ``node``. O(runs between)."""
        while steps:
            number, offset = place(node)
            if offset >= steps:
                return node - steps
            node, steps = self._runs[number].before, steps - offset - 1
        return node

    def digest(self, node: int) -> bytes:
        """SHA-256 name of ``node``, equal in every process. O(nodes not named before)."""
        trail, (number, offset) = [], place(node)
        run = self._runs[number]
        while len(run.digests) <= offset and run.before != _NOWHERE:
            trail.append((run, offset))
            number, offset = place(run.before)
            run = self._runs[number]
        for later, stop in reversed(trail):
            self._name(later, stop)
        number, offset = place(node)
        run = self._runs[number]
        return run.digests[offset] if run.before != _NOWHERE else self._root_name(run)

    # -- pages ---------------------------------------------------------------------------------

    def page(self, group: int, node: int) -> int:
        """The page of ``node`` in ``group`` (of a state: its first); 0: none. O(1)."""
        number, offset = place(node)
        return self._runs[number].pages[group][offset]

    def state(self, group: int, node: int) -> tuple[int, ...]:
        """All pages of the state kept after ``node``; empty: none. O(1)."""
        number, offset = place(node)
        return self._runs[number].states.get((group, offset), ())

    def node_of(self, group: int, page: int) -> int | None:
        """The node ``page`` stands for in ``group``. O(1)."""
        return int(self._node_of[group][page]) or None

    def published(self, group: int) -> Index:
        """Pages of ``group`` that stand for a node. O(ids)."""
        return np.flatnonzero(self._node_of[group])

    def attach(self, group: int, nodes: range, pages: NDArray[np.integer[Any]]) -> None:
        """Let ``pages`` hold ``nodes`` of one run, none of which has a page in ``group``.

        Cost: O(len(nodes)).
        """
        first, stop = nodes.start, nodes.stop
        run, offset = self._runs[first >> SHIFT], first & OFFSET
        run.held(group)[offset : offset + stop - first] = pages
        self._node_of[group][pages] = np.arange(first, stop)

    def attach_state(self, group: int, node: int, pages: tuple[int, ...]) -> None:
        """Let ``pages`` together hold the state after ``node``. O(pages)."""
        number, offset = place(node)
        run = self._runs[number]
        run.pages[group][offset], run.states[group, offset] = pages[0], pages
        self._node_of[group][list(pages)] = node

    def detach_state(self, group: int, node: int) -> tuple[int, ...]:
        """The state after ``node`` is kept no more; returns its pages. O(pages)."""
        number, offset = place(node)
        run = self._runs[number]
        pages = run.states.pop((group, offset))
        run.pages[group][offset] = 0
        self._node_of[group][list(pages)] = 0
        self._prune(run)
        return pages

    def detach(self, group: int, pages: Index) -> None:
        """``pages`` of a token group hold their nodes no more. O(len(pages) + runs)."""
        nodes = self._node_of[group][pages]
        self._node_of[group][pages] = 0
        numbers, offsets = nodes >> SHIFT, nodes & OFFSET
        for number, start, stop in _stretches(numbers):
            run = self._runs[number]
            run.held(group)[offsets[start:stop]] = 0
            self._prune(run)

    def copies(self, node: int) -> int:
        """Groups in which ``node`` has a page. O(groups)."""
        number, offset = place(node)
        return sum(pages[offset] != 0 for pages in self._runs[number].pages)

    # -- inside --------------------------------------------------------------------------------

    def _begin(self, before: int, key: NodeKey) -> Run:
        """An empty run after ``before``."""
        run = Run(self._next, before, key, self._groups)
        self._next += 1
        self._runs[run.base >> SHIFT] = self._run_at[before, key] = run
        return run

    def _make_root(self, root: RootKey) -> int:
        run = self._begin(_NOWHERE, root)
        for pages in run.pages:
            pages.append(0)
        run.texts, run.size, run.closed = [b""], 1, True
        return run.base

    @staticmethod
    def _let_go(run: Run, offset: int) -> None:
        if run.holds[offset] == 1:
            del run.holds[offset]
        else:
            run.holds[offset] -= 1

    def _prune(self, run: Run) -> None:
        """Forget the nodes at a run's end that nothing keeps alive, and what only they kept."""
        kept = run.last_kept() + 1
        while kept < run.size and run.base != ROOT:
            if kept:
                run.shorten(kept)
                return
            del self._runs[run.base >> SHIFT], self._run_at[run.before, run.key]
            if run.before == _NOWHERE:
                return
            number, offset = place(run.before)
            run = self._runs[number]
            self._let_go(run, offset)
            kept = run.last_kept() + 1

    def _root_name(self, run: Run) -> bytes:
        return root_digest(run.key)  # type: ignore[arg-type]  # roots have root keys

    def _name(self, run: Run, stop: int) -> None:
        """Name the nodes of ``run`` up to offset ``stop``."""
        before = run.digests[-1] if run.digests else self.digest(run.before)
        for offset in range(len(run.digests), stop + 1):
            before = page_digest(before, *run.parts(offset))
            run.digests.append(before)

    # -- checking ------------------------------------------------------------------------------

    def check(self, standing: dict[int, int]) -> None:
        """Raise IntegrityError unless nodes, keys, pages and holders agree.

        Args:
            standing: node to number of sequences that stand on it.

        Cost: O(nodes).
        """
        holds = dict(standing)
        for run in self._runs.values():
            if run.before != _NOWHERE:
                holds[run.before] = holds.get(run.before, 0) + 1
            self._check_run(run)
        stored = {run.base + at: n for run in self._runs.values() for at, n in run.holds.items()}
        if holds != stored:
            raise IntegrityError("children + sequences == holders", holds, stored)
        if len(self._run_at) != len(self._runs):
            raise IntegrityError("keys == runs", len(self._run_at), len(self._runs))
        for group in range(self._groups):
            self._check_pages(group)

    def _check_run(self, run: Run) -> None:
        if self._run_at.get((run.before, run.key)) is not run:
            raise IntegrityError(f"run {run.base >> SHIFT} is found by its key", False, True)
        sizes = {len(pages) for pages in run.pages}
        if sizes - {run.size} or (run.before != _NOWHERE and len(run.raw) % run.size):
            raise IntegrityError(f"nodes of run {run.base >> SHIFT}", sizes, run.size)
        if run.before != _NOWHERE and run.last_kept() != run.size - 1:
            node = run.base + run.size - 1
            raise IntegrityError(f"node {node} is kept alive", False, True)

    def _check_pages(self, group: int) -> None:
        pairs = {}
        for node, pages in self._attached(group):
            pairs.update(dict.fromkeys(pages, node))
        index = self.published(group)
        listed = dict(zip(index.tolist(), self._node_of[group][index].tolist(), strict=True))
        if pairs != listed:
            raise IntegrityError("pages by node == nodes by page", pairs, listed)

    def _attached(self, group: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        for run in self._runs.values():
            for offset, page in enumerate(run.pages[group]):
                if page:
                    yield run.base + offset, run.states.get((group, offset), (page,))


def _stretches(numbers: Nodes) -> list[tuple[int, int, int]]:
    """(number, start, stop) of each stretch of equal ``numbers``. O(len(numbers))."""
    if not numbers.size:
        return []
    cuts = (numbers[1:] != numbers[:-1]).nonzero()[0] + 1
    starts = [0, *cuts.tolist()]
    firsts = numbers[starts].tolist()
    return list(zip(firsts, starts, [*starts[1:], numbers.size], strict=True))
