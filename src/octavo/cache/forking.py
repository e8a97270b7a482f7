"""Forking: a second sequence that holds what the first one does."""

from octavo.cache.ledger import Ledger
from octavo.cache.placing import Placer
from octavo.cache.promises import Promises
from octavo.cache.sequence import Sequence


def share(
    ledger: Ledger, placer: Placer, promises: Promises, parent: Sequence, child: Sequence
) -> None:
    """Let ``child``, which holds nothing, stand where ``parent`` does. O(columns).

    Pages of tokens and cross inputs are shared; the open page is copied before its next write by
    any but its last holder. States are copied into pages of the child's own, with the next step.
    The caller has checked that there are pages for them, beside what is promised to others, and to
    the parent, which from now on may need copies.
    """
    rows, row = child._rows, child._row
    rows.copy(parent._rows, parent._row, row)
    for group in (*ledger.token_groups, *ledger.cross_groups):
        held = rows.held(row, group)
        if held.size:
            ledger.pool.retain(held, group)
    for group, pages in parent._fetch:
        ledger.pool.retain(pages, group)
        child._fetch.append((group, pages))
    parent._rows.special[parent._row] = rows.special[row] = True
    for group in ledger.state_groups:
        _copy_state(ledger, placer, child, group, promises.owed())
    ledger.index.hold(rows.tip[row])
    child.cached, child._stops = parent.cached, set(parent._stops)
    child._private = parent._private
    ledger.peak = max(ledger.peak, ledger.pool.live)


def _copy_state(
    ledger: Ledger, placer: Placer, child: Sequence, group: int, owed: list[int] | None
) -> None:
    """Units of its own for the child; what is to be fetched anyway is not copied."""
    rows, row, count = child._rows, child._row, ledger.units[group]
    held = rows.tables[group][row, :count].copy()
    rows.tables[group][row] = 0
    if not held[0]:
        return
    pages = ledger.take(group, count, owed)
    rows.tables[group][row, :count] = pages
    if not child._fetch:
        placer.copy_later(group, held, pages)
