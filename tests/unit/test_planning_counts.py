"""What a plan counts and says: windows, ranks, other inputs, indexers, rows of several tokens."""

import json
from pathlib import Path

import pytest

import octavo
from octavo import (
    Attention,
    Compressed,
    ConfigError,
    Cross,
    Latent,
    ModelSpec,
    PlanError,
    State,
)
from octavo.model.configs.weights import WeightsFound, weights_beside
from octavo.planner import sizes

CONFIGS = Path(__file__).parents[1] / "data/configs"


def one(kind, max_length=None, layers=1):
    """A model of equal layers."""
    return ModelSpec("one", (kind,) * layers, max_length)


def notes(plan):
    """What the plan says beside its figures, in one text; the explanation has every sentence."""
    told = plan.to_dict()["notes"]
    assert all(note in plan.explain() for note in told)
    return "; ".join(told)


# -- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{"window": 64}, {"window": 65, "sink_tokens": 4}, {"chunk": 64}])
def test_a_window_of_the_whole_context_is_none(kind):
    """A window or a chunk that the longest sequence never leaves is planned as full attention."""
    spec = ModelSpec("w", (Attention(1, 8, 8, **kind), Attention(1, 8, 8)), 64)
    plan = octavo.plan(spec, "1MiB")

    assert ["full"] == list(plan.groups)
    assert sizes.bytes_per_token_beyond_windows(plan) == plan.bytes_per_token == 64


def test_a_shorter_window_stays_one():
    """One token less is a window."""
    spec = ModelSpec("w", (Attention(1, 8, 8, window=63), Attention(1, 8, 8)), 64)

    assert ["window_63", "full"] == list(octavo.plan(spec, "1MiB").groups)


# -- ranks -----------------------------------------------------------------------------------------


def granite_tiny():
    """A Mamba-2 layer of Granite-4.0-H-Tiny, as its published config has it."""
    config = {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 2,
        "hidden_size": 1536,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 48,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
    }
    return ModelSpec.from_config(config)


def test_groups_of_a_state_are_kept_by_every_rank():
    """B and C of one group are whole on each of four ranks: 202,752 bytes per layer."""
    plan = octavo.plan(granite_tiny(), "1GiB", tp=4, state_dtype="bf16")

    assert 202_752 == sizes.fixed_bytes_per_sequence(plan)
    assert "tp 4 is more than the 1 group of a state: each is kept by 4 ranks" in notes(plan)
    assert 806_400 == sizes.fixed_bytes_per_sequence(
        octavo.plan(granite_tiny(), "1GiB", state_dtype="bf16")
    )


def test_key_heads_of_a_delta_rule_are_kept_by_ranks_that_share_one():
    """Qwen3.5's 16 key heads on 32 ranks: each keeps one whole, beside two value heads."""
    config = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
    }
    plan = octavo.plan(ModelSpec.from_config(config | {"hidden_size": 4096}), "1GiB", tp=32)

    matrix, channels = 2 * 128 * 128, 2 * 128 + 2 * 128
    assert 3 * (4 * matrix + 2 * 3 * channels) == sizes.fixed_bytes_per_sequence(plan)


def test_groups_that_divide_are_divided():
    """Eight groups over four ranks are two each."""
    state = State((16, 8, 4), (192, 3), 8, 8)
    plan = octavo.plan(ModelSpec("m", (state, Attention(8, 8, 8))), "1MiB", tp=4)

    assert 4 * 4 * 8 * 4 + 2 * 3 * (32 + 2 * 8) == sizes.fixed_bytes_per_sequence(plan)


@pytest.mark.parametrize(("heads", "tp"), [(8, 3), (8, 12), (4, 6), (3, 4), (1, 1)])
def test_ranks_and_heads_divide_one_another(heads, tp):
    """Ranks that neither divide the heads nor are a multiple of them are refused."""
    spec = one(Attention(heads, 8, 8))
    if tp == 1:
        assert 32 == octavo.plan(spec, "1MiB", tp=tp).bytes_per_token
        return
    with pytest.raises(PlanError, match="must divide .* or be a multiple") as caught:
        octavo.plan(spec, "1MiB", tp=tp)

    assert ("tp", tp) == (caught.value.field, caught.value.value)


