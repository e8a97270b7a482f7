"""Buffers of fixed sizes, to be given as ``out``: what recorded graphs read from."""

from collections.abc import Callable
from inspect import unwrap
from math import prod
from typing import Any, TypeVar, Unpack, cast

import numpy as np

from octavo.arrays import NDArray
from octavo.checks import check_int
from octavo.errors import LengthError, PlanError
from octavo.index.addresses import kernel_page_of
from octavo.index.arguments import MOST, Choice, Options, check_fill, check_plan, read_options
from octavo.index.emit import Format
from octavo.index.formats import format_of
from octavo.index.out import BOOL, INT32, Shape
from octavo.index.states import Crossed, States, cross, state
from octavo.model.lifetimes import Form
from octavo.planner.plan import GroupPlan, Plan

_KEEPS = {"tokens": "tokens", "state": "states", "cross": "cross inputs"}
F = TypeVar("F", bound=tuple[Any, ...])


def buffers(
    emit: Callable[..., F],
    plan: Plan,
    group: str | None = None,
    *,
    rollback: int = 0,
    **options: Unpack[Options],
) -> F:
    """Arrays for a function of `octavo.index` to fill, of sizes that hold for every step.

    They are NumPy's, each with memory of its own, and hold what stands for padding, so that a graph
    can be recorded on them before the first step. Give them to the function or to an `Emitter` as
    ``out``, with the same options.

    Args:
        emit: the function: of a kernel's format, `dense`, `state` or `cross`.
        plan, group, options: as the function takes them. ``rows`` must be named. By default there
            are as many ``tokens`` as rows, as where all decode; as many ``columns`` as the longest
            sequence of the plan fills, or of `cross` the plan's input; and ``dense`` has queries
            for ``max_query_len``, or for as many as there are tokens.
        rollback: of `state`, what the cache was made with.

    Raises:
        PlanError: ``emit`` is no such function; an option it has not; no plan; no such group.
        LengthError: ``rows`` is not named, a size out of range, or an array of more than 2**31 - 1
            entries.

    Cost: O(entries).
    """
    check_plan(plan, group)
    asked = read_options(options)
    rows = check_int("rows", asked.rows, 1, MOST - 1, "buffers are of so many")
    function = unwrap(emit) if callable(emit) else emit
    made: Any
    if function is state:
        made = _states(plan, group, rows, check_int("rollback", rollback, 0))
    elif function is cross:
        made = _crossed(plan, group, rows, asked.columns)
    else:
        _group(plan, group, "tokens")
        made = _format(format_of(emit, "state", "cross"), plan, rows, asked)
    return cast("F", made)


def _format(format: Format, plan: Plan, rows: int, asked: Choice) -> Any:
    page = kernel_page_of(plan.page_size, asked.kernel_page)
    tokens = _size("tokens", asked.tokens, rows)
    columns = _size("columns", asked.columns, -(-(plan.max_length or plan.tokens) // page))
    most = _size("max_query_len", asked.max_query_len, tokens)
    longest = _size("max_seq_len", asked.max_seq_len, columns * page)
    shapes = format.shapes(rows, columns, tokens) | {
        "attention_metadata": (3,),
        "mask": (rows, most, columns * page),
        "shared_qo_indptr": (2,),
        "shared_kv_indptr": (2,),
        "shared_kv_indices": (columns,),
        "shared_kv_last_page_len": (1,),
    }
    no_page = format.page_fill if asked.page_fill is None else asked.page_fill
    pads = {
        "slot_mapping": check_fill("slot_fill", asked.slot_fill),
        "block_table": check_fill("page_fill", no_page),
        "logit_rows": -1,
        "kv_last_page_len": 1,
        "shared_kv_last_page_len": 1,
    }
    numbers = {"max_query_len": most, "max_seqlen_q": most}
    numbers |= {"max_seq_len": longest, "max_seqlen_k": longest}
    return format.kind._make(
        numbers[name] if name in numbers else _full(name, shapes[name], pads.get(name, 0))
        for name in format.kind._fields
    )


def _states(plan: Plan, group: str | None, rows: int, rollback: int) -> States:
    parts = _group(plan, group, "state").parts
    source = _full("source", (rows, parts), -1)
    targets = _full("targets", (rows, 1 + rollback, parts), -1)
    return States(source, np.zeros(rows, BOOL), targets, _full("query_start_loc", (rows + 1,)))


def _crossed(plan: Plan, group: str | None, rows: int, wanted: int | None) -> Crossed:
    input_tokens = _group(plan, group, "cross").input_tokens
    columns = _size("columns", wanted, -(-input_tokens // plan.page_size))
    if not columns:
        right = "the plan does not know how long inputs are"
        raise LengthError("columns", columns, 1, None, right)
    return Crossed(
        block_table=_full("block_table", (rows, columns)),
        seq_lens=_full("seq_lens", (rows,)),
        cu_seqlens_k=_full("cu_seqlens_k", (rows + 1,)),
        query_start_loc=_full("query_start_loc", (rows + 1,)),
        fresh=np.zeros(rows, BOOL),
        max_query_len=rows,
        max_seq_len=columns * plan.page_size,
    )


def _group(plan: Plan, name: str | None, form: Form) -> GroupPlan:
    """The group of this name; by default the first one of tokens."""
    default = name is None and form == "tokens"
    for found in plan.groups.values():
        if found.lifetime.form == form and (default or found.name == name):
            return found
    raise PlanError("group", name, f"a group of the plan that keeps {_KEEPS[form]}")


def _size(name: str, wanted: int | None, default: int) -> int:
    return default if wanted is None else check_int(name, wanted, 0, MOST)


def _full(name: str, shape: Shape, pad: int = 0) -> NDArray[Any]:
    """An array of padding, which int32 can number."""
    if prod(shape) > MOST:
        raise LengthError(f"entries of {name}", prod(shape), 0, MOST, f"its shape is {shape}")
    return np.full(shape, pad, BOOL if name == "mask" else INT32)
