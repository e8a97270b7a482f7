"""Prefix hits over several groups: the longest boundary that all of them can serve.

A hit at boundary b needs, of each group, the pages a query at b or later can see: all of them
(full), the last ceil((W-1)/P) and the sinks (window), those of b's chunk (chunked), one state
(state). Reads the index; changes nothing.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.identity import Identity
from octavo.ledger import Ledger
from octavo.prefix import PageKey
from octavo.sequences import Ints

Bools = NDArray[np.bool_]


class Hit(NamedTuple):
    """What the index holds of a prompt, in pages.

    Attributes:
        nodes: the known chain, as far as any group or child keeps it.
        boundary: pages all groups can serve.
        by_group: pages each group could serve alone, by number.
        tokens_boundary: pages all token groups could serve, states apart.
    """

    nodes: list[int]
    boundary: int
    by_group: list[int]
    tokens_boundary: int


def page_keys(
    ids: Ints, identity: Identity, page_size: int, first: int, stop: int
) -> list[PageKey]:
    """Keys of the full pages ``first..stop-1`` of ``ids``. O(tokens)."""
    raw, width = ids[first * page_size : stop * page_size].tobytes(), 4 * page_size
    chunks = [raw[start : start + width] for start in range(0, len(raw), width)]
    if not identity.media:
        return list(chunks)
    keys: list[PageKey] = []
    for page, chunk in enumerate(chunks, first):
        media = identity.page_key(page * page_size, (page + 1) * page_size)
        keys.append((chunk, media) if media else chunk)
    return keys


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
    nodes = []
    if root is not None and most and identity.media:
        nodes = ledger.index.walk(root, page_keys(ids, identity, ledger.page_size, 0, most))
    elif root is not None and most:
        raw = ids[: most * ledger.page_size].tobytes()
        nodes = ledger.index.walk_tokens(root, raw, 4 * ledger.page_size)
    if len(ledger.groups) == 1 and ledger.token_groups and not ledger.sliding:
        held = ledger.index.pages(0)
        pages = list(map(held.get, nodes))
        found = pages.index(None) if None in pages else len(pages)
        return Hit(nodes, found, [found], found)
    served = [_served(ledger, group, nodes) for group in range(len(ledger.groups))]
    by_group = [int(np.flatnonzero(mask)[-1]) for mask in served]
    tokens = np.logical_and.reduce([served[g] for g in ledger.token_groups] or [served[0] | True])
    both = np.logical_and.reduce(served)
    return Hit(nodes, int(np.flatnonzero(both)[-1]), by_group, int(np.flatnonzero(tokens)[-1]))


def _served(ledger: Ledger, group: int, nodes: list[int]) -> Bools:
    """bool[len(nodes) + 1]: whether ``group`` can serve a hit of so many pages."""
    held, count = ledger.index.pages(group), len(nodes)
    if group in ledger.cross_groups:
        return np.ones(count + 1, np.bool_)
    has = np.fromiter((node in held for node in nodes), np.bool_, count)
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


def hit_pages(ledger: Ledger, group: int, nodes: list[int], boundary: int) -> Ints:
    """Physical pages of `hit_columns`, or of the state at ``boundary``. O(columns)."""
    held = ledger.index.pages(group)
    if not boundary or group in ledger.cross_groups:
        return np.empty(0, np.int32)
    if group in ledger.state_groups:
        return np.array(held[nodes[boundary - 1]], np.int32)
    if group not in ledger.sliding:
        return np.array(list(map(held.__getitem__, nodes[:boundary])), np.int32)
    columns = hit_columns(ledger, group, boundary)
    return np.array([held[nodes[column]] for column in columns], np.int32)
