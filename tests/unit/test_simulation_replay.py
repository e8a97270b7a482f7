"""Serial replay on the real cache: hits, refusals, routers, occupancy."""

import numpy as np
import pytest

from octavo import Attention, Plan, PlanError, State
from octavo.simulation import Setting, Trace, TraceRequest, generate, replay

ROUTERS = ["round-robin", "least-loaded", "prefix"]


def _blocks(*prompts):
    """A trace of hash ids."""
    requests = [
        TraceRequest(
            number, float(number), 512 * len(ids), 1, blocks=np.array(ids, np.int32) * 2 + 1
        )
        for number, ids in enumerate(prompts)
    ]
    return Trace("blocks", "mooncake", requests)


def _pages(pages, page_size=512):
    return Setting(Plan.from_pages(pages + 1, page_size))


def test_hits_of_blocks():
    """A prompt hits what was there: with a token of its own behind, all of its blocks."""
    whole = replay(_blocks([1, 2], [1, 2], [1, 2, 3], [4], [2, 1]), _pages(20)).whole

    assert (10, 4) == (whole.prompt_pages, whole.cached_pages)
    assert (5, 0, 4 * 512) == (whole.served, whole.refused, whole.cached_tokens)


@pytest.mark.parametrize("page_size", [16, 64, 512])
def test_page_size_does_not_change_hits_of_blocks(page_size):
    """Blocks are whole multiples of the page: what is shared ends where a block does."""
    prompts = np.random.default_rng(0).integers(0, 4, (40, 3)).tolist()
    trace = _blocks(*prompts)
    run = replay(trace, _pages(trace.most_pages(page_size, serial=True), page_size))

    assert replay(trace, _pages(10_000)).whole.cached_tokens == run.whole.cached_tokens


def test_least_recently_used_blocks_go():
    """Room for two blocks and the open page: the third takes the place of the oldest."""
    run = replay(_blocks([1], [2], [3], [1], [3]), _pages(3))

    assert (1, 2) == (run.whole.cached_pages, run.whole.evicted["prefill"])


def test_what_never_fits_is_refused():
    """And counted; its ids are not even made."""
    huge = TraceRequest(1, 1.0, 2**31 - 1, 1)
    trace = Trace("some", "azure", [TraceRequest(0, 0.0, 40, 1), huge, TraceRequest(2, 2.0, 65, 1)])
    whole = replay(trace, _pages(4, 16)).whole

    assert (1, 2, 40) == (whole.served, whole.refused, whole.prompt_tokens)


@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_is_no_replica(router):
    """Whatever the router, all requests go to the only one there is."""
    trace, plan = generate("chat", 60), Plan.from_pages(400, 16)
    plain = replay(trace, Setting(plan)).to_dict()
    routed = replay(trace, Setting(plan, replicas=1, router=router)).to_dict()

    assert plain | {"router": router} == routed


@pytest.mark.parametrize("router", ROUTERS)
def test_replicas_add_up(router):
    """Counts of all replicas are those of the run, and each holds no more than its pool."""
    setting = Setting(Plan.from_pages(300, 16), replicas=3, router=router)
    found = replay(generate("system-prompt", 100), setting).to_dict()
    each = found["per_replica"]

    assert 100 == found["requests"] == sum(one["requests"] for one in each)
    assert found["cached_tokens"] == sum(one["cached_tokens"] for one in each)
    assert all(0 < one["peak_pages"] <= 299 for one in each)
    assert 1 <= found["balance"] < 1.6


def test_prefix_router_hits_more():
    """16 system prompts on 4 replicas that hold a quarter of them each."""
    trace, plan = generate("system-prompt", 200), Plan.from_pages(700, 16)
    hits = {
        router: replay(trace, Setting(plan, replicas=4, router=router)).whole.cached_tokens
        for router in ROUTERS
    }

    assert hits["prefix"] > 1.3 * hits["round-robin"]


def test_occupancy_sums():
    """At every moment held, kept and free pages are all there are."""
    [one] = replay(generate("chat", 60), _pages(400, 16)).to_dict()["per_replica"]
    sums = [row["live"] + row["evictable"] + row["free"] for row in one["occupancy"]]

    assert 60 == len(sums)
    assert [400] * 60 == pytest.approx(sums)


def test_long_runs_keep_few_samples():
    """Means over longer spans; the time covered stays the same."""
    [one] = replay(generate("rag", 700), _pages(400, 16)).to_dict()["per_replica"]

    assert 128 < len(one["occupancy"]) <= 256
    assert 690 < one["occupancy"][-1]["at"] < 700


@pytest.mark.parametrize("policy", ["lru", "slru"])
def test_same_again(policy):
    """A run is a function of its arguments, but for the processor time it took."""
    setting = Setting(Plan.from_pages(300, 16), policy, replicas=2, router="prefix")

    assert (
        replay(generate("agents", 60), setting).to_dict()
        == replay(generate("agents", 60), setting).to_dict()
    )


def test_windows_and_states():
    """Prompts are computed in chunks that end where states are kept; hits need every group."""
    groups = {
        "full": Attention(1, 8, 8),
        "near": Attention(1, 8, 8, window=64),
        "state": State(8),
    }
    few, many = (
        replay(generate("chat", 40), Setting(Plan.from_pages(pages, 16, groups))).whole
        for pages in (200, 1200)
    )

    assert (40, 0) == (many.served, many.refused)
    assert many.cached_tokens > 0
    assert 0 < few.served == 40 - few.refused


def test_unknown_names():
    """Policy and router are checked before anything runs."""
    with pytest.raises(PlanError, match="known policies are: lru, slru"):
        Setting(Plan.from_pages(9, 16), policy="fifo")
    with pytest.raises(PlanError, match="known routers are: round-robin, "):
        Setting(Plan.from_pages(9, 16), router="random")


def test_kept_is_not_held():
    """One request at a time holds pages; those it leaves for reuse are counted as kept."""
    whole = replay(_blocks([1], [2], [3]), _pages(20)).whole

    assert (2, 3, 3) == (whole.peak_live, whole.peak_kept, whole.end_kept)
