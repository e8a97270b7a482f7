"""The ids of one group in a packed pool, and the lists of parents it draws on.

The lists are never mended: an entry that no longer holds is dropped by whoever meets it. Knows one
group; not which parents are free, and not what others hold.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from octavo.cache.lanes import LANE_BITS, Clock, Heap, Index, Lanes, Stamps
from octavo.cache.policies import Policy


class Space:
    """One group's ids: holders, publication, and which parents it draws on.

    Attributes:
        live: pages somebody holds.
        mixed: parents with a live page.
        partial: by vacant pages, parents that may have as many beside live ones.
        fullest: no parent is listed with fewer vacant pages.
        resting: parents that may have vacant pages and no live one, the first to rest first.
        passed: by lane, the stamp below which evictable pages beside live ones are in ``heap``.
    """

    def __init__(self, per_parent: int, parents: int, policy: Policy, clock: Clock) -> None:
        size = 1 + parents * per_parent
        self.per_parent = per_parent
        self.refs = np.zeros(size, np.int32)
        self.published = np.zeros(size, np.bool_)
        self.lanes = Lanes(size, size - 1, policy, clock)
        self.live = self.mixed = 0
        self.partial: list[dict[int, None]] = [{} for _ in range(per_parent)]
        self.fullest = per_parent
        self.resting: OrderedDict[int, None] = OrderedDict()
        self.passed = np.zeros(policy.lanes + 1, np.int64)
        self.heap = Heap(self.lanes.stamp)
        self._offsets = np.arange(1, per_parent + 1)

    @property
    def own(self) -> int:
        """Pages to be had in parents with live pages. O(1)."""
        return self.mixed * self.per_parent - self.live

    def parents(self, pages: Index) -> Index:
        """The parent of each page. O(pages)."""
        found: Index = pages - 1
        found //= self.per_parent
        return found

    def pages(self, parents: Index) -> Index:
        """The pages of each parent, a row each. O(parents x K)."""
        return parents[:, None] * self.per_parent + self._offsets

    def vacant(self, pages: Index) -> NDArray[np.bool_]:
        """Which of ``pages`` are neither live nor evictable. O(pages)."""
        vacant: NDArray[np.bool_] = self.refs[pages] == 0
        vacant &= self.lanes.stamp[pages] == 0
        return vacant

    def warmth(self, parents: Index) -> Stamps:
        """The stamp of each parent's newest evictable page. O(parents x K)."""
        newest: Stamps = np.maximum.reduce(self.lanes.stamp[self.pages(parents)], 1)
        return newest

    def list_partial(self, parents: list[int], vacant: list[int]) -> None:
        """These parents have live pages and so many vacant ones. O(parents)."""
        for parent, count in zip(parents, vacant, strict=True):
            if count:
                self.partial[count][parent] = None
                self.fullest = min(self.fullest, count)

    def list_resting(self, parents: Index) -> None:
        """These parents have vacant pages and no live one. O(parents)."""
        for parent in parents.tolist():
            self.resting[parent] = None
            self.resting.move_to_end(parent)

    def expose(self, parents: Index) -> None:
        """These parents get their first live page: their evictable pages can be given up singly.

        Those that were passed must wait in the heap; the others are met when their turn comes.
        """
        if not np.count_nonzero(self.passed):
            return
        pages = self.pages(parents).ravel()
        stamps = self.lanes.stamp[pages]
        passed = (stamps != 0) & (stamps < self.passed[stamps >> LANE_BITS])
        self.heap.push(pages[passed], stamps[passed])
