"""Everything inside a cache as one comparable value: proof that a verb that raised did nothing.

Walks attributes and slots of any object, so it needs to know nothing of what it looks at; arrays
count byte by byte, sets by their members, dicts in order (the order of eviction is often one).
"""

from collections.abc import Mapping
from types import (
    BuiltinMethodType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any
from weakref import ReferenceType

import numpy as np

from octavo.cache.sequence import Sequence
from octavo.core.arena import Arena
from octavo.core.commits import Core

Frozen = Any
_PLAIN = (int, float, str, bytes, bool, type(None), type)
_CODE = (FunctionType, MethodType, BuiltinMethodType)
_FIELDS = (GetSetDescriptorType, MemberDescriptorType)
_NO_STATE = {
    "Capacity": "_possible",
    "Step": "_values",
    "Batch": "_listed",
    "Rows": "tally wide",
    "Group": "run gap alone",
    "Prefixes": "_last",
    "PrefixIndex": "version names salt code buckets following",
    "PagePool": "due need lack pinned opening mark marks",
    "Space": "fullest",
    "Core": "stamp tick growing growers target new owed_after given scratch path chain boundary"
    " tokens_boundary awaited wants owed published dropped repointed coming",
}
CACHED = frozenset(f"{kind}.{name}" for kind, names in _NO_STATE.items() for name in names.split())
"""Attributes that are no state, as ``Kind.name``.

They are remembered but could be computed again, or what one verb writes down for itself, or where
things lie, which no one can see.
"""


def freeze(thing: object, skip: frozenset[str] = CACHED) -> Frozen:
    """The state of ``thing`` and of all it refers to, to be compared with ``==``.

    Args:
        skip: attributes that are no state, as ``Kind.name``.

    Cost: O(everything inside).
    """
    return _freeze(thing, {}, skip)


def _freeze(thing: Any, seen: dict[int, int], skip: frozenset[str]) -> Frozen:
    if isinstance(thing, _PLAIN):
        return thing
    if isinstance(thing, (np.ndarray, np.generic, memoryview)) or hasattr(thing, "suboffsets"):
        array = np.asarray(thing)
        return array.shape, array.dtype.str, array.tobytes()
    if isinstance(thing, Arena):  # what is in use shows in tokens and tables
        return "arena"
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
    kind = type(thing).__name__
    names = [name for name in _attributes(thing) if f"{kind}.{name}" not in skip]
    values = [(name, getattr(thing, name, None)) for name in names]
    if isinstance(thing, Sequence):
        values.append(("tokens", None if thing.released else thing.tokens()))
    if isinstance(thing, Core):
        values.append(("tables", _tables(thing)))
    state = {name: _freeze(value, seen, skip) for name, value in _by_name(values)}
    return kind, state


def _tables(core: Core) -> list[Any]:
    """Token ids and page tables of all rows in use."""
    rows = [row for row in range(core.rows) if core.limit[row]]
    held = [row for row in rows if not core.preempted[row]]
    entries = [
        [[group.entry(row, c) for c in range(core.columns(group, row))] for group in core.groups]
        for row in held
    ]
    return [rows, [core.tokens(row) for row in rows], entries]


def _by_name(values: Any) -> list[tuple[str, Any]]:
    """By name: the order in which attributes were set is no state."""
    return sorted(values, key=lambda pair: pair[0])


def _attributes(thing: Any) -> set[str]:
    names = set(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        names |= {name for name, value in vars(kind).items() if isinstance(value, _FIELDS)}
    return names - {"__dict__", "__weakref__"}
