"""`ModelSpec`: what a whole model keeps, layer by layer, by hand or from its ``config.json``.

Knows layers, not pages, bytes of a budget, devices or weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from octavo.checks import check_int
from octavo.errors import ConfigError
from octavo.model.layers import (
    Attention,
    Compressed,
    Cross,
    Latent,
    Layer,
    LayerKind,
    Shape,
    Shared,
    State,
    kinds_in,
)

if TYPE_CHECKING:
    from octavo.model.configs import ModelLayers

__all__ = [
    "Attention",
    "Compressed",
    "Cross",
    "Latent",
    "Layer",
    "LayerKind",
    "ModelSpec",
    "Shape",
    "Shared",
    "State",
]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a whole model keeps, layer by layer.

    Attributes:
        name: architecture, for people.
        layers: one kind a layer, in the model's order; a tuple of kinds for a layer that keeps
            several (attention beside a state), an empty one for a layer that keeps nothing.
        max_length: longest sequence the model was made for, in tokens; None: unbounded.
        mtp: further layers that predict more than one token, used only where a draft is wanted.
        depth: a second decoder that runs anew for every position, over a cache of
            ``depth.max_length`` positions (speech models over codebooks); None: there is none.
        notes: what a reader of the config's figures should know, a sentence each; no two specs
            differ by them.
    """

    name: str
    layers: tuple[Layer, ...]
    max_length: int | None = None
    mtp: tuple[Layer, ...] = ()
    depth: "ModelSpec | None" = None
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple) or not any(kinds_in(item) for item in self.layers):
            right = "it must be a tuple of at least one layer that keeps something"
            raise ConfigError("layers", self.layers, right)
        for number, kind in self.kinds():
            if not isinstance(kind, LayerKind):
                right = "each must be an Attention, Latent, Compressed, State, Cross or Shared"
                raise ConfigError("layers", kind, right)
            if isinstance(kind, Shared):
                self._check_shared(number, kind)
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1)

    def kinds(self) -> list[tuple[int, LayerKind]]:
        """(layer, kind) of everything the layers keep, in order. O(layers)."""
        return [
            (number, kind) for number, item in enumerate(self.layers) for kind in kinds_in(item)
        ]

    def _check_shared(self, number: int, kind: Shared) -> None:
        """A shared layer names an earlier one that keeps tokens itself, of the same kind."""
        owners = kinds_in(self.layers[kind.layer]) if kind.layer < number else ()
        own = [owner for owner in owners if isinstance(owner, Attention | Latent)]
        if not own or (kind.kind is not None and kind.kind not in own):
            right = f"layer {number} must name an earlier layer that keeps tokens of the same kind"
            raise ConfigError("Shared.layer", kind.layer, right)

    def with_mtp(self, count: int | None = None) -> "ModelSpec":
        """The same model with ``count`` of its prediction layers, by default all. O(layers).

        Raises:
            LengthError: more than there are.
        """
        most, why = len(self.mtp), "prediction layers of the model"
        wanted = most if count is None else check_int("mtp", count, 0, most, why)
        return replace(self, layers=self.layers + self.mtp[:wanted], mtp=self.mtp[wanted:])

    def in_context(self) -> "ModelSpec":
        """The same model; windows and chunks of ``max_length`` or more are none. O(layers)."""
        length = self.max_length
        if length is None:
            return self
        layers, mtp = (
            tuple(_whole_layer(layer, length) for layer in layers)
            for layers in (self.layers, self.mtp)
        )
        return replace(self, layers=layers, mtp=mtp)

    @classmethod
    def from_config(cls, config: Any) -> "ModelSpec":
        """Read a Hugging Face ``config.json``.

        Args:
            config: the file, the folder it lies in, its content, or a config of transformers; a
                ``params.json`` of Meta's or Mistral's release, or a GGUF file, of which the
                metadata alone is read.

        Raises:
            ConfigError: not readable, not JSON, or a field is missing or wrong.
            UnknownArchitecture: no reader for this architecture; never guessed.

        Cost: O(layers).
        """
        from octavo.model.configs import load_config, read_config  # here: the table is long

        if callable(getattr(config, "to_dict", None)):
            config = config.to_dict()
        content = config if isinstance(config, Mapping) else load_config(config)
        return cls._of(read_config(content))

    @classmethod
    def _of(cls, found: "ModelLayers") -> "ModelSpec":
        depth = None if found.depth is None else cls._of(found.depth)
        notes = found.notes
        return cls(found.name, found.layers, found.max_length, found.mtp, depth, notes)


def _whole_layer(layer: Layer, length: int) -> Layer:
    """The layer without a window or chunk of at least ``length`` tokens."""
    if isinstance(layer, tuple):
        return tuple(_whole(kind, length) for kind in layer)
    return _whole(layer, length)


def _whole(kind: LayerKind, length: int) -> LayerKind:
    if isinstance(kind, Shared) and isinstance(kind.kind, Attention):
        return replace(kind, kind=_whole_attention(kind.kind, length))
    if isinstance(kind, Latent) and kind.window is not None and kind.window >= length:
        return replace(kind, window=None)
    return _whole_attention(kind, length) if isinstance(kind, Attention) else kind


def _whole_attention(kind: Attention, length: int) -> Attention:
    if kind.window is not None and kind.window >= length:
        return replace(kind, window=None, sink_tokens=0)
    if kind.chunk is not None and kind.chunk >= length:
        return replace(kind, chunk=None)
    return kind
