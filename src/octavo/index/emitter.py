"""From step to step: the arrays that were emitted last, of which only what changed is written."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, Unpack, cast

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.core.emit import PageStarts
from octavo.errors import PlanError, uncopied
from octavo.index.arguments import Options, check_plan, read_options
from octavo.index.emit import Emission, Format
from octavo.index.formats import format_of
from octavo.index.out import Arrays, as_array, fill
from octavo.index.runtimes import TENSORRT
from octavo.planner.plan import Plan

F = TypeVar("F", bound=tuple[Any, ...])


class Emitter(Generic[F]):
    """What a function of `octavo.index` gives for one step after another, for what changed.

    ``Emitter(index.vllm, plan, rows=256)`` called with a step gives what ``index.vllm(step,
    plan=plan, rows=256)`` gives, always. Of a step that follows on the last one of its batch only
    the entries of the table are written that changed: those of ``step.delta``. Every other step is
    emitted whole; so is a copy of a step, a step after whose making pages of its batch changed, one
    that outgrows arrays of the emitter's own, and each of `cascade` and `dense`, of windows in the
    compact form and of kernel pages.

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

    __reduce__ = uncopied("its arrays follow one batch; make a new one for another batch")

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
        read_options(options)
        self._format = format_of(emit)
        self._blocks = _blocks(self._format, layers, kv_factor)
        self._emit, self._plan, self._group, self._out = emit, plan, group, out
        self._options = options
        self._last: _Written | None = None

    def __call__(self, step: Step) -> F:
        """The arrays of ``step``, as the function gives them.

        Raises:
            OctavoError: what the function raises; the arrays are what they were.

        Cost: O(rows + tokens + changes) for a step that follows on the last one, and for FlashInfer
        the pages behind the first row with more pages than before; else as the function.
        """
        last = self._last
        if last is None or not last.leads_to(step) or not last.turn_to(step):
            last = self._whole(step)
        return cast("F", last.shown)

    def forget(self) -> None:
        """Emit the next step whole: somebody else wrote to the arrays. O(1)."""
        self._last = None

    def _whole(self, step: Step) -> "_Written":
        options = {**self._options, **self._blocks}
        made = self._emit(step, self._group, plan=self._plan, out=self._out, **options)
        emission = Emission(
            self._format, step, self._plan, self._group, self._options, **self._blocks
        )
        self._last = _Written(emission, made, own=self._out is None)
        return self._last


class _Written:
    """Arrays that hold what a format has of a step, to be moved on to the next one.

    Args:
        emission: of that step.
        made: the arrays, as the format hands them out.
        own: whether they are nobody else's.

    Attributes:
        shown: what to hand out.
    """

    def __init__(self, emission: Emission, made: Any, *, own: bool) -> None:
        self._emission, self._own, self._kind = emission, own, type(made)
        shown = {name: a for name, a in made._asdict().items() if not isinstance(a, int)}
        self._arrays: Arrays = {name: as_array(a) for name, a in shown.items()}
        self._pages = self._arrays.get("kv_indices")
        if own and self._pages is not None:
            self._pages = np.resize(self._pages, self._pages.size + self._pages.size // 8 + 64)
            self._arrays["kv_indices"] = self._pages[: self._arrays["kv_indices"].size]
        self._targets = emission.targets(self._arrays)
        self._shown = [_shut(self._arrays[n]) if own else array for n, array in shown.items()]
        self._note(emission.found.step)

    def leads_to(self, step: Step) -> bool:
        """Whether ``step`` follows on this one, and its log has all that changed. O(1)."""
        known = self._emission.changes_by_entry and isinstance(step, Step)
        if not known or step.core is None:
            return False
        rows = step.rows
        if rows is None or rows is not self._rows or step.turn != self._turn + 1:
            return False
        newest = rows.steps == step.turn + 1 and not rows.logged
        return newest and step.is_open

    def turn_to(self, step: Step) -> bool:
        """Write what ``step`` changes; False: it needs another table, or lost rows. O(rows)."""
        emission = self._emission
        emission.found.read(step)
        emission.measure()
        source = emission.found.source
        if source.lost or not self._fit_pages():
            return False
        if self._sizes != self._measured() and not self._fit():
            return False
        source.write(self._targets, step.log, False)
        bounds = self._arrays.get("attention_metadata")
        if bounds is not None:
            fill(bounds, emission.bounds())
        self._note(step)
        return True

    def _note(self, step: Step) -> None:
        """Remember which step this is."""
        self._sizes = self._measured()
        self._rows, self._turn = (None, 0) if step.core is None else (step.rows, step.turn)
        self.shown = self._kind._make((*self._shown, *self._emission.numbers()))

    def _measured(self) -> tuple[int, ...]:
        """All that shapes of arrays depend on, but for FlashInfer's pages."""
        source = self._emission.found.source
        return source.count, source.tokens, source.width

    def _fit_pages(self) -> bool:
        """Whether FlashInfer's pages have room; of own ones so many are shown. O(1)."""
        if self._pages is None or self._emission.options.columns is not None:
            return True  # there are as many as was said, whatever the step
        pages = self._emission.found.source.pages
        if pages == self._arrays["kv_indices"].size:
            return True
        if pages > self._pages.size:
            return False
        if self._own:
            self._put("kv_indices", self._pages[:pages])
        return True

    def _fit(self) -> bool:
        """Whether other arrays have room; own ones are made anew where that is cheap. O(tokens).

        What is written by changes alone, or compared with what it was, is not.
        """
        shapes, roles = self._emission.shapes(), self._emission.format.roles
        for name, shape in shapes.items():
            has, (size, *more) = self._arrays[name].shape, shape
            if not self._own:
                if any(there < need for there, need in zip(has, shape, strict=True)):
                    return False
            elif has != shape:
                if more or roles[name] is PageStarts:
                    return False
                self._put(name, np.empty(size, np.int32))
        return True

    def _put(self, name: str, array: NDArray[Any]) -> None:
        """Write a field to another array from now on."""
        self._arrays[name] = array
        self._targets[list(self._emission.format.roles).index(name)] = self._emission.target(
            name, array
        )
        self._shown[list(self._arrays).index(name)] = _shut(array)


def _shut(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def _blocks(format: Format, layers: int | None, kv_factor: int | None) -> dict[str, int]:
    """What `tensorrt` alone takes, as far as it was given."""
    named = {"layers": layers, "kv_factor": kv_factor}
    given = {name: value for name, value in named.items() if value is not None}
    for name, value in given.items():
        if format is not TENSORRT:
            raise PlanError("option", name, f"tensorrt alone takes it, not {format.name}")
        given[name] = check_int(name, value, 1, 2 if name == "kv_factor" else None)
    return given
