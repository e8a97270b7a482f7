"""Real request traces hit as often as an exact simulation of the eviction policy says.

All capacities are in benchmarks/bench_traces.py; here are those that take seconds.
"""

import pytest
from traces import CAPACITIES, LRU_RATES, read_trace, replay

CHOSEN = [
    ("synthetic", 1_000),
    ("synthetic", 10_000),
    ("synthetic", None),
    ("conversation", 10_000),
]


@pytest.mark.parametrize(("name", "blocks"), CHOSEN)
def test_lru_hits_what_a_simulation_says(name, blocks):
    """Within 0.2 points; every law holds of the cache that is left."""
    rate, cache = replay(read_trace(name), blocks)

    assert LRU_RATES[name][CAPACITIES.index(blocks)] == pytest.approx(rate, abs=0.2)
    assert cache.stats().live == 0
    cache.check()


@pytest.mark.parametrize(("name", "blocks"), CHOSEN[:2])
def test_slru_hits_more(name, blocks):
    """A flood of prompts that never come again does not flush what was reused."""
    rate, cache = replay(read_trace(name), blocks, "slru")

    assert rate > LRU_RATES[name][CAPACITIES.index(blocks)] + 0.3
    cache.check()
