"""Activations of feed-forward parts, by the names configs have for them, as graph nodes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.integrations.onnx.graph import Graph


def _silu(graph: Graph, rows: str) -> str:
    return graph.op("Mul", rows, graph.op("Sigmoid", rows))


def _quick_gelu(graph: Graph, rows: str) -> str:
    gain = graph.constant("quick_gelu_gain", np.array(1.702))
    return graph.op("Mul", rows, graph.op("Sigmoid", graph.op("Mul", rows, gain)))


def _relu2(graph: Graph, rows: str) -> str:
    above = graph.op("Relu", rows)
    return graph.op("Mul", above, above)


def _gelu(graph: Graph, rows: str) -> str:
    return graph.op("Gelu", rows)


def _gelu_tanh(graph: Graph, rows: str) -> str:
    return graph.op("Gelu", rows, approximate="tanh")


def _one(kind: str, **attributes: Any) -> Callable[[Graph, str], str]:
    return lambda graph, rows: graph.op(kind, rows, **attributes)


def _within(
    low: float, high: float, inner: Callable[[Graph, str], str] = lambda _, rows: rows
) -> Callable[[Graph, str], str]:
    return lambda graph, rows: graph.op(
        "Clip", inner(graph, rows), graph.number(low), graph.number(high)
    )


ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_python": _gelu,
    "gelu_pytorch_tanh": _gelu_tanh,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_accurate": _gelu_tanh,
    "gelu_10": _within(-10.0, 10.0, _gelu),
    "quick_gelu": _quick_gelu,
    "hardswish": _one("HardSwish"),
    "leaky_relu": _one("LeakyRelu", alpha=0.01),
    "linear": lambda _, rows: rows,
    "relu": _one("Relu"),
    "relu6": _within(0.0, 6.0),
    "relu2": _relu2,
    "sigmoid": _one("Sigmoid"),
    "tanh": _one("Tanh"),
    "mish": _one("Mish"),
}
"""Name in ``hidden_act`` -> what writes its nodes, for a tensor of any shape."""
