"""A step of a batch: any counts, all rows at once, in a few array operations.

Rows that need more than new pages, such as a page to copy or a state to take, are placed one by one
beside the others. What single sequences and lists do is in `octavo.stepping`; the results are the
same. The ledger hands out pages; publication is not known here.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.ledger import Ledger
from octavo.placing import NOTHING, Ends, Placed, Placer
from octavo.promises import Promises, copied_pages, total_needs
from octavo.sequences import Ints, Sequence
from octavo.stepping import Stepper, Waiting, known_ids
from octavo.table import CrossView, GroupView, Step, View, state_view

Int64s = NDArray[np.int64]


class Move(NamedTuple):
    """Where the rows of a batch come from and to, int64[n] each; ``one``: each by one position."""

    starts: Int64s
    ends: Int64s
    one: bool


class Columns(NamedTuple):
    """New columns, in order of rows: whose each is, and its number."""

    rows: NDArray[np.intp]
    columns: Int64s


class Tokens(NamedTuple):
    """The T new tokens of a step: int32 arrays of it, and int64 ones to reckon with.

    Attributes:
        counts, query_start, last, past, positions: as of the step.
        at: int64[T], position of each token.
        rows: int64[T], its row; None: token i is row i's.
    """

    counts: Ints
    query_start: Ints
    last: Ints
    past: Ints
    positions: Ints
    at: Int64s
    rows: Int64s


class Constants:
    """Arrays that are the same for every step of one token a row, for up to ``rows``; read-only."""

    def __init__(self, rows: int) -> None:
        self.numbers = np.arange(rows, dtype=np.int64)
        self.ones = np.ones(rows, np.int32)
        self.zeros = np.zeros(rows, np.int32)
        self.starts = np.arange(rows + 1, dtype=np.int32)
        for array in vars(self).values():
            array.flags.writeable = False


class Marcher:
    """Makes steps of the batches of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        placer: places pages of single rows.
        stepper: says how far a row may come.
        rows: most rows of a batch.
    """

    def __init__(
        self, ledger: Ledger, promises: Promises, placer: Placer, stepper: Stepper, rows: int
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._placer, self._stepper = placer, stepper
        self._constants = Constants(rows)

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
        rows = batch._rows
        move = self._move(batch, counts, ahead, waiting)
        new = self._new_columns(move)
        special = self._special(batch, move)
        taken = self._take(batch, move, new, special)
        stopping = self._stopping(batch, move, special)
        placed = self._place(batch, move, new, special, stopping, taken)
        step = self._make(batch, move, placed)
        if taken or placed is not NOTHING or self._placer.pending:
            self._placer.enter(step, placed, taken)
        step._changes = batch._take_changes()
        rows.scheduled[: len(batch)] = move.ends
        for sequence in stopping:
            sequence._aim()
        return step

    # -- what is needed ------------------------------------------------------------------------

    def _move(self, batch: Batch, counts: Int64s | int, ahead: int, waiting: Waiting) -> Move:
        """How far the rows come; refused where one may not."""
        rows, n = batch._rows, len(batch)
        starts = rows.scheduled[:n]
        ends = starts + counts
        one = type(counts) is int and counts == 1
        if ahead:
            one = one and not np.count_nonzero(ends > rows.limit[:n])
            ends = np.minimum(ends, rows.limit[:n])
        if self._is_doubtful(batch, starts, ends, ahead, waiting):
            wanted = np.broadcast_to(counts, n).tolist()
            sequences = batch._snapshot()
            found = self._stepper.ends(sequences, starts.tolist(), wanted, ahead, waiting)
            ends = np.array(found, np.int64)
        return Move(starts, ends, one)

    def _is_doubtful(
        self, batch: Batch, starts: Int64s, ends: Int64s, ahead: int, waiting: Waiting
    ) -> bool:
        """Whether a row may not come so far, or none moves; sometimes so where all is well."""
        rows, n = batch._rows, len(batch)
        beyond = ends - rows.known[:n]
        if np.maximum.reduce(beyond) > ahead:
            return True
        if ahead and not np.count_nonzero(ends > starts):
            return True
        if not self._ledger.state_groups:
            return False
        if np.count_nonzero(starts < rows.floor[:n]):
            return True
        if ahead > self._ledger.rollback:
            awaited = waiting()
            beyond -= [awaited.get(sequence, 0) for sequence in batch._snapshot()]
        return bool(np.maximum.reduce(beyond) > self._ledger.rollback)

    def _new_columns(self, move: Move) -> Columns:
        size = self._ledger.page_size
        starts, ends, one = move
        if one:
            rows = (starts % size == 0).nonzero()[0]
            return Columns(rows, starts[rows] // size)
        first = (starts + (size - 1)) // size
        fresh = (ends + (size - 1)) // size - first
        rows = fresh.nonzero()[0]
        counts = fresh[rows]
        offsets = first[rows] - counts.cumsum() + counts
        columns = np.repeat(offsets, counts)
        columns += np.arange(columns.size)
        return Columns(np.repeat(rows, counts), columns)

    def _special(self, batch: Batch, move: Move) -> Ends:
        """Rows that move and need more than new pages."""
        special = batch._rows.special[: len(batch)]
        if not np.count_nonzero(special):
            return {}
        rows = (special & (move.ends > move.starts)).nonzero()[0]
        sequences = batch._snapshot()
        return {sequences[row]: int(move.ends[row]) for row in rows.tolist()}

    def _stopping(self, batch: Batch, move: Move, special: Ends) -> Ends:
        """Rows that come to where a state may have to be kept."""
        if not self._ledger.state_groups:
            return {}
        rows, n = batch._rows, len(batch)
        stops = (move.ends >= rows.stop[:n]) & (move.ends > move.starts)
        if special:
            stops[[sequence._row for sequence in special]] = True
        sequences = batch._snapshot()
        return {sequences[row]: int(move.ends[row]) for row in stops.nonzero()[0].tolist()}

    def _take(self, batch: Batch, move: Move, new: Columns, special: Ends) -> dict[int, Ints]:
        """Pages for all of it, by group."""
        ledger, count = self._ledger, new.rows.size
        if not count and not special:
            return {}
        needs = [count if g in ledger.token_groups else 0 for g in range(len(ledger.groups))]
        if special:
            counted = sum(
                ledger.columns(e) - ledger.columns(s.scheduled) for s, e in special.items()
            )
            for group, need in enumerate(total_needs(ledger, special.items())):
                needs[group] += need - (counted if group in ledger.token_groups else 0)
        owed = (
            self._promises.owed(self._promised(batch, move)) if self._promises.sequences else None
        )
        ledger.require(needs, owed)
        return ledger.take_all(needs, owed)

    def _promised(self, batch: Batch, move: Move) -> Ends:
        """Where guaranteed rows come to. O(guaranteed sequences)."""
        there = [s for s in self._promises.sequences.values() if s._batch is batch]
        return {s: int(move.ends[s._row]) for s in there if move.ends[s._row] > move.starts[s._row]}

    # -- pages into the tables -----------------------------------------------------------------

    def _place(
        self,
        batch: Batch,
        move: Move,
        new: Columns,
        special: Ends,
        stopping: Ends,
        taken: dict[int, Ints],
    ) -> Placed:
        ledger, placed = self._ledger, NOTHING
        if special or stopping:
            own, rest = self._split(batch, new, special, taken)
            promised = self._promised(batch, move) if self._promises.sequences else {}
            placed = self._placer.place(special, own, stopping, promised)
            if special:
                new = self._without(batch, new, special)
        else:
            rest = taken
        if new.rows.size:
            for group in ledger.token_groups:
                self._put(batch, group, new, rest[group])
        if ledger.state_groups:  # states of lengths below are overwritten by this step
            floor = batch._rows.floor[: len(batch)]
            reached = np.where(move.ends > move.starts, move.ends - ledger.rollback, 0)
            np.maximum(floor, reached, out=floor)
        return placed

    def _split(
        self, batch: Batch, new: Columns, special: Ends, taken: dict[int, Ints]
    ) -> tuple[dict[int, Ints], dict[int, Ints]]:
        """Pages for special rows, and those of the others: each row gets them in its turn."""
        own, rest = dict(taken), dict(taken)
        is_special = self._mask(batch, special)
        for group in self._ledger.token_groups if special else ():
            copied = copied_pages(self._ledger, special, group)
            copying = [s._row for s, page in zip(special, copied, strict=True) if page]
            holders = np.sort(np.concatenate((new.rows, np.array(copying, np.intp))))
            if holders.size:
                mine = is_special[holders]
                own[group], rest[group] = taken[group][mine], taken[group][~mine]
        return own, rest

    @staticmethod
    def _mask(batch: Batch, special: Ends) -> NDArray[np.bool_]:
        mask = np.zeros(len(batch), np.bool_)
        mask[[sequence._row for sequence in special]] = True
        return mask

    def _without(self, batch: Batch, new: Columns, special: Ends) -> Columns:
        others = ~self._mask(batch, special)[new.rows]
        return Columns(new.rows[others], new.columns[others])

    @staticmethod
    def _put(batch: Batch, group: int, new: Columns, pages: Ints) -> None:
        rows = batch._rows
        width = int(np.maximum.reduce(new.columns)) + 1
        if width > rows.tables[group].shape[1]:
            rows.widen(group, width)
        rows.tables[group][new.rows, new.columns] = pages
        batch._note(group, new.rows, new.columns, pages)

    # -- arrays --------------------------------------------------------------------------------

    def _make(self, batch: Batch, move: Move, placed: Placed) -> Step:
        """The step's arrays, once every page is in its table."""
        starts, ends, one = move
        tokens = self._one_each(move) if one else self._tokens(move)
        wants = ends >= batch._rows.known[: len(batch)]
        batch._rows.viewed = True
        return Step(
            sequences=batch._snapshot(),
            counts=tokens.counts,
            input_ids=self._ids(batch, move, tokens),
            positions=tokens.positions,
            query_start=tokens.query_start,
            past=tokens.past,
            context=ends.astype(np.int32),
            last=tokens.last,
            wants_token=wants if one else wants & (ends > starts),
            groups=self._views(batch, move, tokens, placed),
            _batch=batch,
        )

    def _one_each(self, move: Move) -> Tokens:
        same, n = self._constants, move.starts.size
        past = move.starts.astype(np.int32)
        rows, ones = same.numbers[:n], same.ones[:n]
        query_start, last = same.starts[: n + 1], same.starts[:n]
        return Tokens(ones, query_start, last, past, past.copy(), move.starts, rows)

    def _tokens(self, move: Move) -> Tokens:
        n, past = move.starts.size, move.starts.astype(np.int32)
        counts = move.ends - move.starts
        query_start = np.zeros(n + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        last = np.where(counts > 0, query_start[1:] - 1, np.int32(-1))
        at = np.repeat(move.starts - query_start[:-1], counts)
        at += np.arange(at.size)
        rows = np.repeat(self._constants.numbers[:n], counts)
        positions = at.astype(np.int32)
        return Tokens(counts.astype(np.int32), query_start, last, past, positions, at, rows)

    def _ids(self, batch: Batch, move: Move, tokens: Tokens) -> Ints:
        """Known ids of the new positions, 0 beyond them: from the tails, else from the buffers."""
        rows, n, size = batch._rows, len(batch), self._ledger.page_size
        if move.one and np.array_equal(move.starts, rows.computed[:n]) and move.starts is not None:
            tail = rows.tail.reshape(-1)
            ids = tail.take(tokens.rows * size + tokens.at % size)
            known = rows.known[:n]
            if np.count_nonzero(move.starts >= known):
                ids[move.starts >= known] = 0
            return ids
        return self._ids_of_any(batch, move, tokens)

    def _ids_of_any(self, batch: Batch, move: Move, tokens: Tokens) -> Ints:
        rows, n, size = batch._rows, len(batch), self._ledger.page_size
        known, first = rows.known[:n], rows.computed[:n] // size * size
        flat = tokens.at + (self._constants.numbers[:n] * size - first)[tokens.rows]
        ids = rows.tail.reshape(-1).take(flat, mode="clip")
        far = (move.ends > first + size) & (move.ends > move.starts) & (move.starts < known)
        sequences = batch._snapshot()
        for row in far.nonzero()[0].tolist():
            start, end = int(move.starts[row]), int(move.ends[row])
            at = int(tokens.query_start[row])
            ids[at : at + end - start] = known_ids(sequences[row], start, end)
        if np.count_nonzero(move.ends > known):
            ids[tokens.at >= known[tokens.rows]] = 0
        return ids

    def _views(self, batch: Batch, move: Move, tokens: Tokens, placed: Placed) -> dict[str, View]:
        size, ledger = self._ledger.page_size, self._ledger
        columns, offsets = tokens.at // size, tokens.at % size
        width = -(-int(np.maximum.reduce(move.ends)) // size)
        views: dict[str, View] = {}
        for group, name in enumerate(ledger.names):
            table, n = batch._rows.tables[group], len(batch)
            if group in ledger.state_groups:
                units, parts = ledger.rollback + 1, ledger.groups[group].parts
                views[name] = state_view(table[:n], units, parts, move.starts, move.ends)
            elif group in ledger.cross_groups:
                views[name] = self._cross(batch, table[:n], placed.crosses)
            else:
                slots = table.take(tokens.rows * table.shape[1] + columns) * size
                slots += offsets
                views[name] = GroupView(slots, table[:n, :width], self._constants.zeros[:n])
        return views

    def _cross(self, batch: Batch, table: Ints, crosses: list[Sequence]) -> CrossView:
        lengths, fresh = batch._cross_lengths(), np.zeros(len(batch), np.bool_)
        fresh[[sequence._row for sequence in crosses]] = True
        width = self._ledger.columns(int(lengths.max()))
        return CrossView(table[:, :width], lengths, fresh)
