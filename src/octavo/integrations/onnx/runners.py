"""What runs a graph over pages: ONNX Runtime's CPU provider, or onnx's reference evaluator.

The evaluator has octavo's oracle as com.microsoft::PagedAttention: slow, and the truth.
"""

from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from octavo.errors import PlanError, UnsupportedModel, uncopied
from octavo.integrations.onnx.caches import Arrays, output_of
from octavo.integrations.onnx.op.operator import paged_attention_op

Runtime = Literal["onnxruntime", "reference"]


class GraphRunner(Protocol):
    """What runs a graph."""

    def run(self, feeds: Arrays, caches: Arrays) -> NDArray[Any]:
        """The graph's ``logits``; ``caches`` are inputs, and hold what their outputs are then."""
        ...


def start_runner(runtime: str, model: onnx.ModelProto | Path) -> GraphRunner:
    """The runner of a model, or of its file. O(bytes of weights).

    Raises:
        PlanError: no such ``runtime``, or a graph that it cannot load.
        UnsupportedModel: as `RuntimeRunner`.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    if runtime == "onnxruntime":
        return RuntimeRunner(model)
    if runtime == "reference":
        return ReferenceRunner(model)
    raise PlanError("runtime", runtime, "it must be 'onnxruntime' or 'reference'")


class PagedAttention(OpRun):  # named as the operator: the evaluator finds it by that
    """The operator, for ``ReferenceEvaluator(model, new_ops=[PagedAttention])``."""

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[NDArray[Any], ...]:
        outputs = paged_attention_op(*inputs, **attributes)
        return tuple(output for output in outputs if output is not None)


class ReferenceRunner:
    """Runs a graph in onnx's reference evaluator: NumPy, node by node."""

    __reduce__ = uncopied("it has an evaluator of one graph; make another of its model")

    def __init__(self, model: onnx.ModelProto | Path) -> None:
        held = onnx.load(model) if isinstance(model, Path) else model
        self._evaluator = ReferenceEvaluator(held, new_ops=[PagedAttention])

    def run(self, feeds: Arrays, caches: Arrays) -> NDArray[Any]:
        """The graph's ``logits``. Cost: the graph's, and of standard operators a copy of caches."""
        wanted = ["logits", *map(output_of, caches)]
        outputs: Any = self._evaluator.run(wanted, feeds | caches)
        logits, *written = outputs
        for cache, result in zip(caches.values(), written, strict=True):
            if result is not cache:
                np.copyto(cache, result)
        found: NDArray[Any] = logits
        return found


class RuntimeRunner:
    """Runs a graph on the CPU.

    Each cache is bound as input and output at once, so a step writes its own tokens and copies no
    page.

    Raises:
        UnsupportedModel: the provider has no kernel for a node; its message names it.
        PlanError: it cannot load the graph.
    """

    __reduce__ = uncopied("it has a session of ONNX Runtime; make another of its model")

    def __init__(self, model: onnx.ModelProto | Path) -> None:
        import onnxruntime as ort
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        try:
            self._session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
        except state.NotImplemented as error:
            raise UnsupportedModel("ONNX Runtime's CPU provider", str(error)) from None
        except (state.Fail, state.InvalidArgument, state.InvalidGraph) as error:
            named = str(model) if isinstance(model, Path) else model.graph.name
            raise PlanError("model", named, f"ONNX Runtime cannot load it: {error}") from None

    def run(self, feeds: Arrays, caches: Arrays) -> NDArray[Any]:
        """The graph's ``logits``. Cost: the graph's."""
        binding = self._session.io_binding()
        binding.bind_output("logits", "cpu")
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for name, array in caches.items():
            place = ("cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(output_of(name), *place)
        self._session.run_with_iobinding(binding)
        logits: NDArray[Any] = binding.get_outputs()[0].numpy()
        return logits
