"""How far back a graph sees, so that it is never run over pages that a plan drops earlier."""

import onnx

from octavo.errors import PlanError
from octavo.model.lifetimes import FULL, Window
from octavo.planner.plan import Plan

WINDOW_KEY = "octavo.window"
"""Key of a model's ``metadata_props``: keys a query sees, its own included. For graphs without
PagedAttention nodes, which say it themselves."""


def check_window(model: onnx.ModelProto, plan: Plan) -> None:
    """Whether the plan keeps every key the graph's queries see. O(nodes).

    A graph that sees less than is kept gives what it should: any window on a full plan, a narrower
    one on a windowed plan.

    Raises:
        PlanError: the plan drops pages that the graph would read; chunks, which no graph has.
    """
    (group,) = plan.groups.values()
    if group.lifetime == FULL:
        return
    if not isinstance(group.lifetime, Window):
        raise PlanError("group of the plan", group.name, "exported graphs attend to no chunks")
    window, kept = graph_window(model), group.lifetime.window
    if window is None or window > kept:
        right = (
            f"group {group.name} keeps {kept}: the graph's PagedAttention nodes must have a "
            f"local_window_size of 1..{kept}, or other graphs metadata_props[{WINDOW_KEY!r}]"
        )
        raise PlanError("window of the graph", window, right)


def graph_window(model: onnx.ModelProto) -> int | None:
    """The most keys a query of any layer sees; None: all of them. O(nodes).

    Source: ``local_window_size`` of PagedAttention nodes, where absent or below 0 is all; in a
    graph without such nodes `WINDOW_KEY`.

    Raises:
        PlanError: what stands under `WINDOW_KEY` is no number of keys.
    """
    nodes = [node for node in model.graph.node if node.op_type == "PagedAttention"]
    if not nodes:
        return _noted(model)
    windows = [_node_window(node) for node in nodes]
    return None if min(windows) < 0 else max(windows)


def _node_window(node: onnx.NodeProto) -> int:
    found = (each.i for each in node.attribute if each.name == "local_window_size")
    return next(found, -1)


def _noted(model: onnx.ModelProto) -> int | None:
    found = {entry.key: entry.value for entry in model.metadata_props}.get(WINDOW_KEY)
    if found is None:
        return None
    if not found.isdecimal() or not int(found):
        raise PlanError(f"metadata_props[{WINDOW_KEY!r}]", found, "a whole number of at least 1")
    return int(found)
