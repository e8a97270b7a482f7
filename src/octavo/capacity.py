"""What is there and what is asked for: what a step needs, what can be had, what fits together.

Reads the ledger, the index and what is promised; changes nothing.
"""

from collections.abc import Iterable
from typing import NamedTuple

from octavo.admission import Admission
from octavo.errors import PlanError
from octavo.identity import Identity
from octavo.ledger import Ledger
from octavo.promises import Promises, open_page_shared, total_needs
from octavo.sequences import Ints, Sequence
from octavo.spec import check_int


class Asked(NamedTuple):
    """One request of `Cache.fits`.

    Attributes:
        sequence: what is asked about; None: a prompt.
        limit: tokens it may come to.
        identity: its extras.
        held: pages by group it has, or need not take.
        pages: pages by group a prompt would pin.
    """

    sequence: Sequence | None
    limit: int
    identity: Identity
    held: list[int]
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
        held = [self._own(sequence, group) for group in range(len(self._ledger.groups))]
        return Asked(sequence, limit, sequence._identity, held, [])

    def _own(self, sequence: Sequence, group: int) -> int:
        """Pages it needs not take again: in a window only those that come free as it slides on."""
        ledger = self._ledger
        pages = sequence._rows.held(sequence._row, group)
        if group in ledger.sliding:
            return int((ledger.pool.state(group)[0][pages] == 1).sum())
        if group in ledger.token_groups and not sequence.preempted:
            return pages.size - bool(open_page_shared(ledger, sequence, group))
        return int(pages.size)

    def asked_for(self, ids: Ints, limit: int, identity: Identity) -> Asked:
        """A prompt that is to run to ``limit``. O(len(ids))."""
        hit = self._admission.find(ids, identity)
        pages = self._admission.pages(hit, identity)
        ledger = self._ledger
        states, windows = ledger.state_groups, ledger.sliding
        held = [
            0 if group in states or group in windows else int(found.size)
            for group, found in enumerate(pages)
        ]
        return Asked(None, limit, identity, held, pages)

    def shortage(self, asked: list[Asked]) -> dict[str, int]:
        """Pages missing by group for all of ``asked`` to run to their limits at once."""
        groups = range(len(self._ledger.groups))
        need, pinned = [0 for _ in groups], [set[int]() for _ in groups]
        for one in asked:
            wanted = self._admission.lifetime_needs(one.limit, one.identity)
            need = [n + max(0, w - h) for n, w, h in zip(need, wanted, one.held, strict=True)]
            for group, pages in enumerate(one.pages):
                pinned[group].update(pages.tolist())
        ends = {one.sequence: one.sequence.limit for one in asked if one.sequence is not None}
        short = self._ledger.short(need, self._promises.owed(ends), [sorted(p) for p in pinned])
        return dict(zip(self._ledger.names, short, strict=True))

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
