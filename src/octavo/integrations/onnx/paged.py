"""Attention as a com.microsoft::PagedAttention node, which writes the caches in place.

Source of its inputs and attributes: ONNX Runtime 1.32, docs/ContribOperators.md.
"""

from typing import Any

from octavo.errors import PlanError, uncopied
from octavo.integrations.onnx.caches import IndexNames, by_layer, cache_names, output_names
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import rotary_tables
from octavo.model.spec import Attention, Latent


class PagedNodes:
    """Attends by one PagedAttention node per layer, which also rotates queries and keys.

    Args:
        graph: written to; the caches become inputs and outputs of it.
        decoder: sizes.
        names: of its index inputs.

    Raises:
        PlanError: so many rotated channels that the operator has no kernel for it.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder, names: IndexNames) -> None:
        self._graph, self._decoder = graph, decoder
        for rotary in decoder.rotaries:
            if rotary.channels % 16:
                right = "PagedAttention rotates halves that are multiples of 8: a multiple of 16"
                raise PlanError("rotary", rotary.channels, right)
        self._tables = rotary_tables(graph, decoder)
        self._indices = by_layer(decoder, names)

    def __call__(self, layer: int, query: str, key: str, value: str, sinks: str) -> str:
        """As `Attend`."""
        graph, at = self._graph, self._indices[layer]
        caches, written = cache_names(self._decoder, layer), output_names(self._decoder, layer)
        output = f"attention.{layer}"
        inputs = [query, key, value, *(*caches, "")[:2]]
        inputs += [at["cumulative_sequence_length"], at["past_seqlens"], at["block_table"]]
        inputs += [*self._tables[layer], at["slot_mapping"], sinks, *[""] * 4]
        inputs += [at["attention_metadata"]]
        shape = ("pages", "page_size", *self._decoder.row)
        for cache, result in zip(caches, written, strict=True):
            graph.input(cache, *shape)
            graph.output(result, *shape)
        attributes = self._attributes(layer)
        graph.node(
            "PagedAttention", inputs, [output, *written], domain="com.microsoft", **attributes
        )
        return output

    def _attributes(self, layer: int) -> dict[str, Any]:
        d, kind = self._decoder, self._decoder.kinds[layer]
        found = {
            "num_heads": d.heads,
            "kv_num_heads": d.row[0],
            "scale": d.scale,
            "do_rotary": 1,
            "rotary_interleaved": int(d.interleaved),
        }
        if d.score_cap is not None:
            found["softcap"] = d.score_cap
        return found | (_latent(kind) if isinstance(kind, Latent) else _separate(kind))


def _separate(kind: Attention) -> dict[str, Any]:
    return {} if kind.window is None else {"local_window_size": kind.window}


def _latent(kind: Latent) -> dict[str, Any]:
    return {"kv_cache_layout": "LATENT", "v_head_size": kind.rank, "rotary_offset": kind.rank}
