"""What is published of a prompt: found, explained, and held by sequences and pins.

Composes the index and what is promised for `Cache.admit`, `resume`, `pin`, `peek` and `fits`.
"""

from collections.abc import Callable
from typing import NamedTuple
from weakref import ref

from octavo.cache.arguments import Given
from octavo.cache.identity import Identity
from octavo.cache.prompt import Prompt
from octavo.cache.results import Explanation, Match
from octavo.core.commits import Core
from octavo.core.sequences import NEVER
from octavo.errors import uncopied

__all__ = ["Hit", "Prefixes", "grid_columns", "shareable_pages"]

GRID_STEP = (21, 20)
"""Most a grid boundary may be of the one before, as a fraction: 1.05."""
Pages = list[list[int]]
"""By group number, physical pages."""


class Hit(NamedTuple):
    """What the index holds of a prompt, in pages.

    Attributes:
        boundary: pages all groups can serve; the core's path has their nodes until the next match.
        by_group: pages each group could serve alone, by number.
        tokens_boundary: pages all token groups could serve, states apart.
        chain: computed nodes.
        awaited: pages up to the last that an admitted sequence knows and has not computed.
        most: full pages there could be: at least one token is left to compute.
    """

    boundary: int
    by_group: list[int]
    tokens_boundary: int
    chain: int
    awaited: int
    most: int


