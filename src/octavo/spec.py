"""What each layer of a model keeps: layer kinds and the model's list of them.

Knows shapes and lifetimes. Does not know pages, bytes of a budget, devices or weights.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, SupportsIndex

from octavo.errors import ConfigError, LengthError


def check_int(name: str, value: object, low: int, high: int | None = None, why: str = "") -> int:
    """``value`` as an int in ``low..high``; bools and floats are refused. O(1).

    Raises:
        LengthError: not an int, or outside the range.
    """
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise LengthError(name, value, low, high, why)
    else:
        try:
            number = value.__index__()
        except TypeError:  # an array
            raise LengthError(name, value, low, high, why) from None
    if number < low or (high is not None and number > high):
        raise LengthError(name, number, low, high, why)
    return number


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
class State:
    """A layer that keeps tensors of constant size a sequence: recurrence, convolution.

    Attributes:
        elements: elements of all its tensors together.
    """

    elements: int

    def __post_init__(self) -> None:
        check_int("elements", self.elements, 1)


@dataclass(frozen=True, slots=True)
class Cross:
    """A layer that attends to another input of fixed length, such as an encoded recording.

    Attributes:
        kv_heads: key/value heads.
        k_dim: elements of one key head.
        v_dim: elements of one value head.
    """

    kv_heads: int
    k_dim: int
    v_dim: int

    def __post_init__(self) -> None:
        for name in ("kv_heads", "k_dim", "v_dim"):
            check_int(name, getattr(self, name), 1)


LayerKind = Attention | State | Cross
"""Everything a layer can keep."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a whole model keeps, layer by layer.

    Attributes:
        name: architecture, for people.
        layers: one kind a layer, in the model's order.
        max_length: longest sequence the model was made for, in tokens; None: unbounded.
    """

    name: str
    layers: tuple[Attention, ...]
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple) or not self.layers:
            right = "it must be a tuple of at least one layer that keeps something"
            raise ConfigError("layers", self.layers, right)
        for layer in self.layers:
            if not isinstance(layer, LayerKind):
                raise ConfigError("layers", layer, "each must be an Attention, a State or a Cross")
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1)

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
        from octavo.configs import read_spec

        return read_spec(config if isinstance(config, Mapping) else load_config(config))


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
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("path", str(file), error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("path", str(file), f"not a JSON file: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("path", str(file), "a config is a JSON object")
    return config
