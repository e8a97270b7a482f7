"""What a step says about one token group, checked: the pages each row reads, in kernel pages."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import GroupView, Ints, Step
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, PlanError
from octavo.index.options import Form
from octavo.index.steps import MOST, name_row, read_view
from octavo.model.lifetimes import Lifetime
from octavo.planner.kernels import KERNELS
from octavo.planner.plan import Plan

_INT32 = "int32"


class Addresses(NamedTuple):
    """One group's pages in a step of n rows and T tokens.

    Attributes:
        step: the step.
        lifetime: what its queries see.
        page: tokens a kernel page holds.
        table: int32[n, width], kernel pages; 0 where a row has none or none any more. No view of
            the step's.
        ends: int32[n], columns of each row, dropped ones included.
        slots: int32[T], where each new token's KV goes.
        keys: int32[n], keys the columns stand for: context - base.
        longest: the most keys of a row.
        base: int32[n], positions left out behind the sinks; 0 in the absolute form.
        sinks: leading positions whose columns stay in front of those left out.
        pages: kernel pages of the group's pool, those of the null page included.
    """

    step: Step
    lifetime: Lifetime
    page: int
    table: Ints
    ends: Ints
    slots: Ints
    keys: Ints
    longest: int
    base: Ints
    sinks: int
    pages: int


def read_addresses(
    step: Step,
    plan: Plan,
    group: str | None,
    kernels: Collection[str | None],
    kernel_page: int | None,
    form: Form,
) -> Addresses:
    """Read the addresses of ``group``; nothing is kept and nothing changed. O(n x columns).

    The rules of all ``kernels`` hold.

    Raises:
        UnknownGroup, PlanError, LengthError, CapacityError, StepError: as octavo.index says.
    """
    name, view = read_view(step, plan, group, "tokens")
    page = _kernel_page(plan.page_size, kernel_page)
    for kernel in kernels:
        _check_kernel(kernel, page, "page_size" if kernel_page is None else "kernel_page")
    if form not in ("absolute", "compact"):
        raise PlanError("form", form, "it must be 'absolute' or 'compact'")
    lifetime, size, ids = plan.groups[name].lifetime, plan.page_size, plan.ids(name)
    _check_rows(step, view)
    lead = -(-lifetime.sinks // size)
    first = _first(step, lifetime, size)
    ends = (step.context + np.int32(size - 1)) // np.int32(size)
    longest = int(np.maximum.reduce(step.context))
    table = _pages(step, view.table, ends, -(-longest // size), first, lead)
    _check_range(step, table, ids, size)
    if _INT32 in kernels:
        _check_reach(step, table, plan, name)
    keys, base = step.context, view.base
    if form == "compact" and first is not None:
        shift = np.maximum(first - lead, 0)
        table, base = _shifted(table, shift, lead), shift * np.int32(size)
        keys, ends = keys - base, ends - shift
        longest = int(np.maximum.reduce(keys))
    if size != page:
        ends = -(-keys // page)
        table = _split(table, size // page, ends)
    elif first is not None:
        table = table[:, : int(ends.max(initial=0))]
    sinks, pages = lead * size, ids * (size // page)
    slots = view.slots
    return Addresses(step, lifetime, page, table, ends, slots, keys, longest, base, sinks, pages)


def _kernel_page(page_size: int, kernel_page: int | None) -> int:
    """Tokens of a kernel page."""
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
        rule = "a power of two" if demands.power_of_two else "a number"
        right = f"{kernel} takes {rule} of at least {demands.multiple} tokens"
        if not demands.power_of_two:
            right = f"{kernel} takes multiples of {demands.multiple} tokens"
        raise PlanError(name, page, right)


def _check_rows(step: Step, view: GroupView) -> None:
    """Refuse arrays that do not fit each other: lengths, running sums, the table's axes."""
    rows, tokens = len(step.sequences), step.positions.size
    if step.query_start.size != rows + 1 or step.counts.size != rows:
        raise LengthError("rows of query_start", step.query_start.size - 1, rows, rows)
    if view.slots.size != tokens:
        raise LengthError("slots", view.slots.size, tokens, tokens, "one a token")
    if view.table.ndim != 2 or len(view.table) != rows or view.table.dtype != np.int32:
        raise LengthError("table", view.table, None, None, f"int32[{rows}, columns]")
    _check_queries(step)
    _check_starts(step)


def _check_starts(step: Step) -> None:
    """Refuse running sums that are not those of the rows' new tokens."""
    starts, tokens = step.query_start, step.positions.size
    lengths = (starts[1:] - starts[:-1]).tobytes()
    if int(starts[0]) or int(starts[-1]) != tokens or lengths != step.counts.tobytes():
        why = f"running sums of {step.counts.tolist()}"
        raise LengthError("query_start", starts.tolist(), None, None, why)


