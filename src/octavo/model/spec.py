"""What each layer of a model keeps: layer kinds and the model's list of them.

Knows shapes and lifetimes. Does not know pages, bytes of a budget, devices or weights.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from octavo.checks import check_int
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer that keeps a key and a value for every token.

    Attributes:
        kv_heads: key/value heads.
        k_dim: elements of one key head.
        v_dim: elements of one value head; may differ from ``k_dim``.
        window: keys a query sees, its own included; None: all of them.
        sink_tokens: first positions a windowed layer keeps seeing.
        sink_logits: whether the softmax denominator has a learned extra term (no KV).
        chunk: tokens of a chunk where a query sees its own chunk only; None: no chunks.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    sink_tokens: int = 0
    sink_logits: bool = False
    chunk: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_heads", "k_dim", "v_dim"):
            check_int(name, getattr(self, name), 1)
        check_int("sink_tokens", self.sink_tokens, 0)
        for name in ("window", "chunk"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 1)
        if self.window is not None and self.chunk is not None:
            raise ConfigError("chunk", self.chunk, "a layer has a window or chunks, not both")
        if self.sink_tokens and self.window is None:
            raise ConfigError("sink_tokens", self.sink_tokens, "only a window has sinks")

    @property
    def elements_per_token(self) -> int:
        """Elements one token adds to this layer: keys and values of all heads."""
        return self.kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Latent:
    """A layer that keeps one compressed row for every token (multi-head latent attention).

    Attributes:
        rank: elements of the latent, from which keys and values of all heads are expanded.
        rope: elements of the key part that carries positions, shared by all heads.
        indexer: elements of the key a sparse-attention indexer keeps beside it; 0: there is none.
    """

    rank: int
    rope: int = 0
    indexer: int = 0

    def __post_init__(self) -> None:
        check_int("rank", self.rank, 1)
        check_int("rope", self.rope, 0)
        check_int("indexer", self.indexer, 0)


Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class State:
    """A layer that keeps tensors of constant size a sequence: recurrence, convolution.

    Attributes:
        recurrent: shape of the recurrent tensor; an int is a shape of one axis.
        conv: shape of the convolution's last inputs, (channels, kernel - 1); empty: there is none.
    """

    recurrent: Shape | int
    conv: Shape = ()

    def __post_init__(self) -> None:
        recurrent = self.recurrent
        if not isinstance(recurrent, tuple):
            object.__setattr__(self, "recurrent", (check_int("recurrent", recurrent, 1),))
        for name in ("recurrent", "conv"):
            for size in getattr(self, name):
                check_int(name, size, 1)
        if not self.recurrent and not self.conv:
            raise ConfigError("recurrent", self.recurrent, "a state has at least one tensor")


@dataclass(frozen=True, slots=True)
class Cross:
    """A layer that attends to another input of fixed length, such as an encoded recording.

    Attributes:
        kv_heads: key/value heads.
        k_dim: elements of one key head.
        v_dim: elements of one value head.
        length: positions of that input where it is always as long; None: it differs.
    """

    kv_heads: int
    k_dim: int
    v_dim: int
    length: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_heads", "k_dim", "v_dim"):
            check_int(name, getattr(self, name), 1)
        if self.length is not None:
            check_int("length", self.length, 1)


@dataclass(frozen=True, slots=True)
class Shared:
    """A layer that reads the cache of an earlier layer and keeps nothing of its own.

    Attributes:
        layer: index of that layer.
        kind: what this layer would keep by itself, which must be what that one keeps; None: the
            same by definition.
    """

    layer: int
    kind: "Attention | Latent | None" = None

    def __post_init__(self) -> None:
        check_int("layer", self.layer, 0)


LayerKind = Attention | Latent | State | Cross | Shared
"""Everything a layer can keep."""
Layer = LayerKind | tuple[LayerKind, ...]
"""A layer: one kind, several side by side, or none at all."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a whole model keeps, layer by layer.

    Attributes:
        name: architecture, for people.
        layers: one kind a layer, in the model's order; a tuple of kinds for a layer that keeps
            several (attention beside a state), an empty one for a layer that keeps nothing.
        max_length: longest sequence the model was made for, in tokens; None: unbounded.
        mtp: further layers that predict more than one token, used only where a draft is wanted.
        depth: a second decoder that runs anew for every position and whose cache holds
            ``depth.max_length`` positions then (speech models over codebooks); None: there is none.
    """

    name: str
    layers: tuple[Layer, ...]
    max_length: int | None = None
    mtp: tuple[Layer, ...] = ()
    depth: "ModelSpec | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple) or not any(_kinds(item) for item in self.layers):
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
        return [(number, kind) for number, item in enumerate(self.layers) for kind in _kinds(item)]

    def _check_shared(self, number: int, kind: Shared) -> None:
        """A shared layer names an earlier one that keeps tokens itself, of the same kind."""
        owners = _kinds(self.layers[kind.layer]) if kind.layer < number else ()
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
        from octavo.model.configs import read_spec

        return read_spec(config if isinstance(config, Mapping) else load_config(config))


def _kinds(item: Any) -> tuple[Any, ...]:
    return item if isinstance(item, tuple) else (item,)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(twice, found[twice], "it stands twice in the file")
    return found


_MAX_CONFIG_BYTES = 64 * 2**20


def load_config(path: str | PathLike[str]) -> dict[str, Any]:
    """The content of ``path``, or of ``path/config.json`` for a folder.

    Raises:
        ConfigError: no such file, no regular file of at most 64 MiB, not UTF-8 JSON, or not a JSON
            object.
    """
    from pathlib import Path  # here: the import costs more than the rest of this module

    if not isinstance(path, (str, PathLike)) or not str(path):
        raise ConfigError("path", path, "it must be the path of a config.json or of its folder")
    file = Path(path)
    try:
        file = file / "config.json" if file.is_dir() else file
        about = file.stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_CONFIG_BYTES:
            right = f"it must be a regular file of at most {_MAX_CONFIG_BYTES} bytes"
            raise ConfigError("path", str(file), right)
        config = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except OSError as error:
        raise ConfigError("path", str(file), error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("path", str(file), f"not a JSON file: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("path", str(file), "a config is a JSON object")
    return config
