"""The fast way: every row of a batch runs one token, in a few array operations.

A cursor holds what a run of such steps needs, laid out so that a step only adds one to it: rows are
sorted once by where in their page they stand, so who begins and who fills a page is looked up, not
searched. Whatever else happens to a row ends the run; the next step starts another. Same results as
`octavo.stepping` and `octavo.committing`, which do the rest.
"""

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Batch
from octavo.committing import Committed, Committer, Repointed
from octavo.errors import CapacityError
from octavo.ledger import Ledger
from octavo.promises import Promises
from octavo.sequences import Ints
from octavo.stepping import Stepper
from octavo.table import GroupView, Step, View

Index = NDArray[np.intp]


class Constants:
    """Arrays that are the same for every decode step of n rows; read-only."""

    def __init__(self, count: int) -> None:
        self.counts = np.ones(count, np.int32)
        self.query_start = np.arange(count + 1, dtype=np.int32)
        self.last = np.arange(count, dtype=np.int32)
        self.wants_token = np.ones(count, np.bool_)
        self.zeros = np.zeros(count, np.int32)
        for array in vars(self).values():
            array.flags.writeable = False


class Bucket:
    """Rows of a run that stand at the same offset of a page, and so cross into the next together.

    Attributes:
        rows: their numbers.
        listed: the same as a list.
        columns: of each, the column it fills or filled last.
        widest: the largest of ``columns``.
        sequences: theirs.
    """

    def __init__(self, batch: Batch, rows: Index, computed: NDArray[np.int64], size: int) -> None:
        self.rows, self.listed = rows, rows.tolist()
        self.columns = (computed[rows] - 1) // size
        self.widest = int(self.columns.max(initial=-1))
        self.sequences = [batch.snapshot()[row] for row in self.listed]

    def begin(self) -> None:
        """All of them begin a page."""
        self.columns += 1
        self.widest += 1


