"""`ModelSpec`: what a whole model keeps, layer by layer, by hand or from its ``config.json``.

Knows layers, not pages, bytes of a budget, devices or weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from octavo.checks import check_int
from octavo.errors import ConfigError
from octavo.model.layers import (
    Attention,
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
    """

    name: str
    layers: tuple[Layer, ...]
    max_length: int | None = None
    mtp: tuple[Layer, ...] = ()
    depth: "ModelSpec | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple) or not any(kinds_in(item) for item in self.layers):
            right = "it must be a tuple of at least one layer that keeps something"
            raise ConfigError("layers", self.layers, right)
        for number, kind in self.kinds():
            if not isinstance(kind, LayerKind):
                right = "each must be an Attention, a Latent, a State, a Cross or a Shared"
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

    @classmethod
    def from_config(cls, config: str | PathLike[str] | Mapping[str, Any]) -> "ModelSpec":
        """Read a Hugging Face ``config.json``.

        Args:
            config: the file, the folder it lies in, or its content.

        Raises:
            ConfigError: not readable, not JSON, or a field is missing or wrong.
            UnknownArchitecture: no reader for this architecture; never guessed.

        Cost: O(layers).
        """
        from octavo.model.configs import load_config, read_config  # here: the table is long

        content = config if isinstance(config, Mapping) else load_config(config)
        return cls._of(read_config(content))

    @classmethod
    def _of(cls, found: "ModelLayers") -> "ModelSpec":
        depth = None if found.depth is None else cls._of(found.depth)
        return cls(found.name, found.layers, found.max_length, found.mtp, depth)
