"""Full pages into the prefix index, and entries moved to equal pages that were there before."""

from collections.abc import Collection
from collections.abc import Sequence as Items
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.cache.ledger import Ledger
from octavo.cache.matching import page_keys
from octavo.cache.promises import Promises
from octavo.cache.retreating import Retreat
from octavo.cache.rows import Rows
from octavo.cache.sequence import Sequence

Index = NDArray[np.intp]


class Repointed(NamedTuple):
    """A table entry moved to an equal page that was published before."""

    sequence: Sequence
    group: str
    column: int
    old: int
    new: int


class Filled(NamedTuple):
    """Rows of a batch that have just filled a page each, by a token they learned.

    Attributes:
        at: their numbers in the step, ascending.
        sequences: theirs.
        rows: where they stand.
        numbers: int64[k], where in ``rows``.
        columns: int64[k], the column each filled.
        keys: token bytes of each page.
    """

    at: list[int]
    sequences: list[Sequence]
    rows: Rows
    numbers: NDArray[np.int64]
    columns: NDArray[np.int64]
    keys: list[bytes]

    def part(self, start: int, stop: int) -> "Filled":
        """Those from place ``start`` on, up to ``stop``."""
        return Filled(
            self.at[start:stop],
            self.sequences[start:stop],
            self.rows,
            self.numbers[start:stop],
            self.columns[start:stop],
            self.keys[start:stop],
        )


class Stored(Protocol):
    """Told of pages that hold nodes now."""

    def __call__(
        self, group: int, nodes: Items[int], pages: Items[int], copies: int | None = None
    ) -> None:
        """``copies``: groups in which the nodes have a page, these counted; None: as it is now."""


