"""Readers from a Hugging Face config to a ModelSpec: one small function a family.

To add a family, write ``def _name(fields) -> list[Attention]`` and enter it in ``FAMILIES`` and
``DEFAULTS``. Fields are looked up by the names the published files use. The number of layers and
the width must be there; anything else that a file leaves out takes the default of the family's
class in transformers, and nothing else is ever assumed. A field that is null is not left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from octavo.errors import ConfigError, UnknownArchitecture
from octavo.spec import Attention, ModelSpec

_MISSING = object()
_MAX_LAYERS = 2**14
_MAX_COUNT = 2**31 - 1


class Defaults(NamedTuple):
    """What transformers takes for a field that a family's file leaves out.

    Attributes:
        heads: query heads.
        kv_heads: key/value heads; None: as many as query heads.
        head_dim: elements of a head; None: width / heads.
        window: keys a layer that slides sees; None: no layer slides.
        max_length: longest sequence.
    """

    heads: int
    kv_heads: int | None
    head_dim: int | None
    window: int | None
    max_length: int


DEFAULTS: dict[str, Defaults] = {
    "gemma": Defaults(16, 16, 256, None, 8192),
    "gemma2": Defaults(8, 4, 256, 4096, 8192),
    "gemma3": Defaults(8, 4, 256, 4096, 131072),
    "gemma3_text": Defaults(8, 4, 256, 4096, 131072),
    "gpt2": Defaults(12, None, None, None, 1024),
    "gpt_oss": Defaults(64, 8, 64, 128, 131072),
    "granite": Defaults(32, None, None, None, 2048),
    "llama": Defaults(32, None, None, None, 2048),
    "mistral": Defaults(32, 8, None, 4096, 131072),
    "mixtral": Defaults(32, 8, None, None, 131072),
    "olmo2": Defaults(32, None, None, None, 2048),
    "phi3": Defaults(32, None, None, None, 4096),
    "qwen2": Defaults(32, 32, None, 4096, 32768),
    "qwen2_moe": Defaults(16, 16, None, 4096, 32768),
    "qwen3": Defaults(32, 32, 128, 4096, 32768),
    "qwen3_moe": Defaults(32, 4, None, 4096, 32768),
    "smollm3": Defaults(16, 4, None, None, 32768),
    "starcoder2": Defaults(24, 2, None, None, 4096),
}
"""By family; a test compares them with the classes of the transformers that is installed."""

_NAMES = {
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "window": ("sliding_window",),
    "max_length": ("max_position_embeddings", "n_positions"),
}


class Fields:
    """The decoder's part of a config, read by field name with range checks.

    Args:
        config: the fields.
        defaults: what those that are left out are.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Defaults) -> None:
        left_out = {
            names[0]: getattr(defaults, attribute)
            for attribute, names in _NAMES.items()
            if not any(name in config for name in names)
        }
        self._config = left_out | dict(config)

    def get(self, name: str, default: object = None) -> Any:
        """The value of ``name``, or ``default`` where there is none or null. O(1)."""
        value = self._config.get(name)
        return default if value is None else value

    def count(self, *names: str, default: object = _MISSING) -> int:
        """The first of ``names`` that is there, as an int of at least 1.

        Raises:
            ConfigError: none is there and there is no default, or the value is no such int.
        """
        for name in names:
            value = self.get(name)
            if value is not None:
                return self._positive(name, value)
        if default is _MISSING:
            raise ConfigError(names[0], None, f"one of {', '.join(names)} is required")
        return self._positive(names[0], default)

    @staticmethod
    def _positive(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_COUNT:
            right = f"it must be an int of at least 1 and at most {_MAX_COUNT}"
            raise ConfigError(name, value, right)
        return value

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        count = self.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if count > _MAX_LAYERS:
            raise ConfigError("num_hidden_layers", count, f"it must be at most {_MAX_LAYERS}")
        return count

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.count(*_NAMES["heads"])

    def head_dim(self) -> int:
        """``head_dim`` where the file has it, else width / heads, which must divide."""
        if self.get("head_dim") is not None:
            return self.count("head_dim")
        width, heads = self.count("hidden_size", "n_embd", "d_model"), self.heads
        if width % heads:
            raise ConfigError("hidden_size", width, f"it must divide by the {heads} heads")
        return width // heads

    def max_length(self) -> int | None:
        """Longest sequence in tokens; None where the file says null."""
        for name in _NAMES["max_length"]:
            if self.get(name) is not None:
                return self.count(name)
        return None

    def kv_heads(self) -> int:
        """Key/value heads; as many as query heads where neither file nor family says."""
        heads, kv_heads = self.heads, self.count("num_key_value_heads", default=self.heads)
        if heads % kv_heads:
            raise ConfigError("num_key_value_heads", kv_heads, f"it must divide {heads} heads")
        return kv_heads


def _full(fields: Fields) -> list[Attention]:
    """Every layer sees every token."""
    dim = fields.head_dim()
    return [Attention(fields.kv_heads(), dim, dim)] * fields.layers


def _windowed(fields: Fields, slides: Callable[[int], bool]) -> list[Attention]:
    """Layers for which ``layer_types``, or else ``slides(layer)``, says so have a window."""
    layers, types = _full(fields), fields.get("layer_types")
    if types is not None and (not isinstance(types, list) or len(types) != len(layers)):
        raise ConfigError("layer_types", types, f"it must list all {len(layers)} layers")
    if types is not None:
        flags = [_slides(name) for name in types]
    else:
        flags = [slides(i) for i in range(len(layers))]
    if fields.get("sliding_window") is None:
        return layers
    window = fields.count("sliding_window")
    return [replace(k, window=window) if f else k for k, f in zip(layers, flags, strict=True)]


def _slides(layer_type: object) -> bool:
    if layer_type not in ("full_attention", "sliding_attention"):
        right = "each must be full_attention or sliding_attention"
        raise ConfigError("layer_types", layer_type, right)
    return layer_type == "sliding_attention"


def _all_windowed(fields: Fields) -> list[Attention]:
    return _windowed(fields, lambda layer: True)


def _qwen(fields: Fields) -> list[Attention]:
    """A window is used only when ``use_sliding_window`` says so, from ``max_window_layers`` on."""
    if not fields.get("use_sliding_window", False):
        return _full(fields)
    first = _max_window_layers(fields)
    return _windowed(fields, lambda layer: layer >= first)


def _max_window_layers(fields: Fields) -> int:
    value = fields.get("max_window_layers", 28)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError("max_window_layers", value, "it must be an int of at least 0")
    return value


def _qwen2_moe(fields: Fields) -> list[Attention]:
    """As qwen, but every other layer slides, up to ``max_window_layers``."""
    if not fields.get("use_sliding_window", False):
        return _full(fields)
    last = _max_window_layers(fields)
    return _windowed(fields, lambda layer: layer % 2 == 0 and layer < last)


def _qwen3_moe(fields: Fields) -> list[Attention]:
    """All layers slide when ``use_sliding_window`` says so."""
    return _all_windowed(fields) if fields.get("use_sliding_window", False) else _full(fields)


def _smollm3(fields: Fields) -> list[Attention]:
    """Windows of this family depend on its position codes and are not read."""
    if fields.get("use_sliding_window", False) and fields.get("sliding_window") is not None:
        raise ConfigError("use_sliding_window", True, "smollm3 is read without windows only")
    return _full(fields)


def _gemma2(fields: Fields) -> list[Attention]:
    return _windowed(fields, lambda layer: layer % 2 == 0)


def _gemma3(fields: Fields) -> list[Attention]:
    if fields.get("use_bidirectional_attention", False):
        right = "a cache needs a model in which no token sees a later one"
        raise ConfigError("use_bidirectional_attention", True, right)
    pattern = fields.count("sliding_window_pattern", default=6)
    return _windowed(fields, lambda layer: (layer + 1) % pattern != 0)


def _gpt_oss(fields: Fields) -> list[Attention]:
    """Alternating windows; every layer has one learned sink logit a head."""
    layers = _windowed(fields, lambda layer: layer % 2 == 0)
    return [replace(layer, sink_logits=True) for layer in layers]


FAMILIES: dict[str, Callable[[Fields], list[Attention]]] = {
    "gemma": _full,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gpt2": _full,
    "gpt_oss": _gpt_oss,
    "granite": _full,
    "llama": _full,
    "mistral": _all_windowed,
    "mixtral": _all_windowed,
    "olmo2": _full,
    "phi3": _all_windowed,
    "qwen2": _qwen,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
    "starcoder2": _all_windowed,
}


def read_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The ModelSpec of a config's decoder.

    Raises:
        UnknownArchitecture: ``model_type`` has no reader here.
        ConfigError: a field is missing or wrong.

    Cost: O(layers).
    """
    family = config.get("model_type")
    reader = FAMILIES.get(family) if isinstance(family, str) else None
    if reader is None:
        raise UnknownArchitecture(family, sorted(FAMILIES), "model_type")
    name = str(family)
    fields = Fields(_decoder(config), DEFAULTS[name])
    return ModelSpec(name, tuple(reader(fields)), fields.max_length())


def _decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Vision-language configs nest the decoder's fields in ``text_config``."""
    nested = config.get("text_config")
    if nested is None:
        return config
    if not isinstance(nested, Mapping):
        raise ConfigError("text_config", nested, "it must be a JSON object")
    return nested
