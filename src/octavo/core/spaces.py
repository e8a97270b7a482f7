"""The ids of one group's pages, and where evictable ones beside live ones wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.arena import ints, view

if TYPE_CHECKING:
    from octavo.core.arena import Ints


def small(count: int) -> Ints:
    """``count`` zeros of 8 bits. O(1)."""
    return view(bytearray(count))


class Space:
    """The ids of one group, or of all groups where a parent is one page.

    Attributes:
        size: ids, the null page included.
        per_parent: K.
        holders: by page, how many hold it.
        node: by page, the node that stands for it; 0: none.
        lane: by page, where it waits when nobody holds it.
        before, after: by page, its neighbours among evictable pages beside live ones, a ring for
            each lane; ``after`` also links the vacant pages of a parent. Empty where K is 1.
        beside: evictable pages beside live ones.
        live: pages somebody holds.
        mixed: parents with a live page.
        fullest: no parent with live and vacant pages has fewer vacant ones.
        rings: where in the pool's ``left`` and ``right`` its rings of parents begin.
    """

    def __init__(self, parents: int, per_parent: int, lanes: int, rings: int) -> None:
        self.size = 1 + parents * per_parent
        self.per_parent = per_parent
        self.lanes = lanes
        self.rings = rings
        self.holders = ints(self.size)
        self.node = ints(self.size)
        self.lane = small(self.size)
        links = self.size + lanes if per_parent > 1 else 0
        self.before = ints(links)
        self.after = ints(links)
        for ring in range(self.size, links):
            self.before[ring] = ring
            self.after[ring] = ring
        self.beside = 0
        self.live = 0
        self.mixed = 0
        self.fullest = per_parent

    def wait(self, page: int) -> None:
        """An evictable page that lost its holder joins the warm end of its lane. O(1)."""
        ring = self.size + self.lane[page]
        self.link(self.before[ring], page, ring)

    def wait_again(self, page: int) -> None:
        """One that has waited in a quiet parent joins the cold end: it is older. O(1)."""
        ring = self.size + self.lane[page]
        self.link(ring, page, self.after[ring])

    def link(self, before: int, page: int, after: int) -> None:
        """``page`` between two neighbours."""
        self.after[before] = page
        self.before[page] = before
        self.after[page] = after
        self.before[after] = page
        self.beside += 1

    def unlink(self, page: int) -> None:
        """Take a page out of its ring. O(1)."""
        before, after = self.before[page], self.after[page]
        self.after[before] = after
        self.before[after] = before
        self.beside -= 1

    def coldest(self) -> int:
        """The evictable page beside live ones to give up first; 0: there is none. O(lanes)."""
        if self.beside:
            for ring in range(self.size, self.size + self.lanes):
                if self.after[ring] != ring:
                    return self.after[ring]
        return 0
