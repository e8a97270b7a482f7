"""What a step says about one token group, checked: where loops find the pages of each row."""

from collections.abc import Collection
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import GroupView, Ints
from octavo.checks import check_choice, check_int
from octavo.core.arena import view as numbers
from octavo.core.emit import Source, Table, Target
from octavo.errors import CapacityError, LengthError, PlanError, uncopied
from octavo.index.arguments import MOST, TableForm, check_gone, check_step, name_row
from octavo.model.lifetimes import Chunked, Lifetime, Window
from octavo.planner.kernels import KERNELS
from octavo.planner.plan import Plan

_INT32 = "int32"


class Addresses:
    """One token group's pages in a step of n rows, as a kernel sees them.

    Args:
        step, plan, group: as `octavo.index` says.
        kernels: names of kernels; the rules of all hold.
        kernel_page, form: as `octavo.index` says.

    Attributes:
        step: the step.
        source: its numbers, for loops.
        lifetime: what its queries see.
        page: tokens per kernel page.
        pages: kernel pages of the group's pool, those of the null page included.
        sinks: leading positions whose columns stay in front of those left out.

    Raises:
        UnknownGroup, PlanError, LengthError, CapacityError, StepError: as `octavo.index` says.
    """

    __reduce__ = uncopied("it reads one step")

    def __init__(
        self,
        step: Step,
        plan: Plan,
        group: str | None,
        kernels: Collection[str | None] = (),
        kernel_page: int | None = None,
        form: TableForm = "absolute",
    ) -> None:
        self._name, self._number = check_step(step, plan, group, "tokens")
        size, page = plan.page_size, kernel_page_of(plan.page_size, kernel_page)
        for kernel in kernels:
            _check_kernel(kernel, page, "page_size" if kernel_page is None else "kernel_page")
        check_choice("form", form, ("absolute", "compact"))
        self.lifetime, self.page, ids = plan.groups[self._name].lifetime, page, plan.ids(self._name)
        lead = -(-self.lifetime.sinks // size)
        self.pages, self.sinks = ids * (size // page), lead * size
        self._ids, self._reach = ids, _reach(plan, self._name) if _INT32 in kernels else MOST
        window, chunk = _rule(self.lifetime)
        compact = form == "compact" and self.lifetime.slides
        self.source = Source(size, size // page, window, chunk, min(lead, MOST), compact)
        self._kept = step.core is not None and self._keeps(step.core)
        self.read(step)

    def read(self, step: Step) -> None:
        """Look at an open step of the same cache. O(n), of a copy of a step O(n x width).

        Raises:
            LengthError, CapacityError, StepError: as `octavo.index` says.
        """
        self.step = step
        if step.core is None:
            check_gone(step, len(step.gone))
            self._check_pages(step, self._read_copy(step))
            return
        self.source.read(step, self._number)
        check_gone(step, self.source.gone)
        if not self._kept:
            self._check_pages(step, step.core.gather(step, self._number))

    def array(self, role: type[Target], count: int) -> Ints:
        """A fresh array of ``count`` numbers. O(count)."""
        array = np.empty(count, np.int32)
        self.source.write([role(array)], None, True)
        return array

    def table(self) -> Ints:
        """int32[n, width], kernel pages; 0 where a row has none or none any more."""
        width = self.source.width
        table = np.empty((self.source.count, width), np.int32)
        self.source.write([Table(table.reshape(-1), 0, width, width)], None, True)
        return table

    def widest(self) -> int:
        """The row with the most kernel pages. O(n)."""
        return int(np.argmax(np.asarray(self.source.end)[: self.source.count]))

    def top(self) -> int:
        """The highest kernel page. O(n x width)."""
        return int(self.table().max(initial=0))

    def _read_copy(self, step: Step) -> Ints:
        """Take the numbers of a copy of a step, which may be anything; returns its table."""
        view = step.group(self._name)
        _check_rows(step, view)
        size, count = self.source.size, len(step.sequences)
        width = -(-int(step.context.max()) // size)
        table = view.table[:, :width]
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
        parts = (np.arange(count), step.counts, step.past, step.context, step.last)
        more = (step.wants_token, step.known, step.query_start, step.input_ids, step.positions)
        block = np.concatenate((*parts, *more, view.slots, view.base)).astype(np.int32)
        pages = numbers(table.reshape(-1))
        self.source.read_arrays(numbers(block), count, step.positions.size, pages, width)
        return table

    def _keeps(self, core: Any) -> bool:
        """Whether a cache keeps to what `_check_pages` would check. O(1)."""
        size, source = core.size, self.source
        group, ids = core.groups[self._number], core.pool.spaces[self._number].size
        within = ids <= min(self._ids, self._reach) and ids * size - 1 <= MOST
        alike = group.window == source.window and group.chunk == source.chunk
        return bool(within and alike and source.lead <= group.sinks)

    def _check_pages(self, step: Step, table: Ints) -> None:
        """Refuse pages that are out of range, or missing where a query sees them. O(n x width)."""
        size, columns = self.source.size, np.arange(table.shape[1])
        before = columns < -(-step.context // size)[:, None]
        table = np.where(before, table, np.int32(0))
        needed = before & (step.counts > 0)[:, None]
        if self.lifetime.slides:
            first = self.lifetime.floors(step.past.astype(np.int64)) // size
            needed &= (columns >= first[:, None]) | (columns < self.source.lead)
        _check_seen(step, table, needed)
        _check_range(step, table, self._ids, size)
        top = int(table.max(initial=0))
        if top >= self._reach:
            row = int((table == top).any(axis=1).argmax())
            why = "elements of pages behind it have offsets beyond int32"
            raise CapacityError(f"page of {name_row(step, row)}", top, self._reach - 1, why)


def _rule(lifetime: Lifetime) -> tuple[int, int]:
    """Tokens of a window and of a chunk, 0 without, as loops take them."""
    window = lifetime.window if isinstance(lifetime, Window) else 0
    chunk = lifetime.chunk if isinstance(lifetime, Chunked) else 0
    return min(window, MOST), min(chunk, MOST)


def kernel_page_of(page_size: int, kernel_page: int | None) -> int:
    """Tokens of a kernel page. O(1).

    Raises:
        LengthError, PlanError: it does not divide the page size.
    """
    page = page_size
    if kernel_page is not None:
        page = check_int("kernel_page", kernel_page, 1, page_size)
    if page_size % page:
        raise PlanError("kernel_page", page, f"it must divide the page size, {page_size}")
    return page


def _check_kernel(kernel: str | None, page: int, name: str) -> None:
    """Refuse pages that a kernel does not take, and a kernel that is not known."""
    if kernel is None:
        return
    demands = KERNELS.get(kernel) if isinstance(kernel, str) else None
    if demands is None:
        raise PlanError("kernel", kernel, f"known kernels are: {', '.join(KERNELS)}")
    if page % demands.multiple or (demands.power_of_two and page & (page - 1)):
        right = f"{kernel} takes multiples of {demands.multiple} tokens"
        if demands.power_of_two:
            right = f"{kernel} takes a power of two of at least {demands.multiple} tokens"
        raise PlanError(name, page, right)


def _reach(plan: Plan, name: str) -> int:
    """Pages whose elements all have offsets within int32. O(tensors)."""
    plans = (plan, *plan.stages)
    tensors = [tensor for each in plans for tensor in each.tensors if tensor.group == name]
    if not tensors:
        raise PlanError("kernel", _INT32, "the plan has no tensors, whose strides this rule needs")
    return min(tensor.max_addressable_pages for tensor in tensors)


def _check_rows(step: Step, view: GroupView) -> None:
    """Refuse arrays that do not fit each other: lengths, running sums, the table's axes."""
    rows, tokens = len(step.sequences), step.positions.size
    if step.query_start.size != rows + 1:
        raise LengthError("rows of query_start", step.query_start.size - 1, rows, rows)
    for name in ("counts", "past", "context", "last", "wants_token"):
        check_int(f"rows of {name}", getattr(step, name).size, rows, rows)
    check_int("rows of base", view.base.size, rows, rows)
    for name, array in (("slots", view.slots), ("input_ids", step.input_ids)):
        if array.size != tokens:
            raise LengthError(name, array.size, tokens, tokens, "one per token")
    if view.table.ndim != 2 or len(view.table) != rows or view.table.dtype != np.int32:
        raise LengthError("table", view.table, None, None, f"it must be int32[{rows}, columns]")
    _check_queries(step)
    starts = step.query_start
    if (
        int(starts[0])
        or int(starts[-1]) != tokens
        or not np.array_equal(starts[1:] - starts[:-1], step.counts)
    ):
        why = f"running sums of {step.counts.tolist()}"
        raise LengthError("query_start", starts.tolist(), None, None, why)


def _check_queries(step: Step) -> None:
    """Refuse queries that are not at the end of their context."""
    counts, past, context = step.counts, step.past, step.context
    wrong = (past < 0) | (counts < 0) | (past.astype(np.int64) + counts != context)
    if wrong.any():
        row = int(wrong.argmax())
        why = f"{int(past[row])} tokens are there before it"
        name = f"query of {name_row(step, row)}"
        raise LengthError(name, int(counts[row]), 0, int(context[row]), why)


def _check_seen(step: Step, table: Ints, needed: NDArray[np.bool_]) -> None:
    """Refuse a column that is ``needed`` and holds no page."""
    missing = needed & (table == 0)
    if missing.any():
        row = int(missing.any(axis=1).argmax())
        need, lack = int(needed[row].sum()), int(missing[row].sum())
        why = f"column {int(missing[row].argmax())} has none, {int(step.context[row])} tokens"
        raise LengthError(f"pages of {name_row(step, row)}", need - lack, need, None, why)


def _check_range(step: Step, table: Ints, ids: int, size: int) -> None:
    """Refuse pages below the null page, beyond the plan's, or with a slot beyond int32."""
    low, top = int(table.min(initial=0)), int(table.max(initial=0))
    if low < 0:
        name = f"page of {name_row(step, int((table == low).any(axis=1).argmax()))}"
        raise LengthError(name, low, 0, ids - 1, "each is a physical page")
    row = int((table == top).any(axis=1).argmax())
    if (top + 1) * size - 1 > MOST:
        why = f"page {top} of {size} tokens is beyond int32"
        raise CapacityError(f"slot of {name_row(step, row)}", (top + 1) * size - 1, MOST, why)
    if top >= ids:
        raise CapacityError(f"page of {name_row(step, row)}", top, ids - 1, "the plan has no other")
