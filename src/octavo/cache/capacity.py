"""What is there and what is asked for: what a step needs, what can be had, what fits together.

Reads the ledger, the index and what is promised; changes nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from octavo.cache.admission import Admission
from octavo.cache.identity import Identity
from octavo.cache.ledger import Ledger
from octavo.cache.promises import Promises, open_page_shared, total_needs
from octavo.cache.sequence import Ints, Sequence
from octavo.checks import check_int
from octavo.errors import PlanError


class Asked(NamedTuple):
    """One request of `Cache.fits`.

    Attributes:
        sequence: what is asked about; None: a prompt.
        limit: tokens it may come to.
        needs: pages by group it must take, but for copies of open pages that others share.
        pages: pages by group a prompt would pin.
    """

    sequence: Sequence | None
    limit: int
    needs: list[int]
    pages: list[Ints]


class Capacity:
    """Answers for one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        admission: knows hits, and what a sequence needs over its life.
    """

    def __init__(self, ledger: Ledger, promises: Promises, admission: Admission) -> None:
        self._ledger, self._promises, self._admission = ledger, promises, admission

    def asked_by(self, sequence: Sequence, limit: int) -> Asked:
        """A sequence that is to run to ``limit``. O(columns)."""
        groups = range(len(self._ledger.groups))
        if sequence._promised and not sequence.preempted:  # it has what it needs
            return Asked(sequence, limit, [0 for _ in groups], [])
        wanted = self._admission.lifetime_needs(
            limit, sequence._identity, all_at_once=sequence._promised
        )
        if sequence.preempted:
            return Asked(None, limit, wanted, [])
        needs = [self._further(sequence, limit, group, wanted[group]) for group in groups]
        return Asked(sequence, limit, needs, [])

    def _further(self, sequence: Sequence, limit: int, group: int, wanted: int) -> int:
        """Pages it must take: of windows fewer, as what it alone holds comes free as it goes on."""
        ledger = self._ledger
        new = max(0, ledger.columns(limit) - ledger.columns(sequence.scheduled))
        if group in ledger.token_groups and group not in ledger.sliding:
            return new
        pages = sequence._rows.held(sequence._row, group)
        if group not in ledger.token_groups:
            return max(0, wanted - pages.size)
        own = int((ledger.pool.state(group)[0][pages] == 1).sum())
        return min(new, max(0, wanted - own))

    def asked_for(self, ids: Ints, limit: int, identity: Identity) -> Asked:
        """A prompt that is to run to ``limit``. O(len(ids))."""
        hit = self._admission.find(ids, identity)
        pages = self._admission.pages(hit, identity)
        ledger = self._ledger
        apart = (*ledger.state_groups, *ledger.sliding)
        wanted = self._admission.lifetime_needs(limit, identity)
        needs = [
            need if group in apart else max(0, need - found.size)
            for group, (need, found) in enumerate(zip(wanted, pages, strict=True))
        ]
        return Asked(None, limit, needs, pages)

    def shortage(self, asked: list[Asked]) -> dict[str, int]:
        """Pages missing by group for all of ``asked`` to run to their limits at once."""
        groups = range(len(self._ledger.groups))
        need, pinned = self._copies(asked), [set[int]() for _ in groups]
        for one in asked:
            need = [have + more for have, more in zip(need, one.needs, strict=True)]
            for group, pages in enumerate(one.pages):
                pinned[group].update(pages.tolist())
        held = [sorted(pages) for pages in pinned]
        short = self._ledger.short(need, self._promises.owed(), held, one_by_one=True)
        return dict(zip(self._ledger.names, short, strict=True))

    def _copies(self, asked: list[Asked]) -> list[int]:
        """Pages by group for copies of open pages that some of ``asked`` share and write into."""
        ledger = self._ledger
        writers: dict[tuple[int, int], int] = {}
        for one in asked:
            sequence = one.sequence
            if sequence is None or sequence._promised or one.limit <= sequence.scheduled:
                continue
            if not sequence._rows.special[sequence._row]:
                continue
            for group in ledger.token_groups:
                page = open_page_shared(ledger, sequence, group)
                if page:
                    writers[group, page] = writers.get((group, page), 0) + 1
        copies = [0] * len(ledger.groups)
        for (group, page), times in writers.items():
            refs, published = ledger.pool.state(group)
            last = times == refs[page] and not published[page]
            copies[group] += times - bool(last)
        return copies

    def need(self, ends: Iterable[tuple[Sequence, int]]) -> dict[str, int]:
        """Pages by group that these sequences take to come so far. O(sequences)."""
        return dict(zip(self._ledger.names, total_needs(self._ledger, ends), strict=True))

    def available(self) -> dict[str, int]:
        """Pages by group that could be taken if no other group took any."""
        total = self._ledger.pool.total
        return {name: self._most(g, total(g)) for g, name in enumerate(self._ledger.names)}

    def _most(self, group: int, total: int) -> int:
        """Largest count of one group's pages that can be taken, by bisection."""
        owed, low, high = self._promises.owed(), 0, total
        while low < high:
            middle = (low + high + 1) // 2
            wanted = [middle if g == group else 0 for g in range(len(self._ledger.groups))]
            if any(self._ledger.short(wanted, owed)):
                high = middle - 1
            else:
                low = middle
        return low


def most_snapshots(ledger: Ledger, snapshot_bytes: int | None) -> list[int | None]:
    """States each state group may keep within the bytes they all may take together."""
    if snapshot_bytes is None:
        return [None] * len(ledger.groups)
    check_int("snapshot_bytes", snapshot_bytes, 0)
    if not ledger.state_groups:
        raise PlanError("snapshot_bytes", snapshot_bytes, "the plan has no states to keep")
    sizes = [ledger.groups[g].page_bytes * ledger.groups[g].parts for g in ledger.state_groups]
    if not all(sizes):
        right = "it needs a plan that knows how many bytes a state has"
        raise PlanError("snapshot_bytes", snapshot_bytes, right)
    most = snapshot_bytes // max(1, sum(sizes))
    return [most if g in ledger.state_groups else None for g in range(len(ledger.groups))]
