"""What a graph must be for the plan whose pages it is given: inputs, outputs, how far back it sees.

Knows graphs and plans; no steps.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from octavo.errors import PlanError
from octavo.integrations.onnx.caches import Arrays, index_names, output_of
from octavo.integrations.onnx.graph import ELEMENT_TYPES
from octavo.model.lifetimes import FULL, Window
from octavo.planner.plan import Plan

WINDOW_KEY = "octavo.window"
"""Key of a model's ``metadata_props``: keys a query sees, its own included. For graphs without
PagedAttention nodes, which say it themselves. Of several groups each has its name behind a dot."""


def window_key(group: str, groups: Collection[str]) -> str:
    """The key under which a graph notes the window of one of its groups. O(1)."""
    return WINDOW_KEY if len(groups) == 1 else f"{WINDOW_KEY}.{group}"


def read_model(model: object) -> onnx.ModelProto:
    """A model, or that of a file without what lies beside it. O(bytes of the file).

    Raises:
        PlanError: neither; no such file, or no model in it; what it says lies beside it is not all
            there.
    """
    if isinstance(model, onnx.ModelProto):
        return model
    if not isinstance(model, Path):
        right = "it must be an onnx.ModelProto, or the pathlib.Path of one"
        raise PlanError("model", type(model).__name__, right)
    try:
        found = onnx.load(model, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise PlanError("model", str(model), f"no model can be read there: {error}") from None
    _check_beside(found, model)
    return found


def _check_beside(model: onnx.ModelProto, path: Path) -> None:
    """Whether the files that hold its larger constants are there, and long enough. O(constants)."""
    ends: dict[str, int] = {}
    for constant in model.graph.initializer:
        place = {entry.key: entry.value for entry in constant.external_data}
        if place:
            end = int(place.get("offset", 0)) + int(place.get("length", 0))
            ends[place["location"]] = max(end, ends.get(place["location"], 0))
    for name, end in ends.items():
        file = path.parent / name
        has = file.stat().st_size if file.is_file() else None
        if has is None or has < end:
            right = f"{name} beside it must hold {end} bytes" + (
                "" if has is None else f", not {has}"
            )
            raise PlanError("model", str(path), right)


def read_inputs(model: onnx.ModelProto, caches: Arrays, groups: Collection[str]) -> list[str]:
    """Names of the inputs that are no caches; those that are must be the plan's."""
    inputs = {value.name: value.type.tensor_type for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    indices = [name for names in index_names(groups).values() for name in names.values()]
    _check_groups(inputs, groups)
    known = (*indices, "input_ids")
    for name in inputs:
        if name not in known and name not in caches:
            right = f"the plan has {', '.join(caches)}, and a step {', '.join(known)}"
            raise PlanError("input of the graph", name, right)
    for name, array in caches.items():
        if name not in inputs:
            raise PlanError("inputs of the graph", list(inputs), f"the plan's {name} is missing")
        _check_cache(name, inputs[name], array)
    for name in ("logits", *map(output_of, caches)):
        if name not in outputs:
            raise PlanError("outputs of the graph", sorted(outputs), f"{name} is missing")
    return [name for name in inputs if name not in caches]


def _check_groups(inputs: Iterable[str], groups: Collection[str]) -> None:
    """Whether the graph's block tables are those of the plan's groups."""
    tables = [name for name in inputs if name.partition(".")[0] == "block_table"]
    wanted = [names["block_table"] for names in index_names(groups).values()]
    if sorted(tables) != sorted(wanted):
        right = f"the graph reads {', '.join(tables) or 'no block table'}"
        raise PlanError("groups", list(groups), right)


def _check_cache(name: str, found: onnx.TypeProto.Tensor, array: NDArray[Any]) -> None:
    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if found.elem_type != element:
        right = f"the plan's is {_dtype_name(element)}"
        raise PlanError(f"dtype of {name}", _dtype_name(found.elem_type), right)
    shape = tuple(dim.dim_value or dim.dim_param for dim in found.shape.dim)
    pairs = zip(shape, array.shape, strict=False)
    fits = all(isinstance(has, str) or has == wanted for has, wanted in pairs)
    if len(shape) != array.ndim or not fits:
        raise PlanError(f"shape of {name}", shape, f"the plan's is {array.shape}")


def _dtype_name(element: int) -> str:
    """ONNX's element type in octavo's words; one that octavo has not, in NumPy's."""
    for name, known in ELEMENT_TYPES.items():
        if known == element:
            return name
    return str(onnx.helper.tensor_dtype_to_np_dtype(element))


def vocabulary(model: onnx.ModelProto) -> int:
    """Token ids the graph knows: the last axis of its logits; any int32 where it has no size."""
    found = next(value for value in model.graph.output if value.name == "logits")
    return int(found.type.tensor_type.shape.dim[-1].dim_value) or 2**31


def rotary_positions(model: onnx.ModelProto) -> int | None:
    """Rows of the rotary tables; None: the graph has none by octavo's name."""
    tables = (value for value in model.graph.initializer if value.name == "cos_cache")
    return next((int(table.dims[0]) for table in tables), None)


def check_window(model: onnx.ModelProto, plan: Plan) -> None:
    """Whether the plan keeps every key the graph's queries see. O(groups x nodes).

    A graph that sees less than is kept gives what it should: any window on a full plan, a narrower
    one on a windowed plan.

    Raises:
        PlanError: the plan drops pages that the graph would read; chunks, which no graph has.
    """
    for name, group in plan.groups.items():
        if group.lifetime == FULL:
            continue
        if not isinstance(group.lifetime, Window):
            raise PlanError("group of the plan", name, "exported graphs attend to no chunks")
        window, kept = graph_window(model, name, plan.groups), group.lifetime.window
        if window is None or window > kept:
            right = (
                f"group {name} keeps {kept}: the graph's PagedAttention nodes must have a "
                f"local_window_size of 1..{kept}, or other graphs "
                f"metadata_props[{window_key(name, plan.groups)!r}]"
            )
            raise PlanError("window of the graph", window, right)


def graph_window(model: onnx.ModelProto, group: str, groups: Collection[str]) -> int | None:
    """The most keys a query of any layer of a group sees; None: all of them. O(nodes).

    Source: ``local_window_size`` of the PagedAttention nodes that read the group's block table,
    where absent or below 0 is all; in a graph without such nodes `WINDOW_KEY`.

    Raises:
        PlanError: what stands under `WINDOW_KEY` is no number of keys.
    """
    nodes = [node for node in model.graph.node if node.op_type == "PagedAttention"]
    if not nodes:
        return _noted(model, window_key(group, groups))
    table = index_names(groups)[group]["block_table"]
    windows = [_node_window(node) for node in nodes if table in node.input]
    return None if not windows or min(windows) < 0 else max(windows)


def _node_window(node: onnx.NodeProto) -> int:
    found = (each.i for each in node.attribute if each.name == "local_window_size")
    return next(found, -1)


def _noted(model: onnx.ModelProto, key: str) -> int | None:
    found = {entry.key: entry.value for entry in model.metadata_props}.get(key)
    if found is None:
        return None
    if not found.isdecimal() or not int(found):
        raise PlanError(f"metadata_props[{key!r}]", found, "a whole number of at least 1")
    return int(found)
