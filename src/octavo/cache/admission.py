"""Letting sequences in: what of a prompt is there, what is pinned, where a state should be kept.

Composes matching, ledger and promises for `Cache.admit`, `resume`, `pin`, `peek` and `fits`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from octavo.cache.identity import Identity
from octavo.cache.ledger import Ledger
from octavo.cache.matching import Hit, find_hit, hit_columns, hit_pages, no_hit, shareable_pages
from octavo.cache.promises import Promises
from octavo.cache.sequence import Ints, Sequence
from octavo.errors import NeverFits

GRID_STEP = (21, 20)
"""Most a grid boundary may be of the one before, as a fraction: 1.05."""


class Pinned(NamedTuple):
    """A hit and its pages by group, to be held by a sequence."""

    hit: Hit
    pages: list[Ints]


class Match(NamedTuple):
    """What the prefix cache holds of a prompt.

    Attributes:
        tokens: leading tokens whose KV could be reused now.
        by_group: the same by group name, each for itself.
        pending: further pages of the prompt that admitted sequences are computing now.
    """

    tokens: int
    by_group: dict[str, int]
    pending: int


class Explanation(NamedTuple):
    """Why a prompt would hit as much as it does; ``str()`` tells it in words.

    Attributes:
        tokens: leading tokens that would be reused.
        limit: most that could be: full pages, at least one token left.
        by_group: tokens each group could serve alone.
        group: the group that set the boundary; None: the prompt's end did.
        reason: in words.
    """

    tokens: int
    limit: int
    by_group: dict[str, int]
    group: str | None
    reason: str

    def __str__(self) -> str:
        return self.reason


class Admission:
    """Finds and pins prefixes for one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        enabled: whether prefixes are looked up at all.
        grid: whether states are kept on a geometric grid as well.
    """

    def __init__(self, ledger: Ledger, promises: Promises, *, enabled: bool, grid: bool) -> None:
        self._ledger, self._promises = ledger, promises
        self._enabled, self._grid = enabled, grid
        self._nothing = no_hit(len(ledger.groups))

    def find(self, ids: Ints, identity: Identity) -> Hit:
        """The hit of a prompt, empty where prefixes are not looked up."""
        return find_hit(self._ledger, ids, identity) if self._enabled else self._nothing

    def pages(self, hit: Hit, identity: Identity) -> list[Ints]:
        """Pages of the hit by group, and those of the cross input where they are kept. O(pages)."""
        ledger = self._ledger
        pages = [hit_pages(ledger, group, hit) for group in range(len(ledger.groups))]
        if self._enabled and identity.cross is not None:
            for group in ledger.cross_groups:
                pages[group] = ledger.cross[group].get(identity.root, pages[group])
        return pages

    def afford(self, ids: Ints, identity: Identity, *, reuse: bool) -> Pinned:
        """What a prompt should pin: its hit, or as much of it as leaves what is promised."""
        hit = self.find(ids, identity) if reuse else self._nothing
        if not hit.boundary and identity.cross is None:
            return Pinned(hit, self._nothing.held)
        pages, owed = self.pages(hit, identity), self._promises.owed()
        if owed is None:
            return Pinned(hit, pages)
        best = Pinned(self._nothing, self.pages(self._nothing, identity))
        if self._short(owed, best):
            return Pinned(self._nothing, self._nothing.held)
        whole = Pinned(hit, pages)
        if not self._short(owed, whole):
            return whole
        low, high = 0, hit.boundary - 1
        while low < high:  # pages that can be afforded, by bisection
            middle = (low + high + 1) // 2
            found = self.find(ids[: middle * self._ledger.page_size + 1], identity)
            pinned = Pinned(found, self.pages(found, identity))
            if self._short(owed, pinned):
                high = middle - 1
            else:
                low, best = middle, pinned
        return best

    def _short(self, owed: list[int], pinned: Pinned) -> bool:
        """Whether holding these pages would leave less than what is owed."""
        return any(self._ledger.short([0] * len(owed), owed, pinned.pages))

    def pin(self, sequence: Sequence, pinned: Pinned) -> None:
        """Let ``sequence``, which holds nothing, stand at the hit's boundary. O(pages)."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        hit, pages = pinned
        boundary = hit.boundary * ledger.page_size
        for group, held in enumerate(pages):
            if held.size:
                ledger.pool.retain(held, group)
                ledger.pool.mark_reused(held, group)
                self._enter(sequence, group, hit.boundary, held)
        for group in ledger.sliding:
            rows.first[group][row] = ledger.kept_columns(group, boundary)[1]
        if boundary:
            rows.computed[row] = rows.scheduled[row] = rows.floor[row] = boundary
            tip = hit.chain.node(hit.boundary - 1)
            ledger.peak = max(ledger.peak, ledger.pool.live)
        else:
            tip = ledger.index.enter_root(sequence._identity.root)
        rows.tip[row] = tip
        ledger.index.hold(tip)
        if ledger.sliding or ledger.state_groups:
            sequence._stops = self._stops(sequence, hit)
        if ledger.state_groups or sequence._identity.cross is not None:
            rows.special[row] = True

    def _enter(self, sequence: Sequence, group: int, boundary: int, held: Ints) -> None:
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        if group in ledger.state_groups:
            node_pages = ledger.snapshots[group]
            node = ledger.index.node_of(group, int(held[0]))
            if node is not None:
                node_pages[node] = node_pages.pop(node)
            sequence._fetch.append((group, held))
            return
        if group not in ledger.sliding:  # full, or cross
            rows.put(row, group, 0, held)
            return
        columns = hit_columns(ledger, group, boundary)
        rows.put(row, group, columns[-1], held[-1:])
        rows.tables[group][row, columns] = held

    def _stops(self, sequence: Sequence, hit: Hit) -> set[int]:
        """Where states should be kept, and the boundaries others are likely to branch off at."""
        size, length = self._ledger.page_size, sequence.length
        last = shareable_pages(sequence._identity, length - 1, size)
        sequence._rows.marks[sequence._row] = (last, hit.tokens_boundary)
        if not self._ledger.state_groups or not self._enabled or sequence._private:
            return set()
        columns = {last, hit.tokens_boundary}
        if self._grid:
            columns |= set(grid_columns(last))
        return {column * size for column in columns if column > hit.boundary}

    def pending(self, ids: Ints, identity: Identity, found: int, there: Iterable[Sequence]) -> int:
        """Further pages of ``ids`` that sequences are computing now."""
        most = shareable_pages(identity, ids.size - 1, self._ledger.page_size) - found
        if not self._enabled or most <= 0:
            return 0
        best = 0
        for sequence in there:
            if sequence.preempted or sequence._identity != identity:
                continue
            if sequence.computed < sequence.length:
                best = max(best, self._common(sequence, ids) - found)
        return max(0, min(best, most))

    def _common(self, sequence: Sequence, ids: Ints) -> int:
        known = sequence._known()
        size = min(ids.size, known.size)
        differ = np.flatnonzero(ids[:size] != known[:size])
        return (int(differ[0]) if differ.size else size) // self._ledger.page_size

    def match(self, hit: Hit, pending: int) -> Match:
        """The hit in tokens."""
        size, names = self._ledger.page_size, self._ledger.names
        tokens = [count * size for count in hit.by_group]
        return Match(hit.boundary * size, dict(zip(names, tokens, strict=True)), pending)

    def explain(self, hit: Hit, ids: Ints, identity: Identity) -> Explanation:
        """The hit in words."""
        size, names = self._ledger.page_size, self._ledger.names
        most = shareable_pages(identity, ids.size - 1, size)
        tokens, limit = hit.boundary * size, most * size
        by_group = {n: c * size for n, c in zip(names, hit.by_group, strict=True)}
        if hit.boundary == most:
            reason = f"{tokens} of {ids.size} tokens: all full pages, one token left to compute"
            return Explanation(tokens, limit, by_group, None, reason)
        known = hit.chain.size
        if all(pages == known for pages in hit.by_group):
            reason = f"{tokens} of {limit} tokens: no prompt that goes on like this is kept"
            return Explanation(tokens, limit, by_group, None, reason)
        group = min(range(len(names)), key=lambda g: hit.by_group[g])
        reason = f"{tokens} of {limit} tokens; group {names[group]} set the boundary: "
        reason += self._why(hit, group, size)
        return Explanation(tokens, limit, by_group, names[group], reason)

    def _why(self, hit: Hit, group: int, size: int) -> str:
        if group in self._ledger.state_groups and hit.tokens_boundary > hit.boundary:
            at = hit.tokens_boundary * size
            return f"no state was kept at {at}; one is taken when a prompt that branches there runs"
        return f"its pages before {hit.chain.size * size} were given up"

    # -- capacity ------------------------------------------------------------------------------

    def lifetime_needs(
        self, length: int, identity: Identity, *, all_at_once: bool = False
    ) -> list[int]:
        """Pages by group of a sequence of ``length`` tokens that runs token by token.

        Args:
            identity: says whether it has a cross input.
            all_at_once: as if it were scheduled in one step, so that no window slides.
        """
        ledger, needs = self._ledger, []
        for number, group in enumerate(ledger.groups):
            if number in ledger.state_groups:
                needs.append(ledger.units[number])
            elif number in ledger.cross_groups:
                cross = identity.cross
                needs.append(0 if cross is None else ledger.columns(cross.length))
            elif all_at_once:
                needs.append(ledger.columns(length))
            else:
                spare = ledger.rollback
                needs.append(group.lifetime.steady_pages(length, ledger.page_size, spare))
        return needs

    def require_possible(self, needs: list[int]) -> None:
        """Raise NeverFits where not even an empty pool could hold ``needs``."""
        ledger = self._ledger
        parents = [-(-n // g.pages_per_parent) for n, g in zip(needs, ledger.groups, strict=True)]
        if sum(parents) <= ledger.pool.usable:
            return
        short = {
            name: max(0, need - ledger.pool.total(group))
            for group, (name, need) in enumerate(zip(ledger.names, needs, strict=True))
        }
        raise NeverFits(sum(parents), ledger.pool.usable, short)


def grid_columns(last: int) -> list[int]:
    """Boundaries, in columns up to ``last``, each at most 1.05 of the one before. O(log last)."""
    columns, at = [], 1
    while at <= last:
        columns.append(at)
        at = max(at + 1, at * GRID_STEP[0] // GRID_STEP[1])
    return columns
