"""The rows of a step in one group as arrays a backend can run over: lengths and pages, checked.

Made once a step and used by every layer. Knows integers, not keys and values.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import GroupView, Step
from octavo.checks import check_int
from octavo.errors import LengthError, PlanError

_MOST = 2**31 - 1
_FAR = 2**62  # beyond every position, and sums with it stay in 64 bits


def group_view(step: object, group: object = None) -> GroupView:
    """The addresses of a group that keeps tokens; None: of the first one. O(1).

    Raises:
        PlanError: no step, no name, or a group that keeps no tokens.
        UnknownGroup: no such group.
    """
    if not isinstance(step, Step):
        raise PlanError("step", type(step).__name__, "a Step, as Cache.extend makes it")
    if group is not None and not isinstance(group, str):
        raise PlanError("group", group, "it must be the name of a group, or None")
    view = step.group(group)
    if not isinstance(view, GroupView):
        raise PlanError("group", group, "attention reads groups that keep a key for every token")
    return view


def no_page(row: int, column: int) -> LengthError:
    """What to raise where a query sees keys that no page holds. O(1)."""
    why = "a query sees keys there that no page holds: the group's window has dropped them"
    return LengthError(f"page of row {row}, column {column}", 0, 1, None, why)


class Rows:
    """Lengths and page tables of a step, copied, so that the step may be reused.

    Args:
        step: rows, lengths and page tables.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.

    Attributes:
        tokens: query tokens.
        page_size: tokens a page holds.
        start: int64[n], first query token of each row.
        count: int64[n], its query tokens.
        past: int64[n], position of the first of them.
        context: int64[n], its keys end before this position.
        base: int64[n], and begin at this one.
        table: int32[n, width], its pages; 0 behind the last one.

    Raises:
        PlanError: no step, a group that keeps no tokens, or an array of the step that is none of
            ints.
        LengthError: arrays that do not fit each other, a ``query_start`` that does not ascend
            from 0, a context below 0, a base outside it or within a page, a table too narrow for
            a context, or a page outside int32. Queries before position 0, as of padding, are
            fine: they see nothing.
        UnknownGroup: no such group.

    Cost: O(rows * width).
    """

    def __init__(self, step: Step, *, page_size: int, group: str | None = None) -> None:
        view = group_view(step, group)
        _check_arrays(step, view)
        self.tokens = int(step.query_start[-1])
        self.page_size = check_int("page_size", page_size, 1)
        edges = step.query_start.astype(np.int64)
        self.start = edges[:-1]
        self.count = edges[1:] - edges[:-1]
        self.context = step.context.astype(np.int64)
        self.past = self.context - self.count
        self.base = view.base.astype(np.int64)
        self._check_lengths()
        held = np.maximum(0, -(-(self.context - self.base) // page_size)) * (self.count > 0)
        width = int(held.max(initial=0))
        check_int("columns of the page table", view.table.shape[1], width, None, "the contexts'")
        self.table = _owned(view.table[:, :width], held)
        self._top = int(self.table.max(initial=0))
        self._gaps = _gaps((self.table == 0) & (np.arange(width) < held[:, None]))

    def require(self, pages: int) -> None:
        """Refuse a cache of fewer pages than the tables name. O(1).

        Raises:
            LengthError: a page beyond the last one.
        """
        if self._top >= pages:
            raise LengthError("page", self._top, 0, pages - 1, "a page of key_cache")

    def require_seen(self, window: int | None, sink_tokens: int) -> None:
        """Refuse queries that see keys which no page holds, as a window has dropped them.

        Args:
            window: keys a query sees, its own included; None: all.
            sink_tokens: first positions seen beside the window.

        Raises:
            LengthError: there are such keys; row and column are named.

        Cost: O(rows).
        """
        row, first, last = self._gaps.T
        base = self.base[row]
        low = base if window is None else self.past[row] + 1 - min(window, _FAR)
        near = base + (last + 1) * self.page_size > low
        far = base + first * self.page_size < min(sink_tokens, _FAR)
        for at in np.flatnonzero(near | far)[:1]:
            raise no_page(int(row[at]), int(last[at] if near[at] else first[at]))

    def _check_lengths(self) -> None:
        """Refuse lengths that no sequence has, by row. O(rows)."""
        first = int(self.start[0]) if self.start.size else self.tokens
        check_int("query_start of row 0", first, 0, 0)
        for name, found, right in (
            ("query tokens", self.count, "query_start ascends"),
            ("context", self.context, "its keys end there"),
            ("base", self.base, "its keys begin there"),
            ("context - base", self.context - self.base, "keys begin before they end"),
        ):
            for row in np.flatnonzero((found < 0) | (found > _MOST))[:1]:
                raise LengthError(f"{name} of row {row}", int(found[row]), 0, _MOST, right)
        for row in np.flatnonzero(self.base % self.page_size)[:1]:
            right = f"a multiple of the page size {self.page_size}"
            raise LengthError(f"base of row {row}", int(self.base[row]), 0, _MOST, right)


def _check_arrays(step: Step, view: GroupView) -> None:
    """Refuse arrays of a step that are none of ints, or have not a row for each of its. O(1)."""
    arrays = {"query_start": step.query_start, "context": step.context, "base": view.base}
    for name, array in (*arrays.items(), ("page table", view.table)):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            raise PlanError(name, array, "it must be a NumPy array of ints")
        axes = 2 if array is view.table else 1
        check_int(f"axes of {name}", array.ndim, axes, axes)
    check_int("elements of query_start", step.query_start.size, 1, None, "one more than rows")
    rows = step.query_start.size - 1
    for name, array in (("context", step.context), ("base", view.base), ("table", view.table)):
        check_int(f"rows of {name}", len(array), rows, rows, "the step's")


def _owned(table: NDArray[Any], held: NDArray[np.int64]) -> NDArray[np.int32]:
    """A copy without what stands behind the pages a row holds."""
    pages = np.where(np.arange(table.shape[1]) < held[:, None], table, np.int32(0))
    if pages.size and (int(pages.min()) < 0 or int(pages.max()) > _MOST):
        row, column = np.argwhere((pages < 0) | (pages > _MOST))[0].tolist()
        where = f"row {row}, column {column} of the page table"
        raise LengthError("page", int(pages[row, column]), 0, _MOST, where)
    return np.ascontiguousarray(pages, dtype=np.int32)


def _gaps(missing: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows that miss pages, with the first and the last column where: int64[rows, 3]."""
    (row,) = np.nonzero(missing.any(axis=1))
    if not row.size:
        return np.zeros((0, 3), np.int64)
    first, behind = missing[row].argmax(axis=1), missing[row, ::-1].argmax(axis=1)
    return np.stack((row, first, missing.shape[1] - 1 - behind), axis=1)
