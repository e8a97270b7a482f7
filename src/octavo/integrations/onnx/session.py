"""`PagedSession`: an exported decoder run step by step over the pages of an octavo cache."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from octavo import index
from octavo.cache.step import Step
from octavo.errors import LengthError, StepError, TokenError, uncopied
from octavo.integrations.onnx.caches import Arrays, Caches, index_names
from octavo.integrations.onnx.contract import (
    check_window,
    read_inputs,
    read_model,
    rotary_positions,
    vocabulary,
)
from octavo.integrations.onnx.runners import Runtime, start_runner
from octavo.planner.plan import Plan


class PagedSession:
    """A graph and the pages it reads and writes; the caller's `Cache` says which.

    Each step: ``cache.extend``, `run`, ``cache.commit``. Prefix hits, forks, rollbacks and rows
    that come and go need nothing more: they are in the step.

    Args:
        model: from `export_decoder`, or with inputs and outputs of the same names and shapes; or
            the `pathlib.Path` of one, as of `write_decoder`, with its weights beside it or in it.
        plan: the cache's; see `Caches` for what it must be.
        runtime: ``onnxruntime``, its CPU provider, or ``reference``, onnx's evaluator with octavo's
            oracle as the PagedAttention operator: slow, and the truth.

    Attributes:
        plan: as given.
        caches: the pages, by input name.

    Raises:
        PlanError: a plan that is no component, token-major one; no model, or no file of one; a
            graph whose inputs are not that plan's, or whose queries see keys that the plan's
            window drops; no such ``runtime``.
        UnsupportedModel: ONNX Runtime has no kernel for a node of the graph on this machine's CPU.
        ModuleNotFoundError: onnxruntime is not installed.

    Cost: O(bytes of weights and pages).
    """

    __reduce__ = uncopied("it has the pages of one cache; make another of its model and plan")

    def __init__(
        self, model: onnx.ModelProto | Path, plan: Plan, *, runtime: Runtime = "onnxruntime"
    ) -> None:
        self.plan, self._pages = plan, Caches(plan)
        graph = read_model(model)
        self._inputs = read_inputs(graph, self.caches, plan.groups)
        check_window(graph, plan)
        self._vocab, self._positions = vocabulary(graph), rotary_positions(graph)
        self._runner = start_runner(runtime, model)

    @property
    def caches(self) -> Arrays:
        """The pages of every layer, by the name of their graph input."""
        return self._pages.arrays

    def run(self, step: Step) -> NDArray[Any]:
        """Copy pages as the step says, write its tokens into their slots, and compute logits.

        Args:
            step: an open one of the cache made by this plan, its ``input_ids`` filled in; steps
                run in the order they were made.

        Returns:
            [tokens, vocab] in the graph's element type; row i's next token is at ``step.last[i]``.

        Raises:
            StepError: the step was committed or aborted, or a row of it was released or preempted
                since: its slots may be another's.
            TokenError: an id that is none of the vocabulary.
            LengthError: ``input_ids`` of another length or element type, or a position beyond the
                rotary tables; others of `octavo.index`.
            CapacityError: a page beyond the plan's. Nothing was copied or written then.

        Cost: that of the model; of the session O(rows x columns + tokens + pages copied).
        """
        feeds = self._feeds(step)
        self._pages.copy(step)
        return self._runner.run(feeds, self.caches)

    def _feeds(self, step: Step) -> Arrays:
        """The index inputs of the graph for a step, checked."""
        if not isinstance(step, Step):
            raise LengthError("step", step, None, None, "it must be what Cache.extend returned")
        _check_open(step)
        self._check(step)
        found: Arrays = {"input_ids": step.input_ids}
        groups = self.plan.groups
        for group, names in index_names(groups).items():
            which = group if len(groups) > 1 else None  # a step of another plan says its own
            arrays = index.onnxruntime(step, which, plan=self.plan)._asdict()
            found |= {name: arrays[field] for field, name in names.items()}
        return {name: found[name] for name in self._inputs}

    def _check(self, step: Step) -> None:
        ids = step.input_ids
        if ids.dtype != np.int32 or ids.shape != step.positions.shape:
            found, right = f"{ids.dtype}{list(ids.shape)}", f"int32{list(step.positions.shape)}"
            raise LengthError("input_ids", found, None, None, f"the step's are {right}")
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab))
        if wrong.size:
            raise TokenError(int(wrong[0]), int(ids[wrong[0]]), self._vocab - 1)
        longest = int(step.context.max(initial=0))
        if self._positions is not None and longest > self._positions:
            why = "positions of the graph's rotary tables"
            raise LengthError("context", longest, 0, self._positions, why)


def _check_open(step: Step) -> None:
    if not step.open:
        raise StepError("this step was committed or aborted: it must not write")
    gone = [sequence.id for sequence in step.gone]
    if gone:
        why = "were released or preempted since: abort the step and extend the others"
        raise StepError(f"rows of this step, {gone}, {why}")
