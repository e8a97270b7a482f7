"""What fits: what a sequence needs over its life, what can be had, what is promised.

Reads the core; changes nothing in it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from octavo.cache.arguments import MOST, Given, Spread
from octavo.cache.identity import Identity
from octavo.cache.match import Prefixes
from octavo.cache.refusals import out_of_pages
from octavo.cache.sequence import Sequence
from octavo.checks import check_int
from octavo.core.commits import Core
from octavo.core.groups import Group
from octavo.core.rows import Rows
from octavo.errors import CapacityError, LengthError, NeverFits, PlanError, uncopied
from octavo.planner.plan import Plan

Pages = list[list[int]]
"""By group number, physical pages."""


class Wish(NamedTuple):
    """One request of `Cache.fits`.

    Attributes:
        sequence: who is to run; None: a prompt, or a sequence that holds nothing.
        limit: tokens it may come to.
        needs: by group, pages it must take, but for copies of open pages that others share, and as
            if windows let go of nothing.
        pages: by group, pages a prompt would hold.
        windows: by number of a group that slides, most pages it holds of it at once, and those it
            holds or would hold.
    """

    sequence: Sequence | None
    limit: int
    needs: list[int]
    pages: Pages
    windows: dict[int, tuple[int, list[int]]]


class Capacity:
    """Answers for one cache.

    Args:
        core: what the cache owns.
        plan: its geometry.
        prefixes: finds what is published of a prompt.
        max_length: longest sequence in tokens.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, core: Core, plan: Plan, prefixes: Prefixes, max_length: int) -> None:
        self._core, self._plan, self._prefixes = core, plan, prefixes
        self._max_length = max_length
        self._possible = 0  # tokens a sequence was found to have room for

    # -- questions to the pool -----------------------------------------------------------------

    def is_short(self, needs: list[int], pages: Pages = [], *, one_by_one: bool = False) -> bool:  # noqa: B006
        """Whether ``needs`` cannot be taken and ``pages`` held beside what is promised.

        O(groups + pages + guaranteed sequences).
        """
        core = self._core
        core.question()
        for number, need in enumerate(needs):
            core.pool.need[number] += need
        for number, held in enumerate(pages):
            for page in held:
                core.pool.pin(number, page)
        return bool(core.pool.is_short(one_by_one))

    def require(self, needs: list[int], pages: Pages = []) -> None:  # noqa: B006
        """Raise OutOfPages where `is_short`."""
        if self.is_short(needs, pages):
            raise out_of_pages(self._core, sum(needs))

    def available(self) -> dict[str, int]:
        """Pages by group that could be taken if no other group took any. O(groups log pages)."""
        numbers = range(len(self._core.groups))
        return {self._core.names[number]: self._most(number) for number in numbers}

    def _most(self, number: int) -> int:
        """Largest count of one group's pages that can be taken, by bisection."""
        low, high = 0, self._core.pool.spaces[number].size - 1
        while low < high:
            middle = (low + high + 1) // 2
            wanted = [0] * len(self._core.groups)
            wanted[number] = middle
            if self.is_short(wanted):
                high = middle - 1
            else:
                low = middle
        return low

    # -- what a sequence needs -----------------------------------------------------------------

    def lifetime_needs(
        self, length: int, identity: Identity, *, all_at_once: bool = False
    ) -> list[int]:
        """Pages by group of a sequence of ``length`` tokens that runs token by token. O(groups).

        Args:
            identity: says whether it has a cross input.
            all_at_once: as if it were scheduled in one step, so that no window slides.
        """
        size, needs = self._core.size, []
        for group, plan in zip(self._core.groups, self._plan.groups.values(), strict=True):
            if group.keeps_state:
                needs.append(group.units * group.parts)
            elif group.keeps_cross:
                cross = identity.cross
                needs.append(0 if cross is None else -(-cross.length // size))
            elif all_at_once:
                needs.append(-(-length // size))
            else:
                needs.append(plan.lifetime.steady_pages(length, size, self._core.rollback))
        return needs

    def limit(self, length: int, limit: int | None, identity: Identity, *, guarantee: bool) -> int:
        """Most tokens a sequence may come to know. O(groups).

        Raises:
            NeverFits: not even an empty pool could hold it.
            CapacityError: beyond ``max_length``, or below the prompt.
            PlanError: a cross input that no group can keep.
        """
        if identity.cross is not None and not self._core.crosses:
            raise PlanError("cross", identity.cross, "the plan has no cross group")
        bound = self._max_length if limit is None else check_int("limit", limit, 1)
        least = length if limit is None and not guarantee else bound
        if guarantee or identity.cross is not None:
            self._require_possible(self.lifetime_needs(least, identity, all_at_once=guarantee))
        elif least > self._possible:
            self._require_possible(self.lifetime_needs(least, identity))
            self._possible = least
        if bound > self._max_length:
            raise CapacityError("limit", bound, self._max_length, "max_length of the cache")
        if length > bound:
            raise CapacityError("len(tokens)", length, bound, "the limit of the sequence")
        return bound

    def _require_possible(self, needs: list[int]) -> None:
        """Raise NeverFits where not even an empty pool could hold ``needs``."""
        pool, groups = self._core.pool, self._plan.groups.values()
        parents = [-(-n // g.pages_per_parent) for n, g in zip(needs, groups, strict=True)]
        if sum(parents) <= pool.parents:
            return
        most = [space.size - 1 for space in pool.spaces]
        short = [max(0, need - total) for need, total in zip(needs, most, strict=True)]
        named = dict(zip(self._core.names, short, strict=True))
        raise NeverFits(sum(parents), pool.parents, named)

    # -- before a verb changes anything --------------------------------------------------------

    def check_promise(self, limit: int, identity: Identity, boundary: int, pages: Pages) -> None:
        """Raise OutOfPages unless all up to ``limit`` can be promised beside what is.

        Args:
            boundary: columns of the hit, whose ``pages`` by group will be held.
        """
        needs = self.lifetime_needs(limit, identity, all_at_once=True)
        for group in self._core.groups:
            if group.keeps_tokens:
                needs[group.number] -= boundary
            elif group.keeps_cross:
                needs[group.number] -= len(pages[group.number])
        self.require(needs, pages)

    def refuse_shared(self, sequence: Sequence, length: int) -> None:
        """Raise LengthError if pages from ``length`` on are published or shared. O(columns)."""
        core, row = self._core, sequence.row
        for group in core.groups:
            if not group.keeps_tokens:
                continue
            for column in range(core.columns(group, row) - 1, length // core.size - 1, -1):
                page = group.entry(row, column)
                low = (column + 1) * core.size
                if page and group.is_shared(page) and low > length:
                    name = core.names[group.number]
                    why = f"pages of group {name} before {low} are published or shared"
                    raise LengthError("length", length, low, sequence.length, why)

    def check_cut(self, sequence: Sequence, computed: int) -> None:
        """A guaranteed sequence must not lose pages others keep, unless as many are there.

        Raises:
            OutOfPages: what is promised to it could not be kept.
        """
        core, row = self._core, sequence.row
        if not core.promised[row]:
            return
        lost = [0] * len(core.groups)
        keep, held = -(-computed // core.size), -(-sequence.scheduled // core.size)
        for group in core.groups:
            if not group.keeps_tokens:
                continue
            if not core.states:  # with states, both are promised already
                lost[group.number] = sum(
                    not (page := group.entry(row, column))
                    or core.pool.spaces[group.number].holders[page] > 1
                    for column in range(keep, held)
                )
            lost[group.number] += bool(group.open_page(row, computed))
        self.require(lost)

    def check_fork(self, sequence: Sequence, n: int) -> None:
        """Room for the states of ``n`` children, and for the copy a guaranteed parent may need.

        Raises:
            OutOfPages: there is not.
        """
        core, row = self._core, sequence.row
        needs, owed = [0] * len(core.groups), [0] * len(core.groups)
        promised = bool(core.promised[row])
        for group in core.groups:
            if group.keeps_state and group.entry(row, 0):
                needs[group.number] = n * group.units * group.parts
            elif group.keeps_tokens and promised:
                owed[group.number] = self._lent(group, row)
        if self.is_short([a + b for a, b in zip(needs, owed, strict=True)]):
            raise out_of_pages(core, sum(needs))

    def _lent(self, group: Group, row: int) -> int:
        """Pages of a guaranteed row that are owed once its pages are shared. O(columns)."""
        core = self._core
        start = int(core.scheduled[row])
        lent = int(start % core.size and not group.open_page(row, start))
        if core.states:
            holders = core.pool.spaces[group.number].holders
            held = group.held(row, core.columns(group, row))
            dropped = int(group.first[row]) - min(int(group.first[row]), group.sinks)
            shared = sum(holders[page] > 1 for page in held)
            lent += core.columns(group, row) - dropped - shared
        return lent

    # -- what could be -------------------------------------------------------------------------

    def need(self, rows: Rows, spread: Spread, ahead: int) -> dict[str, int]:
        """Pages by group that `Cache.extend` of these rows would take. O(rows).

        Raises:
            Refused: a row cannot come so far.
        """
        core = self._core
        core.preview(rows, *spread, min(ahead, MOST))
        return dict(zip(core.names, map(int, core.new), strict=True))

    def shortage(self, wishes: list[Wish], spare: int = 0) -> dict[str, int]:
        """Pages missing by group for all of ``wishes`` to run to their limits at once.

        Args:
            wishes: who is to run.
            spare: pages (packed: parents) that must be left then.
        """
        core = self._core
        needs, held = self._copies(wishes), [dict[int, None]() for _ in core.groups]
        needs[0] += min(spare, core.pool.parents) * core.pool.spaces[0].per_parent
        for wish in wishes:
            needs = [have + more for have, more in zip(needs, wish.needs, strict=True)]
            for number, pages in enumerate(wish.pages):
                held[number].update(dict.fromkeys(pages))
        for group in core.groups:
            if group.slides():
                needs[group.number] -= self._let_go(group.number, wishes)
        self.is_short(needs, [list(pages) for pages in held], one_by_one=True)
        return dict(zip(core.names, map(int, core.pool.lack), strict=True))

    def _let_go(self, number: int, wishes: list[Wish]) -> int:
        """Pages that needs are less as windows slide. O(columns).

        Of those that would take more than they hold at once, what all hold together is the bound,
        and what none but them holds is a part of it.
        """
        asked, sliding, needs, most = Counter[int](), Counter[int](), 0, 0
        for wish in wishes:
            if number not in wish.windows:
                continue
            bound, pages = wish.windows[number]
            if wish.sequence is None:
                asked.update(pages)
            if bound - len(pages) < wish.needs[number]:
                sliding.update(pages)
                needs += wish.needs[number]
                most += bound
        holders = self._core.pool.spaces[number].holders
        own = sum(times == holders[page] + asked[page] for page, times in sliding.items())
        return needs - max(0, most - own)

    def wish_of(self, sequence: Sequence, limit: int, *, reuse: bool) -> Wish:
        """A sequence that is to run to ``limit``; a preempted one as a prompt. O(columns)."""
        core, row = self._core, sequence.row
        promised = bool(core.promised[row])
        if promised and not sequence.preempted:  # it has what it needs
            return Wish(sequence, limit, [0] * len(core.groups), [], {})
        needs = self.lifetime_needs(limit, sequence._identity, all_at_once=promised)
        if sequence.preempted and promised:
            return Wish(None, limit, needs, [], {})
        if sequence.preempted:
            known = Given(sequence.length, sequence._identity, int(core.ids.begin[row]))
            return self.wish_for(known, limit, reuse=reuse)
        new = max(0, -(-limit // core.size) - -(-int(core.scheduled[row]) // core.size))
        windows = {}
        for group in core.groups:
            number, columns = group.number, core.columns(group, row)
            if group.slides():
                windows[number] = needs[number], group.held(row, columns)
            if group.keeps_tokens:
                needs[number] = new
            elif columns:
                needs[number] = max(0, needs[number] - len(group.held(row, columns)))
        return Wish(sequence, limit, needs, [], windows)

    def wish_for(self, given: Given, limit: int, *, reuse: bool) -> Wish:
        """A prompt that is to run to ``limit``, from its hit if ``reuse``. O(length)."""
        needs = self.lifetime_needs(limit, given.identity)
        if not reuse:
            return Wish(None, limit, needs, [], {})
        core, hit = self._core, self._prefixes.look(given)
        pages = self._prefixes.pages(hit, given.identity)
        windows = {}
        for group in core.groups:
            number = group.number
            if group.slides():
                windows[number] = needs[number], pages[number]
                needs[number] = -(-limit // core.size) - hit.boundary
            elif not group.keeps_state:
                needs[number] = max(0, needs[number] - len(pages[number]))
        return Wish(None, limit, needs, pages, windows)

    def _copies(self, wishes: list[Wish]) -> list[int]:
        """Pages by group for copies of open pages that some of ``wishes`` share and write into."""
        core = self._core
        writers: dict[tuple[int, int], int] = {}
        for wish in wishes:
            row = -1 if wish.sequence is None else wish.sequence.row
            if row < 0 or core.promised[row] or wish.limit <= core.scheduled[row]:
                continue
            for group in core.groups if core.special[row] else ():
                if group.keeps_tokens:
                    page = group.open_page(row, core.scheduled[row])
                    if page:
                        place = group.number, page
                        writers[place] = writers.get(place, 0) + 1
        copies = [0] * len(core.groups)
        for (number, page), times in writers.items():
            space = core.pool.spaces[number]
            last = times == space.holders[page] and not space.node[page]
            copies[number] += times - bool(last)
        return copies


def limit_snapshots(core: Core, plan: Plan, snapshot_bytes: int | None) -> None:
    """Let all state groups together keep no more than ``snapshot_bytes``; None: as many as fit.

    Raises:
        LengthError: not an int of at least 0. PlanError: a plan without states, or without bytes.
    """
    if snapshot_bytes is None:
        return
    check_int("snapshot_bytes", snapshot_bytes, 0)
    if not core.states:
        raise PlanError("snapshot_bytes", snapshot_bytes, "the plan has no states to keep")
    states: Iterable[tuple[Group, int]] = [
        (group, each.page_bytes * each.parts)
        for group, each in zip(core.groups, plan.groups.values(), strict=True)
        if group.keeps_state
    ]
    if not all(size for _, size in states):
        right = "it needs a plan that knows how many bytes a state has"
        raise PlanError("snapshot_bytes", snapshot_bytes, right)
    most = snapshot_bytes // max(1, sum(size for _, size in states))
    for group, _ in states:
        group.most = min(most, MOST)
