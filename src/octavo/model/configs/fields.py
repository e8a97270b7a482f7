"""The decoder's part of a config, read field by field, each checked and each error with its name.

A reader asks by the first of the names that `octavo.model.configs.names` lists for a thing, and is
given what the file calls it. A field that is null is left out, unless null says that there is none.
What was asked for is remembered, so that what nobody asked for can be told.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.configs.names import ALIKE, NAMES, OWN_NAMES, null_says_none
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

Kinds = Mapping[str, Callable[[], Layer]]
"""By type of layer, what makes a layer of it; called only for types that there are."""

_OLD_LAYER_TYPES = {
    "attention": FULL,
    "mamba": LINEAR,
    "recurrent": LINEAR,
    "deepseek_sparse_attention": INDEXED,
    "sliding_window_attention": SLIDING,
    "reference_sliding_attention": FULL,  # it keeps what it refers to: the prompt and images
}


class Fields:
    """The decoder's fields of one config.

    Args:
        config: the fields of the file.
        defaults: what those that are left out are.
        family: the ``model_type``, for the names that mean something else there.
    """

    def __init__(
        self, config: Mapping[str, Any], defaults: Mapping[str, Any], family: str = ""
    ) -> None:
        self._config, self._defaults, self._family = config, defaults, family
        self._names = {**NAMES, **OWN_NAMES.get(family, {})}
        self._asked: set[str] = set()
        self._inner: dict[str, Fields] = {}

    def get(self, name: str, default: object = None) -> Any:
        """The value of ``name``, by whichever of its names, or ``default`` where there is none.

        Cost: O(names).
        """
        found = self._found(name)
        if found:
            return next(iter(found.values()))
        value = None if self._is_none(name) else self._default(name)
        return default if value is None else value

    def count(self, name: str, default: object = _MISSING, low: int = 1) -> int:
        """``name``, or what others call it, as an int of at least ``low``.

        Raises:
            ConfigError: none is there and there is no default, or the value is no such int.
        """
        for other, value in self._found(name).items():
            _checked(other, value, low)
        value = self.get(name, None if default is _MISSING else default)
        if value is None:
            names = self._names.get(name, (name,))
            one = f"one of {', '.join(names)}" if len(names) > 1 else "it"
            raise ConfigError(name, None, f"{one} is required")
        return _checked(name, value, low)

    def _found(self, name: str) -> dict[str, Any]:
        """What the file says of ``name``, by the names it has there; nothing of what is null."""
        names = self._names.get(name, (name,))
        self._asked.update(names)
        return {
            other: self._config[other] for other in names if self._config.get(other) is not None
        }

    def _default(self, name: str) -> Any:
        """What ``name`` is where the file leaves it out; None: nothing is known of it."""
        names = self._names.get(name, (name,))
        values = (self._defaults.get(other) for other in names)
        return next((value for value in values if value is not None), None)

    def _is_none(self, name: str) -> bool:
        """Whether the file says by null that there is none."""
        there = any(other in self._config for other in self._names.get(name, (name,)))
        return there and null_says_none(name, self._family)

    def called(self, name: str) -> str:
        """What the file calls ``name``; ``name`` itself where it does not say. O(names)."""
        return next(iter(self._found(name)), name)

    def contradictions(self) -> list[str]:
        """A sentence for each thing that was asked for and has two values in the file. O(names).

        Not of what the family has names of its own for: which of them counts is known there.
        """
        found = []
        for name in sorted((self._asked & ALIKE) - OWN_NAMES.get(self._family, {}).keys()):
            said = self._found(name)
            if len(set(said.values())) > 1:
                words = ", ".join(f"{other} is {value}" for other, value in said.items())
                found.append(f"{words}, and they are one thing: the first was read")
        return found

    def unread(self) -> dict[str, Any]:
        """What the file says that no reader has asked for, parts of it by ``part.name``. O(n)."""
        found = {name: item for name, item in self._config.items() if name not in self._asked}
        for part, fields in self._inner.items():
            found |= {f"{part}.{name}": item for name, item in fields.unread().items()}
        return found

    def replaced(self, changed: Mapping[str, Any]) -> "Fields":
        """These fields with some changed; what is asked of them counts as asked here. O(fields)."""
        other = Fields({**self._config, **changed}, self._defaults, self._family)
        other._asked, other._inner = self._asked, self._inner
        return other

    def ignore(self, name: str) -> None:
        """Say that ``name`` is known and of no use here. O(names)."""
        self._found(name)

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

    def inner(self, name: str, defaults: Mapping[str, Any] | None = None) -> "Fields":
        """The fields of the part ``name``, read like this file's own; the same each time. O(1)."""
        if name not in self._inner:
            self._inner[name] = Fields(self.part(name), defaults or {}, self._family)
        return self._inner[name]

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
        return self.divide(self.called("hidden_size"), self.width, self.heads)

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
            raise ConfigError(self.called(name), kv_heads, f"it must divide {heads} heads")
        return kv_heads

    def window(self, name: str = "sliding_window") -> int:
        """Keys that a query of a layer that slides sees, its own included."""
        if self.get(name) is None:
            raise ConfigError(name, None, "there are layers that slide, so it must be given")
        return self.count(name)

    def max_length(self) -> int | None:
        """Longest sequence in tokens; None where the file says null."""
        there = self.get("max_position_embeddings") is not None
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
