"""Steps of one token a row that follow on each other: what of the last one still holds.

Proves, by values and in O(rows), that a step goes on from the one before, so that whoever keeps
what was emitted then need not read the whole table again. Any doubt is a no.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.lifetimes import Lifetime
from octavo.table import GroupView, Ints, Step

Rows = NDArray[np.intp]
Entry = tuple[Rows, Rows, Ints]


class Due:
    """Rows that begin a page together, every ``page_size`` steps.

    Attributes:
        rows, key: which, as an array and as bytes.
        columns, end: columns of the pages they begin next, and what is behind the last of these.
        shift: int32[n + 1], how many of them stand before each row.
    """

    __slots__ = ("columns", "end", "key", "rows", "shift")

    def __init__(self, context: Ints, page_size: int) -> None:
        self.rows = (context % page_size == 0).nonzero()[0]
        self.key = self.rows.tobytes()
        self.columns = (context[self.rows] // page_size).astype(np.int64)
        self.end = int(self.columns.max(initial=-1)) + 1
        self.shift = np.zeros(context.size + 1, np.int32)
        self.shift[self.rows + 1] = 1
        np.add.accumulate(self.shift, out=self.shift)

    def move(self) -> None:
        """They began them. O(rows)."""
        if self.key:
            self.columns += 1
            self.end += 1


class Turn(NamedTuple):
    """How a step's table differs from the one before.

    Attributes:
        due: the rows that begin a page.
        pages: int32, those they begin.
        others: rows, columns and pages of entries that changed otherwise, one after another.
        reached: context of each row, the same as bytes, and what changed since the step before.
    """

    due: Due
    pages: Ints
    others: list[Entry]
    reached: tuple[Ints, bytes, dict[str, list[Entry]]]


class Track:
    """A batch's rows as they were emitted last.

    Args:
        step: of a batch whose tables are as they were when it was made.
        name: the token group.
        page_size: tokens a page holds.
        ids: page ids of the group.
        lifetime: of the group.
    """

    @staticmethod
    def can_follow(step: Step, name: str) -> bool:
        """Whether it has one token a row and its batch's own table, unchanged since. O(rows)."""
        batch, view = step._batch, step.group(name)
        if batch is None or step._changes is None or not isinstance(view, GroupView):
            return False
        if len(step.sequences) != step.positions.size or not step.counts.all():
            return False
        table = batch._rows.tables[batch._names.index(name)]
        newest = batch._told[1] is step._changes and not any(batch._changes)
        return newest and view.table.base is table

    def __init__(self, step: Step, name: str, page_size: int, ids: int, lifetime: Lifetime) -> None:
        self._batch, self._sequences, self._changes = step._batch, step.sequences, step._changes
        self._name, self._group = name, step._batch._names.index(name)
        self._size, self._ids, self._lifetime = page_size, ids, lifetime
        n = len(step.sequences)
        self._ones = np.ones(n, np.int32)
        self._one_each = self._ones.tobytes()
        self._starts = np.arange(n + 1, dtype=np.int32).tobytes()
        self._context = step.context.copy()
        self._known = self._context.tobytes()
        self._dues: dict[int, Due] = {}
        self._moved = 0
        self.n, self.longest = n, int(np.maximum.reduce(self._context))

    def follow(self, step: Step) -> Turn | None:
        """How ``step`` goes on from the last one; None: it does not, or is not fit to be emitted.

        Cost: O(rows + changed entries).
        """
        batch, changes = self._batch, step._changes
        if step._batch is not batch or step.sequences is not self._sequences:
            return None
        if changes is None or not batch._leads_to(self._changes, changes):
            return None
        view = step.groups.get(self._name)
        if not isinstance(view, GroupView) or view.slots.size != self.n:
            return None
        if view.table.base is not batch._rows.tables[self._group]:
            return None
        context = self._context + self._ones
        known = context.tobytes()
        if step.context.tobytes() != known or not self._has_one_each(step):
            return None
        return self._turn(changes.get(self._name, []), (context, known, changes))

    def _has_one_each(self, step: Step) -> bool:
        """Whether each row has one token, at its last context."""
        starts = self._starts
        return (
            step.past.tobytes() == self._known == step.positions.tobytes()
            and step.query_start.tobytes() == starts
            and step.last.tobytes() == starts[:-4]
            and step.counts.tobytes() == self._one_each
        )

    def _turn(self, changes: list[Entry], reached: Any) -> Turn | None:
        due, pages, others = self._due(), _NO_PAGES, changes
        if due.key:
            if not changes:
                return None
            rows, columns, pages = changes[-1]
            if not isinstance(rows, np.ndarray) or rows.tobytes() != due.key:
                return None
            if columns.tobytes() != due.columns.tobytes() or not self._are_pages(pages, 1):
                return None
            others = changes[:-1]
        if others and not all(self._is_sound(*change) for change in others):
            return None
        return Turn(due, pages, others, reached)

    def _is_sound(self, rows: Rows, columns: Rows, pages: Ints) -> bool:
        """Whether these are other pages, or none where no query sees the column any more."""
        if self._are_pages(pages, 1):
            return True
        if not self._are_pages(pages, 0):
            return False
        floors = self._lifetime.floors(self._context[rows].astype(np.int64))
        unseen = (columns < floors // self._size) & (
            columns >= -(-self._lifetime.sinks // self._size)
        )
        return bool((unseen | (pages > 0)).all())

    def _are_pages(self, pages: Ints, least: int) -> bool:
        listed = pages.tolist() if isinstance(pages, np.ndarray) and pages.ndim == 1 else [-1]
        return not listed or (min(listed) >= least and max(listed) < self._ids)

    def _due(self) -> Due:
        """Rows that begin a page with the next step. O(rows) once a place in a page, then O(1)."""
        place = self._moved % self._size
        found = self._dues.get(place)
        if found is None:
            found = self._dues[place] = Due(self._context, self._size)
        return found

    def move(self, turn: Turn) -> None:
        """The step ``turn`` is of was emitted: the next one goes on from it. O(rows)."""
        turn.due.move()
        self._context, self._known, self._changes = turn.reached
        self._moved += 1
        self.longest += 1


_NO_PAGES = np.zeros(0, np.int32)
