"""What kernels take of groups that keep no tokens: states, and inputs for cross attention."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.errors import CapacityError, LengthError, PlanError
from octavo.index.arguments import MOST, check_gone, check_rows, check_step, padded
from octavo.index.out import BOOL, Arrays, arrays_of, fill
from octavo.index.rows import running_sums
from octavo.model.lifetimes import Form
from octavo.planner.plan import Plan


class States(NamedTuple):
    """What kernels of recurrent layers take, for R rows, padding included.

    Attributes:
        source: int32[R, parts], state to start from; -1 where there is none, and in padded rows.
        has_state: bool[R], whether there is one; a kernel starts from zeros otherwise.
        targets: int32[R, 1 + rollback, parts]: [i, j] is where the state after the row's last new
            position but j goes; -1 for positions the row does not have in this step.
        query_start_loc: int32[R + 1], where each row's tokens begin; padded rows begin at the end.
    """

    source: Ints
    has_state: NDArray[np.bool_]
    targets: Ints
    query_start_loc: Ints


class Crossed(NamedTuple):
    """What paged kernels take to attend to an encoded input, without a causal mask. All int32.

    Attributes:
        block_table: [R, width], pages of each row's input; 0 behind them and in padded rows.
        seq_lens: [R], its tokens; 0 where the row has none, or sits out before its first step.
        cu_seqlens_k: [R + 1], cumulative tokens.
        query_start_loc: [R + 1], where each row's queries begin.
        fresh: bool[R], whether the step must write the input first.
        max_query_len, max_seq_len: the largest of the rows', as ints.
    """

    block_table: Ints
    seq_lens: Ints
    cu_seqlens_k: Ints
    query_start_loc: Ints
    fresh: NDArray[np.bool_]
    max_query_len: int
    max_seq_len: int


def state(
    step: Step, group: str, *, plan: Plan, out: States | None = None, rows: int | None = None
) -> States:
    """The states each row starts from and writes, by page; padded rows touch none.

    Raises:
        UnknownGroup: the step has no such group.
        PlanError: it keeps no states, or the plan has no such group.
        LengthError, CapacityError, StepError: as the other functions of `octavo.index`.

    Cost: O(rows x (1 + rollback) x parts).
    """
    view = _view(step, plan, group, "state")
    count = check_rows(step, rows)
    _check_pages("state", view.source[view.has_state], plan.ids(group))
    written = np.arange(view.table.shape[1]) < step.counts[:, None]
    _check_pages("state", view.table[written], plan.ids(group))
    none = np.int32(-1)
    source = np.where(view.has_state[:, None], view.source, none)
    targets = np.where(written[:, :, None], view.table, none)
    fields = {
        "source": (source, -1),
        "has_state": (view.has_state, 0),
        "targets": (targets, -1),
        "query_start_loc": (step.query_start, step.positions.size),
    }
    return States(**_padded(States, fields, count, out, step))


def cross(
    step: Step,
    group: str,
    *,
    plan: Plan,
    out: Crossed | None = None,
    rows: int | None = None,
    columns: int | None = None,
) -> Crossed:
    """The pages of each row's encoded input, as vLLM's and FlashAttention's kernels take them.

    Raises:
        UnknownGroup: the step has no such group.
        PlanError: it keeps no cross input, or the plan has no such group.
        LengthError, CapacityError, StepError: as the other functions of `octavo.index`.

    Cost: O(rows x columns).
    """
    view = _view(step, plan, group, "cross")
    count, size = check_rows(step, rows), plan.page_size
    waits = (step.counts == 0) & ~view.table.any(axis=1)  # it sits out, and has no pages yet
    lengths = np.where(waits, np.int32(0), view.lengths)
    pages, width = -(-lengths // size), view.table.shape[1]
    if pages.max(initial=0) > width:
        right = "a column for each page of the longest input"
        raise LengthError("columns of a cross input", width, int(pages.max()), None, right)
    held = np.arange(width) < pages[:, None]
    _check_pages("cross input", view.table[held], plan.ids(group))
    sums = running_sums(lengths)
    table = np.where(held, view.table, np.int32(0))
    if columns is not None:
        more = padded("columns", width, columns, MOST // count) - width
        table = np.pad(table, ((0, 0), (0, more)))
    fields = {
        "block_table": (table, 0),
        "seq_lens": (lengths, 0),
        "cu_seqlens_k": (sums, int(sums[-1])),
        "query_start_loc": (step.query_start, step.positions.size),
        "fresh": (view.fresh, 0),
    }
    arrays = _padded(Crossed, fields, count, out, step, lambda: int(pages.argmax()))
    longest = int(lengths.max(initial=0))
    return Crossed(**arrays, max_query_len=step.max_query, max_seq_len=longest)


def _view(step: Step, plan: Plan, group: str, form: Form) -> Any:
    if group is None:
        raise PlanError("group", group, "it must be the name of a group")
    check_step(step, plan, group, form)
    check_gone(step, len(step.gone))
    return step.group(group)


def _padded(
    kind: type[Any],
    fields: dict[str, tuple[NDArray[Any], int]],
    rows: int,
    out: Any,
    step: Step,
    widest: Callable[[], int] = int,
) -> Arrays:
    """Arrays by name with so many rows, and each with its number behind what it holds."""
    more = rows - len(step.sequences)
    shapes = {name: (len(a) + more, *a.shape[1:]) for name, (a, _) in fields.items()}
    dtypes = {name: BOOL for name, (a, _) in fields.items() if a.dtype == BOOL}
    arrays = arrays_of(kind, shapes, out, step, dtypes, widest)
    for name, (values, pad) in fields.items():
        fill(arrays[name], values, pad)
    return arrays if out is None else {name: getattr(out, name) for name in arrays}


def _check_pages(what: str, pages: Ints, ids: int) -> None:
    """Refuse the null page, negative ones and those beyond the group's."""
    if pages.size and int(pages.min()) < 1:
        raise LengthError(f"page of a {what}", int(pages.min()), 1, ids - 1, "a page that is held")
    if pages.size and int(pages.max()) >= ids:
        raise CapacityError(f"page of a {what}", int(pages.max()), ids - 1, "the plan has no other")
