"""Attention as a com.microsoft::PagedAttention node, which writes the caches in place.

Source of its inputs and attributes: ONNX Runtime 1.32, docs/ContribOperators.md.
"""

from typing import Any

from octavo.errors import uncopied
from octavo.integrations.onnx.caches import cache_names, output_names
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.model.spec import Attention, Latent


class PagedNodes:
    """Attends by one PagedAttention node a layer, which also rotates queries and keys.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder) -> None:
        self._graph, self._decoder = graph, decoder
        tables = zip(("cos_cache", "sin_cache"), decoder.rotary_tables(), strict=True)
        self._tables = [graph.constant(name, values) for name, values in tables]

    def __call__(self, layer: int, query: str, key: str, value: str) -> str:
        """As `Attend`."""
        graph = self._graph
        caches, written = cache_names(self._decoder, layer), output_names(self._decoder, layer)
        output = f"attention.{layer}"
        inputs = [query, key, value, *(*caches, "")[:2]]
        inputs += ["cumulative_sequence_length", "past_seqlens", "block_table", *self._tables]
        inputs += ["slot_mapping", *[""] * 5, "attention_metadata"]
        shape = ("pages", "page_size", *self._decoder.row)
        for cache, result in zip(caches, written, strict=True):
            graph.input(cache, *shape)
            graph.output(result, *shape)
        attributes = self._attributes()
        graph.node(
            "PagedAttention", inputs, [output, *written], domain="com.microsoft", **attributes
        )
        return output

    def _attributes(self) -> dict[str, Any]:
        d = self._decoder
        found = {
            "num_heads": d.heads,
            "kv_num_heads": d.row[0],
            "scale": d.scale,
            "do_rotary": 1,
            "rotary_interleaved": int(d.interleaved),
        }
        return found | (_latent(d.kind) if isinstance(d.kind, Latent) else _separate(d.kind))


def _separate(kind: Attention) -> dict[str, Any]:
    return {} if kind.window is None else {"local_window_size": kind.window}


def _latent(kind: Latent) -> dict[str, Any]:
    return {"kv_cache_layout": "LATENT", "v_head_size": kind.rank, "rotary_offset": kind.rank}
