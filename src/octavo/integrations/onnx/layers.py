"""The parts of a decoder as graph nodes, all but the attention over pages."""

from typing import Protocol

from octavo.errors import uncopied
from octavo.integrations.onnx.decoder import Decoder, Weights
from octavo.integrations.onnx.graph import Graph
from octavo.model.spec import Latent


class Attend(Protocol):
    """Writes one layer's new rows into its cache and attends over its pages."""

    def __call__(self, layer: int, query: str, key: str, value: str) -> str:
        """The output's name, [tokens, heads * channels of a value].

        Args:
            layer: whose cache.
            query: [tokens, heads * channels of a key], not rotated.
            key: [tokens, kv_heads * channels], not rotated; of a latent kind the whole row.
            value: likewise; "" where the row holds it.
        """
        ...


class Layers:
    """Writes a decoder's layers into a graph.

    Args:
        graph: written to.
        decoder: sizes.
        weights: by name, checked.
        attend: how the graph attends.
    """

    __reduce__ = uncopied("it writes one graph")

    def __init__(self, graph: Graph, decoder: Decoder, weights: Weights, attend: Attend) -> None:
        self._graph, self._decoder = graph, decoder
        self._weights, self._attend = weights, attend

    def write(self, input_ids: str, logits: str) -> None:
        """Everything from ``input_ids``, [tokens], to ``logits``, [tokens, vocab]."""
        graph, decoder = self._graph, self._decoder
        embedding = self._constant("model.embed_tokens.weight")
        hidden = graph.op("Gather", embedding, input_ids)
        for layer in range(decoder.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            mixed = self._attention(layer, normed, f"{name}.self_attn")
            hidden = graph.op("Add", hidden, mixed)
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            hidden = graph.op("Add", hidden, self._mlp(normed, f"{name}.mlp"))
        tied = "lm_head.weight" not in self._weights
        head = "model.embed_tokens" if tied else "lm_head"
        self._linear(self._norm(hidden, "model.norm"), head, output=logits)

    def _attention(self, layer: int, hidden: str, name: str) -> str:
        if isinstance(self._decoder.kind, Latent):
            return self._latent(layer, hidden, name, self._decoder.kind)
        query, key, value = (self._linear(hidden, f"{name}.{part}_proj") for part in "qkv")
        return self._linear(self._attend(layer, query, key, value), f"{name}.o_proj")

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
        mixed = self._attend(layer, self._join_heads(query), row, "")
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
        graph = self._graph
        gate = self._linear(hidden, f"{name}.gate_proj")
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate))
        up = self._linear(hidden, f"{name}.up_proj")
        return self._linear(graph.op("Mul", gate, up), f"{name}.down_proj")

    def _linear(self, rows: str, name: str, output: str | None = None) -> str:
        weight = self._constant(f"{name}.weight")
        return self._graph.op("Gemm", rows, weight, transB=1, output=output)

    def _norm(self, rows: str, name: str) -> str:
        weight = self._constant(f"{name}.weight")
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
