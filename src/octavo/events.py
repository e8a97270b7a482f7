"""What happens to published pages, told as it happens: for routers, tiers and logs outside.

Pages are named by digests that are equal in every process; they are computed only when somebody
listens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from octavo.ledger import Ledger, Removal


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


class EventLog:
    """Turns what the ledger and commits report into events.

    Args:
        tell: called with each event.
    """

    ledger: Ledger

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self.tell = tell

    def stored(self, group: int, nodes: Sequence[int], pages: Sequence[int]) -> None:
        """New pages in the index."""
        index, name = self.ledger.index, self.ledger.names[group]
        for node, page in zip(nodes, pages, strict=True):
            parent = index.digest(index.ancestor(node, 1))
            self.tell(Stored(index.digest(node), parent, name, page, index.copies(node)))

    def removed(self, removal: Removal) -> None:
        """A page is about to leave the index."""
        index, name = self.ledger.index, self.ledger.names[removal.group]
        copies = index.copies(removal.node) - 1
        self.tell(Removed(index.digest(removal.node), name, removal.reason, copies))
