"""Attention with ONNX's own operators: ScatterND writes, Gather reads pages, Attention attends.

The graph has the inputs and outputs of the one with PagedAttention nodes. Where a step's tokens and
keys lie a PagedAttention kernel works out by itself; standard operators need it as tensors, made
once for all layers. Queries are padded to the longest row's: [rows, longest].
"""

from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from octavo.errors import uncopied
from octavo.integrations.onnx.caches import cache_names, output_names
from octavo.integrations.onnx.contract import WINDOW_KEY
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import cut
from octavo.model.spec import Attention, Latent

_END = 2**31 - 1


class StandardNodes:
    """Attends with standard operators of opset 24.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder) -> None:
        self._graph, self._decoder = graph, decoder
        tables = zip(("cos_cache", "sin_cache"), decoder.rotary_tables(), strict=True)
        self._tables = [graph.constant(name, values) for name, values in tables]
        self._zero = graph.constant("zero", np.zeros(1))
        window = decoder.kind.window if isinstance(decoder.kind, Attention) else None
        if window is not None:
            graph.note(WINDOW_KEY, str(window))
        self._at = find_places(graph, cache_names(decoder, 0)[0], window)

    def __call__(self, layer: int, query: str, key: str, value: str) -> str:
        """As `Attend`."""
        graph, d = self._graph, self._decoder
        query = graph.op("Gather", self._rotate(query, d.heads), self._at.queries)
        new = [self._rotate(key, d.row[0]), *([value] if value else [])]
        names = zip(cache_names(d, layer), output_names(d, layer), new, strict=True)
        held = [self._write_and_gather(*each) for each in names]
        keys, values = held if value else (held[0], self._leading(held[0]))
        sizes: dict[str, Any] = {"q_num_heads": d.heads, "kv_num_heads": d.row[0], "scale": d.scale}
        output = graph.op("Attention", query, keys, values, self._at.seen, **sizes)
        rows = graph.op("Reshape", output, graph.ints(-1, d.heads * d.output_channels))
        return graph.op("Gather", rows, self._at.packed)

    def _rotate(self, rows: str, heads: int) -> str:
        """Queries or keys with their rotary channels rotated: [tokens, heads * channels]."""
        kind, graph = self._decoder.kind, self._graph
        if not isinstance(kind, Latent):
            return self._rotate_whole(rows, heads)
        split = graph.op("Reshape", rows, graph.ints(0, heads, -1))
        plain, rope = cut(graph, split, kind.rank, kind.rope)
        rope = self._rotate_whole(graph.op("Reshape", rope, graph.ints(0, -1)), heads)
        rope = graph.op("Reshape", rope, graph.ints(0, heads, -1))
        whole = graph.op("Concat", plain, rope, axis=-1)
        return graph.op("Reshape", whole, graph.ints(0, -1))

    def _rotate_whole(self, rows: str, heads: int) -> str:
        graph = self._graph
        rotated = graph.op(
            "RotaryEmbedding",
            graph.axis(rows, 0),
            *self._tables,
            graph.axis(self._at.positions, 0),
            num_heads=heads,
            interleaved=int(self._decoder.interleaved),
        )
        return graph.op("Squeeze", rotated, graph.ints(0))

    def _write_and_gather(self, cache: str, written: str, new: str) -> str:
        """Puts the step's rows in their slots; each row's pages then, [rows, keys, heads * dim].

        Slots a sequence does not own may hold anything; they are read as zeros.
        """
        graph, (heads, dim) = self._graph, self._decoder.row
        shape = ("pages", "page_size", heads, dim)
        graph.input(cache, *shape)
        graph.output(written, *shape)
        new = graph.op("Gather", new, self._at.written)
        new = graph.op("Reshape", new, graph.ints(0, heads, dim))
        graph.op("ScatterND", cache, self._at.slots, new, output=written)
        pages = graph.op("Gather", written, "block_table")
        rows = graph.op("Reshape", pages, graph.ints(0, -1, heads, dim))
        rows = graph.op("Where", self._at.held, rows, self._zero)
        return graph.op("Reshape", rows, graph.ints(0, 0, -1))

    def _leading(self, rows: str) -> str:
        """The channels of latent rows that are the value."""
        kept = self._decoder.output_channels
        return cut(self._graph, rows, kept, self._decoder.row[1] - kept)[0]


class PlaceNames(NamedTuple):
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


def find_places(graph: Graph, cache: str, window: int | None) -> PlaceNames:
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
    return PlaceNames(
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
