"""Snapshots are states kept for later prompts: wanted at stops, copied, fetched on a hit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from octavo.core.groups import Group
from octavo.core.sequences import NEVER, Sequences


class Snapshots(Sequences):
    """The rows of one cache, and the states it keeps."""

    def stop_at(self, row: int, positions: set[int]) -> None:
        """Ask for states after these positions, where steps end there. O(positions log stops)."""
        stops = self.stops[row]
        if stops is None:
            stops = []
            self.stops[row] = stops
        for position in sorted(positions):
            if not self.is_stop(row, position):
                insort(stops, position)
        self.aim(row)

    def aim(self, row: int) -> None:
        """Note the next position a state should be kept at. O(log stops)."""
        stops = self.stops[row]
        if stops is not None:
            at = bisect_right(stops, self.scheduled[row])
            self.stop[row] = stops[at] if at < len(stops) else NEVER

    def is_stop(self, row: int, position: int) -> bool:
        """Whether a state should be kept after a position. O(log stops)."""
        stops = self.stops[row]
        if stops is None:
            return False
        at = bisect_left(stops, position)
        return at < len(stops) and stops[at] == position

    def fetch(self, row: int, group: Group, node: int) -> None:
        """Hold the state kept after a node until the row's next step has copied it. O(parts)."""
        pages = self.index.bundles[group.number][node]
        for page in pages:
            self.pool.reuse(group.number, page)
        fetches = self.fetches[row]
        if fetches is None:
            fetches = []
            self.fetches[row] = fetches
        fetches.append((group.number, pages))

    def drop_fetches(self, row: int) -> None:
        """Let go of states that were to be copied. O(pages)."""
        fetches = self.fetches[row]
        self.fetches[row] = None
        for number, pages in fetches or ():
            for page in pages:
                self.pool.release(number, page, False)

    def can_fetch(self, node: int) -> bool:
        """Whether the state after a node is kept and can be held beside what is owed. O(parts)."""
        for group in self.groups:
            if group.keeps_state and node not in self.index.bundles[group.number]:
                return False
        if not self.guaranteed:
            return True
        self.ask()
        for group in self.groups:
            if group.keeps_state:
                for page in self.index.bundles[group.number][node]:
                    self.pool.pin(group.number, page)
        return not self.pool.is_short(False)

    def has_room(self, group: Group) -> bool:
        """Whether one more state may be kept. O(1)."""
        kept = self.index.bundles[group.number]
        return group.most < 0 or len(kept) + group.in_flight < group.most

    def make_room(self) -> bool:
        """Whether every group may keep one more state, once those let go longest ago have gone.

        Where not all can, none goes. O(groups).
        """
        for group in self.groups:
            if group.keeps_state and not self.has_room(group):
                if group.most == 0 or self.oldest_state(group) == 0:
                    return False
        for group in self.groups:
            if group.keeps_state and not self.has_room(group):
                self.give_up_state(group)
        return True

    def oldest_state(self, group: Group) -> int:
        """The first page of the state let go longest ago; 0: all are held. O(1)."""
        node = next(iter(self.index.idle[group.number]), 0)
        return self.index.held[node * self.index.groups + group.number] if node else 0

    def give_up_state(self, group: Group) -> bool:
        """The state let go longest ago is kept no more. O(parts)."""
        page = self.oldest_state(group)
        if page:
            self.pool.forget(group.number, page, False)
        return page > 0

    def keep_state(self, group: Group, row: int, pages: tuple[int, ...]) -> None:
        """A copied state stands for the row's last full page, unless there is one. O(parts)."""
        kept, tip = self.index.bundles[group.number], self.tip[row]
        if tip in kept or group.most == 0:
            return
        if group.most > 0 and len(kept) >= group.most and not self.give_up_state(group):
            return
        self.pool.publish_bundle(group.number, pages, tip)
        if self.is_stop(row, self.computed[row]):
            stops = self.stops[row]
            assert stops is not None
            stops.remove(self.computed[row])
        if self.stored is not None:
            self.stored(group.number, tip, pages[0])

    def copy_later(self, number: int, source: int, target: int) -> None:
        """Copy a page with the next step, whoever it is for; the source is held until then.

        A source that waits to be filled itself stands for what it will be filled from.
        """
        source = self.pending.get((number, source), source)
        self.pool.retain(number, source)
        self.pending[number, target] = source

    def forget_copies(self, group: Group, row: int) -> None:
        """Whoever was to get copies into a row's states is gone. O(units x parts)."""
        for target in group.held(row, group.units * group.parts):
            source = self.pending.pop((group.number, target), 0)
            if source:
                self.pool.release(group.number, source, False)
