"""The rows of a step in one group as arrays to run over: lengths and pages, checked and copied.

Attention makes them once per step for all layers. They need no plan and no cache, so that steps of
one's own making can be attended to. Knows integers, not keys and values.
"""

from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import GroupView, Ints
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, PlanError

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


class StepRows:
    """Lengths and page tables of a step, copied, so that the step may be reused.

    Args:
        step: rows, lengths and page tables.
        page_size: tokens per page.
        group: the group that has the page table; None: the first token group.

    Attributes:
        tokens: query tokens.
        page_size: tokens per page.
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
            a context, or a page outside int32; ``counts`` or ``past`` of the step, where it has
            them, that say otherwise. Queries before position 0, as of padding, are fine: they see
            nothing.
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
        self._readable: set[tuple[int | None, int]] = set()
        self._check_said("counts", step, self.count, "query_start says so")
        self._check_said("past", step, self.past, "context less query tokens")

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

        Cost: O(rows) the first time, O(1) after.
        """
        if (window, sink_tokens) in self._readable:
            return
        row, first, last = self._gaps.T
        base = self.base[row]
        low = base if window is None else self.past[row] + 1 - min(window, _FAR)
        near = base + (last + 1) * self.page_size > low
        far = base + first * self.page_size < min(sink_tokens, _FAR)
        for at in np.flatnonzero(near | far)[:1]:
            column = int(last[at] if near[at] else first[at])
            why = "a query sees keys there that no page holds: the group's window has dropped them"
            raise LengthError(f"page of row {row[at]}, column {column}", 0, 1, None, why)
        self._readable.add((window, sink_tokens))

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

    @staticmethod
    def _check_said(name: str, step: Step, right: NDArray[np.int64], why: str) -> None:
        """Refuse an array of the step that says otherwise than those that are read. O(rows)."""
        said = getattr(step, name, None)  # a step made by hand may lack it
        if said is None or np.array_equal(said, right):
            return
        _check_ints(name, said)
        check_int(f"rows of {name}", len(said), right.size, right.size, "the step's")
        row = int(np.flatnonzero(said != right)[0])
        raise LengthError(
            f"{name} of row {row}", int(said[row]), int(right[row]), int(right[row]), why
        )


def _check_arrays(step: Step, view: GroupView) -> None:
    """Refuse arrays of a step that are none of ints, or have not a row for each of its. O(1)."""
    named = {name: getattr(step, name, None) for name in ("query_start", "context")}
    arrays: dict[str, Any] = {**named, "base": view.base}  # a step made by hand may lack them
    for name, array in (*arrays.items(), ("page table", view.table)):
        _check_ints(name, array, 2 if array is view.table else 1)
    check_int("elements of query_start", step.query_start.size, 1, None, "one more than rows")
    rows = step.query_start.size - 1
    for name, array in (("context", step.context), ("base", view.base), ("table", view.table)):
        check_int(f"rows of {name}", len(array), rows, rows, "the step's")


def _check_ints(name: str, array: object, axes: int = 1) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise PlanError(name, array, "it must be a NumPy array of ints")
    check_int(f"axes of {name}", array.ndim, axes, axes)


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


def running_sums(lengths: NDArray[np.integer[Any]]) -> Ints:
    """Where each of so many keys begins, from 0, and where the last ends. O(n).

    Raises:
        CapacityError: a sum is beyond int32.
    """
    sums = np.zeros(lengths.size + 1, np.int64)
    np.add.accumulate(lengths, out=sums[1:])
    if sums[-1] > _MOST:
        raise CapacityError("keys of all rows", int(sums[-1]), _MOST, "beyond int32")
    return sums.astype(np.int32)


class PageLists(NamedTuple):
    """The pages of n rows one after another.

    Attributes:
        starts: int32[n + 1], where each row's pages begin.
        pages: int32[all], row after row.
        last_lengths: int32[n], 1..page_size tokens in each row's last page; 1 without pages.
    """

    starts: Ints
    pages: Ints
    last_lengths: Ints


def page_lists(
    table: Ints, keys: NDArray[np.integer[Any]], page_size: int, skip: int = 0
) -> PageLists:
    """The pages that hold ``keys`` tokens of each row, without the first ``skip``. O(n * width).

    Args:
        table: int32[n, width].
        keys: int[n], more than ``skip`` pages hold in each row, or none.
        page_size: tokens per page.
        skip: columns left out.

    Raises:
        CapacityError: more pages than int32 counts.
    """
    ends = -(-keys // page_size)
    held = np.arange(skip, table.shape[1], dtype=np.int32) < ends[:, None]
    last = keys - (ends - 1) * page_size
    last[ends <= skip] = 1
    return PageLists(running_sums(ends - skip), table[:, skip:][held], last.astype(np.int32))
