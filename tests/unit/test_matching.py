"""Hits over several groups: the longest boundary that all can serve, by brute force."""

import itertools
import random

import pytest

from octavo import Attention, Media, Plan, State
from octavo.cache.assembly import assemble
from octavo.cache.identity import NO_EXTRAS, read_extras
from octavo.cache.match import Prefixes, shareable_pages
from octavo.model.lifetimes import lifetime_of

KINDS = {
    "full": Attention(1, 1, 1),
    "w": Attention(1, 1, 1, window=5),
    "ws": Attention(1, 1, 1, window=3, sink_tokens=3),
    "c": Attention(1, 1, 1, chunk=6),
    "state": State(1),
}
MIXES = [*((kind,) for kind in KINDS), *itertools.combinations(KINDS, 2), tuple(KINDS)]
TOKENS = list(range(17))


def core_of(names, page_size, kept):
    """A core that has, of each group, the pages of TOKENS in ``kept``; and all nodes."""
    plan = Plan.from_pages(400, page_size, {name: KINDS[name] for name in names})
    core = assemble(plan, "lru", 1, 0, publishes=True)
    index, begin, nodes = core.index, core.read(TOKENS, len(TOKENS)), [0]
    for column in range(len(TOKENS) // page_size):
        at = begin + column * page_size
        nodes.append(index.add(nodes[-1], 0, at))
    for number, name in enumerate(names):
        for column in kept[name]:
            page, node = core.pool.take(number), nodes[column + 1]
            if name == "state":
                core.pool.publish_bundle(number, (page,), node)
            else:
                core.pool.publish(number, page, node)
    return core, nodes[1:]


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
    chance, columns = random.Random(f"{names}/{page_size}"), len(TOKENS) // page_size
    for _ in range(25):
        share = chance.choice([0.5, 0.8, 0.95])
        kept = {n: [c for c in range(columns) if chance.random() < share] for n in names}
        core, nodes = core_of(names, page_size, kept)
        length = chance.randint(2, len(TOKENS))
        most = (length - 1) // page_size
        served = {
            name: [
                b for b in range(1, most + 1) if set(needed(name, b, page_size)) <= {*kept[name]}
            ]
            for name in names
        }
        both = set.intersection(*map(set, served.values()))
        prefixes = Prefixes(core, grid=False)
        hit = prefixes.find(core.read(TOKENS, length), length, NO_EXTRAS)
        pages = prefixes.pages(hit, NO_EXTRAS)

        assert max(both, default=0) == hit.boundary
        assert [max(served[name], default=0) for name in names] == hit.by_group
        for number, name in enumerate(names):
            wanted = needed(name, hit.boundary, page_size) if hit.boundary else []
            held = [core.pool.spaces[number].node[page] for page in pages[number]]
            assert [nodes[column] for column in wanted] == held


@pytest.mark.parametrize(("length", "pages"), [(0, 0), (3, 0), (4, 1), (9, 2), (12, 2), (100, 2)])
def test_pages_whose_content_is_known(length, pages):
    """Full pages below the length and below the first medium without a digest."""
    identity = read_extras([Media("a", 0, 2), Media(None, 10, 12)])

    assert pages == shareable_pages(identity, length, 4)
