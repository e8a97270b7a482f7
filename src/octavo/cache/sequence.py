"""Sequences: a handle on the tokens one request has, and how far they have come.

published <= computed <= scheduled and computed <= known, as half-open ranges: ``[0, published)``
may be shared, ``[0, computed)`` has KV, ``[0, scheduled)`` has slots, ``[0, known)`` has token ids.
Handles are read by everyone and changed by their Cache alone.
"""

import warnings
from typing import Any, NamedTuple, NoReturn

import numpy as np

from octavo.cache.identity import CrossInput, Identity
from octavo.cache.rows import NEVER, Rows
from octavo.checks import Ints, Tokens, check_tokens

__all__ = ["Ints", "Orphan", "Sequence", "Tokens", "check_tokens"]

_SLACK = 64  # ids an answer may grow by before its buffer is moved


class Orphan(NamedTuple):
    """What a handle that was collected without a release left behind.

    Attributes:
        id: its name.
        rows: its batch's, which was collected with it, or the cache's own.
        row: its row there.
        at_home: whether they are the cache's own.
        preempted: whether it held nothing.
        fetches: states it held, by group.
    """

    id: object
    rows: Rows
    row: int
    at_home: bool
    preempted: bool
    fetches: list[tuple[int, Ints]]


class Sequence:
    """One admitted request. Made by `Cache.admit`; every attribute is read-only to its holder.

    Attributes:
        id: the name it was admitted under.
        cached: tokens of its prompt whose KV was found in the prefix cache when it was admitted.
        preempted: whether it gave its pages back and waits for `Cache.resume`.
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_buffer",
        "_cache",
        "_epoch",
        "_fetch",
        "_identity",
        "_numbers",
        "_private",
        "_promised",
        "_row",
        "_rows",
        "_stops",
        "_stored",
        "cached",
        "id",
        "preempted",
    )

    def __init__(
        self, cache: Any, id: object, rows: Rows, row: int, tokens: Ints, identity: Identity
    ) -> None:
        self.id, self._cache, self._rows, self._row = id, cache, rows, row
        self._buffer = np.empty(tokens.size + _SLACK, np.int32)
        self._buffer[: tokens.size] = tokens
        self._stored = tokens.size
        self.cached = self._epoch = 0
        self.preempted = self._promised = self._private = False
        self._identity = identity
        self._batch: Any = None
        self._stops: set[int] = set()
        self._fetch: list[tuple[int, Ints]] = []
        self._numbers: tuple[int, int, int, int] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Sequence is a handle: it cannot be copied or pickled")

    def __repr__(self) -> str:
        state = f"known {self.length}, scheduled {self.scheduled}, computed {self.computed}"
        return f"<Sequence {self.id!r}: {state}, limit {self.limit}>"

    @property
    def length(self) -> int:
        """Tokens known."""
        return int(self._rows.known[self._row]) if self._numbers is None else self._numbers[0]

    @property
    def scheduled(self) -> int:
        """Positions with a reserved slot."""
        return int(self._rows.scheduled[self._row]) if self._numbers is None else self._numbers[1]

    @property
    def computed(self) -> int:
        """Positions whose KV is written and kept."""
        return int(self._rows.computed[self._row]) if self._numbers is None else self._numbers[2]

    @property
    def limit(self) -> int:
        """Most tokens it may ever know."""
        return int(self._rows.limit[self._row]) if self._numbers is None else self._numbers[3]

    @property
    def _cross(self) -> CrossInput | None:
        return self._identity.cross

    @property
    def _cross_length(self) -> int:
        cross = self._identity.cross
        return 0 if cross is None else cross.length

    @property
    def next_stop(self) -> int | None:
        """Where its next prefill chunk must end for a state to be kept there; None: anywhere."""
        computed = self.scheduled
        return min((stop for stop in self._stops if stop > computed), default=None)

    @property
    def released(self) -> bool:
        """Whether the handle is stale."""
        return self._numbers is not None

    def _takes_part(self, clock: int) -> bool:
        """Whether results of the step made at ``clock`` still mean anything to it."""
        return self._numbers is None and self._epoch <= clock

    def tokens(self) -> Ints:
        """A copy of the token ids known, int32[length]. O(length)."""
        return self._known().copy()

    def _known(self) -> Ints:
        """The token ids known, perhaps a view. O(1), after steps of a batch O(length)."""
        self._store_late()
        known = self.length
        if known == self._stored:
            return self._buffer[:known]
        return np.concatenate([self._buffer[: self._stored], self._tail()])

    def _tail(self) -> Ints:
        """Known ids that are in the row's tail alone; pages filled before are in the buffer."""
        rows, row, size = self._rows, self._row, self._rows.page_size
        start = int(rows.computed[row]) // size * size
        return rows.tail[row, self._stored - start : int(rows.known[row]) - start]

    def _store_late(self) -> None:
        """Bring pages that filled up in the tail into the buffer. O(their tokens)."""
        rows, row, size = self._rows, self._row, self._rows.page_size
        late = rows.late[row] if self._numbers is None else None
        if late:
            rows.late[row] = []
            known = self._stored
            self._stored = (int(rows.computed[row]) // size - len(late)) * size
            self._store(np.frombuffer(b"".join(late), np.int32))
            self._stored = max(known, self._stored)

    def _sync(self) -> None:
        """Bring every known id into the buffer. O(tokens not there yet)."""
        if self._numbers is None:
            self._store_late()
            if self._rows.known[self._row] > self._stored:
                self._store(self._tail())

    def _leave_stride(self) -> None:
        """Something but a step of its batch happens to the row."""
        if self._batch is not None:
            self._batch._stride = None

    def _turn(self) -> None:
        """Position ``computed`` is another, and every id is in the buffer: set up the tail."""
        if self._batch is not None:
            self._batch._stride = None
            rows, size = self._rows, self._rows.page_size
            start = int(rows.computed[self._row]) // size * size
            ids = self._buffer[start : min(start + size, self._stored)]
            rows.tail[self._row, : ids.size] = ids

    def _aim(self) -> None:
        """Position ``scheduled`` or the stops are others: note the next one. O(stops)."""
        self._leave_stride()
        stop = self.next_stop if self._stops else None
        self._rows.stop[self._row] = NEVER if stop is None else stop

    def _store(self, tokens: Ints) -> None:
        """Append ids to the buffer, which doubles, so that n appends cost O(n)."""
        end = self._stored + tokens.size
        if end > self._buffer.size:
            grown = np.empty(max(2 * end, 64), np.int32)
            grown[: self._stored] = self._buffer[: self._stored]
            self._buffer = grown
        self._buffer[self._stored : end] = tokens
        self._stored = end

    def __del__(self) -> None:
        if getattr(self, "_numbers", ()) is None:
            at_home, fetch = self._batch is None, self._fetch
            left = Orphan(self.id, self._rows, self._row, at_home, self.preempted, fetch)
            self._cache._orphans.append(left)
            self._numbers = (0, 0, 0, 0)
            text = f"sequence {self.id!r} was collected before it was released"
            warnings.warn(text, ResourceWarning, stacklevel=2)
