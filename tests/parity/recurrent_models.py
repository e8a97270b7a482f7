"""Tiny random models of every family that keeps states, for the tests of the engine."""

from functools import cache

import torch
import transformers

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
DIM = {"head_dim": 8}
THREE = ["linear_attention", "full_attention", "linear_attention"]
CONV = ["conv", "full_attention", "conv"]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "shared_expert_intermediate_size": 16,
    "layer_types": THREE,
}
MAMBA1 = {"state_size": 6, "time_step_rank": 4}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 6, "mamba_chunk_size": 8}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
INKLING = (
    SHAPE
    | DIM
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8}
    | {"sliding_window_size": 9, "local_layer_ids": [0, 2], "d_rel": 4, "rel_extent": 16}
    | {"layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"]}
)
LOOPS = (
    INKLING
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    | {"unpadded_vocab_size": 97, "log_scaling_n_floor": 16, "n_layers_per_attn_res_block": 1}
    | {"loop_layer_index_start": 1, "loop_layer_index_end": 2, "loop_num_passes": 2}
)
INDEXED = {
    "indexer_head_dim": 8,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
NGRAMS = {
    "ple_layer_ids": [1],
    "eos_token_id": 2,
    "ple_embed_dim": 16,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 101,
}

CONFIGS = {
    "bamba": SHAPE | MAMBA2 | {"attn_layer_indices": [1]},
    "falcon_h1": SHAPE | MAMBA2 | {"mamba_d_ssm": 64},
    "falcon_mamba": SHAPE | MAMBA1,
    "granitemoehybrid": SHAPE
    | MAMBA2
    | {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 2},
    "jamba": SHAPE
    | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
    | {"use_mamba_kernels": False, "mamba_d_state": 6},
    "lfm2": SHAPE | {"full_attn_idxs": [1]},
    "lfm2_moe": SHAPE | MOE | {"layer_types": CONV, "num_dense_layers": 1},
    "mamba": SHAPE | MAMBA1,
    "mamba2": SHAPE
    | {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "chunk_size": 8},
    "nemotron_h": SHAPE
    | DIM
    | {"layers_block_type": ["mamba", "attention", "mlp"], "chunk_size": 8}
    | {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6},
    "olmo_hybrid": SHAPE | {"layer_types": THREE},
    "qwen3_5_text": SHAPE | DIM | DELTA,
    "qwen3_5_moe_text": SHAPE | DIM | DELTA | MOE,
    "qwen3_next": SHAPE | DIM | DELTA | MOE,
    "lara_mini": SHAPE
    | DIM
    | DELTA
    | MOE
    | {"layer_types": ["linear_attention", "full_attention", "sliding_attention"]}
    | {"sliding_window": 9},
    "lfm3": SHAPE
    | DIM
    | {"layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 9},
    "zamba": SHAPE
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_key_value_heads": 4}
    | {"mamba_d_state": 6, "use_mamba_kernels": False},
    "zamba2": SHAPE
    | {"layers_block_type": ["mamba", "hybrid", "mamba"], "num_key_value_heads": 4}
    | {"mamba_d_state": 6, "n_mamba_heads": 8, "chunk_size": 8, "use_mamba_kernels": False},
    "zaya": SHAPE | DIM | MOE | {"router_hidden_size": 16, "num_experts_per_tok": 1},
    "minimax": SHAPE | DIM | {"layer_types": THREE, "block_size": 8, "num_local_experts": 2},
    "recurrent_gemma": SHAPE
    | {"block_types": ["recurrent", "attention"], "attention_window_size": 9}
    | {"num_key_value_heads": 1},
    "rwkv": SHAPE | {"attention_hidden_size": 32, "context_length": 256},
    "xlstm": {name: SHAPE[name] for name in SHAPE if "attention" not in name and "key" not in name}
    | {"hidden_size": 128, "num_heads": 2, "mode": "inference"},
    "kimi_linear": SHAPE
    | LATENT
    | {"layer_types": THREE, "linear_head_dim": 8, "linear_num_heads": 4},
    "qwen4_exp_text": SHAPE | DIM | DELTA | MOE | INDEXED | {"hc_count": 2},
    "bailing_hybrid": SHAPE
    | LATENT
    | {"layer_types": THREE, "head_dim": 8, "n_group": 1, "topk_group": 1},
}


@cache
def model_of(family):
    """A random model in float64 whose greedy tokens vary."""
    return build(family, CONFIGS[family]).double()


def build(family, shape):
    """The same of another shape, in float32."""
    config = transformers.AutoConfig.for_model(family, **shape)
    config._experts_implementation = "eager"  # the grouped kernel has no float64
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim > 1 else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
    return model