def _check_queries(step: Step) -> None:
    counts, past, context = step.counts, step.past, step.context
    sums = past + counts
    if sums.tobytes() == context.tobytes() and int(np.minimum.reduce(past, initial=0)) >= 0:
        return
    wrong = (counts > context) | (sums != context)
    if wrong.any():
        row = int(wrong.argmax())
        why = f"{int(past[row])} tokens are there before it"
        name = f"query of {name_row(step, row)}"
        raise LengthError(name, int(counts[row]), 0, int(context[row]), why)


def _first(step: Step, lifetime: Lifetime, size: int) -> Ints | None:
    """The first column each row's queries see, sinks apart; None: they see all."""
    if not lifetime.slides:
        return None
    return (lifetime.floors(step.past.astype(np.int64)) // size).astype(np.int32)


def _pages(step: Step, table: Ints, ends: Ints, width: int, first: Ints | None, lead: int) -> Ints:
    """The columns in use, null behind each row's last; of them no one that is seen is missing."""
    least = int(np.minimum.reduce(ends))
    if table.shape[1] < width:
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
    pages = table[:, :width].copy()
    if least < width:
        pages[:, least:] *= np.arange(least, width, dtype=np.int32) < ends[:, None]
    if first is not None:
        columns = np.arange(width, dtype=np.int32)
        _check_seen(step, pages, (columns >= first[:, None]) | (columns < lead), ends)
    elif np.count_nonzero(pages) != int(np.add.reduce(ends)):
        _check_seen(step, pages, np.True_, ends)
    return pages


def _before(ends: Ints, width: int) -> NDArray[np.bool_]:
    """bool[n, width], the columns before each row's end."""
    before: NDArray[np.bool_] = np.arange(width, dtype=np.int32) < ends[:, None]
    return before


def _check_seen(step: Step, table: Ints, seen: NDArray[np.bool_] | np.bool_, ends: Ints) -> None:
    """Refuse a column that is ``seen``, before its row's end, and holds no page."""
    needed = _before(ends, table.shape[1]) & seen
    missing = needed & (table == 0)
    if missing.any():
        row = int(missing.any(axis=1).argmax())
        need, lack = int(needed[row].sum()), int(missing[row].sum())
        why = f"column {int(missing[row].argmax())} has none, {int(step.context[row])} tokens"
        raise LengthError(f"pages of {name_row(step, row)}", need - lack, need, None, why)


def _check_range(step: Step, table: Ints, ids: int, size: int) -> None:
    """Refuse pages below the null page, beyond the plan's, or with a slot beyond int32."""
    top = int(np.maximum.reduce(table.reshape(-1).view(np.uint32), initial=0))
    if top < ids and (top + 1) * size - 1 <= MOST:
        return
    low, top = int(table.min(initial=0)), int(table.max(initial=0))
    if low < 0:
        name = f"page of {name_row(step, int((table == low).any(axis=1).argmax()))}"
        raise LengthError(name, low, 0, ids - 1, "each is a physical page")
    row = int((table == top).any(axis=1).argmax())
    if (top + 1) * size - 1 > MOST:
        why = f"page {top} of {size} tokens is beyond int32"
        raise CapacityError(f"slot of {name_row(step, row)}", (top + 1) * size - 1, MOST, why)
    raise CapacityError(f"page of {name_row(step, row)}", top, ids - 1, "the plan has no other")


def _check_reach(step: Step, table: Ints, plan: Plan, name: str) -> None:
    """Refuse pages of which an element's offset in its tensor is beyond int32. O(tensors)."""
    plans = (plan, *plan.stages)
    tensors = [tensor for each in plans for tensor in each.tensors if tensor.group == name]
    if not tensors:
        raise PlanError("kernel", _INT32, "the plan has no tensors, whose strides this rule needs")
    reach = min(tensor.max_addressable_pages for tensor in tensors)
    top = int(table.max(initial=0))
    if top >= reach:
        row = int((table == top).any(axis=1).argmax())
        why = "elements of pages behind it have offsets beyond int32"
        raise CapacityError(f"page of {name_row(step, row)}", top, reach - 1, why)


def _shifted(table: Ints, shift: Ints, lead: int) -> Ints:
    """The table without ``shift`` columns of each row behind the ``lead`` ones of sinks."""
    columns = np.arange(table.shape[1])
    wanted = columns + np.where(columns >= lead, shift[:, None], 0)
    found = np.take_along_axis(table, np.minimum(wanted, table.shape[1] - 1), axis=1)
    return np.where(wanted < table.shape[1], found, np.int32(0))


def _split(table: Ints, ratio: int, ends: Ints) -> Ints:
    """Kernel pages up to ``ends``: page p becomes p * ratio .. p * ratio + ratio - 1."""
    width = int(ends.max(initial=0))
    parts = table[:, :, None] * np.int32(ratio) + np.arange(ratio, dtype=np.int32)
    parts *= (table > 0)[:, :, None]
    pages = parts.reshape(len(table), -1)[:, :width]
    return np.where(_before(ends, width), pages, np.int32(0))
