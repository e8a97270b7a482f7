"""The inputs of a graph that hold pages: their names, and the pages of a plan as NumPy arrays.

The names are what a session binds, whoever wrote the graph.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from octavo.cache.step import Step
from octavo.errors import PlanError, uncopied
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import ELEMENT_TYPES
from octavo.model.spec import Attention, Latent, Shape
from octavo.planner.kernels import check_kernel
from octavo.planner.layouts import TensorPlan
from octavo.planner.plan import Plan
from octavo.storage.copies import copy_pages

Arrays = dict[str, NDArray[Any]]
_COMPONENTS = ("key", "value", "latent")

INDICES: dict[str, tuple[int | str, ...]] = {
    "block_table": ("rows", "width"),
    "slot_mapping": ("tokens",),
    "cumulative_sequence_length": ("bounds",),
    "past_seqlens": ("rows",),
    "attention_metadata": (3,),
}
"""Index inputs, int32, and their axes; `octavo.index.onnxruntime` gives them under these names.

There are rows + 1 bounds. Of several groups each has all five, as `index_names` calls them.
"""


IndexNames = Mapping[str, Mapping[str, str]]
"""By group: the names of its index inputs in a graph, by those in `INDICES`."""


def index_names(groups: Collection[str]) -> IndexNames:
    """The index inputs that octavo feeds. O(groups).

    One group's are the names themselves; of several each has its name behind a dot, as in
    ``block_table.window_1024``.
    """
    return {
        group: {name: name if len(groups) == 1 else f"{name}.{group}" for name in INDICES}
        for group in groups
    }


def shared_names(groups: Collection[str]) -> IndexNames:
    """Those of engines that feed one set of lengths to all groups, and no slots. O(groups).

    Tokens go where the block table says; an empty name is no input.
    """
    tables = {group: names["block_table"] for group, names in index_names(groups).items()}
    plain = {name: name for name in INDICES} | {"slot_mapping": ""}
    return {group: plain | {"block_table": table} for group, table in tables.items()}


def by_layer(decoder: Decoder, names: IndexNames) -> list[Mapping[str, str]]:
    """The index inputs of each layer. O(layers)."""
    of_layer = {layer: names[group] for group, layers in decoder.groups.items() for layer in layers}
    return [of_layer[layer] for layer in range(decoder.layers)]


def cache_name(component: str, layer: int) -> str:
    """Input that holds one component (key, value, latent) of a layer's pages."""
    return f"{component}_cache.{layer}"


def output_of(cache: str) -> str:
    """Output that is the cache input ``cache`` with the step's tokens written."""
    name, _, layer = cache.rpartition(".")
    return f"{name}_out.{layer}"


def cache_names(decoder: Decoder, layer: int) -> tuple[str, ...]:
    """Cache inputs of a layer of ``decoder``."""
    parts = ("latent",) if isinstance(decoder.kind, Latent) else ("key", "value")
    return tuple(cache_name(part, layer) for part in parts)


def output_names(decoder: Decoder, layer: int) -> tuple[str, ...]:
    """Cache outputs of a layer of ``decoder``."""
    return tuple(map(output_of, cache_names(decoder, layer)))


class Caches:
    """Zeroed pages of every layer; graphs write them in place.

    Args:
        plan: from `octavo.plan`: component layout, token-major, groups of attention layers or one
            of latent layers, fp32, fp16 or bf16, pages as ONNX Runtime takes them.

    Attributes:
        arrays: by input name, ``key_cache.n`` and ``value_cache.n`` [pages, page_size, kv_heads,
            channels] or ``latent_cache.n`` [pages, page_size, 1, rank + rope] of layer n.

    Raises:
        PlanError: another plan; it names what is wrong with it. Nothing was allocated.

    Cost: O(bytes), which the system provides on first use.
    """

    __reduce__ = uncopied("its arrays are the pages of one cache; make another of its plan")

    def __init__(self, plan: Plan) -> None:
        _check_plan(plan)
        self.arrays: Arrays = {}
        self._by_group: dict[str, list[NDArray[Any]]] = {name: [] for name in plan.groups}
        group_of = {layer: name for name, group in plan.groups.items() for layer in group.layers}
        for tensor in plan.tensors:
            element = helper.tensor_dtype_to_np_dtype(ELEMENT_TYPES[tensor.dtype.name])
            name = cache_name(tensor.component, tensor.layer)
            self.arrays[name] = np.zeros(_shape(tensor), element)
            self._by_group[group_of[tensor.layer]].append(self.arrays[name])

    def copy(self, step: Step) -> None:
        """Run the step's copies, which come before its forward pass. O(bytes copied)."""
        copy_pages(step.copies, self._by_group)


def _shape(tensor: TensorPlan) -> Shape:
    """As the operator has it: a latent row is that of one head."""
    pages, size, *row = tensor.shape
    return (pages, size, 1, *row) if tensor.component == "latent" else tensor.shape


def _check_plan(plan: object) -> None:
    if not isinstance(plan, Plan) or plan.spec is None or plan.elements is None:
        raise PlanError("plan", plan, "it must come from octavo.plan, which knows bytes")
    if plan.layout != "component":
        right = "a graph input is one component of one layer: plan with layout='component'"
        raise PlanError("layout", plan.layout, right)
    if plan.order != "token":
        raise PlanError("order", plan.order, "PagedAttention reads pages in order 'token'")
    if plan.elements.kv.name not in ELEMENT_TYPES:
        right = f"exported graphs keep one of {', '.join(ELEMENT_TYPES)}"
        raise PlanError("dtype", plan.elements.kv.name, right)
    _check_layers(plan)
    check_kernel("onnxruntime", plan.page_size, plan.order, [plan.spec])


def _check_layers(plan: Plan) -> None:
    kinds = {type(kind) for _, kind in plan.spec.kinds()} if plan.spec else set()
    if not (kinds == {Attention} or (kinds == {Latent} and len(plan.groups) == 1)):
        right = "one table addresses all layers of a group: attention, or latent layers alone"
        raise PlanError("groups", list(plan.groups), right)
    if plan.tp > 1 or plan.stages:
        raise PlanError("tp and pp", (plan.tp, len(plan.stages)), "a session runs a whole model")
    for tensor in plan.tensors:
        if tensor.component not in _COMPONENTS or tensor.draft:
            right = f"exported layers keep {', '.join(_COMPONENTS)}"
            raise PlanError("component", tensor.component, right)
