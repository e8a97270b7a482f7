"""Sequences: a handle on the tokens one request has, and how far they have come.

published <= computed <= scheduled and computed <= known, as half-open ranges: ``[0, published)``
may be shared, ``[0, computed)`` has KV, ``[0, scheduled)`` has slots, ``[0, known)`` has token ids.
Handles are read by everyone and changed by their Cache alone.
"""

import warnings
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.identity import Identity
from octavo.core.rows import Handle
from octavo.core.sequences import NEVER
from octavo.errors import quote, uncopied

Ints = NDArray[np.int32]
NO_HANDLE = "is not known to this cache: verbs take the handle that admit returned"
"""Why what is no `Sequence` is refused."""


class Sequence(Handle):
    """One admitted request. Made by `Cache.admit`; every attribute is read-only to its holder.

    Attributes:
        id: the name it was admitted under.
        prompt: tokens of the prompt it was admitted with, of a fork the other's: a row is in
            prefill while ``scheduled`` is below. ``tokens()[:prompt]`` are their ids.
        cached: tokens of its prompt whose KV was found in the prefix cache when it was admitted.
    """

    __slots__ = ("_cache", "_identity", "cached", "id", "prompt")

    __reduce__ = uncopied("it is a handle on pages of its cache; Cache.fork makes another")

    def __init__(self, cache: Any, id: object, identity: Identity) -> None:
        super().__init__()
        self.id, self._cache, self._identity = id, cache, identity
        self.prompt = self.cached = 0

    def __repr__(self) -> str:
        state = f"known {self.length}, scheduled {self.scheduled}, computed {self.computed}"
        return f"<Sequence {quote(self.id)}: {state}, limit {self.limit}>"

    @property
    def length(self) -> int:
        """Tokens known."""
        return int(self.last[0] if self.row < 0 else self.core.known[self.row])

    @property
    def scheduled(self) -> int:
        """Positions with a reserved slot."""
        return int(self.last[1] if self.row < 0 else self.core.scheduled[self.row])

    @property
    def computed(self) -> int:
        """Positions whose KV is written and kept."""
        return int(self.last[2] if self.row < 0 else self.core.computed[self.row])

    @property
    def limit(self) -> int:
        """Most tokens it may ever know."""
        return int(self.last[3] if self.row < 0 else self.core.limit[self.row])

    @property
    def preempted(self) -> bool:
        """Whether it gave its pages back and waits for `Cache.resume`."""
        return self.row >= 0 and bool(self.core.preempted[self.row])

    @property
    def next_stop(self) -> int | None:
        """Where its next prefill chunk must end for a state to be kept there; None: anywhere."""
        stop = NEVER if self.row < 0 else self.core.stop[self.row]
        return None if stop == NEVER else int(stop)

    @property
    def released(self) -> bool:
        """Whether the handle is stale."""
        return self.row < 0

    def tokens(self) -> Ints:
        """A copy of the token ids known, int32[length]. O(length)."""
        known: Ints = self.left.copy() if self.row < 0 else self.core.tokens(self.row)
        return known

    def __del__(self) -> None:
        if not hasattr(self, "_cache") or self.row < 0:  # an interrupt may come before it has these
            return
        if self.core is self._cache._core:
            self._cache._orphans.append((self.id, self.row))
            text = f"sequence {quote(self.id)} was collected before it was released"
            warnings.warn(text, ResourceWarning, stacklevel=2)
