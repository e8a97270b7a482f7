"""Tiny random models whose attention is not that of keys and values, for the engine's tests."""

from functools import cache

import torch
import transformers
from recurrent_models import INKLING

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
MOE = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
TYPES = ["sliding_attention", "full_attention"] * 2
GEMMA = {
    "num_hidden_layers": 4,
    "layer_types": TYPES,
    "num_kv_shared_layers": 2,
    "sliding_window": 9,
    "head_dim": 8,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 97,
}

CONFIGS = {
    "deepseek_v2": SHAPE | MOE | MLA | {"q_lora_rank": None},
    "deepseek_v3": SHAPE | MOE | MLA,
    "gemma3n_text": SHAPE
    | GEMMA
    | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": SHAPE
    | GEMMA
    | {"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    "kimi_linear": SHAPE
    | MOE
    | MLA
    | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
    | {"linear_attn_config": {"num_heads": 4, "head_dim": 6, "short_conv_kernel_size": 4}},
    "longcat_flash": SHAPE
    | MOE
    | MLA
    | {"num_layers": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 16, "head_dim": 4}
    | {"ffn_hidden_size": 16, "moe_topk": 2},
}
UNTIED = {"eos_token_id": None, "pad_token_id": 0, "tie_word_embeddings": False}
LEARNED = UNTIED | {"vocab_size": 97, "hidden_size": 32}
INDEXER = {"index_head_dim": 8, "index_n_heads": 32, "index_topk": 4}
BART = UNTIED | {
    "vocab_size": 97,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
    "forced_eos_token_id": None,
}
BY_ROWS = {
    "bart": BART,
    "bloom": LEARNED | {"n_layer": 2, "n_head": 4},
    "deepseek_v32": SHAPE | MOE | MLA | INDEXER,
    "falcon": SHAPE | {"num_hidden_layers": 2, "new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_neo": LEARNED
    | {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    | {"window_size": 9, "max_position_embeddings": 256},
    "inkling_text": INKLING,
    "jetmoe": SHAPE | {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "llama4_text": SHAPE
    | {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 8}
    | {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "no_rope_layers": [1, 1, 0]},
    "minimax_m3_vl_text": SHAPE
    | MOE
    | {"head_dim": 8, "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 2}
    | {"index_head_dim": 8, "index_n_heads": 2, "index_block_size": 4, "rotary_dim": 4}
    | {"num_local_experts": 4},
}
"""Families that run a row at a time."""


@cache
def model_of(family):
    """A random model in float64 whose greedy tokens vary."""
    config = transformers.AutoConfig.for_model(family, **(CONFIGS | BY_ROWS)[family])
    config.is_encoder_decoder = False
    config._experts_implementation = "eager"  # the grouped kernel has no float64
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim > 1 else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
    return model
