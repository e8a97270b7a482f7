"""Attention with ONNX's own operators: ScatterND writes, Gather reads pages, Attention attends.

The graph has the inputs and outputs of the one with PagedAttention nodes. Where a step's tokens and
keys lie a PagedAttention kernel works out by itself; standard operators need it as tensors, made
once for all layers. Queries are padded to the longest row's: [rows, longest].
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from octavo.errors import uncopied
from octavo.integrations.onnx.caches import IndexNames, cache_names, output_names
from octavo.integrations.onnx.contract import window_key
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import cut, rotary_tables
from octavo.model.spec import Attention, Latent

_END = 2**31 - 1


class StandardNodes:
    """Attends with standard operators of opset 24.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
        names: of its index inputs.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder, names: IndexNames) -> None:
        self._graph, self._decoder = graph, decoder
        tables = rotary_tables(graph, decoder)
        self._zero = graph.constant("zero", np.zeros(1))
        found: dict[int, PlaceNames] = {}
        for group, layers in decoder.groups.items():
            kind = decoder.kinds[layers[0]]
            window = kind.window if isinstance(kind, Attention) else None
            if window is not None:
                graph.note(window_key(group, decoder.groups), str(window))
            cache = cache_names(decoder, layers[0])[0]
            found |= dict.fromkeys(layers, find_places(graph, names[group], cache, window))
        self._places = found
        self._angles = self._gather_angles(tables)

    def _gather_angles(self, tables: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """By layer: cosines and sines of the step's tokens, [1, tokens, rotated channels / 2] each.

        Gathered here, since RotaryEmbedding takes no more tokens at once than its tables have rows.
        """
        graph, last = self._graph, self._graph.scalar(self._decoder.max_length - 1)
        places = [self._places[layer].positions for layer in range(self._decoder.layers)]
        made = {}
        for at, names in dict.fromkeys(zip(places, tables, strict=True)):
            row = graph.op("Min", at, last)  # padding may stand anywhere
            cos, sin = (graph.axis(graph.op("Gather", each, row), 0) for each in names)
            made[at, names] = cos, sin
        return [made[each] for each in zip(places, tables, strict=True)]

    def __call__(self, layer: int, query: str, key: str, value: str, sinks: str) -> str:
        """As `Attend`."""
        graph, d, at = self._graph, self._decoder, self._places[layer]
        query = graph.op("Gather", self._rotate(layer, query, d.heads), at.queries)
        new = [self._rotate(layer, key, d.row[0]), *([value] if value else [])]
        names = zip(cache_names(d, layer), output_names(d, layer), new, strict=True)
        held = [self._write_and_gather(at, *each) for each in names]
        keys, values = held if value else (held[0], self._leading(held[0]))
        seen = at.seen
        if sinks:
            keys, values, seen = self._with_sinks(at, keys, values, sinks)
        sizes: dict[str, Any] = {"q_num_heads": d.heads, "kv_num_heads": d.row[0], "scale": d.scale}
        if d.score_cap is not None:
            sizes["softcap"] = d.score_cap
        output = graph.op("Attention", query, keys, values, seen, **sizes)
        rows = graph.op("Reshape", output, graph.ints(-1, d.heads * d.output_channels))
        return graph.op("Gather", rows, at.packed)

    def _with_sinks(
        self, at: "PlaceNames", keys: str, values: str, sinks: str
    ) -> tuple[str, str, str]:
        """One key more, of zeros and with a value of zeros, whose score is the sink logit."""
        graph, heads = self._graph, self._decoder.heads
        one_more = [graph.op("Pad", rows, graph.ints(0, 0, 0, 0, 1, 0)) for rows in (keys, values)]
        hidden = graph.constant("hidden", np.array(-np.inf))
        bias = graph.op("Where", at.seen, self._zero, hidden)
        by_head = graph.op("Add", bias, graph.constant("no_bias", np.zeros((1, heads, 1, 1))))
        logits = graph.op("Reshape", sinks, graph.ints(1, heads, 1, 1))
        one, rows, longest = graph.ints(1), graph.axis(at.rows, 0), graph.axis(at.longest, 0)
        logits = graph.op("Expand", logits, graph.op("Concat", rows, one, longest, one, axis=0))
        return one_more[0], one_more[1], graph.op("Concat", by_head, logits, axis=-1)

    def _rotate(self, layer: int, rows: str, heads: int) -> str:
        """Queries or keys with their rotary channels rotated: [tokens, heads * channels]."""
        kind, graph = self._decoder.kind, self._graph
        if not isinstance(kind, Latent):
            return self._rotate_leading(layer, rows, heads)
        split = graph.op("Reshape", rows, graph.ints(0, heads, -1))
        plain, rope = cut(graph, split, kind.rank, kind.rope)
        rope = self._rotate_leading(layer, graph.op("Reshape", rope, graph.ints(0, -1)), heads)
        rope = graph.op("Reshape", rope, graph.ints(0, heads, -1))
        whole = graph.op("Concat", plain, rope, axis=-1)
        return graph.op("Reshape", whole, graph.ints(0, -1))

    def _rotate_leading(self, layer: int, rows: str, heads: int) -> str:
        graph, d, rotary = self._graph, self._decoder, self._decoder.rotaries[layer]
        sizes: dict[str, Any] = {"num_heads": heads, "interleaved": int(d.interleaved)}
        if not isinstance(d.kind, Latent) and rotary.channels < d.row[1]:
            sizes["rotary_embedding_dim"] = rotary.channels
        rotated = graph.op(
            "RotaryEmbedding",
            graph.axis(rows, 0),
            *self._angles[layer],
            **sizes,
        )
        return graph.op("Squeeze", rotated, graph.ints(0))

    def _write_and_gather(self, at: "PlaceNames", cache: str, written: str, new: str) -> str:
        """Puts the step's rows in their slots; each row's pages then, [rows, keys, heads * dim].

        Slots a sequence does not own may hold anything; they are read as zeros.
        """
        graph, (heads, dim) = self._graph, self._decoder.row
        shape = ("pages", "page_size", heads, dim)
        graph.input(cache, *shape)
        graph.output(written, *shape)
        new = graph.op("Gather", new, at.written)
        new = graph.op("Reshape", new, graph.ints(0, heads, dim))
        graph.op("ScatterND", cache, at.slots, new, output=written)
        pages = graph.op("Gather", written, at.table)
        rows = graph.op("Reshape", pages, graph.ints(0, -1, heads, dim))
        rows = graph.op("Where", at.held, rows, self._zero)
        return graph.op("Reshape", rows, graph.ints(0, 0, -1))

    def _leading(self, rows: str) -> str:
        """The channels of latent rows that are the value."""
        kept = self._decoder.output_channels
        return cut(self._graph, rows, kept, self._decoder.row[1] - kept)[0]


class PlaceNames(NamedTuple):
    """Names of tensors; int64 where they are not bool.

    Attributes:
        table: [rows, width], pages.
        positions: [tokens], of each token in its sequence.
        queries: [rows, longest], the token at each padded query; any where there is none.
        packed: [tokens], the padded query of each token, counted through.
        written: [written], tokens whose slot is not -1.
        slots: [written, 2], page and offset of each of them.
        held: bool[rows, keys, 1, 1], whether a row has that key; others may be anything.
        seen: bool[rows, 1, longest, keys], whether a query sees it.
        rows, longest: without axes.
    """

    table: str
    positions: str
    queries: str
    packed: str
    written: str
    slots: str
    held: str
    seen: str
    rows: str
    longest: str


def find_places(
    graph: Graph, names: Mapping[str, str], cache: str, window: int | None
) -> PlaceNames:
    """Writes the nodes of one group.

    Args:
        graph: has the index inputs.
        names: the group's index inputs, by those in `INDICES`.
        cache: one of its caches, for the page size.
        window: keys a query sees, its own included; None: all.
    """
    op, one = graph.op, graph.scalar(1)
    bounds, past = (
        graph.wide(names[name]) for name in ("cumulative_sequence_length", "past_seqlens")
    )
    starts = op("Slice", bounds, graph.ints(0), graph.ints(-1))
    stops = op("Slice", bounds, graph.ints(1), graph.ints(_END))
    counts = op("Sub", stops, starts)
    longest = op("ReduceMax", counts, keepdims=0)
    rows = graph.size(names["past_seqlens"], 0)
    last = op("Slice", bounds, graph.ints(-1), graph.ints(_END))
    mapping = names["slot_mapping"]
    tokens = graph.size(mapping, 0) if mapping else op("Squeeze", last, graph.ints(0))
    row, offset = _rows_of_tokens(graph, starts, stops, tokens, rows)
    packed = op("Add", op("Mul", row, longest), offset)
    most = op("Sub", op("Mul", rows, longest), one)
    ahead = graph.range(longest)
    queries = op("Add", graph.axis(starts, 1), graph.axis(ahead, 0))
    page_size = graph.size(cache, 1)
    keys = graph.range(op("Mul", graph.size(names["block_table"], 1), page_size))
    contexts = graph.axis(op("Add", past, counts), 1)
    at = op("Add", graph.axis(past, 1), graph.axis(ahead, 0))
    positions = op("Add", op("Gather", past, row), offset)
    if mapping:
        written, slots = _slots(graph, mapping, page_size)
    else:
        table = names["block_table"]
        written, slots = graph.range(tokens), _table_slots(graph, table, row, positions, page_size)
    return PlaceNames(
        table=names["block_table"],
        positions=positions,
        queries=op("Min", queries, op("Sub", tokens, one)),
        packed=op("Min", packed, most),
        written=written,
        slots=slots,
        held=graph.axis(op("Less", graph.axis(keys, 0), contexts), 2, 3),
        seen=_seen(graph, graph.axis(at, 1, 3), graph.axis(keys, 0, 1, 2), window),
        rows=rows,
        longest=longest,
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


def _slots(graph: Graph, mapping: str, page_size: str) -> tuple[str, str]:
    """Tokens that are written, and [written, 2] where."""
    slots = graph.wide(mapping)
    wanted = graph.op("GreaterOrEqual", slots, graph.scalar(0))
    written = graph.op("Squeeze", graph.op("NonZero", wanted), graph.ints(0))
    slots = graph.axis(graph.op("Gather", slots, written), 1)
    page, offset = graph.op("Div", slots, page_size), graph.op("Mod", slots, page_size)
    return written, graph.op("Concat", page, offset, axis=1)


def _table_slots(graph: Graph, table: str, row: str, positions: str, page_size: str) -> str:
    """[tokens, 2], the page and offset that a block table has for positions of its rows."""
    column, offset = graph.op("Div", positions, page_size), graph.op("Mod", positions, page_size)
    at = graph.op("Add", graph.op("Mul", row, graph.size(table, 1)), column)
    pages = graph.op("Reshape", graph.wide(table), graph.ints(-1))
    page = graph.axis(graph.op("Gather", pages, at), 1)
    return graph.op("Concat", page, graph.axis(offset, 1), axis=1)


def _seen(graph: Graph, queries: str, keys: str, window: int | None) -> str:
    """Keys not after the query, and within its window, by position."""
    seen = graph.op("LessOrEqual", keys, queries)
    if window is None:
        return seen
    before = graph.op("Sub", queries, graph.scalar(window))
    return graph.op("And", seen, graph.op("Greater", keys, before))
