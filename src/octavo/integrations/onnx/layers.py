"""The parts of a decoder as graph nodes, all but the attention over pages."""

from typing import Protocol

import numpy as np

from octavo.errors import uncopied
from octavo.integrations.onnx.activations import ACTIVATIONS
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.graph import Graph
from octavo.integrations.onnx.weights import HEAD, Weights
from octavo.model.spec import Latent


class Attend(Protocol):
    """Writes one layer's new rows into its cache and attends over its pages."""

    def __call__(self, layer: int, query: str, key: str, value: str, sinks: str) -> str:
        """The output's name, [tokens, heads * channels of a value].

        Args:
            layer: whose cache.
            query: [tokens, heads * channels of a key], not rotated.
            key: [tokens, kv_heads * channels], not rotated; of a latent kind the whole row.
            value: likewise; "" where the row holds it.
            sinks: [heads], logits that are in each denominator and no more; "" for none.
        """
        ...


class Layers:
    """Writes a decoder's layers into a graph.

    Args:
        graph: written to.
        decoder: sizes.
        weights: by name, as `Decoder.plain_weights` gives them.
        attend: how the graph attends.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder, weights: Weights, attend: Attend) -> None:
        self._graph, self._decoder = graph, decoder
        self._weights, self._attend = weights, attend

    def write(self, input_ids: str, logits: str) -> None:
        """Everything from ``input_ids``, [tokens], to ``logits``, [tokens, vocab]."""
        graph, decoder = self._graph, self._decoder
        hidden = graph.op("Gather", self._constant("model.embed_tokens.weight"), input_ids)
        hidden = self._times(hidden, decoder.embedding_scale)
        for layer in range(decoder.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            mixed = self._attention(layer, normed, f"{name}.self_attn")
            hidden = self._add(hidden, mixed, f"{name}.post_attention_layernorm")
            before = "pre_feedforward" if decoder.post_norms else "post_attention"
            normed = self._norm(hidden, f"{name}.{before}_layernorm")
            inner = self._mlp(normed, f"{name}.mlp")
            hidden = self._add(hidden, inner, f"{name}.post_feedforward_layernorm")
        self._logits(self._norm(hidden, "model.norm"), logits)

    def _add(self, hidden: str, part: str, norm: str) -> str:
        """The residual and what a part of a layer adds to it."""
        if self._decoder.post_norms:
            part = self._norm(part, norm)
        return self._graph.op("Add", hidden, self._times(part, self._decoder.residual_scale))

    def _logits(self, hidden: str, logits: str) -> None:
        decoder = self._decoder
        head = HEAD.removesuffix(".weight") if HEAD in self._weights else "model.embed_tokens"
        if decoder.logit_scale == 1 and decoder.logit_cap is None:
            self._linear(hidden, head, output=logits)
            return
        found = self._times(self._linear(hidden, head), decoder.logit_scale)
        if decoder.logit_cap is not None:
            part = self._graph.op("Tanh", self._times(found, 1 / decoder.logit_cap))
            found = self._times(part, decoder.logit_cap)
        self._graph.op("Identity", found, output=logits)

    def _times(self, rows: str, factor: float) -> str:
        return rows if factor == 1 else self._graph.op("Mul", rows, self._graph.number(factor))

    def _attention(self, layer: int, hidden: str, name: str) -> str:
        if isinstance(self._decoder.kind, Latent):
            return self._latent(layer, hidden, name, self._decoder.kind)
        query, key, value = (self._linear(hidden, f"{name}.{part}_proj") for part in "qkv")
        if self._decoder.qk_norm:
            query = self._norm_heads(query, self._decoder.heads, f"{name}.q_norm")
            key = self._norm_heads(key, self._decoder.row[0], f"{name}.k_norm")
        sinks = self._constant(f"{name}.sinks") if self._decoder.sink_logits else ""
        return self._linear(self._attend(layer, query, key, value, sinks), f"{name}.o_proj")

    def _norm_heads(self, rows: str, heads: int, name: str) -> str:
        """Each head of [tokens, heads * channels] through the norm ``name``."""
        split = self._graph.op("Reshape", rows, self._graph.ints(0, heads, -1))
        return self._join_heads(self._norm(split, name))

    def _latent(self, layer: int, hidden: str, name: str, kind: Latent) -> str:
        """Multi-head latent attention, absorbed: queries go to the latent, not keys to the heads.

        Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
        """
        graph, d = self._graph, self._decoder
        to_key, to_value = self._absorbed(name, kind)
        query = self._split_heads(self._linear(hidden, f"{name}.q_proj"))
        plain, rotated = self._cut(query, d.nope_dim, kind.rope)
        query = graph.op("Concat", self._by_head(plain, to_key), rotated, axis=-1)
        row = self._linear(hidden, f"{name}.kv_a_proj_with_mqa")
        latent, rope = self._cut(row, kind.rank, kind.rope)
        row = graph.op("Concat", self._norm(latent, f"{name}.kv_a_layernorm"), rope, axis=-1)
        mixed = self._attend(layer, self._join_heads(query), row, "", "")
        values = self._by_head(self._split_heads(mixed), to_value)
        return self._linear(self._join_heads(values), f"{name}.o_proj")

    def _absorbed(self, name: str, kind: Latent) -> tuple[str, str]:
        """kv_b_proj as [heads, nope, rank] for queries and [heads, rank, v_dim] for outputs."""
        d = self._decoder
        both = self._weights[f"{name}.kv_b_proj.weight"].reshape(d.heads, -1, kind.rank)
        keys, values = both[:, : d.nope_dim], both[:, d.nope_dim :].swapaxes(1, 2)
        return (
            self._graph.constant(f"{name}.absorbed_key", keys),
            self._graph.constant(f"{name}.absorbed_value", values),
        )

    def _by_head(self, rows: str, weight: str) -> str:
        """[tokens, heads, a] times [heads, a, b]: [tokens, heads, b]."""
        by_head = self._graph.op("Transpose", rows, perm=[1, 0, 2])
        product = self._graph.op("MatMul", by_head, weight)
        return self._graph.op("Transpose", product, perm=[1, 0, 2])

    def _split_heads(self, rows: str) -> str:
        return self._graph.op("Reshape", rows, self._graph.ints(0, self._decoder.heads, -1))

    def _join_heads(self, rows: str) -> str:
        return self._graph.op("Reshape", rows, self._graph.ints(0, -1))

    def _cut(self, rows: str, first: int, second: int) -> tuple[str, str]:
        return cut(self._graph, rows, first, second)

    def _mlp(self, hidden: str, name: str) -> str:
        graph, activation = self._graph, ACTIVATIONS[self._decoder.activation]
        gate = activation(graph, self._linear(hidden, f"{name}.gate_proj"))
        up = self._linear(hidden, f"{name}.up_proj")
        return self._linear(graph.op("Mul", gate, up), f"{name}.down_proj")

    def _linear(self, rows: str, name: str, output: str | None = None) -> str:
        inputs = [rows, self._constant(f"{name}.weight")]
        if f"{name}.bias" in self._weights:
            inputs.append(self._constant(f"{name}.bias"))
        return self._graph.op("Gemm", *inputs, transB=1, output=output)

    def _norm(self, rows: str, name: str) -> str:
        name, offset = f"{name}.weight", self._decoder.norm_offset
        values = self._weights[name]
        if offset:  # added in fp32, as transformers does, before it is rounded
            values = values.astype(np.promote_types(values.dtype, np.float32)) + offset
        weight = self._graph.constant(name, values)
        return self._graph.op(
            "RMSNormalization", rows, weight, axis=-1, epsilon=self._decoder.epsilon
        )

    def _constant(self, name: str) -> str:
        return self._graph.constant(name, self._weights[name])


def cut(graph: Graph, rows: str, first: int, second: int) -> tuple[str, str]:
    """The last axis in two parts of ``first`` and ``second`` channels."""
    parts = (f"{rows}.first", f"{rows}.second")
    graph.node("Split", [rows, graph.ints(first, second)], parts, axis=-1)
    return parts


def rotary_tables(graph: Graph, decoder: Decoder) -> list[tuple[str, str]]:
    """By layer: names of its cosines and sines, [max_length, rotated channels / 2] each.

    The first are ``cos_cache`` and ``sin_cache``; layers that turn alike have the same. O(layers +
    their size).
    """
    rotaries = list(dict.fromkeys(decoder.rotaries))
    made = []
    for number, rotary in enumerate(rotaries):
        names = [f"{name}_cache" + (f".{number}" if number else "") for name in ("cos", "sin")]
        cos, sin = map(graph.constant, names, rotary.tables(decoder.max_length))
        made.append((cos, sin))
    return [made[rotaries.index(rotary)] for rotary in decoder.rotaries]
