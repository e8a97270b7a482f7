"""Hits over several groups: the longest boundary that all can serve, by brute force."""

import itertools
import random

import numpy as np
import pytest

from octavo import Attention, Media, Plan, Salt, State
from octavo.cache.identity import NO_EXTRAS, read_extras
from octavo.cache.ledger import Ledger
from octavo.cache.matching import find_hit, hit_columns, hit_pages, page_keys, shareable_pages
from octavo.model.lifetimes import lifetime_of

KINDS = {
    "full": Attention(1, 1, 1),
    "w": Attention(1, 1, 1, window=5),
    "ws": Attention(1, 1, 1, window=3, sink_tokens=3),
    "c": Attention(1, 1, 1, chunk=6),
    "state": State(1),
}
MIXES = [*((kind,) for kind in KINDS), *itertools.combinations(KINDS, 2), tuple(KINDS)]
TOKENS = np.arange(17, dtype=np.int32)


def ledger_of(names, page_size, kept):
    """A ledger whose index has, of each group, the pages of TOKENS in ``kept``."""
    plan = Plan.from_pages(400, page_size, {name: KINDS[name] for name in names})
    ledger = Ledger(plan, "lru", 0, None)
    keys = page_keys(TOKENS, NO_EXTRAS, page_size, 0, TOKENS.size // page_size)
    ledger.index.hold(0)
    _, nodes = ledger.index.enter(0, keys)
    for group, name in enumerate(names):
        for column in kept[name]:
            pages = ledger.take(group, 1)
            if name == "state":
                ledger.index.attach_state(group, nodes[column], tuple(pages.tolist()))
            else:
                ledger.index.attach(group, nodes[column : column + 1], pages)
    return ledger, nodes


def needed(name, boundary, page_size):
    """Columns a query at ``boundary`` pages or later needs of a group, one position at a time."""
    life = lifetime_of(KINDS[name])
    if name == "state":
        return [boundary - 1]
    position = boundary * page_size
    seen = [at for at in range(position) if at >= life.floor(position) or at < life.sinks]
    return sorted({at // page_size for at in seen})


@pytest.mark.parametrize("names", MIXES, ids="+".join)
@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_hits_against_brute_force(names, page_size):
    """Any set of kept pages: the boundary, what each group could serve, and what is pinned."""
    chance, columns = random.Random(f"{names}/{page_size}"), TOKENS.size // page_size
    for _ in range(25):
        share = chance.choice([0.5, 0.8, 0.95])
        kept = {n: [c for c in range(columns) if chance.random() < share] for n in names}
        ledger, nodes = ledger_of(names, page_size, kept)
        length = chance.randint(2, TOKENS.size)
        most = (length - 1) // page_size
        served = {
            name: [
                b for b in range(1, most + 1) if set(needed(name, b, page_size)) <= {*kept[name]}
            ]
            for name in names
        }
        both = set.intersection(*map(set, served.values()))
        hit = find_hit(ledger, TOKENS[:length], NO_EXTRAS)

        assert max(both, default=0) == hit.boundary
        assert [max(served[name], default=0) for name in names] == hit.by_group
        for group, name in enumerate(names):
            pages = hit_pages(ledger, group, hit)
            wanted = needed(name, hit.boundary, page_size) if hit.boundary else []
            assert len(wanted) == pages.size
            assert [nodes[c] for c in wanted] == [ledger.index.node_of(group, p) for p in pages]
            if name != "state":
                assert wanted == hit_columns(ledger, group, hit.boundary)


@pytest.mark.parametrize(("length", "pages"), [(0, 0), (3, 0), (4, 1), (9, 2), (12, 2), (100, 2)])
def test_pages_whose_content_is_known(length, pages):
    """Full pages below the length and below the first medium without a digest."""
    identity = read_extras([Media("a", 0, 2), Media(None, 10, 12)])

    assert pages == shareable_pages(identity, length, 4)


def test_keys_of_pages():
    """Token bytes, with the media of the page where it has any."""
    identity = read_extras([Media("a", 3, 5), Salt("s")])
    keys = page_keys(TOKENS, identity, 4, 0, 3)

    assert TOKENS[:12].tobytes() == keys.raw
    assert (TOKENS[:4].tobytes(), (("a", 3, 5),)) == keys.parts(0)
    assert (TOKENS[4:8].tobytes(), (("a", -1, 1),)) == keys.parts(1)
    assert (TOKENS[8:12].tobytes(), ()) == keys.parts(2)
    assert (TOKENS[4:8].tobytes(), 16, {}) == page_keys(TOKENS, NO_EXTRAS, 4, 1, 2)