class Prefixes:
    """Finds prefixes for one cache.

    Args:
        core: what the cache owns.
        grid: whether states are kept on a geometric grid as well.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, core: Core, *, grid: bool) -> None:
        self._core, self._grid = core, grid
        self._last: tuple[Callable[[], Prompt | None], int, Hit] | None = None

    def look(self, given: Given) -> Hit:
        """The hit of a prompt; leaves its nodes in the core's path.

        O(length), and O(1) where a `Prompt` was looked up last and the index is as it was.
        """
        version = self._core.index.version
        if given.prompt is not None and self._last is not None:
            prompt, then, hit = self._last
            if prompt() is given.prompt and then == version:
                return hit
        hit = self.find(given.place(self._core), given.length, given.identity)
        if given.prompt is not None:
            self._last = ref(given.prompt), version, hit
        return hit

    def find(self, begin: int, length: int, identity: Identity) -> Hit:
        """The hit of the ids at ``begin``; leaves its nodes in the core's path. O(length)."""
        core, self._last = self._core, None
        most = shareable_pages(identity, length - 1, core.size) if length else 0
        root = core.index.roots.get(identity.root, -1) if identity.root else 0
        tags = self._known_tags(identity, most) if identity.media else None
        core.match(begin, most, root, tags)
        alone = [group.alone for group in core.groups]
        return Hit(core.boundary, alone, core.tokens_boundary, core.chain, core.awaited, most)

    def pages(self, hit: Hit, identity: Identity) -> Pages:
        """Pages by group that a sequence at the hit's boundary holds, its cross input's too.

        The hit is the core's last. O(pages).
        """
        core = self._core
        if not core.publishes:
            return [[] for _ in core.groups]
        root = core.index.roots.get(identity.root, -1) if identity.root else 0
        return [core.hit(group, hit.boundary, root) for group in core.groups]

    def afford(self, given: Given, hit: Hit, is_short: Callable[[Pages], bool]) -> Hit | None:
        """The hit of a prompt, or as much of it as can be held; the core's last match is it.

        Args:
            hit: all of it, which is the core's last match.
            is_short: whether holding such pages would leave less than what is promised.

        Returns:
            None: not even its cross input can be held.
        """
        length, identity = given.length, given.identity
        if not is_short(self.pages(hit, identity)):
            return hit
        begin = given.place(self._core)
        low, high, size = 0, hit.boundary - 1, self._core.size
        while low < high:  # pages that can be afforded, by bisection
            middle = (low + high + 1) // 2
            found = self.find(begin, middle * size + 1, identity)
            if is_short(self.pages(found, identity)):
                high = middle - 1
            else:
                low = middle
        hit = self.find(begin, min(length, low * size + 1), identity)
        return None if is_short(self.pages(hit, identity)) else hit

    def hold_tags(self, row: int, identity: Identity) -> None:
        """Let a row name the media of its pages, and where their content is unknown. O(media)."""
        core = self._core
        until = identity.shared_until
        core.shared[row] = NEVER if until is None else until
        if identity.media:
            hold = core.index.tags.hold
            keys = identity.page_keys(core.size, core.limit[row] // core.size)
            core.tags[row] = {column: hold(key) for column, key in keys.items()}

    def _known_tags(self, identity: Identity, columns: int) -> dict[int, int]:
        keys = identity.page_keys(self._core.size, columns)
        find = self._core.index.tags.find
        return {column: find(key) for column, key in keys.items()}

    def set_stops(self, row: int, boundary: int) -> None:
        """Ask for states where other prompts are likely to branch off. O(stops)."""
        core = self._core
        if not core.states or not core.publishes or core.private[row]:
            return
        last, branch = int(core.prompt[row]), int(core.branch[row])
        columns = {last, branch}
        if self._grid:
            columns |= set(grid_columns(last))
        core.stop_at(row, {column * core.size for column in columns if column > boundary})

    # -- what a caller is shown ----------------------------------------------------------------

    def match(self, hit: Hit) -> Match:
        """The hit in tokens."""
        pending = max(0, hit.awaited - hit.boundary)
        return Match(hit.boundary * self._core.size, self._by_group(hit), pending)

    def explain(self, hit: Hit, length: int) -> Explanation:
        """The hit in words."""
        core, by_group = self._core, self._by_group(hit)
        tokens, limit = hit.boundary * core.size, hit.most * core.size
        found = f"{tokens} of {length} tokens found"
        if hit.boundary == hit.most:
            reason = f"{found}; {_why_no_more(limit, length, core.size)}"
            return Explanation(tokens, limit, by_group, None, reason)
        if all(pages == hit.chain for pages in hit.by_group):
            reason = f"{found}: no page that goes on like this is kept"
            return Explanation(tokens, limit, by_group, None, reason)
        number = min(range(len(hit.by_group)), key=hit.by_group.__getitem__)
        reason = f"{found}; group {core.names[number]} set the boundary: {self._why(hit, number)}"
        return Explanation(tokens, limit, by_group, core.names[number], reason)

    def _why(self, hit: Hit, number: int) -> str:
        core = self._core
        if core.groups[number].keeps_state and hit.tokens_boundary > hit.boundary:
            at = hit.tokens_boundary * core.size
            return f"no state was kept at {at}; one is taken when a prompt that branches there runs"
        return f"its pages before {hit.chain * core.size} were given up"

    def _by_group(self, hit: Hit) -> dict[str, int]:
        tokens = [pages * self._core.size for pages in hit.by_group]
        return dict(zip(self._core.names, tokens, strict=True))


def _why_no_more(limit: int, length: int, size: int) -> str:
    """Why of ``length`` tokens no more than the ``limit`` that were found could be."""
    left = length - limit
    if left > size:
        return "what follows is not shared"
    if left == size:
        return f"the last page of {size} is computed, since at least one token must be"
    return f"the other {left} fill{'s' * (left == 1)} no whole page"


def shareable_pages(identity: Identity, length: int, page_size: int) -> int:
    """Full pages below ``length`` whose content is known. O(media)."""
    until = identity.shared_until if identity.media else None
    return (length if until is None else min(length, until)) // page_size


def grid_columns(last: int) -> list[int]:
    """Boundaries, in columns up to ``last``, each at most 1.05 of the one before. O(log last)."""
    columns, at = [], 1
    while at <= last:
        columns.append(at)
        at = max(at + 1, at * GRID_STEP[0] // GRID_STEP[1])
    return columns
