"""Prefix hits over several groups: the longest boundary that all of them can serve.

A hit at boundary b needs, of each group, the pages a query at b or later can see: all of them
(full), the last ceil((W-1)/P) and the sinks (window), those of b's chunk (chunked), one state
(state). Reads the index; changes nothing.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.identity import Identity
from octavo.cache.ledger import Ledger
from octavo.cache.runs import NOTHING, Chain, Keys
from octavo.cache.sequence import Ints

Bools = NDArray[np.bool_]


class Hit(NamedTuple):
    """What the index holds of a prompt, in pages.

    Attributes:
        chain: the known nodes, as far as any group or child keeps them.
        held: by group number, the page of each of those nodes (of a state: its first); 0: none.
        boundary: pages all groups can serve.
        by_group: pages each group could serve alone, by number.
        tokens_boundary: pages all token groups could serve, states apart.
    """

    chain: Chain
    held: list[Ints]
    boundary: int
    by_group: list[int]
    tokens_boundary: int


@cache
def no_hit(groups: int) -> Hit:
    """Nothing is known, or looked for."""
    return Hit(NOTHING, [NOTHING.pages(0)] * groups, 0, [0] * groups, 0)


def page_keys(ids: Ints, identity: Identity, page_size: int, first: int, stop: int) -> Keys:
    """Keys of the full pages ``first..stop-1`` of ``ids``. O(tokens)."""
    raw = ids[first * page_size : stop * page_size].tobytes()
    media = {}
    for page in _pages_with_media(identity, page_size, first, stop) if identity.media else ():
        media[page - first] = identity.page_key(page * page_size, (page + 1) * page_size)
    return Keys(raw, 4 * page_size, media)


def _pages_with_media(identity: Identity, page_size: int, first: int, stop: int) -> list[int]:
    pages = set[int]()
    for item in identity.media:
        start, end = item.start // page_size, -(-item.stop // page_size)
        pages.update(range(max(first, start), min(stop, end)))
    return sorted(pages)


def shareable_pages(identity: Identity, length: int, page_size: int) -> int:
    """Full pages below ``length`` whose content is known. O(media)."""
    if not identity.media:
        return length // page_size
    until = identity.shared_until
    return (length if until is None else min(length, until)) // page_size


def find_hit(ledger: Ledger, ids: Ints, identity: Identity) -> Hit:
    """The hit of a prompt; at least one of its tokens is left to compute. O(len(ids))."""
    most = shareable_pages(identity, ids.size - 1, ledger.page_size)
    root = ledger.index.find_root(identity.root)
    if root is None or not most:
        return no_hit(len(ledger.groups))
    chain = ledger.index.walk(root, page_keys(ids, identity, ledger.page_size, 0, most))
    if not chain.size:
        return no_hit(len(ledger.groups))
    held = [chain.pages(group) for group in range(len(ledger.groups))]
    if len(held) == 1 and ledger.token_groups and not ledger.sliding:
        found = chain.size if np.minimum.reduce(held[0]) else int((held[0] == 0).argmax())
        return Hit(chain, held, found, [found], found)
    served = [_served(ledger, group, pages) for group, pages in enumerate(held)]
    by_group = [int(np.flatnonzero(mask)[-1]) for mask in served]
    tokens = np.logical_and.reduce([served[g] for g in ledger.token_groups] or [served[0] | True])
    both = np.logical_and.reduce(served)
    return Hit(
        chain, held, int(np.flatnonzero(both)[-1]), by_group, int(np.flatnonzero(tokens)[-1])
    )


def _served(ledger: Ledger, group: int, pages: Ints) -> Bools:
    """By boundary 0..n: whether ``group`` could serve it with ``pages`` of a chain of n nodes."""
    count = pages.size
    if group in ledger.cross_groups:
        return np.ones(count + 1, np.bool_)
    has = pages != 0
    if group in ledger.state_groups:
        return np.concatenate(([True], has))
    missing = np.concatenate(([0], np.cumsum(~has)))
    boundaries = np.arange(count + 1)
    floors = ledger.groups[group].lifetime.floors(boundaries * ledger.page_size)
    first = floors // ledger.page_size
    sinks = np.minimum(boundaries, ledger.sink_columns(group))
    served: Bools = (missing[boundaries] == missing[first]) & (missing[sinks] == 0)
    return served


def hit_columns(ledger: Ledger, group: int, boundary: int) -> list[int]:
    """Columns of a token group that a hit of ``boundary`` pages pins. O(columns)."""
    sinks, first = ledger.kept_columns(group, boundary * ledger.page_size)
    return [*range(min(sinks, boundary)), *range(first, boundary)]


def hit_pages(ledger: Ledger, group: int, hit: Hit) -> Ints:
    """Physical pages of `hit_columns`, or of the state at the hit's boundary. O(columns)."""
    boundary = hit.boundary
    if not boundary or group in ledger.cross_groups:
        return np.empty(0, np.int32)
    if group in ledger.state_groups:
        return np.array(ledger.index.state(group, hit.chain.node(boundary - 1)), np.int32)
    if group not in ledger.sliding:
        return hit.held[group][:boundary]
    return hit.held[group][hit_columns(ledger, group, boundary)]
