"""Where idle pages wait to be given up: first-in-first-out lanes over flat arrays.

Entries are never taken out of the middle: a page that is used again leaves a stale entry behind,
told from a current one by its stamp. Compacting a full ring drops the stale ones, so every
operation is amortised O(1) a page and vectorised.
"""

import numpy as np
from numpy.typing import NDArray

from octavo.policies import Policy
from octavo.spec import check_int

Index = NDArray[np.intp]
Bools = NDArray[np.bool_]


class _Ring:
    """Append-only entries (page, stamp) between ``head`` and ``tail``."""

    def __init__(self) -> None:
        self.pages = np.zeros(64, np.int32)
        self.stamps = np.zeros(64, np.int64)
        self.head = self.tail = 0

    def append(self, pages: Index, stamps: NDArray[np.int64]) -> None:
        end = self.tail + pages.size
        self.pages[self.tail : end] = pages
        self.stamps[self.tail : end] = stamps
        self.tail = end

    def has_room(self, count: int) -> bool:
        return self.tail + count <= self.pages.size

    def keep(self, current: Bools, extra: int) -> None:
        """Move current entries to the front of arrays with room for ``extra`` more."""
        live = slice(self.head, self.tail)
        pages, stamps = self.pages[live][current], self.stamps[live][current]
        size = max(64, 2 * (pages.size + extra))
        if size > self.pages.size:
            self.pages, self.stamps = np.zeros(size, np.int32), np.zeros(size, np.int64)
        self.head, self.tail = 0, pages.size
        self.pages[: pages.size], self.stamps[: pages.size] = pages, stamps


class Lanes:
    """The idle pages of one id space, in the order a policy gives them up.

    Args:
        size: ids of the space, the null page included.
        usable: pages a policy's shares refer to.
        policy: chooses lanes.

    Attributes:
        lane: int8[size], the lane an idle page waits in; -1: it is not idle.
        reused: bool[size], whether a page was hit since it was published.
    """

    def __init__(self, size: int, usable: int, policy: Policy) -> None:
        self.lane = np.full(size, -1, np.int8)
        self.reused = np.zeros(size, np.bool_)
        self.stamp = np.zeros(size, np.int64)
        self.waiting = [0] * (policy.lanes + 1)
        self._rings = [_Ring() for _ in self.waiting]
        self._policy, self._usable, self._clock = policy, usable, 1
        check_int("lanes", policy.lanes, 1, 100)
        self._choices = tuple(
            check_int("lane", policy.lane(reused=reused), 1, policy.lanes)
            for reused in (False, True)
        )

    def __len__(self) -> int:
        return sum(self.waiting)

    def add(self, pages: Index, *, cold: bool = False) -> None:
        """Let ``pages`` wait, the first listed to be given up first. Amortised O(len(pages))."""
        if cold or self._choices[0] == self._choices[1]:
            self._append(0 if cold else self._choices[0], pages)
            return
        reused = self.reused[pages]
        self._append(self._choices[0], pages[~reused])
        self._append(self._choices[1], pages[reused])
        self._rebalance()

    def remove(self, pages: Index) -> None:
        """Take idle ``pages`` out, each listed once. O(len(pages))."""
        for number, count in enumerate(np.bincount(self.lane[pages]).tolist()):
            self.waiting[number] -= count
        self.lane[pages] = -1

    def pop(self, count: int) -> Index:
        """Take out and return the ``count`` pages to give up first; there are as many.

        Amortised O(count).
        """
        parts = []
        for number, waiting in enumerate(self.waiting):
            part = self._oldest(number, min(count, waiting))
            parts.append(part)
            count -= part.size
        pages = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self.lane[pages] = -1
        return pages

    def rank(self, page: int) -> tuple[int, int]:
        """What orders idle pages: the lower is given up first. O(1)."""
        return int(self.lane[page]), int(self.stamp[page])

    def _append(self, number: int, pages: Index) -> None:
        if not pages.size:
            return
        ring = self._rings[number]
        if not ring.has_room(pages.size):
            ring.keep(self._current(number), pages.size)
        stamps = np.arange(self._clock, self._clock + pages.size)
        self._clock += pages.size
        ring.append(pages, stamps)
        self.stamp[pages] = stamps
        self.lane[pages] = number
        self.waiting[number] += pages.size

    def _rebalance(self) -> None:
        for number in range(len(self.waiting) - 1, 1, -1):
            waiting = self.waiting[number]
            excess = self._policy.excess(number, waiting, self._usable) if waiting else 0
            excess = min(max(0, int(excess)), waiting)
            if excess:
                pages = self._oldest(number, excess)
                self._append(number - 1, pages)

    def _oldest(self, number: int, count: int) -> Index:
        """The ``count`` oldest pages of a lane, no longer counted in it."""
        ring, found, left = self._rings[number], [], count
        while left > 0:
            stop = min(ring.tail, ring.head + 2 * left + 16)
            pages = ring.pages[ring.head : stop]
            current = self.lane[pages] == number
            current &= self.stamp[pages] == ring.stamps[ring.head : stop]
            at = np.flatnonzero(current)[:left]
            ring.head = stop if at.size < left else ring.head + int(at[-1]) + 1
            found.append(pages[at].astype(np.intp))
            left -= at.size
        self.waiting[number] -= count
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def _current(self, number: int) -> Bools:
        ring = self._rings[number]
        pages = ring.pages[ring.head : ring.tail]
        current: Bools = self.lane[pages] == number
        current &= self.stamp[pages] == ring.stamps[ring.head : ring.tail]
        return current