class Publisher:
    """Publishes the pages of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        retreat: knows how far the pages of a sequence are shared.
        on_stored: told of new pages in the index; None: nobody listens.
        publishes: whether full pages are published at all.
    """

    def __init__(
        self,
        ledger: Ledger,
        promises: Promises,
        retreat: Retreat,
        on_stored: Stored | None,
        *,
        publishes: bool,
    ) -> None:
        self._ledger, self._promises, self._retreat = ledger, promises, retreat
        self.on_stored, self.publishes = on_stored, publishes

    def _attach_one(
        self,
        sequence: Sequence,
        group: int,
        column: int,
        node: int,
        page: int,
        repointed: list[Repointed] | None,
    ) -> bool:
        """Attach ``page`` to its node; an entry whose node has a page goes to that one."""
        if not self._ledger.index.page(group, node):
            self._attach(group, range(node, node + 1), np.array([page]))
            return True
        if repointed is not None:
            self._repoint(sequence, group, column, page, node, repointed)
        return False

    def _attach(self, group: int, nodes: range, pages: Index) -> None:
        """Publish ``pages`` as the pages of ``nodes`` of one run, which have none. O(pages)."""
        self._ledger.index.attach(group, nodes, pages)
        self._ledger.pool.publish(pages, group)
        if self.on_stored is not None:
            self.on_stored(group, nodes, pages.tolist())

    def _repoint(
        self,
        sequence: Sequence,
        group: int,
        column: int,
        old: int,
        node: int,
        repointed: list[Repointed],
    ) -> None:
        """Move an entry to the page its node has, unless what is promised needs the own copy.

        The canonical page is held before the own one is given back.
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        new = ledger.index.page(group, node)
        if new == old:
            return
        pinned: list[list[int]] = [[] for _ in ledger.groups]
        pinned[group] = [new]
        owed = self._promises.owed()
        if owed is not None and any(ledger.short([0] * len(owed), owed, pinned)):
            return
        ledger.pool.retain([new], group)
        ledger.pool.mark_reused([new], group)
        rows.tables[group][row, column] = new
        ledger.pool.release([old], group)
        if sequence._batch is not None:
            sequence._batch._note(group, row, column, new)
        repointed.append(Repointed(sequence, ledger.names[group], column, old, new))

    def publish(self, sequence: Sequence, count: int, repointed: list[Repointed] | None) -> int:
        """Publish the last ``count`` full columns; returns how many pages are new to the index.

        Args:
            repointed: where to enter columns that move to a page published before; None: they keep
                their own.
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        stop = self._retreat.span(sequence, int(rows.computed[row]))
        first = stop - count
        if count <= 0:
            return 0
        keys = page_keys(sequence._known(), sequence._identity, ledger.page_size, first, stop)
        known, new = ledger.index.enter(rows.tip[row], keys)
        rows.tip[row] = new[-1] if new else known.node(count - 1)
        published = 0
        for group in ledger.token_groups:
            pages = rows.tables[group][row, first:stop].astype(np.intp)
            for at, node in enumerate(known.nodes()):
                page = int(pages[at])
                published += self._attach_one(sequence, group, first + at, node, page, repointed)
            if new:
                self._attach(group, new, pages[known.size :])
                published += len(new)
        return published

    def publish_filled(self, filled: Filled, repointed: list[Repointed] | None) -> int:
        """Publish the page each of these rows has just filled; returns how many are new. O(rows).

        Args:
            repointed: as in `publish`.
        """
        if not self.publishes:
            return 0
        rows, numbers, tips = filled.rows, filled.numbers, filled.rows.tip
        if np.count_nonzero(rows.apart[numbers]):
            return self._publish_each(filled, repointed)
        listed = numbers.tolist()
        pages: dict[int, Index] = {
            group: rows.tables[group][numbers, filled.columns].astype(np.intp)
            for group in self._ledger.token_groups
        }
        before = [tips[row] for row in listed]
        nodes, others = self._ledger.index.advance(before, filled.keys, pages)
        for row, node in zip(listed, nodes, strict=True):
            tips[row] = node
        published = 0
        for group, column in pages.items():
            attached = np.delete(column, others) if others else column
            self._ledger.pool.publish(attached, group)
            published += attached.size
        return published + self._in_turn(filled, nodes, set(others), pages, repointed)

    def _publish_each(self, filled: Filled, repointed: list[Repointed] | None) -> int:
        """Publish the page each row has filled where it can be shared."""
        published, span = 0, self._retreat.span
        starts = (filled.columns * self._ledger.page_size).tolist()
        for sequence, start in zip(filled.sequences, starts, strict=True):
            count = span(sequence, start + self._ledger.page_size) - span(sequence, start)
            published += self.publish(sequence, count, repointed)
        return published

    def _in_turn(
        self,
        filled: Filled,
        nodes: list[int],
        others: set[int],
        pages: dict[int, Index],
        repointed: list[Repointed] | None,
    ) -> int:
        """Row by row what has an order: entries that move, and what is told.

        Args:
            others: rows whose node may have been there before.
        """
        published, told = 0, self.on_stored is not None
        for at in range(len(nodes)) if told else sorted(others):
            each = {group: int(column[at]) for group, column in pages.items()}
            if at not in others:
                self._tell_new(nodes[at], each)
                continue
            for group, page in each.items():
                place = group, int(filled.columns[at]), nodes[at], page
                published += self._attach_one(filled.sequences[at], *place, repointed)
        return published

    def _tell_new(self, node: int, pages: dict[int, int]) -> None:
        """A node is new and got all these pages at once: told as if one came after the other."""
        assert self.on_stored is not None
        for copies, (group, page) in enumerate(pages.items(), 1):
            self.on_stored(group, (node,), (page,), copies)

    def publish_part(
        self,
        filled: Filled,
        later: Collection[Sequence],
        repointed: list[Repointed],
    ) -> int:
        """Publish pages of rows, entries of those with a ``later`` step open stay."""
        if not later:
            return self.publish_filled(filled, repointed)
        published = 0
        stays = [sequence in later for sequence in filled.sequences]
        for stay, run in groupby(range(len(stays)), stays.__getitem__):
            numbers = list(run)
            part = filled.part(numbers[0], numbers[-1] + 1)
            published += self.publish_filled(part, None if stay else repointed)
        return published
