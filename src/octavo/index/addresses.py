"""What a step says about one token group, checked: the pages each row reads, in kernel pages."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import CapacityError, LengthError, PlanError
from octavo.kernels import KERNELS
from octavo.lifetimes import Lifetime
from octavo.plans import Plan, slides
from octavo.spec import check_int
from octavo.table import GroupView, Ints, Step

Form = Literal["absolute", "compact"]
_MAX = 2**31 - 1


class Addresses(NamedTuple):
    """One group's pages in a step of n rows and T tokens.

    Attributes:
        step: the step.
        lifetime: what its queries see.
        page: tokens a kernel page holds.
        table: int32[n, width], kernel pages; 0 where a row has none or none any more.
        slots: int32[T], where each new token's KV goes.
        keys: int32[n], keys the columns stand for: context - base.
        base: int32[n], positions left out behind the sinks; 0 in the absolute form.
        sinks: leading positions whose columns stay in front of those left out.
    """

    step: Step
    lifetime: Lifetime
    page: int
    table: Ints
    slots: Ints
    keys: Ints
    base: Ints
    sinks: int

    @property
    def held(self) -> NDArray[np.bool_]:
        """bool[n, width], the columns a row's keys stand in, dropped ones included."""
        return _before(-(-self.keys // self.page), self.table.shape[1])


def read_addresses(
    step: Step, plan: Plan, group: str | None, kernel: str, kernel_page: int | None, form: Form
) -> Addresses:
    """Read the addresses of ``group``; nothing is kept and nothing changed. O(n x columns).

    Raises:
        UnknownGroup, PlanError, LengthError, CapacityError: as the functions of octavo.index say.
    """
    page = _kernel_page(plan.page_size, kernel_page, kernel)
    if form not in {"absolute", "compact"}:
        raise PlanError("form", form, "it is 'absolute' or 'compact'")
    view, lifetime = _view(step, plan, group)
    _check_queries(step)
    size, lead = plan.page_size, -(-lifetime.sinks // plan.page_size)
    first = _first(step, lifetime, size)
    table = _pages(step, view.table, first, lead, size)
    keys, base = step.context, np.zeros_like(step.context)
    if form == "compact" and first is not None:
        shift = np.maximum(first - lead, 0)
        table, base = _shifted(table, shift, lead), shift * size
        keys = keys - base
    table = _split(table, size // page, keys, page)
    return Addresses(step, lifetime, page, table, view.slots, keys, base, lead * size)


def _kernel_page(page_size: int, kernel_page: int | None, kernel: str) -> int:
    """Tokens of a kernel page, as the kernel takes them."""
    page = check_int("kernel_page", page_size if kernel_page is None else kernel_page, 1, page_size)
    if page_size % page:
        raise PlanError("kernel_page", page, f"it must divide the page size, {page_size}")
    demands = KERNELS.get(kernel)
    if demands is None:
        return page
    if page % demands.multiple or (demands.power_of_two and page & (page - 1)):
        rule = "a power of two" if demands.power_of_two else "a number"
        right = f"{kernel} takes {rule} of at least {demands.multiple} tokens"
        raise PlanError("kernel_page" if kernel_page else "page_size", page, right)
    return page


def _view(step: Step, plan: Plan, group: str | None) -> tuple[GroupView, Lifetime]:
    view = step.group(group)
    name = group or next(name for name, other in step.groups.items() if other is view)
    if not isinstance(view, GroupView):
        right = "a group that keeps tokens; states and cross inputs are read as step.group gives"
        raise PlanError("group", name, right)
    if name not in plan.groups:
        raise PlanError("plan", list(plan.groups), f"the plan the step was made by has {name!r}")
    return view, plan.groups[name].lifetime


def _who(step: Step, row: int) -> str:
    return f"sequence {step.sequences[row].id!r}"


def _check_queries(step: Step) -> None:
    wrong = (step.counts > step.context) | (step.past + step.counts != step.context)
    if wrong.any():
        row = int(wrong.argmax())
        count, context = int(step.counts[row]), int(step.context[row])
        why = f"{int(step.past[row])} tokens are there before it"
        raise LengthError(f"query of {_who(step, row)}", count, 0, context, why)


def _first(step: Step, lifetime: Lifetime, size: int) -> Ints | None:
    """The first column each row's queries see, sinks apart; None: they see all."""
    if not slides(lifetime):
        return None
    return (lifetime.floors(step.past.astype(np.int64)) // size).astype(np.int32)


def _pages(step: Step, table: Ints, first: Ints | None, lead: int, size: int) -> Ints:
    """The columns in use, null behind each row's last; of them no one that is seen is missing."""
    ends = -(-step.context // size)
    width = int(ends.max(initial=0))
    if table.shape[1] < width:
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
    table = table[:, :width] * _before(ends, width)
    if first is not None:
        columns = np.arange(width, dtype=np.int32)
        _check_seen(step, table, (columns >= first[:, None]) | (columns < lead), ends)
    elif np.count_nonzero(table) != ends.sum():
        _check_seen(step, table, np.True_, ends)
    _check_range(step, table, size)
    return table.astype(np.int32, copy=False)


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
        raise LengthError(f"pages of {_who(step, row)}", need - lack, need, None, why)


def _check_range(step: Step, table: Ints, size: int) -> None:
    """Refuse pages below the null page, and those whose last slot is beyond int32."""
    low, top = int(table.min(initial=0)), int(table.max(initial=0))
    if low < 0:
        name = f"page of {_who(step, int((table == low).any(axis=1).argmax()))}"
        raise LengthError(name, low, 0, None, "each is a physical page")
    if (top + 1) * size - 1 > _MAX:
        row = int((table == top).any(axis=1).argmax())
        why = f"page {top} of {size} tokens is beyond int32"
        raise CapacityError(f"slot of {_who(step, row)}", (top + 1) * size - 1, _MAX, why)


def _shifted(table: Ints, shift: Ints, lead: int) -> Ints:
    """The table without ``shift`` columns of each row behind the ``lead`` ones of sinks."""
    columns = np.arange(table.shape[1])
    wanted = columns + np.where(columns >= lead, shift[:, None], 0)
    found = np.take_along_axis(table, np.minimum(wanted, table.shape[1] - 1), axis=1)
    return np.where(wanted < table.shape[1], found, np.int32(0))


def _split(table: Ints, ratio: int, keys: Ints, page: int) -> Ints:
    """Kernel pages that hold ``keys``: page p becomes p * ratio .. p * ratio + ratio - 1."""
    width = -(-int(keys.max(initial=0)) // page)
    if ratio == 1:
        return table[:, :width]
    parts = table[:, :, None] * np.int32(ratio) + np.arange(ratio, dtype=np.int32)
    parts *= (table > 0)[:, :, None]
    pages = parts.reshape(len(table), -1)[:, :width]
    return np.where(_before(-(-keys // page), width), pages, np.int32(0))
