"""Runs: stretches of nodes that were published one after the other, stored as one piece.

A *node* is one page of tokens in one context. Most nodes have one child, so a run keeps the token
bytes of consecutive nodes end to end and their pages side by side: comparing a prompt with it is
comparing bytes. A node's number says where it stands, (run, offset); runs are numbered once and a
run that was shortened never grows again, so no number ever comes back. Knows neither holders of
pages nor what is evicted.
"""

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.identity import MediaKey, RootKey

Ints = NDArray[np.int32]
NodeKey = tuple[bytes, MediaKey] | RootKey
"""What distinguishes a node after its parent: token bytes and media; or a root's salts and such."""
SHIFT = 24
LONGEST = 1 << SHIFT
"""Nodes a run can have."""
OFFSET = LONGEST - 1
"""Mask of the part of a node's number that says where in its run it stands."""


class Keys(NamedTuple):
    """What distinguishes consecutive full pages.

    Attributes:
        raw: their token ids, int32, end to end.
        width: bytes of one page.
        media: by place in ``raw``, the media of those pages that have any.
    """

    raw: bytes
    width: int
    media: dict[int, MediaKey]

    def __len__(self) -> int:
        return len(self.raw) // self.width

    def parts(self, at: int) -> tuple[bytes, MediaKey]:
        """Token bytes and media of page ``at``."""
        return self.raw[at * self.width : (at + 1) * self.width], self.media.get(at, ())


