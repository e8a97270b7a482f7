"""A graph being written: nodes in order, constants by name, inputs and outputs with shapes.

Constants lie in the graph, or where they would make it too large in a file of their own beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from octavo.errors import PlanError, uncopied

ELEMENT_TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}
"""octavo's name of an element type to ONNX's."""
_OPSETS = {"": 24, "com.microsoft": 1}
_IR_VERSION = 11  # the oldest that may use opset 24
_INT32, _INT64 = TensorProto.INT32, TensorProto.INT64
_ALIGNMENT = 4096  # bytes; constants that begin there can be mapped into memory
_SMALL = 1024  # bytes; smaller constants stay in the graph, where shape inference reads them

Dim = int | str


class DataFile:
    """A file of constants beside a graph: ONNX's external data.

    Args:
        path: written anew; graphs name it by its last part, so it must lie beside them.
    """

    __reduce__ = uncopied("it is being written; export it once more")

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file = path.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, name: str, values: NDArray[Any]) -> TensorProto:
        """Appends the numbers; what stands in the graph in their place. O(bytes)."""
        offset = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        self._file.seek(offset)
        self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        place = {"location": self._name, "offset": offset, "length": values.nbytes}
        made = TensorProto(
            name=name,
            data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
            dims=values.shape,
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in place.items():
            made.external_data.add(key=key, value=str(value))
        return made


class Graph:
    """Nodes, constants, inputs and outputs of a model that is being written.

    Args:
        dtype: fp32, fp16 or bf16: of every tensor of numbers.
        data: where constants go that are not small; None: into the graph.

    Raises:
        PlanError: no such ``dtype``.
    """

    __reduce__ = uncopied("it is being written; export it once more")

    def __init__(self, dtype: str, data: DataFile | None = None) -> None:
        if dtype not in ELEMENT_TYPES:
            raise PlanError("dtype", dtype, f"it must be one of {', '.join(ELEMENT_TYPES)}")
        self.element_type = ELEMENT_TYPES[dtype]
        self._data = data
        self._numbers = helper.tensor_dtype_to_np_dtype(self.element_type)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._notes: dict[str, str] = {}

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """Numbers in the graph's element type, under a name that always holds the same."""
        return self._keep(name, values, self._numbers)

    def ints(self, *values: int) -> str:
        """int64[len(values)]."""
        return self._keep(f"ints_{'_'.join(map(str, values))}", np.array(values), np.int64)

    def scalar(self, value: int) -> str:
        """An int64 without axes."""
        return self._keep(f"int_{value}", np.array(value), np.int64)

    def _keep(self, name: str, values: NDArray[Any], element: Any) -> str:
        if name not in self._constants:
            held = values.astype(element)
            outside = self._data is not None and held.nbytes >= _SMALL
            store = self._data.add if self._data is not None and outside else _inside
            self._constants[name] = store(name, held)
        return name

    def number(self, value: float) -> str:
        """A number without axes, in the graph's element type."""
        return self.constant(f"number_{value!r}", np.array(value))

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """A node of one output.

        Args:
            inputs: names; an empty one is an optional input left out.
            output: name of the output; None: one of its own.
        """
        made = f"{kind}_{len(self._nodes)}" if output is None else output
        self.node(kind, inputs, [made], **attributes)
        return made

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """A node of any outputs."""
        name = f"{kind}.{len(self._nodes)}"
        made = helper.make_node(kind, inputs, outputs, name=name, domain=domain, **attributes)
        self._nodes.append(made)

    def index(self, name: str, *shape: Dim, wide: bool = False) -> str:
        """An int32 input, or an int64 one."""
        element = _INT64 if wide else _INT32
        self._inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def input(self, name: str, *shape: Dim) -> str:
        """An input of numbers."""
        self._inputs.append(helper.make_tensor_value_info(name, self.element_type, shape))
        return name

    def output(self, name: str, *shape: Dim) -> str:
        """An output of numbers; a node must write it."""
        self._outputs.append(helper.make_tensor_value_info(name, self.element_type, shape))
        return name

    def note(self, key: str, value: str) -> None:
        """What the nodes do not say: an entry of the model's ``metadata_props``."""
        self._notes[key] = value

    def wide(self, name: str) -> str:
        """An int32 tensor as int64."""
        return self.op("Cast", name, to=_INT64)

    def size(self, name: str, axis: int) -> str:
        """Length of an axis, an int64 without axes."""
        size = self.op("Shape", name, start=axis, end=axis + 1)
        return self.op("Squeeze", size, self.ints(0))

    def range(self, stop: str) -> str:
        """0, 1, ... below ``stop``, an int64 without axes."""
        return self.op("Range", self.scalar(0), stop, self.scalar(1))

    def axis(self, name: str, *axes: int) -> str:
        """A tensor with axes of length one put in."""
        return self.op("Unsqueeze", name, self.ints(*axes))

    def model(self, name: str) -> onnx.ModelProto:
        """The model; `check_model` checks it. O(nodes + bytes of constants)."""
        graph = helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, list(self._constants.values())
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
        made = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="octavo"
        )
        helper.set_model_props(made, self._notes)
        return made


def _inside(name: str, values: NDArray[Any]) -> TensorProto:
    return numpy_helper.from_array(values, name)


def check_model(model: onnx.ModelProto | Path) -> None:
    """ONNX's own check, with strict shape inference, of a model or its file. O(nodes + bytes)."""
    onnx.checker.check_model(str(model) if isinstance(model, Path) else model, full_check=True)