def test_copies_are_told():
    """More ranks than heads keep copies, and latents are whole on each: the plan says so."""
    heads = octavo.plan(one(Attention(2, 8, 8)), "1MiB", tp=8)
    latent = octavo.plan(one(Latent(64, 16)), "1MiB", tp=2)

    assert "tp 8 is more than the 2 key/value heads: each is kept by 4 ranks" in notes(heads)
    assert "latent rows are kept whole on each of the 2 ranks" in notes(latent)
    assert "bytes are per rank (tp 8), sequences and tokens of all together" in heads.explain()


# -- other inputs ----------------------------------------------------------------------------------


def vision():
    """Cross attention of Llama 3.2 90B Vision: 20 layers of 8 heads of 128."""
    layers = (Attention(8, 128, 128),) * 80 + (Cross(8, 128, 128),) * 20
    return ModelSpec("mllama", layers, 131_072)


def test_an_image_is_counted_by_its_positions():
    """6,404 positions of an image are 524,615,680 bytes per sequence."""
    plan = octavo.plan(vision(), "80GiB", input_tokens=6404, max_length=8192)

    assert 524_615_680 == sizes.fixed_bytes_per_sequence(plan)
    assert "left out" not in notes(plan)


def test_inputs_of_unknown_length_are_said_to_be_left_out():
    """Without a length the plan tells what a position of the input takes."""
    plan = octavo.plan(vision(), "80GiB", max_length=8192)

    assert 0 == sizes.fixed_bytes_per_sequence(plan)
    assert "cross attention of 20 layers is left out" in notes(plan)
    assert "81,920 bytes per position" in notes(plan)


def test_a_length_without_cross_attention_is_refused():
    """There is no input whose positions could be counted."""
    with pytest.raises(PlanError, match="has no cross attention"):
        octavo.plan(one(Attention(1, 8, 8)), "1MiB", input_tokens=5)


# -- indexers, rows of several tokens --------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "size"), [("fp8", 132), ("bf16", 256), ("fp32", 512)])
@pytest.mark.parametrize("kind", [Latent(512, 64, 128), Attention(1, 288, 288, indexer=128)])
def test_the_type_of_an_indexers_keys_is_an_option(kind, dtype, size):
    """In fp8 128 elements have a scale of four bytes; wider types have none."""
    plan = octavo.plan(one(kind), "1MiB", indexer_dtype=dtype)

    assert 1152 + size == plan.bytes_per_token
    assert dtype == plan.to_dict()["indexer_dtype"]


def test_an_indexers_type_is_checked():
    """A type without scales of eight bits or fewer is refused."""
    with pytest.raises(PlanError, match="fp8, bf16, fp16 or fp32"):
        octavo.plan(one(Latent(512, 64, 128)), "1MiB", indexer_dtype="int8")


def test_a_row_stands_for_several_tokens():
    """Bytes a token are its part of the row; pages hold the rows of their tokens."""
    spec = ModelSpec("c", (Compressed(4, 8), Compressed(16, 8), Attention(1, 8, 8)), 4096)
    plan = octavo.plan(spec, "1MiB")

    assert 4 + 1 + 32 == plan.bytes_per_token
    assert ["full", "every_4", "every_16"] == list(plan.groups)
    assert [32, 32, 32] == [g.steady_pages(512, 16) for g in plan.groups.values()]
    assert [16 * 32, 4 * 16, 1 * 16] == [g.kept_bytes for g in plan.groups.values()]
    assert 512 * 32 + 128 * 16 + 32 * 16 == sizes.kept_bytes(plan, 512)
    assert 31 // 16 * 16 + 31 // 4 * 16 + 31 * 32 == sizes.kept_bytes(plan, 31)
    assert "a row for every 16 tokens" in plan.explain()


