"""Where idle pages wait to be given up: first-in-first-out lanes over flat arrays.

Entries are never taken out of the middle: a page that is used again leaves a stale entry behind,
told from a current one by its stamp. Compacting a full ring drops the stale ones, so every
operation is amortised O(1) a page and vectorised; what comes out of order waits in a heap. Knows
ids and when they became idle; not who holds a page or what is in it.
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from octavo.cache.policies import Policy
from octavo.checks import check_int

Index = NDArray[np.intp]
Stamps = NDArray[np.int64]
LANE_BITS = 56
"""A stamp is ``lane << LANE_BITS | time``: the lower is given up first."""
_ID_BITS = 32
_SLACK = 64


def join(parts: list[Index]) -> Index:
    """One array of all parts. O(ids), and O(1) for a single part."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.intp)


_ANY = 2**63


class Clock:
    """Counts the pages that became idle, so that lanes which share a clock can be compared."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


class Ring:
    """Entries (id, stamp) of ascending stamps; one is current while its id still has that stamp.

    Args:
        stamp: int64, the stamp of each id, kept by whoever owns the ring.
    """

    __slots__ = ("_stamp", "head", "ids", "stamps", "tail")

    def __init__(self, stamp: Stamps) -> None:
        self._stamp = stamp
        self.ids, self.stamps = np.zeros(64, np.intp), np.zeros(64, np.int64)
        self.head = self.tail = 0

    def reserve(self, count: int) -> None:
        """Make room for ``count`` entries. Amortised O(count)."""
        if self.tail + count > self.ids.size:
            self._compact(count)

    def append(self, ids: Index, stamps: Stamps) -> None:
        """Add entries; there is room, and their stamps are above all others. O(ids)."""
        end = self.tail + ids.size
        self.ids[self.tail : end] = ids
        self.stamps[self.tail : end] = stamps
        self.tail = end

    def current(self, start: int, stop: int) -> Index:
        """Places of the current entries between two places. O(stop - start)."""
        same = self._stamp[self.ids[start:stop]] == self.stamps[start:stop]
        places: Index = same.nonzero()[0]
        places += start
        return places

    def find(self, stamp: int) -> int:
        """The place of the first entry with ``stamp`` or a higher one. O(log entries)."""
        return self.head + int(self.stamps[self.head : self.tail].searchsorted(stamp))

    def pop(self, count: int, below: int | None = None) -> Index:
        """Take out the ``count`` oldest current ids, or as many as have a stamp ``below``.

        Amortised O(count).
        """
        found: list[Index] = []
        tail = self.tail if below is None else self.find(below)
        while count > 0 and self.head < tail:
            stop = min(tail, self.head + 2 * count + 16)
            places = self.current(self.head, stop)[:count]
            count -= places.size
            self.head = stop if count else int(places[-1]) + 1
            found.append(self.ids[places])
        return join(found)

    def _compact(self, extra: int) -> None:
        """Move current entries to the front of arrays with room for ``extra`` more."""
        places = self.current(self.head, self.tail)
        ids, stamps = self.ids[places], self.stamps[places]
        size = max(64, 2 * (ids.size + extra))
        if size > self.ids.size:
            self.ids, self.stamps = np.zeros(size, np.intp), np.zeros(size, np.int64)
        self.head = self.tail = 0
        self.append(ids, stamps)


class Heap:
    """Ids whose stamps came out of order; an entry is current while its id still has its stamp.

    Args:
        stamp: int64, the stamp of each id, kept by whoever owns the heap.
    """

    __slots__ = ("_entries", "_stamp")

    def __init__(self, stamp: Stamps) -> None:
        self._stamp = stamp
        self._entries: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, ids: Index, stamps: Stamps) -> None:
        """Add entries. Amortised O(ids x log entries)."""
        for stamp, number in zip(stamps.tolist(), ids.tolist(), strict=True):
            heappush(self._entries, stamp << _ID_BITS | number)
        if len(self._entries) > 2 * self._stamp.size + _SLACK:
            self._entries = sorted(filter(self._is_current, set(self._entries)))

    def lowest(self, below: int) -> int:
        """The lowest current stamp, or ``below`` if that is lower. Amortised O(log entries)."""
        while self._entries and not self._is_current(self._entries[0]):
            heappop(self._entries)
        return min(below, self._entries[0] >> _ID_BITS) if self._entries else below

    def pop(self) -> int:
        """Take out the id `lowest` found. O(log entries)."""
        return heappop(self._entries) & ((1 << _ID_BITS) - 1)

    def _is_current(self, entry: int) -> bool:
        return bool(self._stamp[entry & ((1 << _ID_BITS) - 1)] == entry >> _ID_BITS)


class Queue:
    """Ids by stamp, the lowest first, where the stamps that come to a lane mostly ascend.

    Args:
        size: ids.
        lanes: lanes of the stamps, the cold one included.

    Attributes:
        stamp: int64[size], the stamp of each id; 0: it is not in the queue.
    """

    def __init__(self, size: int, lanes: int) -> None:
        self.stamp = np.zeros(size, np.int64)
        self._rings = [Ring(self.stamp) for _ in range(lanes)]
        self._late = Heap(self.stamp)

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return sum(ring.tail - ring.head for ring in self._rings) + len(self._late)

    def reserve(self, count: int) -> None:
        """Make room for ``count`` more ids. Amortised O(count)."""
        for ring in self._rings:
            ring.reserve(count)

    def add(self, ids: Index, stamps: Stamps) -> None:
        """Let ``ids`` wait, each with a stamp no other has. O(ids x log ids) where in order."""
        order = stamps.argsort()
        ids, stamps = ids[order], stamps[order]
        self.stamp[ids] = stamps
        lowest, highest = int(stamps[0]) >> LANE_BITS, int(stamps[-1]) >> LANE_BITS
        for lane in range(lowest, highest):
            count = int(stamps.searchsorted((lane + 1) << LANE_BITS))
            self._append(self._rings[lane], ids[:count], stamps[:count])
            ids, stamps = ids[count:], stamps[count:]
        self._append(self._rings[highest], ids, stamps)

    def remove(self, ids: Index) -> None:
        """Take ``ids`` out, if they are in. O(ids)."""
        self.stamp[ids] = 0

    def pop(self, count: int) -> Index:
        """Take out the ``count`` ids of lowest stamps, or as many as there are.

        Amortised O(count) where stamps ascended.
        """
        parts: list[Index] = []
        for lane, ring in enumerate(self._rings):
            while count and (part := self._pop(ring, count, (lane + 1) << LANE_BITS)).size:
                self.stamp[part] = 0
                parts.append(part)
                count -= part.size
        return join(parts)

    def _append(self, ring: Ring, ids: Index, stamps: Stamps) -> None:
        newest = int(ring.stamps[ring.tail - 1]) if ring.tail else 0
        if stamps.size and stamps[0] <= newest:
            late = int(stamps.searchsorted(newest, "right"))
            self._late.push(ids[:late], stamps[:late])
            ids, stamps = ids[late:], stamps[late:]
        ring.reserve(ids.size)
        ring.append(ids, stamps)

    def _pop(self, ring: Ring, count: int, end: int) -> Index:
        """The next of a lane: from its ring up to the lowest late one, else that one."""
        late = self._late.lowest(end)
        part = ring.pop(count, late if late < end else None)
        return part if part.size or late == end else np.array([self._late.pop()], np.intp)


class Lanes:
    """The idle pages of one id space, in the order a policy gives them up.

    Args:
        size: ids of the space, the null page included.
        usable: pages a policy's shares refer to.
        policy: chooses lanes.
        clock: shared with the lanes these are compared with; None: with no others.

    Attributes:
        stamp: int64[size], since when a page waits and where: what orders idle pages, the lower
            given up first; 0: it is not idle.
        reused: bool[size], whether a page was hit since it was published.
        asks_reuse: whether the policy looks at ``reused``.
        waiting: pages in each lane.
    """

    def __init__(self, size: int, usable: int, policy: Policy, clock: Clock | None = None) -> None:
        self.stamp = np.zeros(size, np.int64)
        self.reused = np.zeros(size, np.bool_)
        self.waiting = [0] * (check_int("lanes", policy.lanes, 1, 100) + 1)
        self._rings = [Ring(self.stamp) for _ in self.waiting]
        self._policy, self._usable, self._clock = policy, usable, clock or Clock()
        self._new, self._again = (
            check_int("lane", policy.lane(reused=reused), 1, policy.lanes)
            for reused in (False, True)
        )
        self.asks_reuse = self._new != self._again

    def __len__(self) -> int:
        return sum(self.waiting)

    def add(self, pages: Index, *, cold: bool = False) -> None:
        """Let ``pages`` wait, the first listed to be given up first. Amortised O(len(pages))."""
        if cold or not self.asks_reuse:
            self._append(0 if cold else self._new, pages)
            return
        reused = self.reused[pages]
        again = int(np.count_nonzero(reused))
        moves = self._moves({self._new: pages.size - again, self._again: again})
        self._rings[self._again].reserve(pages.size)  # fails, if it does, before the first append
        self._append(self._new, pages[~reused])
        self._append(self._again, pages[reused])
        for number, count in moves:
            self._append(number - 1, self._pop(number, count))

    def remove(self, pages: Index) -> None:
        """Take idle ``pages`` out, each listed once. O(len(pages))."""
        filled = [number for number, waiting in enumerate(self.waiting) if waiting]
        if len(filled) == 1:
            self.waiting[filled[0]] -= pages.size
        else:
            for number, count in enumerate(np.bincount(self.stamp[pages] >> LANE_BITS).tolist()):
                self.waiting[number] -= count
        self.stamp[pages] = 0

    def pop(self, count: int) -> Index:
        """Take out and return the ``count`` pages to give up first; there are as many.

        Amortised O(count).
        """
        parts = []
        for number, waiting in enumerate(self.waiting):
            if count and waiting:
                parts.append(self._pop(number, min(count, waiting)))
                count -= parts[-1].size
        pages = join(parts)
        self.stamp[pages] = 0
        return pages

    def scan(self, number: int, start: int, count: int) -> tuple[Index, int]:
        """Idle pages among the next ``count`` entries of a lane, from stamp ``start`` on.

        Takes nothing out. O(count).

        Returns:
            The pages, oldest first, and the stamp to go on from.
        """
        ring = self._rings[number]
        place = ring.find(start)
        stop = min(ring.tail, place + count)
        end = int(ring.stamps[stop]) if stop < ring.tail else self.end(number)
        return ring.ids[ring.current(place, stop)], end

    def end(self, number: int) -> int:
        """The stamp that the next page of a lane gets. O(1)."""
        return (number << LANE_BITS) + self._clock.now

    def _append(self, number: int, pages: Index) -> None:
        ring, count = self._rings[number], pages.size
        if not count:
            return
        ring.reserve(count)
        first = self.end(number)
        stamps = np.arange(first, first + count)
        ring.append(pages, stamps)
        self.stamp[pages] = stamps
        self.waiting[number] += count
        self._clock.now += count

    def _pop(self, number: int, count: int) -> Index:
        self.waiting[number] -= count
        return self._rings[number].pop(count)

    def _moves(self, added: dict[int, int]) -> list[tuple[int, int]]:
        """What lanes will hold beyond their share, from the top lane on; asked before any change.

        Raises:
            LengthError: the policy's answer is no int.
        """
        moves, down = [], 0
        for number in range(len(self.waiting) - 1, 1, -1):
            waiting = self.waiting[number] + added.get(number, 0) + down
            excess = self._policy.excess(number, waiting, self._usable) if waiting else 0
            down = min(max(0, check_int("excess", excess, -_ANY)), waiting)
            if down:
                moves.append((number, down))
        return moves
