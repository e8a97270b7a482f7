"""The decoder that is exported: its sizes, what its layers keep, and its weights by name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import cast

from octavo.checks import check_choice, check_int, check_number, check_positive
from octavo.errors import LengthError, PlanError, UnsupportedModel
from octavo.index import LatentGeometry
from octavo.integrations.onnx.activations import ACTIVATIONS
from octavo.integrations.onnx.config import read_decoder
from octavo.integrations.onnx.rotary import Rotary
from octavo.integrations.onnx.weights import (
    EMBEDDING,
    FUSED,
    HEAD,
    Floats,
    Weights,
    check_weights,
    random_weights,
    split_fused,
)
from octavo.model.lifetimes import group_name
from octavo.model.spec import Attention, Latent, ModelSpec, Shape

_MAPS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_SIZES = ("vocab", "hidden", "layers", "heads", "mlp", "max_length")
_SCALES = ("theta", "epsilon", "embedding_scale", "residual_scale", "logit_scale")


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a Llama-style decoder: RMS norm, rotary attention, a gated feed-forward, logits.

    By hand, or `from_config`.

    Attributes:
        vocab: token ids.
        hidden: channels between layers.
        layers: how many.
        heads: query heads.
        mlp: channels inside the feed-forward part.
        kind: what a layer keeps: `Attention` with equal ``k_dim`` and ``v_dim``, perhaps with a
            window or sink logits, or `Latent` (multi-head latent attention as DeepSeek's,
            absorbed); a tuple, one per layer, of `Attention` that differ in their window alone.
        max_length: positions the rotary tables cover.
        nope_dim: of a latent kind, channels of a query head that are not rotated.
        v_dim: of a latent kind, channels of a value head.
        theta: base of the rotary frequencies where ``rotary`` is None.
        interleaved: whether neighbours are rotated together (DeepSeek), not halves (Llama).
        epsilon: of the RMS norms.
        rotary: how positions turn heads: one for all layers, or a tuple, one per layer; None: all
            channels, by ``theta``.
        activation: of the feed-forward part, as ``hidden_act`` of a config names it.
        biases: linear maps that have one: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj,
            down_proj.
        qk_norm: whether each query and key head goes through an RMS norm before it is rotated.
        post_norms: whether attention and feed-forward end in a norm of their own (Gemma 2).
        norm_offset: what is added to the weights of the norms: 1 for Gemma.
        score_scale: factor of the scores; None: 1 / sqrt(channels of a query head).
        score_cap: c of c * tanh(score / c), before softmax; None: none.
        logit_cap: the same of the logits.
        embedding_scale, residual_scale, logit_scale: factors of the embedding, of what a layer's
            parts add, and of the logits before their cap.
        tied: whether the embedding gives the logits; None: where ``lm_head.weight`` is left out.
        fused: whether q, k and v are one map by name, ``qkv_proj``, and gate and up another
            (Phi-3).

    Raises:
        LengthError: a size out of range; query heads that key/value heads do not divide; a latent
            row the operator cannot take.
        PlanError: as `LatentGeometry.validate`; keys and values of unequal size; a number that is
            not finite, or not above 0; no such activation or map; layers that do not go together.
        UnsupportedModel: chunks, sink tokens or an indexer, which the operator has not; biases,
            norms of queries and keys, or fused maps of a latent kind.
    """

    vocab: int
    hidden: int
    layers: int
    heads: int
    mlp: int
    kind: Attention | Latent | tuple[Attention, ...]
    max_length: int
    nope_dim: int = 0
    v_dim: int = 0
    theta: float = 10000.0
    interleaved: bool = False
    epsilon: float = 1e-5
    rotary: Rotary | tuple[Rotary, ...] | None = None
    activation: str = "silu"
    biases: tuple[str, ...] = ()
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    tied: bool | None = None
    fused: bool = False

    @classmethod
    def from_config(cls, config: object) -> "Decoder":
        """The decoder of a model in transformers, every field of its config mapped or refused.

        Args:
            config: a config object of transformers, a model of it, the content of a
                ``config.json``, or the path of that file or of its folder.

        Raises:
            UnsupportedField: a family that is not computed here (``model_type``); a field that is
                not known, or whose value would change the numbers. It names the field.
            UnsupportedModel: a model of a class that is not its family's in transformers.
            ConfigError: a field is missing or wrong; not readable, not JSON.
            LengthError, PlanError: as `Decoder`.

        Cost: O(fields + layers).
        """
        return cls(**read_decoder(config))

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_int(name, getattr(self, name), 1)
        for name in _SCALES:
            check_positive(name, getattr(self, name))
        for name in ("score_scale", "score_cap", "logit_cap"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_number("norm_offset", self.norm_offset)
        check_choice("activation", self.activation, ACTIVATIONS)
        for name in self.biases:
            check_choice("biases", name, _MAPS)
        self._check_layers()
        if isinstance(self.kind, Latent):
            self._check_latent(self.kind)
        else:
            self._check_attention(self._given[0])
        for rotary in self.rotaries:
            self._check_rotary(rotary)

    def _check_layers(self) -> None:
        """Whether what is given by layer goes together."""
        for name in ("kind", "rotary"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.layers:
                raise PlanError(name, given, f"a tuple holds one for each of {self.layers} layers")
        for kind in self._given:
            if not isinstance(kind, Attention) and kind is not self.kind:
                raise PlanError("kind", kind, "each must be an Attention")
            if not isinstance(kind, Attention | Latent):
                raise PlanError("kind", kind, "it must be an Attention or a Latent")
        if any(_but_window(kind) != _but_window(self._given[0]) for kind in self._given):
            raise PlanError("kind", self.kind, "layers may differ in their window alone")

    def _check_attention(self, kind: Attention | Latent) -> None:
        assert isinstance(kind, Attention)
        if kind.chunk is not None or kind.sink_tokens:
            why = "exported layers have no chunks and no sinks that are tokens"
            raise UnsupportedModel(repr(kind), why)
        if kind.indexer:
            raise UnsupportedModel(repr(kind), "exported layers have no indexer")
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
        if self.biases or self.qk_norm or self.fused:
            raise UnsupportedModel(repr(kind), "a latent kind has no biases, QK norm or fused maps")
        check_int("nope_dim", self.nope_dim, 1, None, "a latent kind needs it")
        check_int("v_dim", self.v_dim, 1, None, "a latent kind needs it")
        check_int("rope", kind.rope, 16, None, "it alone says positions")
        LatentGeometry(kind.rank + kind.rope, kind.rope, kind.rank, kind.rank, 16).validate()

    def _check_rotary(self, rotary: object) -> None:
        if not isinstance(rotary, Rotary):
            raise PlanError("rotary", rotary, "it must be a Rotary")
        width = self._rotated
        if rotary.channels > width or (isinstance(self.kind, Latent) and rotary.channels != width):
            raise PlanError("rotary", rotary.channels, f"heads have {width} channels to rotate")

    @property
    def kinds(self) -> tuple[Attention | Latent, ...]:
        """What each layer keeps; a window of ``max_length`` or more is none. O(layers)."""
        return cast("tuple[Attention | Latent, ...]", self.spec.layers)

    @property
    def _given(self) -> tuple[Attention | Latent, ...]:
        """The kind of each layer, as given. O(layers)."""
        return self.kind if isinstance(self.kind, tuple) else (self.kind,) * self.layers

    @property
    def rotaries(self) -> tuple[Rotary, ...]:
        """How positions turn the heads of each layer. O(layers + channels)."""
        if isinstance(self.rotary, tuple):
            return self.rotary
        return (self.rotary or Rotary.plain(self._rotated, self.theta),) * self.layers

    @property
    def _rotated(self) -> int:
        """Channels of a head that may be rotated."""
        kind = self.kinds[0]
        return kind.rope if isinstance(kind, Latent) else kind.k_dim

    @property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The layers of each group, by its name, as `octavo.plan` groups them. O(layers)."""
        found: dict[str, list[int]] = {}
        for layer, kind in enumerate(self.kinds):
            found.setdefault(group_name(kind), []).append(layer)
        return {name: tuple(layers) for name, layers in found.items()}

    @property
    def spec(self) -> ModelSpec:
        """What `octavo.plan` plans for."""
        return ModelSpec("decoder", self._given, self.max_length).in_context()

    @property
    def row(self) -> tuple[int, int]:
        """(heads, channels) of what the operator caches of a token."""
        kind = self.kinds[0]
        if isinstance(kind, Latent):
            return 1, kind.rank + kind.rope
        return kind.kv_heads, kind.k_dim

    @property
    def output_channels(self) -> int:
        """Channels of a head that the operator puts out."""
        kind = self.kinds[0]
        return kind.rank if isinstance(kind, Latent) else kind.v_dim

    @property
    def scale(self) -> float:
        """Factor of the scores; by default 1 / sqrt(channels of a query head, not absorbed)."""
        kind = self.kinds[0]
        width = self.nope_dim + kind.rope if isinstance(kind, Latent) else kind.k_dim
        return float(width**-0.5) if self.score_scale is None else float(self.score_scale)

    def shapes(self) -> dict[str, Shape]:
        """Shape of every weight by its name in a Hugging Face state dict. O(layers).

        Linear maps are [out, in]. ``lm_head.weight`` may be left out unless ``tied`` is False: the
        embedding then serves.
        """
        found: dict[str, Shape] = {EMBEDDING: (self.vocab, self.hidden)}
        for layer in range(self.layers):
            for name, shape in self._layer_shapes():
                found[f"model.layers.{layer}.{name}"] = shape
        found["model.norm.weight"] = (self.hidden,)
        found[HEAD] = (self.vocab, self.hidden)
        return found

    def _layer_shapes(self) -> Iterator[tuple[str, Shape]]:
        norms = ["input", "post_attention"]
        if self.post_norms:
            norms += ["pre_feedforward", "post_feedforward"]
        for name in norms:
            yield f"{name}_layernorm.weight", (self.hidden,)
        if isinstance(self.kind, Latent):
            yield from self._latent_shapes(self.kind)
        else:
            yield from self._attention_shapes()
        columns = {"down_proj": self.mlp}
        yield from self._map_shapes("mlp", ("gate_proj", "up_proj", "down_proj"), columns)

    def _latent_shapes(self, kind: Latent) -> Iterator[tuple[str, Shape]]:
        heads = self.heads
        shapes: dict[str, Shape] = {
            "q_proj": (heads * (self.nope_dim + kind.rope), self.hidden),
            "kv_a_proj_with_mqa": (kind.rank + kind.rope, self.hidden),
            "kv_a_layernorm": (kind.rank,),
            "kv_b_proj": (heads * (self.nope_dim + self.v_dim), kind.rank),
            "o_proj": (self.hidden, heads * self.v_dim),
        }
        for name, shape in shapes.items():
            yield f"self_attn.{name}.weight", shape

    def _attention_shapes(self) -> Iterator[tuple[str, Shape]]:
        columns = {"o_proj": self._map_rows["q_proj"]}
        yield from self._map_shapes("self_attn", _MAPS[:4], columns)
        for name in ("q_norm", "k_norm") if self.qk_norm else ():
            yield f"self_attn.{name}.weight", (self.row[1],)
        if self.sink_logits:
            yield "self_attn.sinks", (self.heads,)

    def _map_shapes(
        self, part: str, maps: tuple[str, ...], columns: Mapping[str, int]
    ) -> Iterator[tuple[str, Shape]]:
        """Linear maps of a part of a layer, fused where they are, with their biases."""
        rows = self._map_rows
        inside = {each for names in FUSED.values() for each in names} if self.fused else set()
        for name, names in FUSED.items() if self.fused else ():
            if names[0] in maps:
                yield f"{part}.{name}.weight", (sum(rows[each] for each in names), self.hidden)
        for name in maps:
            if name not in inside:
                yield f"{part}.{name}.weight", (rows[name], columns.get(name, self.hidden))
            if name in self.biases:
                yield f"{part}.{name}.bias", (rows[name],)

    @property
    def _map_rows(self) -> dict[str, int]:
        """Channels that each linear map of a layer puts out."""
        kv_heads, channels = self.row
        query, key = self.heads * channels, kv_heads * channels
        rows = (query, key, key, self.hidden, self.mlp, self.mlp, self.hidden)
        return dict(zip(_MAPS, rows, strict=True))

    @property
    def sink_logits(self) -> bool:
        """Whether each head's softmax has a learned term more."""
        kind = self.kinds[0]
        return isinstance(kind, Attention) and kind.sink_logits

    def random_weights(self, seed: int = 0) -> dict[str, Floats]:
        """Weights drawn at random, for trying things out: float32. O(their size)."""
        found = random_weights(self.shapes(), seed)
        return {name: each for name, each in found.items() if name != HEAD or not self.tied}

    def check_weights(self, weights: Weights) -> None:
        """Whether they are this decoder's. O(weights), of a tied head their bytes.

        Raises:
            PlanError: one is missing, unknown, of another shape, or no array of floats; a head
                beside a tied embedding that is not equal to it.
        """
        check_weights(self.shapes(), weights, tied=self.tied)

    def plain_weights(self, weights: Weights) -> Weights:
        """Weights with fused maps taken apart, and no head where the embedding gives the logits.

        Raises:
            PlanError: as `check_weights`.

        Cost: O(weights); nothing is copied.
        """
        self.check_weights(weights)
        kept = {name: each for name, each in weights.items() if name != HEAD or not self.tied}
        return split_fused(kept, self._map_rows) if self.fused else kept


def _but_window(kind: Attention | Latent) -> object:
    """All that a kind says but how far back it sees."""
    return [getattr(kind, each.name) for each in fields(kind) if each.name != "window"]
