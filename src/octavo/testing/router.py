"""Events followed from outside, as a router would: what is kept where, by digest alone.

An independent judge of matching: it knows the digests in events and hashes prompts itself, and
must come to the same hits as the cache.
"""

from octavo.cache.events import Cleared, Event, Removed, Stored
from octavo.cache.identity import Identity, page_digest, root_digest
from octavo.model.lifetimes import Chunked, Lifetime, Window
from octavo.testing.shapes import Shape


class Router:
    """What one cache has published.

    Args:
        shape: groups and page size.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._free = [name for name, life in shape.lifetimes.items() if _may_need_nothing(life)]
        self.kept: dict[str, set[bytes]] = {name: set() for name in shape.groups}

    def __call__(self, event: Event) -> None:
        """Follow one event, and check what it says about copies."""
        if isinstance(event, Stored):
            assert event.digest not in self.kept[event.group], "stored twice"
            self.kept[event.group].add(event.digest)
            assert self._copies(event.digest) == event.copies
        elif isinstance(event, Removed):
            self.kept[event.group].remove(event.digest)
            assert self._copies(event.digest) == event.copies
        else:
            assert isinstance(event, Cleared)
            assert not any(self.kept.values()), "cleared, and pages are kept"

    def predict(self, tokens: list[int], identity: Identity) -> tuple[int, dict[str, int]]:
        """(tokens of a hit, tokens each group could serve alone).

        Groups that need no page at some boundaries are left out: how far a chain of tokens is
        known where all its pages were given up is in no event.
        """
        size = self._shape.page_size
        chain = self._chain(tokens, identity)
        known = max(
            (at + 1 for at, d in enumerate(chain) if any(d in k for k in self.kept.values())),
            default=0,
        )
        served = {
            name: [b for b in range(known + 1) if self._serves(name, life, chain, b)]
            for name, life in self._shape.lifetimes.items()
        }
        both = set.intersection(*map(set, served.values()))
        alone = {
            name: max(found) * size for name, found in served.items() if name not in self._free
        }
        return max(both) * size, alone

    def _copies(self, digest: bytes) -> int:
        return sum(digest in kept for kept in self.kept.values())

    def _chain(self, tokens: list[int], identity: Identity) -> list[bytes]:
        """Digests of the full pages that leave one token to compute."""
        size, until = self._shape.page_size, identity.shared_until
        length = len(tokens) - 1 if until is None else min(len(tokens) - 1, until)
        chain, before = [], root_digest(identity.root)
        for start in range(0, length - size + 1, size):
            raw = b"".join(token.to_bytes(4, "little") for token in tokens[start : start + size])
            before = page_digest(before, raw, identity.page_key(start, start + size))
            chain.append(before)
        return chain

    def _serves(self, group: str, life: Lifetime, chain: list[bytes], boundary: int) -> bool:
        """Whether ``group`` has what a query behind ``boundary`` pages needs."""
        kept, size = self.kept[group], self._shape.page_size
        if life.form == "cross" or not boundary:
            return True
        if life.form == "state":
            return chain[boundary - 1] in kept
        first = life.floor(boundary * size) // size
        sinks = min(boundary, -(-life.sinks // size))
        return all(chain[at] in kept for at in (*range(sinks), *range(first, boundary)))


def _may_need_nothing(life: Lifetime) -> bool:
    """Whether a hit may need no page of the group at some boundaries."""
    narrow = isinstance(life, Window) and life.window == 1
    return life.form == "cross" or isinstance(life, Chunked) or narrow
