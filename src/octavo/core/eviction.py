"""The order of eviction: what nobody uses waits in lanes, each first in, first out.

A lane is a ring of numbers behind its head; the lowest lane that is not empty gives up its first::

    lane 0, cold    head - 7 - 3 - 9      7 is given up first: it joined first
    lane 1          head - 4              4 when 7, 3 and 9 are gone
    lane 2          head - 5 - 8          moved down a lane while the policy says so

Parents without a live page wait so, and in each group its evictable pages beside live ones
(`octavo.core.pages` says when which of them goes). The lane is the policy's choice
(`octavo.cache.policies`); pages that windows left behind wait in lane 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.core.arena import ints, view

if TYPE_CHECKING:
    from octavo.core.arena import Ints


def small(count: int) -> Ints:
    """``count`` zeros of 8 bits. O(1)."""
    return view(bytearray(count))


class Lanes:
    """Numbers from 0 to ``size - 1``, each waiting in one lane or in none.

    Args:
        size: how many numbers.
        lanes: how many lanes, the cold one included.

    Attributes:
        lane: by number, one more than the lane it waits in; 0: it waits in none.
        before, after: by number, its neighbours; the head of a lane is ``size + lane``.
        waiting: by lane, how many wait.
        count: how many wait in all.
    """

    def __init__(self, size: int, lanes: int) -> None:
        self.size = size
        self.lanes = lanes
        self.lane = small(size)
        self.before = ints(size + lanes)
        self.after = ints(size + lanes)
        for head in range(size, size + lanes):
            self.before[head] = head
            self.after[head] = head
        self.waiting = ints(lanes)
        self.count = 0

    def join(self, number: int, lane: int) -> None:
        """Wait at the warm end: given up last of this lane. O(1)."""
        head = self.size + lane
        self.put(self.before[head], number, head, lane)

    def rejoin(self, number: int, lane: int) -> None:
        """Wait at the cold end: it has waited before, elsewhere. O(1)."""
        head = self.size + lane
        self.put(head, number, self.after[head], lane)

    def put(self, before: int, number: int, after: int, lane: int) -> None:
        """Wait between two neighbours. O(1)."""
        self.before[number], self.after[number] = before, after
        self.after[before], self.before[after], self.lane[number] = number, number, lane + 1
        self.waiting[lane] += 1
        self.count += 1

    def leave(self, number: int) -> None:
        """Wait no more, if it does. O(1)."""
        lane = self.lane[number] - 1
        if lane < 0:
            return
        self.count -= 1
        self.waiting[lane] -= 1
        before, after = self.before[number], self.after[number]
        self.after[before], self.before[after], self.lane[number] = after, before, 0

    def coldest(self) -> int:
        """What to give up first; -1: nothing waits. O(lanes)."""
        if self.count:
            for head in range(self.size, self.size + self.lanes):
                if self.after[head] != head:
                    return self.after[head]
        return -1

    def rebalance(self, excess: Any) -> None:
        """Before anything is given up: what lanes hold in excess moves one lane down.

        Args:
            excess: called with a lane and how many wait there; it says how many are too many, for
                every lane before anything moves.

        Cost: O(lanes + numbers moved).
        """
        down, moves = 0, []
        for lane in range(self.lanes - 1, 1, -1):
            count = self.waiting[lane] + down
            down = min(max(0, excess(lane, count)), count) if count else 0
            moves.append(down)
        for lane in range(self.lanes - 1, 1, -1):
            for _ in range(moves[self.lanes - 1 - lane]):
                number = self.after[self.size + lane]
                self.leave(number)
                self.join(number, lane - 1)
