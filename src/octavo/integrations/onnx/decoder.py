"""The decoder that is exported: its sizes, what its layers keep, and its weights by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.checks import check_int, check_positive
from octavo.errors import LengthError, PlanError, UnsupportedModel
from octavo.index import LatentGeometry
from octavo.model.spec import Attention, Latent, ModelSpec, Shape

Floats = NDArray[np.floating[Any]]
Weights = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a Llama-style decoder: RMS norm, rotary attention, SwiGLU, logits.

    Attributes:
        vocab: token ids.
        hidden: channels between layers.
        layers: how many.
        heads: query heads.
        mlp: channels inside the feed-forward part.
        kind: what a layer keeps: `Attention` with equal ``k_dim`` and ``v_dim``, perhaps with a
            window, or `Latent` (multi-head latent attention as DeepSeek's, absorbed).
        max_length: positions the rotary tables cover.
        nope_dim: of a latent kind, channels of a query head that are not rotated.
        v_dim: of a latent kind, channels of a value head.
        theta: base of the rotary frequencies.
        interleaved: whether neighbours are rotated together (DeepSeek), not halves (Llama).
        epsilon: of the RMS norms.

    Raises:
        LengthError: a size out of range; query heads that key/value heads do not divide; a latent
            row the operator cannot take.
        PlanError: as `LatentGeometry.validate`; keys and values of unequal size; ``theta`` or
            ``epsilon`` that is no finite number above 0.
        UnsupportedModel: chunks, sinks or an indexer, which the operator has not.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    kind: Attention | Latent
    max_length: int
    nope_dim: int = 0
    v_dim: int = 0
    theta: float = 10000.0
    interleaved: bool = False
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab", "hidden", "layers", "heads", "mlp", "max_length"):
            check_int(name, getattr(self, name), 1)
        for name in ("theta", "epsilon"):
            check_positive(name, getattr(self, name))
        if isinstance(self.kind, Latent):
            self._check_latent(self.kind)
        elif isinstance(self.kind, Attention):
            self._check_attention(self.kind)
        else:
            raise PlanError("kind", self.kind, "it must be an Attention or a Latent")

    def _check_attention(self, kind: Attention) -> None:
        if kind.chunk is not None or kind.sink_tokens or kind.sink_logits:
            raise UnsupportedModel(repr(kind), "exported layers have no chunks and no sinks")
        if kind.k_dim != kind.v_dim:
            raise PlanError("v_dim", kind.v_dim, f"the operator needs that of keys, {kind.k_dim}")
        if kind.k_dim % 16:
            right = "the operator rotates halves that are multiples of 8: a multiple of 16"
            raise PlanError("k_dim", kind.k_dim, right)
        if self.heads % kind.kv_heads:
            why = f"a multiple of the {kind.kv_heads} key/value heads"
            raise LengthError("heads", self.heads, kind.kv_heads, None, why)

    def _check_latent(self, kind: Latent) -> None:
        if kind.indexer:
            raise UnsupportedModel(repr(kind), "exported layers have no indexer")
        check_int("nope_dim", self.nope_dim, 1, None, "a latent kind needs it")
        check_int("v_dim", self.v_dim, 1, None, "a latent kind needs it")
        check_int("rope", kind.rope, 16, None, "it alone says positions")
        LatentGeometry(kind.rank + kind.rope, kind.rope, kind.rank, kind.rank, 16).validate()

    @property
    def spec(self) -> ModelSpec:
        """What `octavo.plan` plans for."""
        return ModelSpec("decoder", (self.kind,) * self.layers, self.max_length)

    @property
    def row(self) -> tuple[int, int]:
        """(heads, channels) of what the operator caches of a token."""
        if isinstance(self.kind, Latent):
            return 1, self.kind.rank + self.kind.rope
        return self.kind.kv_heads, self.kind.k_dim

    @property
    def output_channels(self) -> int:
        """Channels of a head that the operator puts out."""
        return self.kind.rank if isinstance(self.kind, Latent) else self.kind.v_dim

    @property
    def scale(self) -> float:
        """Factor of the scores: 1 / sqrt(channels of a query head before absorption)."""
        width = self.nope_dim + self.kind.rope if isinstance(self.kind, Latent) else self.kind.k_dim
        return float(width**-0.5)

    def rotary_tables(self) -> tuple[Floats, Floats]:
        """Cosines and sines, [max_length, rotated channels / 2] each. O(their size)."""
        width = self.kind.rope if isinstance(self.kind, Latent) else self.kind.k_dim
        frequencies = self.theta ** -(np.arange(0, width, 2) / width)
        angles = np.arange(self.max_length)[:, None] * frequencies
        return np.cos(angles), np.sin(angles)

    def shapes(self) -> dict[str, Shape]:
        """Shape of every weight by its name in a Hugging Face state dict. O(layers).

        Linear maps are [out, in]. ``lm_head.weight`` may be left out: the embedding then serves.
        """
        found: dict[str, Shape] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            for name, shape in self._layer_shapes():
                found[f"model.layers.{layer}.{name}.weight"] = shape
        found["model.norm.weight"] = (self.hidden,)
        found["lm_head.weight"] = (self.vocab, self.hidden)
        return found

    def _layer_shapes(self) -> Iterator[tuple[str, Shape]]:
        yield "input_layernorm", (self.hidden,)
        for name, shape in self._attention_shapes():
            yield f"self_attn.{name}", shape
        yield "post_attention_layernorm", (self.hidden,)
        yield "mlp.gate_proj", (self.mlp, self.hidden)
        yield "mlp.up_proj", (self.mlp, self.hidden)
        yield "mlp.down_proj", (self.hidden, self.mlp)

    def _attention_shapes(self) -> Iterator[tuple[str, Shape]]:
        kind, heads = self.kind, self.heads
        if isinstance(kind, Latent):
            yield "q_proj", (heads * (self.nope_dim + kind.rope), self.hidden)
            yield "kv_a_proj_with_mqa", (kind.rank + kind.rope, self.hidden)
            yield "kv_a_layernorm", (kind.rank,)
            yield "kv_b_proj", (heads * (self.nope_dim + self.v_dim), kind.rank)
            yield "o_proj", (self.hidden, heads * self.v_dim)
        else:
            yield "q_proj", (heads * kind.k_dim, self.hidden)
            yield "k_proj", (kind.kv_heads * kind.k_dim, self.hidden)
            yield "v_proj", (kind.kv_heads * kind.k_dim, self.hidden)
            yield "o_proj", (self.hidden, heads * kind.k_dim)

    def random_weights(self, seed: int = 0) -> dict[str, Floats]:
        """Weights drawn at random, for trying things out: float32. O(their size)."""
        rng = np.random.default_rng(seed)
        return {
            name: (
                rng.normal(1, 0.1, shape)
                if len(shape) == 1
                else rng.normal(0, shape[1] ** -0.5, shape)
            ).astype(np.float32)
            for name, shape in self.shapes().items()
        }

    def check_weights(self, weights: Weights) -> None:
        """Whether they are this decoder's. O(weights).

        Raises:
            PlanError: one is missing, unknown, of another shape, or no array of floats.
        """
        shapes = self.shapes()
        for name in weights:
            if name not in shapes:
                raise PlanError("weights", name, "this decoder has no weight of that name")
        for name, shape in shapes.items():
            if name in weights:
                _check_weight(name, weights[name], shape)
            elif name != "lm_head.weight":
                raise PlanError("weights", list(weights), f"{name} of shape {shape} is missing")


def _check_weight(name: str, values: object, shape: Shape) -> None:
    found = getattr(values, "shape", None)
    if found != shape:
        raise PlanError(name, found, f"its shape must be {shape}")
    if not isinstance(values, np.ndarray) or not np.can_cast(values.dtype, np.float64):
        raise PlanError(name, str(getattr(values, "dtype", None)), "it must be an array of floats")
