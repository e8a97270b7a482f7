"""A graph run by ONNX Runtime's CPU provider, its caches written where they lie."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

from octavo.errors import UnsupportedModel, uncopied
from octavo.integrations.onnx.caches import Arrays, output_of


class RuntimeRunner:
    """Runs a graph on the CPU.

    Each cache is bound as input and output at once, so a step writes its own tokens and copies no
    page.

    Raises:
        UnsupportedModel: the provider has no kernel for a node; its message names it.
    """

    __reduce__ = uncopied("it has a session of ONNX Runtime; make another of its model")

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self._session = ort.InferenceSession(
                model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
        except KernelMissing as error:
            raise UnsupportedModel("ONNX Runtime's CPU provider", str(error)) from None

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
