"""Failures of planners and calculators, by id (data/cases.yaml, section sizing)."""

import json
from fractions import Fraction

import pytest

import octavo
from octavo import Attention, Cache, ConfigError, ModelSpec, OutOfPages, Plan, PlanError
from octavo.model.spec import Latent, Shared, State
from octavo.planner import pools, sizes
from octavo.planner.geometry import Part, Row, fit_geometry
from octavo.planner.sharding import rank_heads

GIB = 2**30


def planned(layers, memory="80GiB", **options):
    """A plan of such layers."""
    return octavo.plan(ModelSpec("case", tuple(layers)), memory, **options)


def printed(size, digits=2):
    """GiB as people print them: cut or rounded, whichever they do."""
    cut = Fraction(int(Fraction(size, GIB) * 10**digits), 10**digits)
    return {float(cut), round(size / GIB, digits)}


def test_a04_a_latent_is_stored_once():
    """70,272 bytes per token; a formula on heads is 24.89 times as much."""
    plan = planned([Latent(512, 64)] * 61)
    by_heads = planned([Attention(128, 7168 // 128, 7168 // 128)] * 61)

    assert (70_272, 1_748_992) == (plan.bytes_per_token, by_heads.bytes_per_token)
    assert 24.89 == round(by_heads.bytes_per_token / plan.bytes_per_token, 2)


def test_a06_an_indexer_keeps_keys_too():
    """656 bytes per token and layer, and 132 of the indexer."""
    without = planned([Latent(512, 64)] * 61, dtype="fp8")
    with_it = planned([Latent(512, 64, 128)] * 61, dtype="fp8")

    assert (40_016, 48_068) == (without.bytes_per_token, with_it.bytes_per_token)
    assert 54.51 in printed(1_462_784 * without.bytes_per_token)
    assert 65.48 in printed(1_462_784 * with_it.bytes_per_token)
    assert 43.67 in printed(975_424 * with_it.bytes_per_token)
    assert "indexer" in {tensor.component for tensor in with_it.tensors}


def test_a07_fp8_latents_have_scales_and_wide_positions():
    """512 fp8, four fp32 scales and 64 bf16 a token; never as many as expanded heads."""
    one = planned([Latent(512, 64)], dtype="fp8")
    fp8, bf16 = (planned([Latent(512, 64)] * 60, dtype=dtype) for dtype in ("fp8", "bf16"))
    expanded = planned([Attention(128, 192, 128)] * 60)

    assert 656 == one.bytes_per_token
    assert (39_360, 5_158_993_920) == (fp8.bytes_per_token, sizes.kept_bytes(fp8, 131_072))
    assert (69_120, 9_059_696_640) == (bf16.bytes_per_token, sizes.kept_bytes(bf16, 131_072))
    assert 4_915_200 == expanded.bytes_per_token
    assert {"fp8", "fp32", "bf16"} == {tensor.dtype.name for tensor in one.tensors}


def test_a09_windows_end_growth():
    """With capped windows 6.094 GiB, with every page kept in all layers 12: the plan tells both."""
    layers = [Attention(8, 64, 64), Attention(8, 64, 64, window=128)] * 12
    plan = planned(layers)

    assert 6_543_114_240 == 32 * sizes.kept_bytes(plan, 8192)
    assert 12_884_901_888 == 32 * 8192 * plan.bytes_per_token
    assert "49,152 bytes; 24,576 once every window is full" in plan.explain()
    told = octavo.plan(plan.spec, "16GiB", max_length=8192)
    assert 12_884_901_888 == 32 * told.to_dict()["sequence_bytes_without_windows"]
    assert "an engine that keeps every token in every layer takes 402,653,184" in told.explain()
    assert 6_543_114_240 <= 32 * sizes.sequence_bytes(plan, 8192) < 6_660_000_000


def test_a12_heads_and_dims_go_by_layer():
    """Growth is that of the full layers, with their own heads and dims."""
    full, sliding = Attention(1, 512, 512), Attention(8, 256, 256, window=1024)
    plan = planned([full] * 8 + [sliding] * 40)

    assert 16_384 == sizes.bytes_per_token_beyond_windows(plan)
    assert 131_072 == planned([Attention(8, 512, 512)] * 8).bytes_per_token
    assert 393_216 == planned([Attention(8, 256, 256)] * 48).bytes_per_token


def test_a14_shared_layers_own_nothing():
    """15 of 35 layers own a cache: 57.1 % less. A shared layer names an earlier one of its kind."""
    kind = Attention(2, 256, 256)
    plan = planned([kind] * 15 + [Shared(n % 15) for n in range(20)])
    all_own = planned([kind] * 35)

    assert tuple(range(15)) == plan.groups["full"].layers
    saved = 1 - plan.bytes_per_token / all_own.bytes_per_token
    assert 57.1 == round(100 * saved, 1)
    for layers in ((Shared(0),), (kind, Shared(1)), (kind, Shared(0, Attention(4, 256, 256)))):
        with pytest.raises(ConfigError, match="must name an earlier layer"):
            ModelSpec("wrong", layers)


def test_a15_fewer_heads_than_ranks():
    """Heads are replicated where there are fewer than ranks, else they must divide."""
    assert [2, 1, 1, 1] == [rank_heads(*pair) for pair in ((8, 4), (2, 4), (4, 8), (1, 8))]
    with pytest.raises(PlanError, match="tp is 4; it must divide the 6 key/value heads"):
        planned([Attention(6, 64, 64)], tp=4)


@pytest.mark.parametrize("rest", [0, 1, 2, 3])
def test_a16_a_rank_keeps_a_quarter(rest):
    """814 pages of the whole model are 3,256 to 3,259 of a quarter."""
    layers = [Attention(8, 128, 128)] * 64
    page = 64 * 8 * 256 * 2 * 16
    memory = 814 * page + rest * page // 4

    assert 814 == planned(layers, memory).num_pages
    assert 3256 + rest == planned(layers, memory, tp=4).num_pages


def test_a17_ranks_agree_on_pages():
    """The smallest rank's 63 pages are everybody's."""
    layers = [Attention(8, 128, 128)] * 2
    page = 2 * 8 * 256 * 2 * 16
    deep = planned([*layers, layers[0]], 63 * page, pp=2)

    assert 63 == planned(layers, [100 * page, 63 * page], tp=1).num_pages
    assert [deep.num_pages] * 2 == [stage.num_pages for stage in deep.stages]


def test_a21_tokens_follow_from_sequences():
    """33.04 sequences of 32,768 are 1,082,654 tokens; fixed bytes and bytes per token are apart."""
    plan = Plan.from_pages(1 + round(Fraction("33.04") * 32_768 / 16), 16)
    hybrid = planned([Attention(4, 128, 128), *[State((32, 128, 128), (8192, 3))] * 3] * 4)

    assert 1_082_654 == int(Fraction("33.04") * 32_768)
    assert 33.04 == round(float(plan.max_sequences(32_768)), 2)
    assert abs(plan.tokens - 1_082_654) < 16
    assert (8192, 25_755_648) == (hybrid.bytes_per_token, sizes.fixed_bytes_per_sequence(hybrid))
    assert pools.max_length_for(hybrid, 1) == hybrid.tokens
    more = pools.pages(hybrid, hybrid.tokens + 1)
    assert pools.pages(hybrid, hybrid.tokens) <= hybrid.usable_pages < more


@pytest.mark.parametrize(
    ("state", "token", "page", "padding"),
    [
        (1_097_728, 2048, 544, 1.49),
        (2_146_304, 4096, 528, None),
        (542_720, 1152, 480, 1.89),
        (1_777_664, 4096, 448, None),
        (1_777_664, 2080, 864, 1.09),
        (1_941_504, 4096, 480, 1.27),
    ],
)
def test_a23_pages_as_large_as_a_state(state, token, page, padding):
    """Where both share one page size: 16 x ceil(state / (16 x token bytes))."""
    rows = [Row("full", 0, (Part("kv", token),)), Row("state", 1, (Part("state", 0, state),))]
    found = fit_geometry(rows, 16, 16)

    assert (page, page * token) == found
    if padding is not None:
        assert padding == round(100 * (found.block_bytes - state) / state, 2)


def test_a24_many_groups_of_large_pages():
    """A prompt of 12 tokens takes a page of each group: 23 of 70."""
    groups = {f"g{n}": Attention(1, 1, 1, window=4096 + n) for n in range(23)}
    plan = Plan.from_pages(71, 7808, groups)

    assert 23 == pools.pages(plan, 12)
    assert (3, Fraction(70, 23)) == (70 // 23, plan.max_sequences(12))
    assert 32.9 == round(100 * 23 / 70, 1)


def test_a25_saved_states_have_a_price():
    """A state of 51 MiB every 128 tokens is 21.02 GiB; the plan says it and saves far fewer."""
    layers = [Attention(8, 128, 128), State((51 * 2**20 // 4,))]
    plan = planned(layers, "4GiB")
    count, size = sizes.saved_states(plan, 54_000, 128)

    assert (422, 21.02) == (count, round(size / GIB, 2))
    assert 51 * 2**20 == sizes.state_bytes(plan) == plan.to_dict()["prefix_reuse"]["state_bytes"]
    assert 51 * 2**20 // 4096 == sizes.state_tokens(plan)  # as often a state costs what tokens do
    cache = Cache(plan, snapshot_bytes=2 * sizes.state_bytes(plan))
    row = cache.admit([1] * 5000, limit=5000)
    while row.computed < 5000:
        cache.commit(cache.extend(row, min(row.next_stop or 5000, 5000) - row.computed))
    assert 1 <= cache.stats().snapshots <= 2
    others = [cache.admit([2 + n] * 5000, limit=5000) for n in range(200)]
    with pytest.raises(OutOfPages):  # never an empty result
        cache.extend(others, 5000)


def test_a27_a_shared_open_page_is_copied():
    """100 tokens in pages of 64 are two pages, and one more where the second one was shared."""
    cache = Cache(Plan.from_pages(9, 64))
    row = cache.admit([1] * 100, limit=128)
    cache.commit(cache.extend(row, 100), [2])
    [other] = cache.fork(row)
    step = cache.extend(other, 1)

    assert (2, 3) == (pools.pages(cache.plan, 100), cache.stats().live)
    assert 1 == step.copies["full"].target.size


@pytest.mark.parametrize("length", [20_000, 29_000])
def test_a29_activations_are_an_argument(length):
    """The longest length changes nothing but what must fit; what activations take is echoed."""
    spec = ModelSpec("Llama-3.1-8B", (Attention(8, 128, 128),) * 32)
    terms = {"utilization": 0.9, "weights": "15GiB", "activations": "1400MiB"}
    plan = octavo.plan(spec, "24GiB", max_length=length, **terms)

    assert octavo.plan(spec, "24GiB", **terms).num_pages == plan.num_pages
    assert 1400 * 2**20 == json.loads(json.dumps(plan.to_dict()))["memory"]["activations"]
    assert "1,468,006,400 (1.37 GiB) activations" in plan.explain()
