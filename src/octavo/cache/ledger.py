"""The ledger: pool, prefix index and groups of one cache, and the moves that touch more than one.

Everything that changes who holds a page goes through here, on rows and columns; the verbs above say
why. Knows no tokens beyond keys and no order of steps.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.identity import RootKey
from octavo.cache.pages import PagePool, Pages, SomePages
from octavo.cache.parents import ParentPool
from octavo.cache.policies import Policy
from octavo.cache.prefix import PrefixIndex
from octavo.cache.rows import Rows
from octavo.errors import OutOfPages
from octavo.planner.request import GroupPlan, Plan


class Removal(NamedTuple):
    """A page taken out of the prefix index: its node and group, and why."""

    node: int
    group: int
    reason: str


class Ledger:
    """What a cache owns.

    Args:
        plan: geometry.
        policy: eviction policy.
        rollback: positions every sequence can go back.
        on_removal: told before a node loses a page, while its digest can still be asked for; None:
            nobody listens.
    """

    def __init__(
        self,
        plan: Plan,
        policy: str | Policy,
        rollback: int,
        on_removal: Callable[[Removal], None] | None,
    ) -> None:
        self.plan, self.rollback, self.on_removal = plan, rollback, on_removal
        self.page_size = plan.page_size
        self.groups: list[GroupPlan] = list(plan.groups.values())
        self.names = list(plan.groups)
        forms = [group.lifetime.form for group in self.groups]
        self.token_groups = [g for g, form in enumerate(forms) if form == "tokens"]
        self.state_groups = [g for g, form in enumerate(forms) if form == "state"]
        self.cross_groups = [g for g, form in enumerate(forms) if form == "cross"]
        self.sliding = [g for g in self.token_groups if self._slides(g)]
        self.units = [group.parts * (rollback + 1) for group in self.groups]
        self.pool = self._make_pool(policy)
        sizes = [self.pool.state(group)[0].size for group in range(len(self.groups))]
        self.index = PrefixIndex(sizes)
        self.cross: list[dict[RootKey, Pages]] = [{} for _ in self.groups]
        self._cross_of: list[dict[int, RootKey]] = [{} for _ in self.groups]
        self.snapshots: list[dict[int, None]] = [{} for _ in self.groups]
        self.in_flight = [0 for _ in self.groups]
        self.peak = self.evicted = 0

    def _make_pool(self, policy: str | Policy) -> PagePool | ParentPool:
        if not self.plan.packed:
            pool = PagePool(self.plan.num_pages, groups=len(self.groups), policy=policy)
            pool.on_evict = self._forget
            return pool
        per_parent = [group.pages_per_parent for group in self.groups]
        usable = self.plan.num_pages - 1
        return ParentPool(usable, per_parent, policy=policy, on_evict=self._forget)

    def _slides(self, group: int) -> bool:
        """Whether the group ever gives pages back while its sequence goes on."""
        return self.groups[group].lifetime.floor(2**62) > 0

    # -- supply --------------------------------------------------------------------------------

    def short(
        self,
        needs: Items[int],
        owed: Items[int] | None,
        pinned: Items[SomePages] = (),
        *,
        one_by_one: bool = False,
    ) -> list[int]:
        """Pages missing by group for ``needs`` beside what is ``owed`` to guaranteed sequences.

        Args:
            one_by_one: they are not taken in one step.
        """
        if owed is not None:
            needs = [need + promise for need, promise in zip(needs, owed, strict=True)]
        return self.pool.short(needs, pinned, one_by_one=one_by_one)

    def require(
        self, needs: Items[int], owed: Items[int] | None, pinned: Items[SomePages] = ()
    ) -> None:
        """Raise OutOfPages unless ``needs`` can be taken. O(groups + pinned)."""
        short = self.short(needs, owed, pinned)
        if any(short):
            pool = self.pool
            missing = dict(zip(self.names, short, strict=True))
            raise OutOfPages(sum(needs), pool.free, pool.evictable, missing)

    def take(self, group: int, count: int, due: Items[int] | None = None) -> Pages:
        """``count`` pages of ``group``, evicting what must go. O(count).

        Args:
            due: pages by group that must still be there afterwards; None: none.
        """
        pages = self.pool.take(count, group, due or ())
        self.peak = max(self.peak, self.pool.live)
        return pages

    def take_all(self, needs: Items[int], owed: Items[int] | None) -> dict[int, Pages]:
        """``needs`` pages of each group, which `require` found there beside what is owed."""
        due = list(owed) if owed is not None else [0] * len(needs)
        left = [need + later for need, later in zip(needs, due, strict=True)]
        taken = {}
        for group, need in enumerate(needs):
            if need:
                left[group] -= need
                taken[group] = self.take(group, need, left)
        return taken

    def _forget(self, group: int, pages: NDArray[np.intp]) -> None:
        """The pool gave ``pages`` up: nothing may point at them any more."""
        self.evicted += pages.size
        if self.on_removal is None and group in self.token_groups:
            self.index.detach(group, pages)
            return
        for page in pages.tolist():
            self._remove(group, page, "evicted")

    def _remove(self, group: int, page: int, reason: str) -> None:
        key = self._cross_of[group].get(page)
        if key is not None:
            self._drop_cross(group, key, page)
            return
        node = self.index.node_of(group, page)
        if node is None:
            return
        if self.on_removal is not None:
            self.on_removal(Removal(node, group, reason))
        if group in self.token_groups:
            self.index.detach(group, np.array([page]))
            return
        del self.snapshots[group][node]
        others = [other for other in self.index.detach_state(group, node) if other != page]
        self.pool.unpublish(others, group)

    def _drop_cross(self, group: int, key: RootKey, page: int) -> None:
        pages = self.cross[group].pop(key)
        others = [other for other in pages.tolist() if other != page]
        for other in (page, *others):
            del self._cross_of[group][other]
        self.pool.unpublish(others, group)

    def enter_cross(self, group: int, key: RootKey, pages: Pages) -> None:
        """Publish ``pages`` as the cross input of sequences with these extras. O(pages)."""
        self.cross[group][key] = pages
        self._cross_of[group].update(dict.fromkeys(pages.tolist(), key))
        self.pool.publish(pages, group)

    def keep_state(self, group: int, node: int, pages: tuple[int, ...], most: int | None) -> bool:
        """Publish ``pages``, held by the caller, as the state after ``node``.

        Gives up the snapshots used longest ago to stay within ``most``; returns False, with nothing
        changed, where there is one already or no room.
        """
        kept = self.snapshots[group]
        if node in kept or most == 0:
            return False
        if most is not None and len(kept) >= most and not self._give_up_state(group):
            return False
        self.index.attach_state(group, node, pages)
        self.pool.publish(pages, group)
        kept[node] = None
        return True

    def has_room_for_state(self, group: int, most: int | None) -> bool:
        """Whether one more state may be kept; gives up the one used longest ago where it must."""
        if most is None or len(self.snapshots[group]) + self.in_flight[group] < most:
            return True
        return most > 0 and self._give_up_state(group)

    def _give_up_state(self, group: int) -> bool:
        refs, _ = self.pool.state(group)
        for node in self.snapshots[group]:
            pages = self.index.state(group, node)
            if not any(refs[page] for page in pages):
                self._remove(group, pages[0], "snapshot_bytes")
                self.pool.unpublish(pages[:1], group)
                return True
        return False

    def evict_all(self) -> None:
        """Give up every evictable page. O(pages)."""
        before = self.evicted
        self.pool.evict_all()
        self.evicted = before

    # -- rows ----------------------------------------------------------------------------------

    def columns(self, length: int) -> int:
        """Columns that ``length`` positions take. O(1)."""
        return -(-length // self.page_size)

    def widths(self) -> list[int]:
        """Columns each group's table begins with: the states' are fixed."""
        return [self.units[g] if g in self.state_groups else 16 for g in range(len(self.groups))]

    def sink_columns(self, group: int) -> int:
        """Leading columns a window group never gives back. O(1)."""
        return self.columns(self.groups[group].lifetime.sinks)

    def kept_columns(self, group: int, position: int) -> tuple[int, int]:
        """(sink columns, first further column) to hold when ``position`` is computed next. O(1)."""
        floor = self.groups[group].lifetime.floor(max(0, position))
        first = floor // self.page_size
        return min(self.sink_columns(group), first), first

    def release_row(self, rows: Rows, row: int) -> None:
        """Give back every page of ``row``, last column coldest. O(pages)."""
        for group, table in enumerate(rows.tables):
            pages = table[row]
            held = pages.nonzero()[0][::-1]
            if held.size:
                self.pool.release(pages[held].astype(np.intp), group, distinct=True)

    def cut(self, rows: Rows, row: int, group: int, keep: int) -> None:
        """Give back the columns of a token group from ``keep`` on, last first. O(columns)."""
        table = rows.tables[group][row]
        pages = table[keep:]
        pages = pages[pages.nonzero()[0]][::-1]
        if pages.size:
            self.pool.release(pages, group, distinct=True)
            table[keep:] = 0

    def count_holders(self, group: int, rows: list[tuple[Rows, int]]) -> NDArray[np.int64]:
        """Holders of each page of ``group`` as the tables of ``rows`` have them. O(pages)."""
        refs, _ = self.pool.state(group)
        holders = np.zeros(refs.size, np.int64)
        for store, row in rows:
            np.add.at(holders, store.held(row, group), 1)
        return holders
