"""The ids of one group's pages: who holds each, which node it stands for."""

from __future__ import annotations

from octavo.core.arena import ints
from octavo.core.eviction import Lanes, small


class Space:
    """The ids of one group, or of all groups where a parent is one page.

    Attributes:
        size: ids, the null page included.
        per_parent: K.
        holders: by page, how many hold it.
        node: by page, the node that stands for it; 0: none.
        lane: by page, where it will wait when nobody holds it.
        beside: where evictable pages beside live ones wait; of no use where K is 1.
        below: by vacant page, the one of its parent vacated before it, or 0. Empty where K is 1.
        live: pages somebody holds.
        mixed: parents with a live page.
        fullest: no parent with live and vacant pages has fewer vacant ones.
        rings: where in the pool's ``left`` and ``right`` its rings of parents begin.
    """

    def __init__(self, parents: int, per_parent: int, lanes: int, rings: int) -> None:
        self.size = 1 + parents * per_parent
        self.per_parent = per_parent
        self.rings = rings
        self.holders = ints(self.size)
        self.node = ints(self.size)
        self.lane = small(self.size)
        cut = self.size if per_parent > 1 else 0
        self.beside = Lanes(cut, lanes)
        self.below = ints(cut)
        self.live = 0
        self.mixed = 0
        self.fullest = per_parent
