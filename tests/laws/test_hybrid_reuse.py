"""Prompts that share a prefix reuse it where a recurrent state stands beside full attention.

A base prompt of 2,200 tokens, then siblings that share 500, 1,500 and 1,600 of them, each three
times, page size 16. What is reused does not depend on how large a state is.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from octavo import Cache, Plan
from octavo.model.spec import Attention, State

LENGTH, PAGE, CHUNK = 2_200, 16, 512
SHARES = (500, 1_500, 1_600)
ORDERS = {
    "in turn": [share for _ in range(3) for share in SHARES],
    "one after the other": [share for share in SHARES for _ in range(3)],
}


class Ran(NamedTuple):
    """One request: tokens shared and reused, states newly kept, and why it reused as much."""

    shared: int
    reused: int
    kept: int
    why: str


SHAPES = {
    "a state is a page": {},
    "a state is as large as 8 pages": {"pages_per_parent": {"full": 8}},
    "a state is 3 pages of its own": {"pages_per_parent": {"full": 4}, "parts": {"state": 3}},
}


def hybrid(state_bytes=0, shape="a state is a page", **options):
    """A cache with a full group and a state group."""
    plan = Plan.from_pages(
        4_000,
        PAGE,
        groups={"full": Attention(1, 1, 1), "state": State(1)},
        page_bytes={"state": state_bytes},
        **SHAPES[shape],
    )
    return Cache(plan, **options)


def serve(cache, tokens, shared):
    """Prefill in chunks that end at the sequence's stops, learn a token, finish."""
    why = str(cache.explain_match(tokens))
    sequence, kept = cache.admit(tokens), 0
    parts = cache.plan.groups["state"].parts
    while sequence.computed < tokens.size:
        start = sequence.scheduled
        end = min(tokens.size, start + CHUNK, sequence.next_stop or tokens.size)
        step = cache.extend(sequence, end - start)
        kept += len(step.snapshots["state"].target) // parts if step.snapshots else 0
        cache.commit(step, [7 if step.wants_token[0] else None])
    reused = sequence.cached
    cache.release(sequence)
    cache.check()
    return Ran(shared, reused, kept, why)


def serve_all(cache, order):
    """The base prompt, then the siblings; each ends in tokens of its own."""
    chance = np.random.default_rng(4)
    base = chance.integers(1, 30_000, LENGTH, dtype=np.int32)
    ran = [serve(cache, base, 0)]
    for shared in ORDERS[order]:
        own = chance.integers(1, 30_000, LENGTH - shared, dtype=np.int32)
        ran.append(serve(cache, np.concatenate([base[:shared], own]), shared))
    return ran


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_branch_every_sharer_after_the_first_reuses(order, shape):
    """More than 95 % of what is shared, whatever the state's size, for two states a request."""
    cache = hybrid(77_266_944, shape, snapshot_bytes=14 * 77_266_944 * (3 if "3" in shape else 1))
    seen = set()
    for ran in serve_all(cache, order):
        assert ran.kept <= 2
        assert cache.stats().snapshots <= 14
        if ran.shared in seen:
            assert ran.reused > 0.95 * ran.shared
        seen.add(ran.shared)


@pytest.mark.parametrize("order", ORDERS)
def test_branch_says_why_the_first_sharer_of_a_boundary_reuses_less(order):
    """No state was kept where it left the base prompt; one is taken now, at its last full page."""
    seen = {0}
    for ran in serve_all(hybrid(), order):
        if ran.shared not in seen:
            boundary = ran.shared // PAGE * PAGE
            assert ran.reused < boundary
            assert f"no state was kept at {boundary}" in ran.why
            assert "one is taken" in ran.why
        seen.add(ran.shared)


def test_branch_keeps_the_states_used_last_where_bytes_are_few():
    """Within ``snapshot_bytes`` always; what was used longest ago goes first."""
    cache = hybrid(1_000, snapshot_bytes=4_999)
    ran = serve_all(cache, "one after the other")

    assert cache.stats().snapshots == 4
    assert [r.reused for r in ran if r.shared == 1_600][1:] == [1_600, 1_600]


@pytest.mark.parametrize("order", ORDERS)
def test_grid_reuses_from_the_second_request_on(order):
    """More than 90 % of what is shared, the first time too."""
    cache = hybrid(16, snapshots="grid", snapshot_bytes=16 * 400)
    for ran in serve_all(cache, order)[1:]:
        assert ran.reused > 0.9 * ran.shared
        assert cache.stats().snapshots <= 400


def test_grid_boundaries_are_at_most_a_twentieth_apart():
    """From the first page on, unless the next page is farther than that."""
    cache = hybrid(snapshots="grid")
    sequence = cache.admit(np.arange(1, 20_001, dtype=np.int32))
    stops = []
    while sequence.next_stop is not None:
        stops.append(sequence.next_stop)
        cache.commit(cache.extend(sequence, stops[-1] - sequence.scheduled))

    assert stops[0] == PAGE
    assert stops[-1] == 19_984
    for before, after in pairwise(stops):
        assert after <= max(before + PAGE, 1.05 * before)


@pytest.mark.parametrize("shared", [160, 487, 1_111, 2_047])
def test_grid_serves_any_boundary(shared):
    """Not only the three of the scenario."""
    cache = hybrid(snapshots="grid")
    chance = np.random.default_rng(shared)
    base = chance.integers(1, 30_000, LENGTH, dtype=np.int32)
    own = chance.integers(1, 30_000, LENGTH - shared, dtype=np.int32)
    serve(cache, base, 0)
    second = serve(cache, np.concatenate([base[:shared], own]), shared)

    assert second.reused > 0.9 * shared
