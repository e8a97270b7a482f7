"""What callers of every format pass, checked: an open step, its plan, a group, and the options."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from octavo.cache.step import Step
from octavo.cache.views import CrossView, GroupView, StateView, View
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, PlanError, StepError
from octavo.model.lifetimes import Form
from octavo.planner.plan import Plan

TableForm = Literal["absolute", "compact"]
_FORMS: dict[type[View], Form] = {GroupView: "tokens", StateView: "state", CrossView: "cross"}
_KEEPS = {"tokens": "keeps tokens", "state": "keeps states", "cross": "keeps cross inputs"}
MOST = 2**31 - 1
"""Entries an array may have, rows of padding included."""


class Options(TypedDict, total=False):
    """The keywords all formats share; ``help(octavo.index)`` explains them."""

    rows: int | None
    columns: int | None
    tokens: int | None
    kernel: str | None
    kernel_page: int | None
    form: TableForm
    slot_fill: int
    page_fill: int | None
    max_query_len: int | None
    max_seq_len: int | None


class Choice(NamedTuple):
    """The same, with what stands where nothing is said."""

    rows: int | None = None
    columns: int | None = None
    tokens: int | None = None
    kernel: str | None = None
    kernel_page: int | None = None
    form: TableForm = "absolute"
    slot_fill: int = -1
    page_fill: int | None = None
    max_query_len: int | None = None
    max_seq_len: int | None = None


def read_options(options: Mapping[str, Any]) -> Choice:
    """Options as given, with what stands where nothing is said. O(options).

    Raises:
        PlanError: one that is not known.
    """
    try:
        return Choice(**options)
    except TypeError:
        unknown = next(name for name in options if name not in Choice._fields)
        right = f"known options are: {', '.join(Choice._fields)}"
        raise PlanError("option", unknown, right) from None


def check_fill(name: str, value: int) -> int:
    """``value``, if a kernel can tell it from an address. O(1).

    Raises:
        PlanError: it is neither -1 nor 0.
    """
    if type(value) is not int or value not in (-1, 0):
        raise PlanError(
            name, value, "it must be -1, which is no address, or 0, which lies in the null page"
        )
    return value


def bounded(name: str, longest: int, bound: int) -> int:
    """The bound a caller named for ``longest``. O(1).

    Raises:
        LengthError: the bound is no int of at least 1.
        CapacityError: ``longest`` is beyond it.
    """
    if longest > check_int(name, bound, 1, 2**31 - 1):
        raise CapacityError(name, longest, bound, "the bound named for all steps")
    return bound


def check_step(step: Step, plan: Plan, group: str | None, form: Form) -> tuple[str, int]:
    """Name and number of ``group``, whose pages hold what ``form`` says. O(groups).

    The number is -1 for a copy of a step.

    Raises:
        UnknownGroup: the step has no such group.
        PlanError: it is of another form; a plan without it; an argument that is no plan or name.
        LengthError: no step, one without rows, or one made with another page size.
        StepError: the step is not open.
    """
    check_plan(plan, group)
    if not isinstance(step, Step):
        raise LengthError("step", step, None, None, "it must be what Cache.extend returned")
    if not step.sequences:
        raise LengthError("rows of the step", 0, 1, None)
    name, number, found = _group(step, group)
    _check_form(plan, name, found, form)
    if not step.open:
        raise StepError(
            "this step is not open: it was committed or aborted, so its pages may hold other tokens"
        )
    size = step.sequences[0].core.size
    if plan.page_size != size:
        raise LengthError("page_size of the plan", plan.page_size, size, size, "as the cache has")
    return name, number


def check_plan(plan: object, group: object) -> None:
    """Refuse what is no plan and no name of a group. O(1).

    Raises:
        PlanError: it names the argument.
    """
    if not isinstance(plan, Plan):
        raise PlanError("plan", plan, "it must be the Plan the step's cache was made by")
    if group is not None and not isinstance(group, str):
        raise PlanError("group", group, "it must be the name of a group")


def check_gone(step: Step, gone: int) -> None:
    """Refuse a step of which ``gone`` rows left: released, or preempted. O(1).

    Raises:
        StepError: it names them.
    """
    if gone:
        rows = [row.id for row in step.gone]
        raise StepError(f"rows {rows} of this step were released or preempted since")


def check_rows(step: Step, rows: int | None) -> int:
    """Rows to pad to. O(1).

    Raises:
        LengthError: fewer than the step's, or more than an array may have.
    """
    real = len(step.sequences)
    return real if rows is None else padded("rows", real, rows, MOST - 1)


def padded(name: str, real: int, wanted: int, most: int = MOST) -> int:
    """What to pad ``real`` of something to, as a caller wants. O(1).

    Raises:
        LengthError: fewer than there are, or more than ``most``.
    """
    if type(wanted) is int and real <= wanted <= most:
        return wanted
    return check_int(name, wanted, real, most, f"{real} in the step")


def name_row(step: Step, row: int) -> str:
    """The sequence of a row, for messages. O(1)."""
    return f"sequence {step.sequences[row].id!r}"


def _group(step: Step, group: str | None) -> tuple[str, int, Form]:
    """Name, number and form of a group. O(groups)."""
    if step.core is not None:
        number = step.group_number(group)
        kept = step.core.groups[number]
        form: Form = "tokens" if kept.keeps_tokens else "state" if kept.keeps_state else "cross"
        return step.core.names[number], number, form
    view = step.group(group)
    name = group or next(name for name, other in step.groups.items() if other is view)
    return name, -1, _FORMS[type(view)]


def _check_form(plan: Plan, name: str, found: Form, form: Form) -> None:
    """Refuse a group of another form than the function's, and a plan without the group."""
    if found != form:
        emits = "index.vllm and others emit" if found == "tokens" else f"octavo.index.{found} emits"
        raise PlanError("group", name, f"a group that {_KEEPS[form]}; {emits} this one")
    if name not in plan.groups or plan.groups[name].lifetime.form != form:
        right = f"the plan the step was made by has {name!r}, which {_KEEPS[form]}"
        raise PlanError("plan", list(plan.groups), right)
