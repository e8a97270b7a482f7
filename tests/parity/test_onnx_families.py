"""Decoders read from configs: what transformers computes, over pages, prefill, decode and mixed."""

import numpy as np
import pytest
from exported_models import build, difference, paged_logits, prompts, wanted_logits, weights_of

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
