"""onnx's reference evaluator with octavo's oracle as com.microsoft::PagedAttention."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from octavo.errors import uncopied
from octavo.integrations.onnx.caches import Arrays, output_of
from octavo.integrations.onnx.op.operator import paged_attention_op


class PagedAttention(OpRun):  # named as the operator: the evaluator finds it by that
    """The operator, for ``ReferenceEvaluator(model, new_ops=[PagedAttention])``."""

    op_domain = "com.microsoft"

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[NDArray[Any], ...]:
        outputs = paged_attention_op(*inputs, **attributes)
        return tuple(output for output in outputs if output is not None)


class ReferenceRunner:
    """Runs a graph in onnx's reference evaluator: NumPy, node by node."""

    __reduce__ = uncopied("it has an evaluator of one graph; make another of its model")

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model, new_ops=[PagedAttention])

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
