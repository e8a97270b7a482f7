"""What happens to published pages, as it happens: for routers, tiers and logs outside.

Pages are named by digests that are equal in every process; they are computed only when somebody
listens.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from octavo.cache.identity import Extra, page_digest, read_extras, root_digest
from octavo.cache.match import shareable_pages
from octavo.checks import Tokens, check_int, check_tokens
from octavo.core.commits import Core
from octavo.errors import uncopied

__all__ = ["Cleared", "EventLog", "Removed", "Stored", "page_digests"]


class Stored(NamedTuple):
    """A page was published.

    Attributes:
        digest: of the page in its context.
        parent: of the page before it.
        group: name.
        page: physical page (of a state: its first).
        copies: groups in which the node has a page now.
    """

    digest: bytes
    parent: bytes
    group: str
    page: int
    copies: int


class Removed(NamedTuple):
    """A published page was given up.

    Attributes:
        digest: of the page in its context.
        group: name.
        reason: ``evicted`` for other pages or by `reset`, ``snapshot_bytes`` for other states.
        copies: groups in which the node still has a page.
    """

    digest: bytes
    group: str
    reason: str
    copies: int


class Cleared(NamedTuple):
    """Every published page was forgotten."""


Event = Stored | Removed | Cleared


def page_digests(tokens: Tokens, page_size: int, extra: Iterable[Extra] = ()) -> list[bytes]:
    """Digests of the full pages of a prompt, as the events name them: what a router looks up.

    Pages from a medium without a digest on have none. O(len(tokens)).

    Raises:
        TokenError, LengthError, IdentityError: as `octavo.Cache.admit`.
    """
    check_int("page_size", page_size, 1)
    ids, identity = check_tokens(tokens), read_extras(extra)
    count = shareable_pages(identity, ids.size, page_size)
    digests, digest = [], root_digest(identity.root)
    keys = identity.page_keys(page_size, count)
    for column in range(count):
        page = ids[column * page_size : (column + 1) * page_size].tobytes()
        digest = page_digest(digest, page, keys.get(column, ()))
        digests.append(digest)
    return digests


class EventLog:
    """Turns what the core reports into events, delivered when the verb is done.

    Args:
        core: which calls `stored` and `removed`.
        tell: called with each event. What it raises becomes a RuntimeWarning: the verb has
            happened.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, core: Core, tell: Callable[[Event], None]) -> None:
        self._core, self._tell = core, tell
        self._queue: deque[Event] = deque()
        self._telling = False
        core.stored, core.pool.removed = self.stored, self.removed
        core.index.named = True

    def cleared(self) -> None:
        """Every published page was forgotten."""
        self._queue.append(Cleared())

    def deliver(self) -> None:
        """Tell what happened since the last call, in order. O(events).

        A listener may call the cache: the events of that are delivered after the present one.
        """
        if self._telling:
            return
        self._telling = True
        try:
            while self._queue:
                self._tell_one(self._queue.popleft())
        finally:
            self._telling = False

    def _tell_one(self, event: Event) -> None:
        """The verb has happened, so nothing may be raised: not even a warning that is an error."""
        try:
            self._tell(event)
        except Exception as error:  # noqa: BLE001, whatever a listener raises
            text = f"on_event raised {error!r}; the verb it heard of has happened"
            try:
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            except RuntimeWarning:
                sys.stderr.write(f"octavo: {text}\n")

    def stored(self, group: int, node: int, page: int) -> None:
        """A page stands for a node now."""
        index, name = self._core.index, self._core.names[group]
        parent = self.digest(index.parent[node])
        self._queue.append(Stored(self.digest(node), parent, name, page, index.copies(node)))

    def removed(self, group: int, page: int, evicted: bool) -> None:  # noqa: FBT001
        """A page is about to leave the index, for others or for other states."""
        index, node = self._core.index, self._core.pool.spaces[group].node[page]
        if node in index.keys:  # a cross input: no event said that it was stored
            return
        reason = "evicted" if evicted else "snapshot_bytes"
        name, copies = self._core.names[group], index.copies(node) - 1
        self._queue.append(Removed(self.digest(node), name, reason, copies))

    def digest(self, node: int) -> bytes:
        """SHA-256 name of a node, equal in every process. O(nodes not named before)."""
        index, trail = self._core.index, []
        while node not in index.names and node and index.parent[node] >= 0:
            trail.append(node)
            node = index.parent[node]
        if node not in index.names:
            key: Any = index.keys.get(node, ())
            index.names[node] = root_digest(key)
        name: bytes = index.names[node]
        for later in reversed(trail):
            tokens = np.asarray(index.tokens)[later * index.size : (later + 1) * index.size]
            tag = index.tag[later]
            media: Any = index.tags.thing[tag] if tag else ()
            name = index.names[later] = page_digest(name, tokens.tobytes(), media)
        return name