class Run:
    """Consecutive nodes.

    Attributes:
        base: number of its first node.
        before: the node its first one comes after.
        key: of its first node.
        size: nodes.
        texts: token bytes of its nodes, end to end, in pieces as they came.
        media: by offset, the media of those nodes that have any.
        pages: by group, the page of each node (of a state: its first); 0: none.
        states: by group and offset, all pages of a state.
        holds: by offset, children in other runs and sequences that stand there, where there are.
        closed: whether it was shortened, or is a root, and so may not grow.
        digests: names of its first nodes, as far as asked for.
    """

    __slots__ = (
        "base",
        "before",
        "closed",
        "digests",
        "holds",
        "key",
        "media",
        "pages",
        "size",
        "states",
        "texts",
    )

    def __init__(self, number: int, before: int, key: NodeKey, groups: int) -> None:
        self.base, self.before, self.key, self.size = number << SHIFT, before, key, 0
        self.texts: list[bytes] = []
        self.media: dict[int, MediaKey] = {}
        self.pages = [array("i") for _ in range(groups)]
        self.states: dict[tuple[int, int], tuple[int, ...]] = {}
        self.holds: dict[int, int] = {}
        self.closed = False
        self.digests: list[bytes] = []

    @property
    def raw(self) -> bytes:
        """Token bytes of all its nodes. O(1), after it grew O(its tokens)."""
        if len(self.texts) > 1:
            self.texts = [b"".join(self.texts)]
        return self.texts[0]

    def held(self, group: int) -> Ints:
        """A view of the pages of ``group``; the run cannot change its size while it exists."""
        return np.frombuffer(self.pages[group], np.int32)

    def append(self, keys: Keys, at: int) -> range:
        """Nodes for the pages of ``keys`` from ``at`` on, without pages yet. O(their tokens)."""
        first, count = self.size, len(keys) - at
        self.texts.append(keys.raw[at * keys.width :] if at else keys.raw)
        for place, media in keys.media.items():
            if place >= at:
                self.media[first + place - at] = media
        for pages in self.pages:
            pages.frombytes(bytes(4 * count))
        self.size += count
        return range(self.base + first, self.base + self.size)

    def grow(self, key: bytes, columns: list[list[int]], at: int) -> None:
        """One node more, without media, for the sequence that stands on the last one. O(groups).

        Args:
            columns: by group, pages of which the one at ``at`` is the node's; 0: none.
        """
        size, holds = self.size, self.holds
        self.texts.append(key)
        for group, pages in enumerate(self.pages):
            pages.append(columns[group][at])
        standing = holds.pop(size - 1)
        if standing > 1:
            holds[size - 1] = standing - 1
        holds[size] = 1
        self.size = size + 1

    def shorten(self, size: int) -> None:
        """Forget the nodes from offset ``size`` on, which nothing keeps. O(nodes forgotten)."""
        raw = self.raw
        self.texts = [raw[: size * (len(raw) // self.size)]]
        for pages in self.pages:
            del pages[size:]
        for offset in [offset for offset in self.media if offset >= size]:
            del self.media[offset]
        del self.digests[size:]
        self.size, self.closed = size, True

    def common(self, first: int, keys: Keys, at: int) -> int:
        """How many nodes from offset ``first`` on equal the pages of ``keys`` from ``at`` on.

        Cost: O(bytes compared).
        """
        raw, width, media = keys
        mine, ours, theirs = self.raw, first * width, at * width
        if not mine.startswith(raw[theirs : theirs + width], ours):
            return 0
        count = min(self.size - first, len(raw) // width - at)
        if not mine.startswith(raw[theirs : theirs + count * width], ours):
            count = _common_pages(mine[ours:], raw[theirs : theirs + count * width], width)
        if self.media or media:
            count = self._common_media(first, keys, at, count)
        return count

    def _common_media(self, first: int, keys: Keys, at: int, count: int) -> int:
        for step in range(count):
            if self.media.get(first + step) != keys.media.get(at + step):
                return step
        return count

    def last_kept(self) -> int:
        """Offset of the last node that has a page or is held; -1: there is none.

        Cost: O(1) where it is the last one, else O(nodes behind it).
        """
        last = self.size - 1
        if last in self.holds:
            return last
        for pages in self.pages:
            if pages[last]:
                return last
        kept = max(map(self._last_page, range(len(self.pages))))
        for offset in range(last, kept, -1) if self.holds else ():
            if offset in self.holds:
                return offset
        return kept

    def _last_page(self, group: int) -> int:
        """Offset of the last page of ``group``, looked for from the end; -1: it has none."""
        held, stop, span = self.held(group), self.size, 64
        while stop:
            start = max(0, stop - span)
            found = held[start:stop].nonzero()[0]
            if found.size:
                return start + int(found[-1])
            stop, span = start, 2 * span
        return -1

    def parts(self, offset: int) -> tuple[bytes, MediaKey]:
        """Token bytes and media of the node at ``offset``."""
        width = len(self.raw) // self.size
        return self.raw[offset * width : (offset + 1) * width], self.media.get(offset, ())


def _common_pages(mine: bytes, theirs: bytes, width: int) -> int:
    """Leading pages that are equal, of texts that differ after the first one; by bisection."""
    low, high = 1, len(theirs) // width - 1
    while low < high:
        middle = (low + high + 1) // 2
        if mine.startswith(theirs[low * width : middle * width], low * width):
            low = middle
        else:
            high = middle - 1
    return low


class Piece(NamedTuple):
    """``size`` nodes of a run from offset ``first`` on."""

    run: Run
    first: int
    size: int


class Chain(NamedTuple):
    """Nodes of consecutive pages of one prompt.

    Attributes:
        pieces: the stretches of runs they stand in.
        size: nodes.
    """

    pieces: list[Piece]
    size: int

    def node(self, at: int) -> int:
        """The node at place ``at``. O(pieces)."""
        for run, first, count in self.pieces:
            if at < count:
                return run.base + first + at
            at -= count
        raise IndexError(at)

    def nodes(self) -> list[int]:
        """All of them. O(nodes)."""
        found: list[int] = []
        for run, first, count in self.pieces:
            found.extend(range(run.base + first, run.base + first + count))
        return found

    def pages(self, group: int) -> Ints:
        """int32[size], the page of each node in ``group`` (of a state: its first); 0: none."""
        parts: list[Ints] = [run.held(group)[a : a + n] for run, a, n in self.pieces]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)


NOTHING = Chain([], 0)


def place(node: int) -> tuple[int, int]:
    """(run, offset) of a node's number. O(1)."""
    return node >> SHIFT, node & OFFSET