class Cursor:
    """A run of decode steps of one batch, from rows that know one token more than is computed.

    Args:
        batch: whose rows they are.
        constants: arrays for as many rows.
        plain: whether every full page of every row is published, and by its tokens alone.

    Attributes:
        room: tokens every row may still learn.
        ahead: steps extended and not yet committed.
    """

    def __init__(self, batch: Batch, constants: Constants, *, plain: bool) -> None:
        self.plain = plain
        rows, count, size = batch.rows, len(batch), batch.rows.page_size
        self.batch, self.constants, self.count, self.size = batch, constants, count, size
        self.computed, self.known = rows.computed[:count], rows.known[:count]
        self.scheduled, self.tail = rows.scheduled[:count], rows.tail.reshape(-1)
        computed = self.computed
        offsets = computed % size
        self._buckets = {
            offset: Bucket(batch, np.flatnonzero(offsets == offset), computed, size)
            for offset in np.unique(offsets).tolist()
        }
        self.room = int((rows.limit[:count] - rows.known[:count]).min())
        self.ahead = self._extended = self._committed = 0
        self.past = computed.astype(np.int32)
        self.width = max(bucket.widest for bucket in self._buckets.values()) + 1
        self.ids = rows.tail[np.arange(count), offsets]
        self.tail_at = np.arange(0, count * size, size) + offsets
        self.slots: list[Ints] = []
        for table in rows.tables:
            column = np.minimum(computed // size, table.shape[1] - 1)
            pages = table[np.arange(count), column]
            self.slots.append((pages * np.int64(size) + offsets - 1).astype(np.int32))
        for sequence in batch:
            sequence._stand_at_page(int(computed[sequence._row]) // size * size)

    def beginning(self) -> Bucket | None:
        """Rows whose next position to be scheduled is the first of a page."""
        return self._buckets.get(-self._extended % self.size)

    def filling(self) -> Bucket | None:
        """Rows whose next position to be computed is the last of a page."""
        return self._buckets.get((self.size - 1 - self._committed) % self.size)


class Decoder:
    """Makes and ends decode steps of the batches of one cache."""

    def __init__(
        self, ledger: Ledger, promises: Promises, stepper: Stepper, committer: Committer
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._stepper, self._committer = stepper, committer
        self._constants: dict[int, Constants] = {}

    def extend(self, batch: Batch, ahead: int) -> Step | None:
        """The step in which every row of ``batch`` runs one token; None: not this way.

        Raises:
            OutOfPages: too few pages; nothing is changed.
        """
        cursor = batch.cursor or self._start(batch)
        if cursor is None:
            return None
        lead = cursor.ahead
        if lead > ahead or lead >= cursor.room + (ahead == 0) or self._stepper.pending:
            return None
        if lead and self._ledger.state_groups:
            return None
        bucket = cursor.beginning()
        fresh = {} if bucket is None else self._begin_pages(cursor, bucket)
        return self._step(cursor, fresh)

    def commit(self, step: Step, tokens: Ints, *, later: bool) -> Committed | None:
        """Every row computed one position and learned one id of ``tokens``; None: not this way.

        Args:
            tokens: int32[rows].
            later: whether a further step is open, so that no entry may be repointed.

        Raises:
            CapacityError: a row would know more than its limit; nothing is changed.
        """
        cursor = step._cursor
        if cursor is None or cursor.batch.cursor is not cursor:
            return None
        if cursor.room < 1:
            self._refuse(cursor)
        bucket = cursor.filling()
        cursor.computed += 1
        repointed: list[Repointed] = []
        published = 0
        cursor.tail_at += 1
        if bucket is not None:
            published = self._fill(cursor, bucket, None if later else repointed)
            cursor.tail_at[bucket.rows] -= cursor.size
        cursor.tail[cursor.tail_at] = tokens
        cursor.known += 1
        cursor.ids = tokens.copy()
        cursor.room -= 1
        cursor.ahead -= 1
        cursor._committed += 1
        dropped = 0
        if self._ledger.sliding:
            dropped = self._committer.slide_all(cursor.batch, cursor.count)
        return Committed(published, tuple(repointed), dropped)

    def _start(self, batch: Batch) -> Cursor | None:
        """A new run, where every row is ready for one."""
        rows, count = batch.rows, len(batch)
        scheduled = rows.scheduled[:count]
        ready = (
            bool(count)
            and not rows.special[:count].any()
            and bool((rows.known[:count] - scheduled == 1).all())
            and bool((rows.computed[:count] == scheduled).all())
            and bool((scheduled > 0).all())
        )
        if not ready or (self._ledger.state_groups and (scheduled < rows.floor[:count]).any()):
            return None
        if self._ledger.state_groups and any(s.next_stop is not None for s in batch):
            return None
        if count not in self._constants:
            self._constants[count] = Constants(count)
        plain = not any(s._identity.media or s._private for s in batch)
        cursor = Cursor(batch, self._constants[count], plain=plain)
        batch.cursor = cursor
        return cursor

    def _begin_pages(self, cursor: Cursor, bucket: Bucket) -> dict[str, Ints]:
        """A new page in every token group for each row that begins one."""
        ledger, rows, count = self._ledger, cursor.batch.rows, len(bucket.listed)
        needs = [count if g in ledger.token_groups else 0 for g in range(len(ledger.groups))]
        owed = None
        if self._promises.sequences:
            owed = self._promises.owed({s: s.scheduled + 1 for s in bucket.sequences})
        ledger.require(needs, owed)
        taken = ledger.take_all(needs, owed)
        bucket.begin()
        if bucket.widest >= cursor.width:
            cursor.width = bucket.widest + 1
        fresh = {}
        for group in ledger.token_groups:
            pages = taken[group]
            if cursor.width > rows.tables[group].shape[1]:
                rows.widen(group, cursor.width)
            rows.tables[group][bucket.rows, bucket.columns] = pages
            cursor.slots[group][bucket.rows] = pages * cursor.size - 1
            cursor.batch.note(group, bucket.rows, bucket.columns.copy(), pages)
            fresh[ledger.names[group]] = pages
        return fresh

    def _step(self, cursor: Cursor, fresh: dict[str, Ints]) -> Step:
        constants = cursor.constants
        batch, past = cursor.batch, cursor.past.copy()
        views = {name: self._view(cursor, at) for at, name in enumerate(self._ledger.names)}
        step = Step(
            sequences=batch.snapshot(),
            counts=constants.counts,
            input_ids=np.zeros(cursor.count, np.int32) if cursor.ahead else cursor.ids,
            positions=past.copy(),
            query_start=constants.query_start,
            past=past,
            context=past + constants.counts,
            last=constants.last,
            wants_token=constants.wants_token,
            groups=views,
            fresh=fresh,
            _changes=batch.take_changes(),
            _cursor=cursor,
        )
        if self._ledger.state_groups:
            rows = slice(0, cursor.count)
            self._stepper.reach(cursor.batch.rows, rows, cursor.scheduled + 1)
        cursor.scheduled += 1
        cursor.past += constants.counts
        cursor.ahead += 1
        cursor._extended += 1
        return step

    def _view(self, cursor: Cursor, group: int) -> View:
        ledger, rows, count = self._ledger, cursor.batch.rows, cursor.count
        rows.viewed = True
        if group in ledger.state_groups:
            table = rows.tables[group][:count]
            return self._stepper.state_view(group, table, rows.scheduled[:count], 1)
        if group in ledger.cross_groups:
            table = rows.tables[group][:count]
            return self._stepper.cross_view(table, cursor.batch._sequences)
        slots = cursor.slots[group]
        slots += cursor.constants.counts
        table = rows.tables[group][:count, : cursor.width]
        return GroupView(slots.copy(), table, cursor.constants.zeros)

    def _fill(self, cursor: Cursor, bucket: Bucket, repointed: list[Repointed] | None) -> int:
        """Store and publish the page each row of ``bucket`` has just filled."""
        rows, width, committer = cursor.batch.rows, 4 * cursor.size, self._committer
        raw = rows.tail[bucket.rows].tobytes()
        keys = [raw[at : at + width] for at in range(0, len(raw), width)]
        for sequence, key in zip(bucket.sequences, keys, strict=True):
            sequence._late.append(key)
        if not committer.publishes:
            return 0
        if not cursor.plain:
            return sum(committer.publish_last(s, repointed) for s in bucket.sequences)
        columns = bucket.columns - -(-(cursor.ahead - 1) // cursor.size)
        return committer.publish_filled(
            bucket.sequences, rows, bucket.listed, columns, keys, repointed
        )

    def _refuse(self, cursor: Cursor) -> None:
        rows = cursor.batch.rows
        row = int((rows.limit[: cursor.count] - rows.known[: cursor.count]).argmin())
        sequence = cursor.batch._sequences[row]
        why = f"limit of {sequence.id!r}"
        raise CapacityError("length", sequence.limit + 1, sequence.limit, why)