def test_pages_of_rows_of_many_tokens():
    """Where a page's tokens are no whole rows, its rows are those of the fewest pages that are."""
    spec = ModelSpec("c", (Compressed(24, 8), Attention(1, 8, 8)), 4096)
    plan = octavo.plan(spec, "1MiB")

    assert (2 * 16, 96 // 48) == (
        plan.groups["every_24"].kept_bytes,
        plan.groups["every_24"].steady_pages(96, 16),
    )
    assert 512 // 24 * 16 + 512 * 32 == sizes.kept_bytes(plan, 512)


@pytest.mark.parametrize("fields", [(1, 8), (4, 0), (4, 0, 8, 8), (4, -1)])
def test_rows_are_checked(fields):
    """A row stands for two tokens at least, and holds something."""
    with pytest.raises((ConfigError, octavo.OctavoError)):
        Compressed(*fields)


def test_buffers_are_told_by_themselves():
    """What rows are computed from is memory of a sequence, and no part of its fixed bytes."""
    layer = (Compressed(4, 8), State((), rows=(16, 8), buffer=(2, 4, 8)))
    plan = octavo.plan(ModelSpec("c", (layer,), 64), "1MiB", state_dtype="bf16")

    assert 16 * 8 * 2 == sizes.fixed_bytes_per_sequence(plan)
    assert 2 * 4 * 8 * 4 == sizes.buffer_bytes(plan) == plan.to_dict()["buffer_bytes_per_sequence"]
    assert 64 // 4 * 16 + 256 + 256 == sizes.kept_bytes(plan, 64)


# -- weights ---------------------------------------------------------------------------------------


def test_weights_that_are_not_given_are_told():
    """A plan says that no weights were taken off, and nothing of it where they are given."""
    spec = one(Attention(1, 8, 8))

    assert "weights: not given" in notes(octavo.plan(spec, "1MiB"))
    assert octavo.plan(spec, "1MiB").to_dict()["memory"]["weights"] is None
    assert "weights" not in notes(octavo.plan(spec, "1MiB", weights=0))


def test_weights_beside_a_config(tmp_path):
    """An index says its total, a GGUF file alone its size; several of them say none."""
    config = tmp_path / "config.json"
    assert weights_beside(config) is None
    (tmp_path / "a.gguf").write_bytes(bytes(123))
    assert WeightsFound(123, "a.gguf") == weights_beside(config)
    (tmp_path / "b.gguf").write_bytes(bytes(77))
    assert weights_beside(tmp_path) is None
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 4567}}))
    assert WeightsFound(4567, index.name) == weights_beside(tmp_path)
    index.write_text("[")
    assert weights_beside(tmp_path) is None


def touch(folder, **sizes):
    """Files of so many bytes; ``_`` in a name is a dot."""
    for name, size in sizes.items():
        (folder / name.replace("__", "-").replace("_", ".")).write_bytes(bytes(size))


def test_weights_of_files_without_an_index(tmp_path):
    """One file counts, and all parts of one model; a part that is missing says nothing."""
    touch(tmp_path, model_safetensors=50, model__Q4_gguf=9)
    assert WeightsFound(50, "model.safetensors") == weights_beside(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    assert weights_beside(tmp_path) is None
    touch(tmp_path, model__00002__of__00002_safetensors=7)
    assert WeightsFound(57, "model-00001-of-00002.safetensors") == weights_beside(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))
    assert WeightsFound(7, index.name) == weights_beside(tmp_path)


def test_weights_of_other_formats(tmp_path):
    """Meta's shards by rank are one model; so are the parts of a GGUF file, and no other two."""
    meta, split = tmp_path / "meta", tmp_path / "split"
    for folder in (meta, split):
        folder.mkdir()
    touch(meta, consolidated_00_pth=3, consolidated_01_pth=4)
    touch(split, **{f"q__0000{part}__of__00003_gguf": part for part in (1, 2, 3)})

    assert WeightsFound(7, "consolidated.00.pth") == weights_beside(meta / "params.json")
    first = "q-00001-of-00003.gguf"
    assert WeightsFound(6, first) == weights_beside(split) == weights_beside(split / first)
    touch(split, other_gguf=5)
    assert weights_beside(split) is None
    assert WeightsFound(5, "other.gguf") == weights_beside(split / "other.gguf")
    (split / "q-00002-of-00003.gguf").unlink()
    assert weights_beside(split / first) is None
