"""Where a step's tokens and keys lie, worked out in the graph from the index inputs.

A PagedAttention kernel does this by itself; standard operators need it as tensors, once for all
layers. Queries are padded to the longest row's: [rows, longest].
"""

from typing import NamedTuple

from onnx import TensorProto

from octavo.integrations.onnx.graph import Graph

_END = 2**31 - 1


class Places(NamedTuple):
    """Names of tensors; int64 where they are not bool.

    Attributes:
        positions: [tokens], of each token in its sequence.
        queries: [rows, longest], the token at each padded query; any where there is none.
        packed: [tokens], the padded query of each token, counted through.
        written: [written], tokens whose slot is not -1.
        slots: [written, 2], page and offset of each of them.
        held: bool[rows, keys, 1, 1], whether a row has that key; others may be anything.
        seen: bool[rows, 1, longest, keys], whether a query sees it.
    """

    positions: str
    queries: str
    packed: str
    written: str
    slots: str
    held: str
    seen: str


def find_places(graph: Graph, cache: str, window: int | None) -> Places:
    """Writes their nodes.

    Args:
        graph: has the index inputs.
        cache: one of its caches, for the page size.
        window: keys a query sees, its own included; None: all.
    """
    op, one = graph.op, graph.scalar(1)
    past, bounds = graph.wide("past_seqlens"), graph.wide("cumulative_sequence_length")
    starts = op("Slice", bounds, graph.ints(0), graph.ints(-1))
    stops = op("Slice", bounds, graph.ints(1), graph.ints(_END))
    counts = op("Sub", stops, starts)
    longest = op("ReduceMax", counts, keepdims=0)
    tokens, rows = graph.size("slot_mapping", 0), graph.size("past_seqlens", 0)
    row, offset = _rows_of_tokens(graph, starts, stops, tokens, rows)
    packed = op("Add", op("Mul", row, longest), offset)
    last = op("Sub", op("Mul", rows, longest), one)
    ahead = graph.range(longest)
    queries = op("Add", graph.axis(starts, 1), graph.axis(ahead, 0))
    page_size = graph.size(cache, 1)
    keys = graph.range(op("Mul", graph.size("block_table", 1), page_size))
    contexts = graph.axis(op("Add", past, counts), 1)
    at = op("Add", graph.axis(past, 1), graph.axis(ahead, 0))
    return Places(
        op("Add", op("Gather", past, row), offset),
        op("Min", queries, op("Sub", tokens, one)),
        op("Min", packed, last),
        *_slots(graph, page_size),
        graph.axis(op("Less", graph.axis(keys, 0), contexts), 2, 3),
        _seen(graph, graph.axis(at, 1, 3), graph.axis(keys, 0, 1, 2), window),
    )


def _rows_of_tokens(
    graph: Graph, starts: str, stops: str, tokens: str, rows: str
) -> tuple[str, str]:
    """The row of each token, that of padding being the last; and which of the row's it is."""
    token = graph.range(tokens)
    ended = graph.op("LessOrEqual", graph.axis(stops, 0), graph.axis(token, 1))
    ended = graph.op("Cast", ended, to=TensorProto.INT64)
    row = graph.op("ReduceSum", ended, graph.ints(1), keepdims=0)
    row = graph.op("Min", row, graph.op("Sub", rows, graph.scalar(1)))
    return row, graph.op("Sub", token, graph.op("Gather", starts, row))


def _slots(graph: Graph, page_size: str) -> tuple[str, str]:
    """Tokens that are written, and [written, 2] where."""
    slots = graph.wide("slot_mapping")
    wanted = graph.op("GreaterOrEqual", slots, graph.scalar(0))
    written = graph.op("Squeeze", graph.op("NonZero", wanted), graph.ints(0))
    slots = graph.axis(graph.op("Gather", slots, written), 1)
    page, offset = graph.op("Div", slots, page_size), graph.op("Mod", slots, page_size)
    return written, graph.op("Concat", page, offset, axis=1)


def _seen(graph: Graph, queries: str, keys: str, window: int | None) -> str:
    """Keys not after the query, and within its window, by position."""
    seen = graph.op("LessOrEqual", keys, queries)
    if window is None:
        return seen
    before = graph.op("Sub", queries, graph.scalar(window))
    return graph.op("And", seen, graph.op("Greater", keys, before))
