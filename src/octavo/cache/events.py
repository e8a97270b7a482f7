"""What happens to published pages, told as it happens: for routers, tiers and logs outside.

Pages are named by digests that are equal in every process; they are computed only when somebody
listens.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from octavo.cache.identity import Extra, page_digest, read_extras, root_digest
from octavo.cache.ledger import Ledger, Removal
from octavo.cache.matching import page_keys, shareable_pages
from octavo.checks import Tokens, check_int, check_tokens


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
        reason: ``evicted`` for other pages, or ``snapshot_bytes`` for other states.
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
    keys = page_keys(ids, identity, page_size, 0, count)
    for at in range(count):
        digest = page_digest(digest, *keys.parts(at))
        digests.append(digest)
    return digests


class EventLog:
    """Turns what the ledger and commits report into events, told when the verb is done.

    Args:
        tell: called with each event. What it raises becomes a RuntimeWarning: the verb has
            happened.
    """

    ledger: Ledger

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._queue: deque[Event] = deque()
        self._telling = False

    def cleared(self) -> None:
        """Every published page was forgotten."""
        self._queue.append(Cleared())

    def deliver(self) -> None:
        """Tell what happened since the last call, in order. O(events).

        A listener may call the cache: what that does is told after what it is being told.
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
            text = f"on_event raised {error!r}; the verb it was told of has happened"
            try:
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            except RuntimeWarning:
                sys.stderr.write(f"octavo: {text}\n")

    def stored(
        self, group: int, nodes: Sequence[int], pages: Sequence[int], copies: int | None = None
    ) -> None:
        """New pages in the index.

        Args:
            copies: groups in which the nodes have a page, these counted; None: those it has now.
        """
        index, name = self.ledger.index, self.ledger.names[group]
        for node, page in zip(nodes, pages, strict=True):
            digest, parent = index.digest(node), index.digest(index.ancestor(node, 1))
            count = index.copies(node) if copies is None else copies
            self._queue.append(Stored(digest, parent, name, page, count))

    def removed(self, removal: Removal) -> None:
        """A page is about to leave the index."""
        index, name = self.ledger.index, self.ledger.names[removal.group]
        copies = index.copies(removal.node) - 1
        self._queue.append(Removed(index.digest(removal.node), name, removal.reason, copies))
