"""Decoders read from configs: what transformers computes, over pages, prefill, decode and mixed."""

import numpy as np
import pytest
import transformers
from exported_models import build, difference, paged_logits, prompts, wanted_logits, weights_of
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.errors import PlanError
from octavo.integrations.onnx import Decoder, export_decoder

TOLERANCE = 1e-4  # relative; both compute in fp32


def rope(kind, **parameters):
    """Rope parameters of a type."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **parameters}}


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"factor": 4.0, "original_max_position_embeddings": 24}
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 3.0,
}
CASES = {
    "llama": ("Llama", {}),
    "llama with all biases, tied": (
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama3 scaling": ("Llama", rope("llama3", factor=8.0, **LLAMA3)),
    "linear scaling": ("Llama", rope("linear", factor=4.0)),
    "dynamic scaling": ("Llama", rope("dynamic", factor=4.0)),
    "yarn": ("Llama", rope("yarn", **YARN)),
    "yarn of every parameter": (
        "Llama",
        rope("yarn", **YARN, truncate=False, mscale=0.8, mscale_all_dim=0.5, beta_fast=16.0)
        | {"hidden_act": "gelu"},
    ),
    "mistral": ("Mistral", {"sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"attention_bias": True}),
    "gemma": ("Gemma", {}),
    "gemma2": (
        "Gemma2",
        {
            "sliding_window": 20,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {
            "sliding_window": 20,
            "query_pre_attn_scalar": 24,
            "layer_types": LAYERS,
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
    "granite": ("Granite", GRANITE),
    "phi3": ("Phi3", {"sliding_window": 20}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("operators", "runtime"), [("standard", "onnxruntime"), ("paged", "reference")]
)
def test_same_logits(name, operators, runtime):
    """Both graphs compute over pages what the model does over whole sequences."""
    family, changes = CASES[name]

    assert difference(build(family, **changes), operators=operators, runtime=runtime) < TOLERANCE


def test_part_of_a_head_rotated():
    """Phi-3's partial rotation, by standard operators; PagedAttention has no kernel for so few."""
    model = build("Phi3", **rope("default", partial_rotary_factor=0.5))
    decoder = Decoder.from_config(model)

    assert 8 == decoder.rotaries[0].channels
    assert difference(model) < TOLERANCE
    with pytest.raises(PlanError, match="rotary is 8; PagedAttention rotates halves"):
        export_decoder(decoder, weights_of(model))
    wide = build("Phi3", head_dim=32, **rope("default", partial_rotary_factor=0.5))
    assert difference(wide, operators="paged", runtime="reference") < TOLERANCE


@pytest.mark.parametrize("operators", ["standard", "paged"])
def test_fp16(operators):
    """Multipliers, caps and norms in fp16 stay within its rounding, two groups in one graph."""
    model = build("Gemma2", sliding_window=20, final_logit_softcapping=2.0)
    decoder, tokens = Decoder.from_config(model), prompts()
    runtime = "onnxruntime" if operators == "standard" else "reference"
    found = paged_logits(
        decoder, weights_of(model), tokens, operators=operators, runtime=runtime, dtype="fp16"
    )
    wanted = wanted_logits(model, tokens)

    assert all(np.abs(a - b[: len(a)]).max() < 3e-2 for a, b in zip(found, wanted, strict=True))


def drawn(rng, kind):
    """Rope parameters of a type within what published models have, and the longest position."""
    before = int(rng.choice([2048, 4096, 8192, 32768]))
    found = {"rope_type": kind, "rope_theta": float(rng.choice([1e4, 1.5e5, 5e5, 1e6, 5e6]))}
    if kind != "default":
        found["factor"] = float(rng.choice([1.0, 2.0, 8.0, 32.0, 40.0]))
    if kind == "llama3":
        low = float(rng.choice([1.0, 2.0]))
        found |= {"low_freq_factor": low, "high_freq_factor": low * float(rng.choice([2, 4, 8]))}
    if kind == "yarn":
        found |= {"beta_fast": float(rng.choice([16, 32, 64])), "beta_slow": 1.0}
        found |= {"truncate": bool(rng.integers(2))}
        found |= [{}, {"attention_factor": 0.9}, {"mscale": 1.0, "mscale_all_dim": 0.7}][
            rng.integers(3)
        ]
    if kind in ("llama3", "yarn"):
        found["original_max_position_embeddings"] = before
    return found, before * 8


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_frequencies_of_published_sizes(kind):
    """Frequencies and magnitude as transformers' own functions give them, which compute in fp32."""
    rng = np.random.default_rng(len(kind))
    for _ in range(20):
        parameters, longest = drawn(rng, kind)
        sizes = {"head_dim": int(rng.choice([64, 80, 128, 256])), "hidden_size": 256}
        sizes |= {"num_hidden_layers": 1, "max_position_embeddings": longest}
        config = transformers.LlamaConfig(rope_parameters=dict(parameters), **sizes)
        wanted = LlamaRotaryEmbedding(config)
        rotary = Decoder.from_config(config).rotaries[0]

        assert np.allclose(rotary.frequencies, wanted.inv_freq.numpy(), rtol=1e-5, atol=0)
        assert rotary.magnitude == pytest.approx(wanted.attention_scaling)
