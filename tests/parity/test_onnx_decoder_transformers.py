"""Exported decoders with the weights of transformers' models: the same logits, page by page."""

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo.integrations.onnx import Decoder, PagedSession, export_decoder
from octavo.model.spec import Attention, Latent

COMMON = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
SIZES = {"vocab": 60, "hidden": 32, "layers": 2, "heads": 4, "mlp": 48, "max_length": 64}
MODELS = {
    "Llama": (
        {"num_key_value_heads": 2, "head_dim": 16},
        Decoder(**SIZES, kind=Attention(2, 16, 16), epsilon=1e-6),
    ),
    "DeepseekV2": (
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 24,
            "q_lora_rank": None,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "first_k_dense_replace": 2,  # no experts
        },
        Decoder(
            **SIZES,
            kind=Latent(24, 16),
            nope_dim=8,
            v_dim=12,
            interleaved=True,
            epsilon=1e-6,
        ),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_same_logits(name):
    """A prompt in two chunks and three tokens give the logits transformers computes at once."""
    own, decoder = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**COMMON, **own)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    weights = {key: value.detach().numpy() for key, value in model.state_dict().items()}
    plan = octavo.plan(decoder.spec, "96KiB", dtype="fp32")
    session = PagedSession(
        export_decoder(decoder, weights, dtype="fp32", operators="standard"), plan
    )
    cache, tokens = octavo.Cache(plan), np.random.default_rng(0).integers(0, 60, 25)
    seq = cache.admit(tokens[:22].tolist())
    logits = []
    for count in (15, 7, 1, 1, 1):
        step = cache.extend(seq, count)
        logits.append(session.run(step))
        upto = int(step.context[0])
        cache.commit(step, [int(tokens[upto])] if step.wants_token[0] and upto < 25 else None)
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens)[None]).logits[0].numpy()

    assert np.abs(np.concatenate(logits) - wanted).max() < 1e-5
