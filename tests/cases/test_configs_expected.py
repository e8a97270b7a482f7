"""Published configs: what each layer keeps, in shapes (data/configs, data/cases.yaml)."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from octavo import Attention, Cross, Latent, ModelSpec, State

read = ModelSpec.from_config

DATA = Path(__file__).parent / "data" / "configs"
EXPECTED = yaml.safe_load((DATA / "expected.yaml").read_text(encoding="utf-8"))


def spec_of(model):
    """The spec of a published config.json."""
    return read(DATA / f"{model}.json")


def kind_of(group):
    """The layer kind that a group of expected.yaml describes."""
    if group["kind"] == "latent":
        return Latent(group["rank"], group["rope"])
    if group["kind"] == "state":
        return State(tuple(group["recurrent"]), tuple(group["conv"]))
    window = group.get("window")
    return Attention(group["kv_heads"], group["k_dim"], group["v_dim"], window=window)


def plain(kind):
    """A kind without what keeps nothing: sink logits are no part of the figures."""
    if isinstance(kind, Attention):
        return Attention(kind.kv_heads, kind.k_dim, kind.v_dim, window=kind.window)
    return kind


@pytest.mark.parametrize("model", EXPECTED)
def test_groups(model):
    """Kinds, heads, dims, windows and state shapes, and how many layers have each."""
    found = Counter(plain(kind) for _, kind in spec_of(model).kinds())

    assert {kind_of(group): group["layers"] for group in EXPECTED[model]["groups"]} == found


@pytest.mark.parametrize("model", EXPECTED)
def test_windows(model):
    """Windows in tokens, the query's own included, and how many layers have each."""
    kinds = [kind for _, kind in spec_of(model).kinds() if isinstance(kind, Attention)]

    assert EXPECTED[model]["windows"] == Counter(kind.window for kind in kinds if kind.window)


@pytest.mark.parametrize("model", EXPECTED)
def test_bytes_per_token(model):
    """The shapes make up the published bytes per token, at two bytes per element."""
    elements = 0
    for _, kind in spec_of(model).kinds():
        if isinstance(kind, Attention):
            elements += kind.elements_per_token
        elif isinstance(kind, Latent):
            elements += kind.rank + kind.rope

    assert EXPECTED[model]["bytes_per_token_all_layers"] == 2 * elements


@pytest.mark.parametrize("model", EXPECTED)
def test_depth_decoder(model):
    """The second decoder of a speech model, and nothing where there is none."""
    row, depth = EXPECTED[model].get("depth_decoder"), spec_of(model).depth
    if row is None:
        assert depth is None
    else:
        kind = Attention(row["kv_heads"], row["head_dim"], row["head_dim"])
        assert (kind,) * row["layers"] == depth.layers
        assert row["positions_per_frame"] == depth.max_length


@pytest.mark.parametrize("model", EXPECTED)
def test_prediction_layers(model):
    """One layer beyond the model's where a figure with one is published, of the last one's kind."""
    spec = spec_of(model)
    published = "with_1_mtp_layer" in EXPECTED[model].get("variants", {})

    assert (spec.layers[-1:] if published else ()) == spec.mtp


def llama4(**fields):
    """Llama 4 Scout's decoder, in the fields that its file has."""
    text = {
        "model_type": "llama4_text",
        "num_hidden_layers": 48,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 8192,
    }
    return read({"model_type": "llama4", "text_config": text | fields})


def granite(heads, kv_heads, layers, attention, width, mamba_heads):
    """A Granite 4.0 H decoder by its published fields."""
    types = ["attention" if layer in attention else "mamba" for layer in range(layers)]
    return read(
        {
            "model_type": "granitemoehybrid",
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "layer_types": types,
            "mamba_n_heads": mamba_heads,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
        }
    )


def dense(model_type, layers, width, heads, kv_heads, **more):
    """A plain decoder by its published fields."""
    return read(
        {
            "model_type": model_type,
            "num_hidden_layers": layers,
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            **more,
        }
    )


