"""Attention with ONNX's own operators: ScatterND writes, Gather reads pages, Attention attends.

The graph has the inputs and outputs of the one with PagedAttention nodes.
"""

from typing import Any

import numpy as np

from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import cut
from octavo.integrations.onnx.names import cache_names, output_names
from octavo.integrations.onnx.places import find_places
from octavo.integrations.onnx.windows import WINDOW_KEY
from octavo.model.spec import Attention, Latent


class StandardNodes:
    """Attends with standard operators of opset 24.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
    """

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
