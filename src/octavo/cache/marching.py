"""A step of a batch: any counts, all rows at once, in a few array operations.

Rows that need more than new pages, such as a page to copy or a state to take, are placed one by one
beside the others. What single sequences and lists do is in `octavo.cache.stepping`; the results are
the same. The ledger hands out pages; publication is not known here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.batch import Batch
from octavo.cache.ledger import Ledger
from octavo.cache.placing import NOTHING, Ends, Placed, Placer
from octavo.cache.promises import Promises, copied_pages, total_needs
from octavo.cache.rows import Constants
from octavo.cache.sequence import Ints, Sequence
from octavo.cache.step import GroupView, Step, View, cross_view, state_view
from octavo.cache.stepping import Stepper, Waiting, known_ids
from octavo.cache.striding import Strider

Int64s = NDArray[np.int64]
Index = NDArray[np.intp]
Taken = dict[int, Ints]


class Move(NamedTuple):
    """Where the rows of a batch come from and to, int64[n] each; ``one``: each by one position."""

    starts: Int64s
    ends: Int64s
    one: bool


class Tokens(NamedTuple):
    """The T new tokens of a step.

    Attributes:
        counts, query_start, last, past, positions: as of the step.
        rows: int64[T], the row of each token.
        at: int64[T], its position.
        columns: int64[T], its column.
        offsets: int32[T], its place in its page.
    """

    counts: Ints
    query_start: Ints
    last: Ints
    past: Ints
    positions: Ints
    rows: Int64s
    at: Int64s
    columns: Int64s
    offsets: Ints


class Columns(NamedTuple):
    """New columns, in order of rows: whose each is, and its number."""

    rows: Index
    columns: Int64s


class Marcher:
    """Makes steps of the batches of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        placer: places pages of single rows.
        stepper: says how far a row may come.
        strider: makes the steps that follow on their like.
        constants: of as many rows as a batch may have.
    """

    def __init__(
        self,
        ledger: Ledger,
        promises: Promises,
        placer: Placer,
        stepper: Stepper,
        strider: Strider,
        constants: Constants,
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._placer, self._stepper, self._strider = placer, stepper, strider
        self._constants = constants
        groups = range(len(ledger.groups))
        self._has_tokens = [int(group in ledger.token_groups) for group in groups]

    def extend(self, batch: Batch, counts: Int64s | int, ahead: int, waiting: Waiting) -> Step:
        """The step in which each row of ``batch`` runs its next positions; all or nothing.

        Args:
            counts: new positions, one number for all rows or int64[rows]; at least one is above 0.
            ahead: positions allowed beyond the known tokens.
            waiting: asked only where states have to be taken back.

        Raises:
            As `Stepper.extend`.

        Cost: some array operations; O(1) a row that needs more than pages; O(new tokens).
        """
        if batch._stride is not None and type(counts) is int and counts == 1:
            step = None if self._placer.pending else self._strider.extend(batch, ahead)
            if step is not None:
                return step
        move = self._move(batch, counts, ahead, waiting)
        tokens = self._one_each(move) if move.one else self._tokens(move)
        new = self._new_columns(move, tokens)
        special = self._special(batch, move)
        taken = self._take(batch, move, new, special)
        stopping = self._stopping(batch, move, special)
        width = -(-int(np.maximum.reduce(move.ends)) // self._ledger.page_size)
        placed = self._place(batch, move, new, special, stopping, taken, width)
        step = self._make(batch, move, tokens, width, placed.crosses)
        if taken or stopping or self._placer.pending:
            self._placer.enter(step, placed, taken)
        step._changes = batch._take_changes()
        batch._rows.scheduled[: len(batch)] = move.ends
        for sequence in stopping:
            sequence._aim()
        batch._stride = None
        if move.one:
            self._strider.begin(batch, step, tokens.offsets, width)
        return step

    # -- what is asked and needed --------------------------------------------------------------

    def _move(self, batch: Batch, counts: Int64s | int, ahead: int, waiting: Waiting) -> Move:
        """How far the rows come; refused where one may not."""
        rows, n = batch._rows, len(batch)
        starts = rows.scheduled[:n]
        ends = starts + counts
        one = type(counts) is int and counts == 1
        if ahead:
            one = one and not np.count_nonzero(ends > rows.limit[:n])
            ends = np.minimum(ends, rows.limit[:n])
        doubtful = ahead or self._ledger.state_groups
        if (
            self._is_doubtful(batch, starts, ends, ahead, waiting)
            if doubtful
            else np.count_nonzero(ends > rows.known[:n])
        ):
            wanted, sequences = np.broadcast_to(counts, n).tolist(), batch._snapshot()
            found = self._stepper.ends(sequences, starts.tolist(), wanted, ahead, waiting)
            ends = np.array(found, np.int64)
        return Move(starts, ends, one)

    def _is_doubtful(
        self, batch: Batch, starts: Int64s, ends: Int64s, ahead: int, waiting: Waiting
    ) -> bool:
        """Whether a row may not come so far, or none moves; sometimes so where all is well."""
        rows, n = batch._rows, len(batch)
        known = rows.known[:n]
        if np.count_nonzero(ends > (known + ahead if ahead else known)):
            return True
        if ahead and not np.count_nonzero(ends > starts):
            return True
        if not self._ledger.state_groups:
            return False
        if np.count_nonzero(starts < rows.floor[:n]):
            return True
        if ahead <= self._ledger.rollback:
            return False
        awaited = waiting()
        waits = [awaited.get(sequence, 0) for sequence in batch._snapshot()]
        return bool(np.count_nonzero(ends - known - waits > self._ledger.rollback))

    def _new_columns(self, move: Move, tokens: Tokens) -> Columns:
        if move.one:
            rows = (tokens.offsets == 0).nonzero()[0]
            return Columns(rows, tokens.columns[rows])
        size = self._ledger.page_size
        first = (move.starts + (size - 1)) // size
        fresh = (move.ends + (size - 1)) // size - first
        rows = fresh.nonzero()[0]
        counts = fresh[rows]
        columns = np.repeat(first[rows] - counts.cumsum() + counts, counts)
        columns += np.arange(columns.size)
        return Columns(np.repeat(rows, counts), columns)

    def _special(self, batch: Batch, move: Move) -> Ends:
        """Rows that move and need more than new pages."""
        special = batch._rows.special[: len(batch)]
        if not np.count_nonzero(special):
            return {}
        return _ends(batch, move, special & (move.ends > move.starts))

    def _stopping(self, batch: Batch, move: Move, special: Ends) -> Ends:
        """Rows that come to where a state may have to be kept."""
        if not self._ledger.state_groups:
            return {}
        stops = (move.ends >= batch._rows.stop[: len(batch)]) & (move.ends > move.starts)
        stops[[sequence._row for sequence in special]] = True
        return _ends(batch, move, stops)

    def _take(self, batch: Batch, move: Move, new: Columns, special: Ends) -> Taken:
        """Pages for all of it, by group."""
        count = new.rows.size
        if not count and not special:
            return {}
        needs = [count * times for times in self._has_tokens]
        if special:
            needs = self._with_special(needs, special)
        promised = self._promised(batch, move)
        owed = None if promised is None else self._promises.owed(promised)
        if owed is not None or sum(needs) > self._ledger.pool.free:
            self._ledger.require(needs, owed)
        return self._ledger.take_all(needs, owed)

    def _with_special(self, needs: list[int], special: Ends) -> list[int]:
        """``needs``, new columns of all rows, and what special rows need beside theirs."""
        columns = self._ledger.columns
        own = sum([columns(end) - columns(s.scheduled) for s, end in special.items()])
        total = total_needs(self._ledger, special.items())
        pairs = zip(needs, total, self._has_tokens, strict=True)
        return [need + more - own * times for need, more, times in pairs]

    def _promised(self, batch: Batch, move: Move) -> Ends | None:
        """Where guaranteed rows come to; None: nothing is promised. O(guaranteed sequences)."""
        if not self._promises.sequences:
            return None
        mask = np.zeros(len(batch), np.bool_)
        mask[[s._row for s in self._promises.sequences.values() if s._batch is batch]] = True
        return _ends(batch, move, mask & (move.ends > move.starts))

    # -- pages into the tables -----------------------------------------------------------------

    def _place(
        self,
        batch: Batch,
        move: Move,
        new: Columns,
        special: Ends,
        stopping: Ends,
        taken: Taken,
        width: int,
    ) -> Placed:
        rows, ledger, placed = batch._rows, self._ledger, NOTHING
        if special or stopping:
            own, new, taken = self._split(batch, new, special, taken)
            placed = self._placer.place(special, own, stopping, self._promised(batch, move) or {})
        for group in ledger.token_groups if new.rows.size else ():
            if width > rows.tables[group].shape[1]:
                rows.widen(group, width)
            rows.tables[group][new.rows, new.columns] = taken[group]
            batch._note(group, new.rows, new.columns, taken[group])
        if ledger.state_groups:  # states of lengths below are overwritten by this step
            floor = rows.floor[: len(batch)]
            reached = np.where(move.ends > move.starts, move.ends - ledger.rollback, 0)
            np.maximum(floor, reached, out=floor)
        return placed

    def _split(
        self, batch: Batch, new: Columns, special: Ends, taken: Taken
    ) -> tuple[Taken, Columns, Taken]:
        """Pages of special rows, and columns and pages of the others: each gets them in turn."""
        own, rest = dict(taken), dict(taken)
        apart = np.zeros(len(batch), np.bool_)
        apart[[sequence._row for sequence in special]] = True
        for group in self._ledger.token_groups if taken else ():
            copied = copied_pages(self._ledger, special, group)
            copying = [s._row for s, page in zip(special, copied, strict=True) if page]
            holders = np.sort(np.concatenate((new.rows, np.array(copying, np.intp))))
            if holders.size:
                mine = apart[holders]
                own[group], rest[group] = taken[group][mine], taken[group][~mine]
        others = ~apart[new.rows]
        return own, Columns(new.rows[others], new.columns[others]), rest

    # -- arrays --------------------------------------------------------------------------------

    def _one_each(self, move: Move) -> Tokens:
        same, starts, size = self._constants, move.starts, self._ledger.page_size
        n, past = starts.size, starts.astype(np.int32)
        return Tokens(
            same.ones[:n],
            same.starts[: n + 1],
            same.starts[:n],
            past,
            past.copy(),
            same.rows[:n],
            starts,
            starts // size,
            past % size,
        )

    def _tokens(self, move: Move) -> Tokens:
        starts, ends, size = move.starts, move.ends, self._ledger.page_size
        n, counts = starts.size, (ends - starts).astype(np.int32)
        query_start = np.zeros(n + 1, np.int32)
        np.add.accumulate(counts, out=query_start[1:])
        last = query_start[1:] - 1
        if np.count_nonzero(counts) < n:
            last[counts == 0] = -1
        rows = np.repeat(self._constants.rows[:n], counts)
        at = np.arange(rows.size)
        at += (starts - query_start[:-1])[rows]
        positions = at.astype(np.int32)
        return Tokens(
            counts,
            query_start,
            last,
            starts.astype(np.int32),
            positions,
            rows,
            at,
            at // size,
            positions % size,
        )

    def _make(
        self, batch: Batch, move: Move, tokens: Tokens, width: int, crosses: list[Sequence]
    ) -> Step:
        """The step's arrays, once every page is in its table."""
        known, limit = batch._rows.known[: len(batch)], batch._rows.limit[: len(batch)]
        wants = (move.ends >= known) & (known < limit)
        batch._rows.viewed = True
        return Step(
            sequences=batch._snapshot(),
            counts=tokens.counts,
            input_ids=self._ids(batch, move, tokens),
            positions=tokens.positions,
            query_start=tokens.query_start,
            past=tokens.past,
            context=move.ends.astype(np.int32),
            last=tokens.last,
            wants_token=wants if move.one else wants & (move.ends > move.starts),
            groups=self._views(batch, move, tokens, width, crosses),
            _batch=batch,
        )

    def _ids(self, batch: Batch, move: Move, tokens: Tokens) -> Ints:
        """Known ids of the new positions, 0 beyond them: from the tails, else from the buffers."""
        rows, n = batch._rows, move.starts.size
        known, computed = rows.known[:n], rows.computed[:n]
        ids = rows.tail.reshape(-1).take(self._tails(move, tokens) + tokens.offsets)
        if not move.one or np.count_nonzero(move.starts != computed):
            size = self._ledger.page_size
            far = np.minimum(move.ends, known) > (computed // size + 1) * size
            if np.count_nonzero(far):
                self._fetch_ids(batch, move, tokens, far & (move.ends > move.starts), ids)
        if np.count_nonzero(move.ends > known):
            ids[tokens.at >= known[tokens.rows]] = 0
        return ids

    def _tails(self, move: Move, tokens: Tokens) -> Int64s:
        """Where in all tails that of each token's row begins."""
        if move.one:
            return self._constants.tails[: move.starts.size]
        return tokens.rows * self._ledger.page_size

    @staticmethod
    def _fetch_ids(
        batch: Batch, move: Move, tokens: Tokens, far: NDArray[np.bool_], ids: Ints
    ) -> None:
        """Ids of rows that leave their tail."""
        sequences = batch._snapshot()
        far = far & (move.starts < batch._rows.known[: len(batch)])
        for row in far.nonzero()[0].tolist():
            start, end = int(move.starts[row]), int(move.ends[row])
            at = int(tokens.query_start[row])
            ids[at : at + end - start] = known_ids(sequences[row], start, end)

    def _views(
        self, batch: Batch, move: Move, tokens: Tokens, width: int, crosses: list[Sequence]
    ) -> dict[str, View]:
        ledger, n = self._ledger, len(batch)
        views: dict[str, View] = {}
        for group, name in enumerate(ledger.names):
            table = batch._rows.tables[group]
            if group in ledger.state_groups:
                units, parts = ledger.rollback + 1, ledger.groups[group].parts
                views[name] = state_view(table[:n], units, parts, move.starts, move.ends)
            elif group in ledger.cross_groups:
                fresh = [sequence._row for sequence in crosses]
                lengths = batch._cross_lengths()
                views[name] = cross_view(table[:n], ledger.page_size, lengths, fresh)
            else:
                slots = table.take(tokens.rows * table.shape[1] + tokens.columns)
                slots *= ledger.page_size
                slots += tokens.offsets
                views[name] = GroupView(slots, table[:n, :width], self._constants.zeros[:n])
        return views


def _ends(batch: Batch, move: Move, mask: NDArray[np.bool_]) -> Ends:
    """The rows of ``mask`` and where they come to. O(those)."""
    sequences = batch._snapshot()
    return {sequences[row]: int(move.ends[row]) for row in mask.nonzero()[0].tolist()}
