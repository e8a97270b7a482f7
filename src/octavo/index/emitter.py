"""From step to step: the arrays that were emitted last, moved on by one token a row."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any, Generic, TypeVar, Unpack, cast

import numpy as np

from octavo.cache.step import Ints, Step
from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.index.formats import Flashinfer, Tensorrt
from octavo.index.masks import dense
from octavo.index.moves import MOVES, Moving, MovingFlashinfer
from octavo.index.options import Options, ask
from octavo.index.ragged import cascade, flashinfer
from octavo.index.steps import check_plan
from octavo.index.tables import flash, onnxruntime, tensorrt, vllm
from octavo.planner.plan import Plan

F = TypeVar("F", bound=tuple[Any, ...])


class Emitter(Generic[F]):
    """What a function of `octavo.index` gives for one step after another, for what changed.

    ``Emitter(index.vllm, plan, rows=256)`` called with a step gives what ``index.vllm(step,
    plan=plan, rows=256)`` gives, always. A step in which each row of a batch runs the token behind
    its last one, and which is emitted before anything else happens to the batch, costs O(rows):
    of the table only entries that changed are written. Such a step is taken at its word, its arrays
    being read-only. Every other step is emitted whole and checked; so is a copy of a step, and each
    of `cascade` and `dense`, of windows in the compact form and of kernel pages.

    Args:
        emit: the function.
        plan, group: as the function takes them.
        out: arrays to write to, at fixed addresses, as the function takes them. They are the
            emitter's from now on: whoever else writes to them must call `forget`.
        options: what else the function takes.

    Raises:
        PlanError: ``emit`` is none of the formats of kernels or `dense`, nor wraps one
            (`functools.wraps`); an option that it has not; no plan.
        LengthError: ``layers`` or ``kv_factor`` out of range.

    Without ``out`` the arrays are the emitter's own: read-only, and good until the next call.
    """

    def __init__(
        self,
        emit: Callable[..., F],
        plan: Plan,
        group: str | None = None,
        *,
        out: F | None = None,
        layers: int | None = None,
        kv_factor: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_plan(plan, group)
        given = _blocks(_format(emit), layers, kv_factor)
        self._emit, self._plan, self._group, self._out = emit, plan, group, out
        self._asked = ask(options)
        self._options: dict[str, Any] = {**options, **given}
        self._values = given.get("kv_factor", 2) - 1
        self._blocks = (self._values + 1) * given.get("layers", 1)
        self._moving: Moving | None = None
        self._kind: type[Any] = tuple
        self._arrays: list[Any] = []

    def __call__(self, step: Step) -> F:
        """The arrays of ``step``, as the function gives them.

        Raises:
            As the function; the arrays are what they were.

        Cost: O(rows) for a step that goes on from the last one, else as the function.
        """
        moving = self._moving
        if moving is None or not moving.leads_to(step) or not self._is_within(moving.longest + 1):
            return self._whole(step)
        moving.move(step)
        return self._show(moving)

    def forget(self) -> None:
        """Emit the next step whole: somebody else wrote to the arrays. O(1)."""
        self._moving = None

    def _is_within(self, longest: int) -> bool:
        """Whether so many keys are within the bound the caller named."""
        return self._asked.max_seq_len is None or longest <= self._asked.max_seq_len

    def _show(self, moving: Moving) -> F:
        if self._out is None and isinstance(moving, MovingFlashinfer):
            self._arrays[_PAGES] = _shut(moving.arrays.kv_indices[: moving.total])
        most, bound = self._asked.max_query_len or 1, self._asked.max_seq_len or moving.longest
        numbers = (most, bound) if moving.has_numbers else ()
        return cast("F", self._kind._make((*self._arrays, *numbers)))

    def _whole(self, step: Step) -> F:
        made: Any = self._emit(step, self._group, plan=self._plan, out=self._out, **self._options)
        self._moving = None
        written = made
        if self._out is None:
            if isinstance(made, Flashinfer):
                roomy, total = _roomy(made.kv_indices), made.kv_indices.size
                written, made = (
                    made._replace(kv_indices=roomy),
                    made._replace(kv_indices=roomy[:total]),
                )
            made = type(made)._make(map(_shut, made))
        self._begin(step, made, written)
        return cast("F", made)

    def _begin(self, step: Step, made: Any, written: Any) -> None:
        """Go on from ``step`` next time, if it is of the kind that can be gone on from."""
        view = step.group(self._group)
        name = next(name for name, other in step.groups.items() if other is view)
        run = None if step._batch is None else step._batch._run_to(step)
        moving = MOVES.get(type(made))
        if run is None or moving is None or not self._moves(name):
            return
        if isinstance(made, Tensorrt) and not self._has_plain_blocks(step, name):
            return
        self._moving = moving(written, step, run, name, self._blocks, self._values)
        self._kind = type(made)
        self._arrays = [array for array in made if isinstance(array, np.ndarray)]

    def _has_plain_blocks(self, step: Step, name: str) -> bool:
        """Whether rows stay of one kind, not as behind a first token, and offsets within int32."""
        return bool(step.past.all()) and self._plan.ids(name) * self._blocks < 2**31

    def _moves(self, name: str) -> bool:
        """Whether arrays of these options change only where the step's table does."""
        asked = self._asked
        if asked.kernel_page not in (None, self._plan.page_size) or asked.kernel == "int32":
            return False
        plain = asked.form == "absolute" and not asked.page_fill
        return plain or not self._plan.groups[name].lifetime.slides


_FORMATS: dict[str, Callable[..., Any]] = {
    "vllm": vllm,
    "flash": flash,
    "flashinfer": flashinfer,
    "cascade": cascade,
    "onnxruntime": onnxruntime,
    "tensorrt": tensorrt,
    "dense": dense,
}


def _format(emit: Any) -> str:
    """Name of the function that ``emit`` is, or wraps."""
    found = unwrap(emit) if callable(emit) else emit
    for name, known in _FORMATS.items():
        if found is known:
            return name
    names = ", ".join(_FORMATS)
    raise PlanError("emit", emit, f"it must be a function of octavo.index: {names}")


def _blocks(format: str, layers: int | None, kv_factor: int | None) -> dict[str, int]:
    """What `tensorrt` alone takes, as far as it was said."""
    asked = {"layers": layers, "kv_factor": kv_factor}
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if format != "tensorrt":
            raise PlanError("option", name, f"tensorrt alone takes it, not {format}")
        given[name] = check_int(name, value, 1, 2 if name == "kv_factor" else None)
    return given


_PAGES = Flashinfer._fields.index("kv_indices")


def _shut(thing: Any) -> Any:
    """A view that cannot be written, of an array; else the thing itself."""
    if isinstance(thing, np.ndarray):
        thing = thing.view()
        thing.flags.writeable = False
    return thing


def _roomy(pages: Ints) -> Ints:
    """The same pages with room for more behind."""
    roomy = np.zeros(pages.size + pages.size // 8 + 64, np.int32)
    roomy[: pages.size] = pages
    return roomy
