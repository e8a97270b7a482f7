"""Attention with ONNX's own operators: ScatterND writes, Gather reads pages, Attention attends.

The graph has the inputs and outputs of the one with PagedAttention nodes; what the kernel there
works out by itself is worked out here once for all layers. Queries are padded to the longest row.
"""

from typing import Any

from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import cut
from octavo.integrations.onnx.names import Indices, cache_names, output_names
from octavo.spec import Attention, Latent


class StandardNodes:
    """Attends with standard operators of opset 24.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
        indices: names of the index inputs.
    """

    def __init__(self, graph: Graph, decoder: Decoder, indices: Indices) -> None:
        self._graph, self._decoder = graph, decoder
        self._table = indices.block_table
        tables = zip(("cos_cache", "sin_cache"), decoder.rotary_tables(), strict=True)
        self._tables = [graph.constant(name, values) for name, values in tables]
        self._zero = graph.constant("zero", decoder.rotary_tables()[0][:1, :1] * 0)
        self._declare_caches()
        self._locate(indices)
        self._see(indices)

    def __call__(self, layer: int, query: str, key: str, value: str) -> str:
        """As `Attend`."""
        d = self._decoder
        query = self._op("Gather", self._rotate(query, d.heads), self._queries)
        new = [self._rotate(key, d.row[0]), *([value] if value else [])]
        names = zip(cache_names(d, layer), output_names(d, layer), new, strict=True)
        held = [self._write_and_gather(*each) for each in names]
        keys, values = held if value else (held[0], self._leading(held[0]))
        output = self._op(
            "Attention",
            query,
            keys,
            values,
            self._mask,
            q_num_heads=d.heads,
            kv_num_heads=d.row[0],
            scale=d.scale,
        )
        rows = self._op("Reshape", output, self._graph.ints(-1, d.heads * d.output_channels))
        return self._op("Gather", rows, self._packed)

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self._graph.op(kind, *inputs, **attributes)

    def _declare_caches(self) -> None:
        shape = ("pages", "page_size", *self._decoder.row)
        for layer in range(self._decoder.layers):
            for name in cache_names(self._decoder, layer):
                self._graph.input(name, *shape)
            for name in output_names(self._decoder, layer):
                self._graph.output(name, *shape)

    def _size(self, name: str, axis: int) -> str:
        """Length of an axis, a scalar."""
        size = self._op("Shape", name, start=axis, end=axis + 1)
        return self._op("Squeeze", size, self._graph.ints(0))

    def _range(self, stop: str) -> str:
        return self._op("Range", self._graph.scalar(0), stop, self._graph.scalar(1))

    def _axis(self, name: str, *axes: int) -> str:
        return self._op("Unsqueeze", name, self._graph.ints(*axes))

    def _locate(self, at: Indices) -> None:
        """Where tokens lie: in rows, in padded queries, in their sequences and in pages."""
        graph, one = self._graph, self._graph.scalar(1)
        bounds, self._past = graph.wide(at.cumulative_sequence_length), graph.wide(at.past_seqlens)
        starts = self._op("Slice", bounds, graph.ints(0), graph.ints(-1))
        stops = self._op("Slice", bounds, graph.ints(1), graph.ints(2**31 - 1))
        self._counts = self._op("Sub", stops, starts)
        longest = self._op("ReduceMax", self._counts, keepdims=0)
        tokens, rows = self._size(at.slot_mapping, 0), self._size(at.past_seqlens, 0)
        token = self._range(tokens)
        before = self._op("LessOrEqual", self._axis(stops, 0), self._axis(token, 1))
        row = self._op("ReduceSum", self._op("Cast", before, to=7), graph.ints(1), keepdims=0)
        row = self._op("Min", row, self._op("Sub", rows, one))  # tokens of padding: the last row
        offset = self._op("Sub", token, self._op("Gather", starts, row))
        self._positions = self._op("Add", self._op("Gather", self._past, row), offset)
        self._ahead = self._range(longest)
        queries = self._op("Add", self._axis(starts, 1), self._axis(self._ahead, 0))
        self._queries = self._op("Min", queries, self._op("Sub", tokens, one))
        packed = self._op("Add", self._op("Mul", row, longest), offset)
        last = self._op("Sub", self._op("Mul", rows, longest), one)
        self._packed = self._op("Min", packed, last)
        self._find_slots(at)

    def _find_slots(self, at: Indices) -> None:
        """[written, 2]: page and offset of each token that is written, and which these are."""
        slots = self._graph.wide(at.slot_mapping)
        written = self._op("GreaterOrEqual", slots, self._graph.scalar(0))
        self._written = self._op("Squeeze", self._op("NonZero", written), self._graph.ints(0))
        slots = self._axis(self._op("Gather", slots, self._written), 1)
        self._page_size = self._size(cache_names(self._decoder, 0)[0], 1)
        page = self._op("Div", slots, self._page_size)
        offset = self._op("Mod", slots, self._page_size)
        self._slots = self._op("Concat", page, offset, axis=1)

    def _see(self, at: Indices) -> None:
        """bool[rows, 1, queries, keys]: which keys each query sees; and which a row has at all."""
        keys = self._range(self._op("Mul", self._size(at.block_table, 1), self._page_size))
        contexts = self._axis(self._op("Add", self._past, self._counts), 1)
        held = self._op("Less", self._axis(keys, 0), contexts)
        self._held = self._axis(held, 2, 3)
        queries = self._op("Add", self._axis(self._past, 1), self._axis(self._ahead, 0))
        queries, keys = self._axis(queries, 1, 3), self._axis(keys, 0, 1, 2)
        self._mask = self._op("LessOrEqual", keys, queries)
        kind = self._decoder.kind
        if isinstance(kind, Attention) and kind.window is not None:
            oldest = self._op("Sub", queries, self._graph.scalar(kind.window))
            near = self._op("Greater", keys, oldest)
            self._mask = self._op("And", self._mask, near)

    def _rotate(self, rows: str, heads: int) -> str:
        """Queries or keys with their rotary channels rotated: [tokens, heads * channels]."""
        kind, graph = self._decoder.kind, self._graph
        if not isinstance(kind, Latent):
            return self._rotate_whole(rows, heads)
        split = self._op("Reshape", rows, graph.ints(0, heads, -1))
        plain, rope = cut(graph, split, kind.rank, kind.rope)
        rope = self._rotate_whole(self._op("Reshape", rope, graph.ints(0, -1)), heads)
        rope = self._op("Reshape", rope, graph.ints(0, heads, -1))
        whole = self._op("Concat", plain, rope, axis=-1)
        return self._op("Reshape", whole, graph.ints(0, -1))

    def _rotate_whole(self, rows: str, heads: int) -> str:
        rotated = self._op(
            "RotaryEmbedding",
            self._axis(rows, 0),
            *self._tables,
            self._axis(self._positions, 0),
            num_heads=heads,
            interleaved=int(self._decoder.interleaved),
        )
        return self._op("Squeeze", rotated, self._graph.ints(0))

    def _write_and_gather(self, cache: str, written: str, new: str) -> str:
        """Puts the step's rows in their slots; each row's pages then, [rows, keys, heads * dim].

        Slots a sequence does not own may hold anything; they are read as zeros.
        """
        heads, dim = self._decoder.row
        graph = self._graph
        new = self._op("Gather", new, self._written)
        new = self._op("Reshape", new, graph.ints(0, heads, dim))
        self._op("ScatterND", cache, self._slots, new, output=written)
        pages = self._op("Gather", written, self._table)
        rows = self._op("Reshape", pages, graph.ints(0, -1, heads, dim))
        rows = self._op("Where", self._held, rows, self._zero)
        return self._op("Reshape", rows, graph.ints(0, 0, -1))

    def _leading(self, rows: str) -> str:
        """The channels of latent rows that are the value."""
        kept = self._decoder.output_channels
        return cut(self._graph, rows, kept, self._decoder.row[1] - kept)[0]
