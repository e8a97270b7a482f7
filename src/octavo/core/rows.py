"""Rows: the place of each sequence, handles on them, batches of them, and one pass over some.

A row is a sequence's place in all arrays of the core from admit to release. What the cache hands
out (`octavo.Sequence`, `octavo.Batch`, `octavo.Step`) builds on the classes here; their numbers can
be read by everyone and are written by the core alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.core.arena import ints, larger

if TYPE_CHECKING:
    from octavo.core.arena import Ints

GONE, PREEMPTED, TWICE, STATE_LOST, LIMIT, AHEAD, DRAFTS, NOTHING, PAGES = range(9)
COUNT, TOKEN, LEARNS, UNKNOWN, LATER, WINDOW, TOKENS, KEPT, DIFFERS = range(9, 18)


class Refused(Exception):
    """A verb cannot be done; nothing was changed.

    Attributes:
        why: one of the constants of this module.
        place: which row of the step or batch, or which entry.
        value: the number that is wrong; ``bound``: what it may be at most.
    """

    def __init__(self, why: int, place: int = 0, value: int = 0, bound: int = 0) -> None:
        super().__init__(why, place, value, bound)
        self.why = why
        self.place = place
        self.value = value
        self.bound = bound


class Handle:
    """Names a row; once its sequence is released, what it was.

    Attributes:
        core: of which cache.
        row: its row; -1: it is released.
        last: known, scheduled, computed and limit when it was released.
        left: its token ids then, int32[known].
    """

    __slots__ = ("__weakref__", "core", "last", "left", "row")

    def __init__(self) -> None:
        self.core: Any = None
        self.row = -1
        self.last = (0, 0, 0, 0)
        self.left: Any = None


class Rows:
    """Rows that step together, in order, and what changed in their tables since their last step.

    Attributes:
        data: the rows; -1 where a sequence was released.
        count: how many.
        log: changes of the tables, four numbers each: place, group, column and page of an entry; or
            place, -1, n and 0 where another row came to a place that had up to n columns, or so
            much changed that all of it is to be read. What changes there later is not noted.
        logged: how many changes.
        tally: by place, how many of them are its own; or -1 less where in the log its -1 is.
        wide: by place, up to which column there are changes.
        steps: how many steps were made of them.
    """

    __slots__ = ("count", "data", "log", "logged", "steps", "tally", "wide")

    def __init__(self, capacity: int) -> None:
        self.data = ints(capacity)
        self.count = 0
        self.log = ints(64)
        self.logged = 0
        self.steps = 0
        self.tally = ints(capacity)
        self.wide = ints(capacity)

    def note(self, place: int, group: int, column: int, page: int) -> None:
        """An entry of the tables is another page now. Amortised O(1)."""
        if self.widen(place, column + 1):
            return
        if self.tally[place] > 2 * self.wide[place] + 16:  # more than there is to read
            self.note_all(place, 0)
            return
        self.tally[place] += 1
        self.append(place, group, column, page)

    def note_all(self, place: int, width: int) -> None:
        """All of a place is to be read, which had up to ``width`` columns. Amortised O(1)."""
        if not self.widen(place, width):
            self.append(place, -1, self.wide[place], 0)
            self.tally[place] = -self.logged

    def widen(self, place: int, width: int) -> bool:
        """Up to where a place changes; whether all of it is to be read anyway. Amortised O(1)."""
        if place >= len(self.tally):
            self.tally = larger(self.tally, len(self.tally), len(self.data))
            self.wide = larger(self.wide, len(self.wide), len(self.data))
        self.wide[place] = max(self.wide[place], width)
        if self.tally[place] >= 0:
            return False
        self.log[4 * (-self.tally[place] - 1) + 2] = self.wide[place]
        return True

    def append(self, place: int, group: int, column: int, page: int) -> None:
        """A change more. Amortised O(1)."""
        at = 4 * self.logged
        if at == len(self.log):
            self.log = larger(self.log, at, 2 * at)
        self.log[at] = place
        self.log[at + 1] = group
        self.log[at + 2] = column
        self.log[at + 3] = page
        self.logged += 1

    def take_log(self) -> Ints | None:
        """The changes so far, of which none are left; None: there are none. O(changes)."""
        if self.logged == 0:
            return None
        for at in range(0, 4 * self.logged, 4):
            self.tally[self.log[at]] = 0
            self.wide[self.log[at]] = 0
        log = self.log[: 4 * self.logged]
        self.log = ints(max(64, 4 * self.logged))  # the next step changes about as much
        self.logged = 0
        return log


class Places:
    """Where rows stand in the batches they are in.

    Attributes:
        rows: by row, the `Rows` it is in, or None.
        place: by row, its place in them; -1: it is in none.
    """

    def __init__(self, rows: int) -> None:
        self.rows: list[Rows | None] = [None] * rows
        self.place = ints(rows)
        for row in range(rows):
            self.place[row] = -1

    def put(self, row: int, rows: Rows, place: int) -> None:
        """A row has this place now. O(1)."""
        self.rows[row], self.place[row] = rows, place

    def drop(self, row: int) -> None:
        """A row is in no batch any more. O(1)."""
        self.rows[row], self.place[row] = None, -1

    def note(self, row: int, group: int, column: int, page: int) -> None:
        """An entry of a row's table is another page now: its batch, if any, notes it. O(1)."""
        if self.place[row] >= 0:
            rows = self.rows[row]
            assert rows is not None
            rows.note(self.place[row], group, column, page)


class Pass:
    """One pass over some rows: what `octavo.Step` shows, in one block of int32.

    The block begins with how many pages each group takes, then has, for n rows, G groups and T
    tokens: rows, counts, past, context, last, wants_token, known (n each), query_start (n + 1), ids
    and positions (T each); then, group by group, slots (T) of tokens, source and targets of states
    (n * parts, n * units * parts), lengths and fresh (n each) of cross inputs; then the pages
    taken, group by group.

    Attributes:
        core: whose rows.
        array, block: the block, as an array and as numbers.
        ids: int32[T], the token ids, which an engine completes.
        count: n. tokens: T. width: columns of the longest row.
        clock: when it was made.
        is_open: whether it is neither committed nor aborted.
        rows: those of its batch; None: it was made of a list.
        turn: how many steps of them there were before.
        log: changed table entries of its batch since the step before, as `Rows.log`; None: none.
        before, behind: (group, from, to) of pages copied before and after the forward pass.
        kept: states among the snapshots: (row, group, pages, length).
    """

    __slots__ = (
        "__weakref__",
        "array",
        "before",
        "behind",
        "block",
        "clock",
        "core",
        "count",
        "ids",
        "is_open",
        "kept",
        "log",
        "rows",
        "tokens",
        "turn",
        "width",
    )

    core: Any
    array: Any
    block: Ints
    ids: Any
    count: int
    tokens: int
    width: int
    clock: int
    is_open: bool
    rows: Rows | None
    turn: int
    log: Ints | None
    before: list[tuple[int, int, int]]
    behind: list[tuple[int, int, int]]
    kept: list[tuple[int, int, tuple[int, ...], int]]

    def __init__(self) -> None:
        self.core = None
        self.is_open = False