def per_token(spec):
    """Bytes that one token adds while every layer keeps it, at two bytes per element."""
    kinds = [kind for _, kind in spec.kinds() if isinstance(kind, Attention)]
    return 2 * sum(kind.elements_per_token for kind in kinds)


def state_bytes(kind):
    """Bytes of one layer's state at two bytes per element."""
    total = 0
    for shape in (kind.recurrent, kind.conv):
        size = 1
        for axis in shape:
            size *= axis
        total += size if shape else 0
    return 2 * total


@pytest.mark.parametrize(
    ("spec", "bytes_per_token"),
    [
        (dense("llama", 126, 16384, 128, 8), 516096),
        (dense("qwen3", 28, 2048, 16, 8, head_dim=128), 114688),
        (dense("qwen3_moe", 48, 2048, 32, 4, head_dim=128), 98304),
        (dense("glm4_moe", 92, 5120, 96, 8, head_dim=128), 376832),
        (dense("cohere", 40, 8192, 64, 64), 1310720),
    ],
    ids=["Llama-3.1-405B", "Qwen3-1.7B", "Qwen3-30B-A3B", "GLM-4.5", "Command-R-v01"],
)
def test_plain_models_of_the_cases(spec, bytes_per_token):
    """Rows of the model table without a config here: their layers make up the published bytes."""
    assert bytes_per_token == per_token(spec)


def test_deepseek_v32_has_an_indexer():
    """Beside latent and rope, 128 elements of an indexer's key in each of 61 layers."""
    spec = read(
        {
            "model_type": "deepseek_v32",
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "num_nextn_predict_layers": 1,
        }
    )

    assert (Latent(512, 64, indexer=128),) * 61 == spec.layers
    assert (Latent(512, 64, indexer=128),) == spec.mtp


def test_granite_4_h_small():
    """4 of 40 layers attend: 16,384 bytes per token, 77,322,240 bytes of state in bf16."""
    spec = granite(32, 8, 40, {5, 15, 25, 35}, 4096, 128)
    kinds = [kind for _, kind in spec.kinds()]

    assert 4 == sum(isinstance(kind, Attention) for kind in kinds)
    assert 16384 == per_token(spec)
    assert 77322240 == sum(state_bytes(kind) for kind in kinds if isinstance(kind, State))


def test_granite_4_h_tiny():
    """806,400 bytes of state per layer, 8,192 bytes per token."""
    spec = granite(12, 4, 40, {5, 15, 25, 35}, 1536, 48)

    assert 806400 == state_bytes(spec.layers[0])
    assert 8192 == per_token(spec)


def test_llama_4_chunks():
    """Three of four layers see their own chunk of 8,192 tokens; the fourth sees all."""
    chunks = [layer.chunk for layer in llama4().layers]

    assert [8192, 8192, 8192, None] * 12 == chunks
    assert {None} == {layer.chunk for layer in llama4(no_rope_layers=[0] * 48).layers}


def test_gemma_4_types_have_heads_of_their_own():
    """8 full layers of one head of 512 beside 40 with a window and 8 heads of 256."""
    spec = read(
        {
            "model_type": "gemma4_text",
            "num_hidden_layers": 48,
            "hidden_size": 3840,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "sliding_window": 1024,
        }
    )
    full = [layer for layer in spec.layers if layer.window is None]

    assert [Attention(1, 512, 512)] * 8 == full
    assert 40 == spec.layers.count(Attention(8, 256, 256, window=1024))
    assert 16384 == 2 * sum(layer.elements_per_token for layer in full)


def test_whisper_attends_to_a_recording():
    """Every decoder layer keeps its own tokens and the recording's keys and values."""
    spec = read(
        {
            "model_type": "whisper",
            "d_model": 1280,
            "encoder_layers": 32,
            "decoder_layers": 4,
            "decoder_attention_heads": 20,
            "num_hidden_layers": 32,
            "max_target_positions": 448,
        }
    )

    assert ((Attention(20, 64, 64), Cross(20, 64, 64, 1500)),) * 4 == spec.layers
    assert 448 == spec.max_length
