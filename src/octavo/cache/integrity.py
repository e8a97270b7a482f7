"""The laws between the pool, the prefix index and the page tables, checked as equations."""

from collections.abc import Collection

import numpy as np

from octavo.cache.ledger import Ledger
from octavo.cache.promises import Promises
from octavo.cache.reports import Pin
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import IntegrityError


def check_cache(
    ledger: Ledger,
    promises: Promises,
    sequences: Collection[Sequence],
    pins: Collection[Pin],
    steps: Collection[Step],
    pending: dict[int, tuple[list[int], list[int]]],
) -> None:
    """Raise IntegrityError at the first equation that does not hold. O(pages + sequences)."""
    ledger.pool.check()
    active = [sequence for sequence in sequences if not sequence.preempted]
    ledger.index.check(_standing(active))
    for group in range(len(ledger.groups)):
        others = pending.get(group, ([], []))[0]
        _check_holders(ledger, group, active, pins, steps, others)
        _check_published(ledger, group)
    for sequence in sequences:
        _check_lengths(ledger, sequence)
    short = ledger.short([0] * len(ledger.groups), promises.owed())
    if any(short):
        raise IntegrityError("pages short of what is guaranteed", short, [0] * len(short))


def _standing(sequences: Collection[Sequence]) -> dict[int, int]:
    standing: dict[int, int] = {}
    for sequence in sequences:
        tip = sequence._rows.tip[sequence._row]
        standing[tip] = standing.get(tip, 0) + 1
    return standing


def _check_holders(
    ledger: Ledger,
    group: int,
    sequences: Collection[Sequence],
    pins: Collection[Pin],
    steps: Collection[Step],
    copied: list[int],
) -> None:
    holders = ledger.count_holders(group, [(s._rows, s._row) for s in sequences])
    fetched = [pages for s in sequences for g, pages in s._fetch if g == group]
    pinned = [pin.pages[group] for pin in pins]
    kept = [pages for step in steps for _, g, pages, _ in step._kept_states if g == group]
    for pages in (*fetched, *pinned, *kept, copied):
        np.add.at(holders, np.asarray(pages, np.intp), 1)
    refs, _ = ledger.pool.state(group)
    owners = {g for g in range(len(ledger.groups)) if ledger.pool.state(g)[0] is refs}
    # Groups of one id space share ``refs``: each accounts for its own holders only.
    wrong = np.flatnonzero(holders > refs if len(owners) > 1 else holders != refs)
    if wrong.size:
        page = int(wrong[0])
        left, right = int(holders[page]), int(refs[page])
        raise IntegrityError(f"entries of page {page} == its holders", left, right)


def _check_published(ledger: Ledger, group: int) -> None:
    _, published = ledger.pool.state(group)
    pages = ledger.index.published(group)
    hidden = pages[~published[pages]]
    if hidden.size:
        node = ledger.index.node_of(group, int(hidden[0]))
        raise IntegrityError(f"page {int(hidden[0])} of node {node} is published", False, True)


def _check_lengths(ledger: Ledger, sequence: Sequence) -> None:
    computed, scheduled, known = sequence.computed, sequence.scheduled, sequence.length
    if not 0 <= computed <= min(scheduled, known) or known > sequence.limit:
        right = (scheduled, known, sequence.limit)
        raise IntegrityError("computed <= scheduled, known <= limit", computed, right)
    for group in ledger.token_groups:
        _check_columns(ledger, sequence, group)


def _check_columns(ledger: Ledger, sequence: Sequence, group: int) -> None:
    """Held columns: the sinks, and from the first one kept to the last one scheduled."""
    rows, row = sequence._rows, sequence._row
    columns = ledger.columns(sequence.scheduled)
    first = int(rows.first[group][row])
    sinks = min(ledger.sink_columns(group), first)
    held = rows.tables[group][row].nonzero()[0].tolist()
    expected = [*range(sinks), *range(first, columns)]
    if held != expected:
        raise IntegrityError(f"columns of {sequence!r} in group {group}", held, expected)
