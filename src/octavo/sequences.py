"""Sequences: a handle on the tokens one request has, and how far they have come.

published <= computed <= scheduled and computed <= known, as half-open ranges: ``[0, published)``
may be shared, ``[0, computed)`` has KV, ``[0, scheduled)`` has slots, ``[0, known)`` has token ids.
Handles are read by everyone and changed by their Cache alone.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.errors import TokenError

Ints = NDArray[np.int32]
Tokens = Items[int] | NDArray[np.integer[Any]]
_MAX_TOKEN = 2**31 - 1


def check_tokens(tokens: Tokens) -> Ints:
    """``tokens`` as int32, copied unless they are an int32 array already. O(len(tokens)).

    Raises:
        TokenError: an entry is no int in 0..2**31-1; it names the first one.
    """
    array = tokens if isinstance(tokens, np.ndarray) else _from_items(tokens)
    if array.ndim != 1:
        raise TokenError(0, array.tolist())
    if array.dtype.kind not in "iu":
        raise _first_bad(array.tolist())
    if array.size and (int(array.min()) < 0 or int(array.max()) > _MAX_TOKEN):
        raise _first_bad(array.tolist())
    return array.astype(np.int32, copy=False)


def _from_items(tokens: Items[int]) -> NDArray[Any]:
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Iterable):
        raise TokenError(0, tokens)
    items = list(tokens)
    if not all(type(item) is int for item in items):
        items = [_plain(index, item) for index, item in enumerate(items)]
    try:
        return np.array(items, np.int64)
    except OverflowError:
        raise _first_bad(items) from None


def _plain(index: int, item: Any) -> int:
    if isinstance(item, (bool, np.bool_)) or not hasattr(item, "__index__"):
        raise TokenError(index, item)
    return int(item.__index__())


def _first_bad(items: list[Any]) -> TokenError:
    for index, item in enumerate(items):
        if type(item) is not int or not 0 <= item <= _MAX_TOKEN:
            return TokenError(index, item)
    return TokenError(0, items)


class Sequence:
    """One admitted request. Made by `Cache.admit`; every attribute is read-only to its holder.

    Attributes:
        id: the name it was admitted under.
        limit: most tokens it may ever know.
        cached: tokens of its prompt whose KV was found in the prefix cache.
        length: tokens known.
        scheduled: positions with a reserved slot.
        computed: positions whose KV is written and kept.
    """

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_cache",
        "_node",
        "_promised",
        "_published",
        "_row",
        "cached",
        "computed",
        "id",
        "length",
        "limit",
        "scheduled",
    )

    def __init__(self, cache: object, id: object, row: int, tokens: Ints, limit: int) -> None:
        self.id, self.limit, self._cache, self._row = id, limit, cache, row
        self._buffer = tokens.copy()
        self.length = tokens.size
        self.cached = self.computed = self.scheduled = 0
        self._published = self._node = self._promised = 0

    def __repr__(self) -> str:
        state = f"known {self.length}, scheduled {self.scheduled}, computed {self.computed}"
        return f"<Sequence {self.id!r}: {state}, limit {self.limit}>"

    def tokens(self) -> Ints:
        """A copy of the token ids known, int32[length]. O(length)."""
        return self._buffer[: self.length].copy()

    @property
    def released(self) -> bool:
        """Whether the handle is stale."""
        return self._row < 0

    def _learn(self, tokens: Ints) -> None:
        """Append ids; the buffer doubles, so that n appends cost O(n)."""
        end = self.length + tokens.size
        if end > self._buffer.size:
            grown = np.empty(min(max(2 * end, 64), max(self.limit, end)), np.int32)
            grown[: self.length] = self._buffer[: self.length]
            self._buffer = grown
        self._buffer[self.length : end] = tokens
        self.length = end


class Match(NamedTuple):
    """What the prefix cache holds of a prompt.

    Attributes:
        tokens: leading tokens whose KV could be reused now.
        by_group: the same by group name.
        pending: further pages of the prompt that admitted sequences are computing now.
    """

    tokens: int
    by_group: dict[str, int]
    pending: int


class Fit(NamedTuple):
    """Whether requests can all run to their limits at once; true when they can.

    Attributes:
        short: pages missing by group name, 0 where none are.
    """

    short: dict[str, int]

    def __bool__(self) -> bool:
        return not any(self.short.values())


class Repointed(NamedTuple):
    """A table entry moved to an equal page that was published before."""

    sequence: Sequence
    column: int
    old: int
    new: int


class Committed(NamedTuple):
    """What a commit did: pages newly published, entries repointed, pages dropped by windows."""

    published: int
    repointed: tuple[Repointed, ...]
    dropped: int


class Stats(NamedTuple):
    """Counts of a cache at one moment, and totals since it was made.

    Attributes:
        pages: usable pages, ``live + evictable + free``.
        live: pages held by sequences.
        evictable: published pages nobody holds.
        free: pages that hold nothing.
        peak_live: most pages ever held at once.
        sequences: sequences admitted and not released.
        prompt_tokens: tokens of all prompts admitted so far.
        cached_tokens: those of them found in the prefix cache.
        evicted: published pages given up for new tokens so far.
    """

    pages: int
    live: int
    evictable: int
    free: int
    peak_live: int
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    evicted: int
