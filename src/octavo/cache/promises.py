"""What sequences still need: pages to reach a position, and pages promised to guaranteed ones."""

from collections.abc import Iterable
from weakref import WeakValueDictionary

from octavo.cache.ledger import Ledger
from octavo.cache.sequence import Sequence


def open_page_shared(ledger: Ledger, sequence: Sequence, group: int) -> int:
    """The page ``sequence`` writes into next, if others may read it; else 0. O(1)."""
    rows, row = sequence._rows, sequence._row
    scheduled = int(rows.scheduled[row])
    if not scheduled % ledger.page_size:
        return 0
    page = int(rows.tables[group][row, scheduled // ledger.page_size])
    refs, published = ledger.pool.state(group)
    return page if refs[page] > 1 or published[page] else 0


def copied_pages(ledger: Ledger, sequences: Iterable[Sequence], group: int) -> list[int]:
    """The page each must copy before it is written, in this order; 0: none. O(sequences).

    A page shared by several of them is copied for all but its last holder.
    """
    refs, published = ledger.pool.state(group)
    found, given = [], dict[int, int]()
    for sequence in sequences:
        special = sequence._rows.special[sequence._row]
        page = open_page_shared(ledger, sequence, group) if special else 0
        if page and (refs[page] - given.get(page, 0) > 1 or published[page]):
            given[page] = given.get(page, 0) + 1
        else:
            page = 0
        found.append(page)
    return found


def needs(ledger: Ledger, sequence: Sequence, end: int) -> list[int]:
    """Pages by group that ``sequence`` must take to have slots up to ``end``. O(groups)."""
    rows, row = sequence._rows, sequence._row
    wanted = [0] * len(ledger.groups)
    new = ledger.columns(end) - ledger.columns(int(rows.scheduled[row]))
    special = bool(rows.special[row])
    for group in ledger.token_groups:
        wanted[group] = new
        if special and open_page_shared(ledger, sequence, group):
            wanted[group] += 1
    for group in ledger.state_groups:
        if not rows.tables[group][row, 0]:
            wanted[group] = ledger.units[group]
    if sequence._cross is not None:
        for group in ledger.cross_groups:
            if not rows.tables[group][row, 0]:
                wanted[group] = ledger.columns(sequence._cross.length)
    return wanted


def lost_columns(ledger: Ledger, sequence: Sequence) -> list[int]:
    """Pages by group that a guaranteed sequence would need again if its state were lost.

    Where a state is lost, positions since the last one kept are computed again: pages that others
    hold are not given back, and columns that windows dropped are needed anew. Without states
    nothing is lost. O(columns).
    """
    counts = [0] * len(ledger.groups)
    for group in ledger.token_groups if ledger.state_groups else ():
        refs, _ = ledger.pool.state(group)
        held = sequence._rows.held(sequence._row, group)
        first = int(sequence._rows.first[group][sequence._row])
        dropped = first - min(first, ledger.sink_columns(group))
        counts[group] = dropped + int((refs[held] > 1).sum())
    return counts


class Promises:
    """The guaranteed sequences and what is still owed to them.

    In a plan with states they keep to themselves: they neither use published pages nor publish, so
    that going back to a kept state never needs more than was promised.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.sequences: WeakValueDictionary[object, Sequence] = WeakValueDictionary()

    def owed(self, ends: dict[Sequence, int] | None = None) -> list[int] | None:
        """Pages by group owed once the sequences in ``ends`` have come so far; None: nothing.

        Cost: O(guaranteed sequences).
        """
        if not self.sequences:
            return None
        total = [0] * len(self._ledger.groups)
        for sequence in self.sequences.values():
            if sequence.preempted:
                continue
            due = needs(self._ledger, sequence, sequence.limit)
            due = [a + b for a, b in zip(due, lost_columns(self._ledger, sequence), strict=True)]
            if ends is not None and sequence in ends:
                taken = needs(self._ledger, sequence, ends[sequence])
                due = [a - b for a, b in zip(due, taken, strict=True)]
            total = [a + b for a, b in zip(total, due, strict=True)]
        return total


def total_needs(ledger: Ledger, ends: Iterable[tuple[Sequence, int]]) -> list[int]:
    """Pages by group that all of these sequences take together in one step.

    Cost: O(sequences).
    """
    listed = list(ends)
    total = [0] * len(ledger.groups)
    for sequence, end in listed:
        for group, need in enumerate(needs(ledger, sequence, end)):
            total[group] += need
    special = [s for s, _ in listed if s._rows.special[s._row]]
    for group in ledger.token_groups if special else ():
        shared = [page for s in special if (page := open_page_shared(ledger, s, group))]
        total[group] -= len(shared) - sum(map(bool, copied_pages(ledger, special, group)))
    return total
