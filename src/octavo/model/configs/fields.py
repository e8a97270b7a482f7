"""The decoder's part of a config, read field by field, each checked and each error with its name.

Fields go by the names the published files use; ``NAMES`` lists what one and the same thing is
called. A field that is null is not left out: it says that there is none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.layers import Attention, Layer

_MISSING = object()
_MAX_LAYERS = 2**14
_MAX_COUNT = 2**31 - 1

FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = "linear_attention"
HYBRID = "hybrid"
CONV = "conv"
INDEXED = "indexed_attention"

NAMES: dict[str, tuple[str, ...]] = {
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "num_attention_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
    ),
    "num_key_value_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "max_position_embeddings": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_target_positions",
    ),
}
"""What families call the same thing, the common name first."""

Kinds = Mapping[str, Callable[[], Layer]]
"""By type of layer, what makes a layer of it; called only for types that there are."""

_OLD_LAYER_TYPES = {
    "attention": FULL,
    "mamba": LINEAR,
    "recurrent": LINEAR,
    "deepseek_sparse_attention": INDEXED,
}


class Fields:
    """The decoder's fields of one config.

    Args:
        config: the fields of the file.
        defaults: what those that are left out are.
    """

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        left_out = {
            name: value
            for name, value in defaults.items()
            if not any(other in config for other in NAMES.get(name, (name,)))
        }
        self._config = left_out | dict(config)

    def get(self, name: str, default: object = None) -> Any:
        """The value of ``name``, or ``default`` where there is none or null. O(1)."""
        value = self._config.get(name)
        return default if value is None else value

    def count(self, name: str, default: object = _MISSING, low: int = 1) -> int:
        """``name``, or what others call it, as an int of at least ``low``.

        Raises:
            ConfigError: none is there and there is no default, or the value is no such int.
        """
        names = NAMES.get(name, (name,))
        for other in names:
            value = self.get(other)
            if value is not None:
                return _checked(other, value, low)
        if default is _MISSING:
            one = f"one of {', '.join(names)}" if len(names) > 1 else "it"
            raise ConfigError(name, None, f"{one} is required")
        return _checked(name, default, low)

    def flag(self, name: str) -> bool:
        """``name`` as a bool; left out and null are False."""
        value = self.get(name, default=False)
        if not isinstance(value, bool):
            raise ConfigError(name, value, "it must be true or false")
        return value

    def part(self, name: str) -> Mapping[str, Any]:
        """``name`` as an object of further fields; empty where there is none."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise ConfigError(name, value, "it must be a JSON object")
        return value

    def listed(self, name: str, default: Sequence[Any] | None = None) -> list[Any]:
        """``name`` as a list.

        Raises:
            ConfigError: it is no list, or none is there and there is no default.
        """
        value = self.get(name, default)
        if not isinstance(value, list | tuple):
            raise ConfigError(name, value, "it must be a list")
        return list(value)

    def layer_indices(self, name: str, default: Sequence[int] = (), first: int = 0) -> set[int]:
        """Layers that ``name`` lists, counted from ``first`` in the file and from 0 here."""
        indices = self.listed(name, default)
        last = self.layers - 1 + first
        for index in indices:
            if type(index) is not int or not first <= index <= last:
                raise ConfigError(name, index, f"each must be a layer, {first} to {last}")
        return {index - first for index in indices}

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.layer_count("num_hidden_layers")

    def layer_count(self, name: str, default: object = _MISSING, low: int = 1) -> int:
        """``name`` as a number of layers, which has a limit of its own."""
        count = self.count(name, default, low)
        if count > _MAX_LAYERS:
            raise ConfigError(name, count, f"it must be at most {_MAX_LAYERS}")
        return count

    @property
    def width(self) -> int:
        """Elements of a hidden state."""
        return self.count("hidden_size")

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.count("num_attention_heads")

    def head_dim(self) -> int:
        """``head_dim`` where the file has it, else width / heads, which must divide."""
        if self.get("head_dim") is not None:
            return self.count("head_dim")
        return self.divide("hidden_size", self.width, self.heads)

    @staticmethod
    def divide(name: str, value: int, heads: int) -> int:
        """``value`` / ``heads``; ``name`` is at fault where that leaves a rest."""
        if value % heads:
            raise ConfigError(name, value, f"it must divide by the {heads} heads")
        return value // heads

    def kv_heads(self, name: str = "num_key_value_heads") -> int:
        """Key/value heads; as many as query heads where neither file nor family says."""
        heads, kv_heads = self.heads, self.count(name, default=self.heads)
        if heads % kv_heads:
            raise ConfigError(name, kv_heads, f"it must divide {heads} heads")
        return kv_heads

    def window(self, name: str = "sliding_window") -> int:
        """Keys that a query of a layer that slides sees, its own included."""
        if self.get(name) is None:
            raise ConfigError(name, None, "there are layers that slide, so it must be given")
        return self.count(name)

    def max_length(self) -> int | None:
        """Longest sequence in tokens; None where the file says null."""
        names = NAMES["max_position_embeddings"]
        there = any(self.get(name) is not None for name in names)
        return self.count("max_position_embeddings") if there else None

    def layer_types(
        self, allowed: Iterable[str], rule: Callable[[int], str], name: str = "layer_types"
    ) -> list[str]:
        """The type of every layer: what the file lists, or else what ``rule(layer)`` says.

        Raises:
            ConfigError: the list has another length than the model, or a type not ``allowed``.
        """
        allowed = tuple(allowed)
        if self.get(name) is None:
            return [rule(layer) for layer in range(self.layers)]
        listed = self.get(name)
        if not isinstance(listed, list | tuple) or len(listed) != self.layers:
            raise ConfigError(name, listed, f"it must list all {self.layers} layers")
        return [_layer_type(name, item, allowed) for item in listed]

    def by_type(
        self,
        kinds: Kinds,
        rule: Callable[[int], str],
        name: str = "layer_types",
    ) -> list[Layer]:
        """The layers: ``kinds`` makes those of each type that there is. O(layers)."""
        types = self.layer_types(kinds, rule, name)
        made = {kind: kinds[kind]() for kind in dict.fromkeys(types)}
        return [made[kind] for kind in types]


def keys_and_values(fields: Fields) -> Attention:
    """What one token leaves in a plain layer: a key and a value of every key/value head."""
    dim = fields.head_dim()
    return Attention(fields.kv_heads(), dim, dim)


def with_windows(fields: Fields, slides: Callable[[int], bool]) -> list[Layer]:
    """Plain layers with a window where ``layer_types``, or else ``slides(layer)``, says so.

    A window that is null means that ``slides`` has nothing to say.
    """
    plain, known = keys_and_values(fields), fields.get("sliding_window") is not None
    kinds: Kinds = {FULL: lambda: plain, SLIDING: lambda: replace(plain, window=fields.window())}
    return fields.by_type(kinds, lambda layer: SLIDING if known and slides(layer) else FULL)


def _checked(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_COUNT:
        right = f"it must be an int of at least {low} and at most {_MAX_COUNT}"
        raise ConfigError(name, value, right)
    return value


def _layer_type(name: str, item: object, allowed: tuple[str, ...]) -> str:
    found = _OLD_LAYER_TYPES.get(item, item) if isinstance(item, str) else item
    if found not in allowed:
        raise ConfigError(name, item, f"each must be {' or '.join(allowed)}")
    return str(found)
