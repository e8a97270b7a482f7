"""Everything inside a cache as one comparable value: proof that a verb that raised did nothing.

Walks attributes and slots of any object, so it needs to know nothing of what it looks at; arrays
count byte by byte, sets by their members, dicts in order (the order of eviction is often one).
"""

from array import array
from collections.abc import Mapping
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any
from weakref import ReferenceType

import numpy as np

from octavo.cache.runs import Run
from octavo.cache.sequence import Sequence

Frozen = Any
_PLAIN = (int, float, str, bytes, bool, type(None), type)
_CODE = (FunctionType, MethodType, BuiltinMethodType)
CACHED = frozenset(
    {"__weakref__", "_buffer", "_constants", "_lengths", "_listed", "_possible", "_stored"}
    | {"_stride", "digests", "late", "tail", "texts"}
)
"""Attributes that only remember what could be computed again, or hold token ids in two ways."""


def freeze(thing: object, skip: frozenset[str] = CACHED) -> Frozen:
    """The state of ``thing`` and of all it refers to, to be compared with ``==``.

    Args:
        skip: attributes that are no state.

    Cost: O(everything inside).
    """
    return _freeze(thing, {}, skip)


def _freeze(thing: Any, seen: dict[int, int], skip: frozenset[str]) -> Frozen:
    if isinstance(thing, _PLAIN):
        return thing
    if isinstance(thing, (np.ndarray, np.generic, array)):
        array_like = np.asarray(thing)
        return array_like.shape, array_like.dtype.str, array_like.tobytes()
    if isinstance(thing, ReferenceType):
        thing = thing()
    if isinstance(thing, _CODE):
        return getattr(thing, "__qualname__", "")
    if id(thing) in seen:
        return "seen", seen[id(thing)]
    seen[id(thing)] = len(seen)
    return _freeze_members(thing, seen, skip)


def _freeze_members(thing: Any, seen: dict[int, int], skip: frozenset[str]) -> Frozen:
    if isinstance(thing, Mapping) or hasattr(thing, "itervaluerefs"):
        return tuple((_freeze(k, seen, skip), _freeze(v, seen, skip)) for k, v in thing.items())
    if isinstance(thing, (set, frozenset)):
        return frozenset(map(repr, thing))
    if isinstance(thing, (list, tuple)):
        return tuple(_freeze(item, seen, skip) for item in thing)
    values = [(name, getattr(thing, name, None)) for name in _attributes(thing) - skip]
    if isinstance(thing, Sequence):
        values.append(("tokens", None if thing.released else thing.tokens()))
    if isinstance(thing, Run):
        values.append(("raw", thing.raw))
    state = {name: _freeze(value, seen, skip) for name, value in _by_name(values)}
    return type(thing).__name__, state


def _by_name(values: Any) -> list[tuple[str, Any]]:
    """By name: the order in which attributes were set is no state."""
    return sorted(values, key=lambda pair: pair[0])


def _attributes(thing: Any) -> set[str]:
    names = set(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        slots = getattr(kind, "__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    return names
