"""`export_decoder` and `export_attention`: a decoder, or one attention, as an ONNX model."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import onnx

from octavo.errors import PlanError
from octavo.integrations.onnx.caches import INDICES
from octavo.integrations.onnx.decoder import Decoder, Weights
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.layers import Attend, Layers
from octavo.integrations.onnx.paged import PagedNodes
from octavo.integrations.onnx.standard import StandardNodes
from octavo.model.spec import Latent

Operators = Literal["paged", "standard"]
_NODES: dict[str, Callable[[Graph, Decoder], Attend]] = {
    "paged": PagedNodes,
    "standard": StandardNodes,
}


def export_decoder(
    decoder: Decoder, weights: Weights, *, dtype: str = "fp16", operators: Operators = "paged"
) -> onnx.ModelProto:
    """One step of a decoder over paged caches.

    Inputs: ``input_ids`` int32[tokens]; ``block_table`` int32[rows, width], ``slot_mapping``
    int32[tokens], ``cumulative_sequence_length`` int32[rows + 1], ``past_seqlens`` int32[rows] and
    ``attention_metadata`` int32[3] as `octavo.index.onnxruntime` emits them; and of each layer n
    ``key_cache.n`` and ``value_cache.n`` [pages, page_size, kv_heads, channels], or
    ``latent_cache.n`` [pages, page_size, 1, rank + rope]. Outputs: ``logits`` [tokens, vocab], and
    of each cache an output (``key_cache_out.n``) that is the input with the step's tokens written:
    give both the same memory. Where layers have a window, ``local_window_size`` of the nodes or
    ``metadata_props["octavo.window"]`` says so, for a session to compare with its plan.

    Args:
        decoder: sizes.
        weights: by name, as `Decoder.shapes` lists them.
        dtype: fp32, fp16 or bf16, of weights, caches and logits. ONNX Runtime's PagedAttention
            takes fp16 and bf16; onnx's reference evaluator all.
        operators: ``paged``: com.microsoft::PagedAttention nodes. ``standard``: ONNX's own, which
            ONNX Runtime's CPU provider has kernels for in fp32 and fp16.

    Raises:
        PlanError: weights that are not the decoder's, no such ``dtype`` or ``operators``.
        ValueError: weights of 2 GiB or more, which no protobuf holds.

    Cost: O(bytes of weights).
    """
    decoder.check_weights(weights)
    graph = Graph(dtype)
    input_ids = graph.index("input_ids", "tokens")
    logits = graph.output("logits", "tokens", decoder.vocab)
    layers = Layers(graph, decoder, weights, _attend(graph, decoder, operators))
    layers.write(input_ids, logits)
    return graph.model("decoder")


def export_attention(
    decoder: Decoder, *, dtype: str = "fp16", operators: Operators = "paged"
) -> onnx.ModelProto:
    """The attention of one layer alone, for a graph or a test of one's own: no weights.

    Inputs: ``query`` [tokens, heads * channels], ``key`` and ``value`` [tokens, kv_heads *
    channels], not rotated (of a latent kind ``key`` is the row [latent | rope] and there is no
    ``value``); index inputs and caches as of `export_decoder`, of layer 0. Outputs: ``output``
    [tokens, heads * channels of a value] and the caches.

    Args:
        decoder: sizes; others than those of the attention do not matter.
        dtype: fp32, fp16 or bf16.
        operators: ``paged`` or ``standard``.

    Raises:
        PlanError: no such ``dtype`` or ``operators``.

    Cost: O(positions of the rotary tables).
    """
    graph, (kv_heads, channels) = Graph(dtype), decoder.row
    output = graph.output("output", "tokens", decoder.heads * decoder.output_channels)
    attend = _attend(graph, replace(decoder, layers=1), operators)
    query = graph.input("query", "tokens", decoder.heads * channels)
    key = graph.input("key", "tokens", kv_heads * channels)
    latent = isinstance(decoder.kind, Latent)
    value = "" if latent else graph.input("value", "tokens", kv_heads * channels)
    graph.op("Identity", attend(0, query, key, value), output=output)
    return graph.model("attention")


def _attend(graph: Graph, decoder: Decoder, operators: str) -> Attend:
    if operators not in _NODES:
        raise PlanError("operators", operators, f"it must be one of {', '.join(_NODES)}")
    for name, shape in INDICES.items():
        graph.index(name, *shape)
    return _NODES[operators](graph, decoder)
