"""Tiny random models of every kind of cache, for the tests of the drop-in."""

from functools import cache

import torch
import transformers

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
DIM = {"head_dim": 16}
WINDOW = {"sliding_window": 8}
HALF = ["sliding_attention", "full_attention"] * 2
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 8, "mamba_d_state": 12, "mamba_chunk_size": 16}

DEPTH = {
    "vocab_size": 33,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
SPEECH = DEPTH | {
    "num_codebooks": 4,
    "text_vocab_size": 97,
    "codebook_eos_token_id": 32,
    "depth_decoder_config": DEPTH | {"num_codebooks": 4, "backbone_hidden_size": 32},
    "pad_token_id": 0,
    "bos_token_id": 1,
    "codebook_pad_token_id": 31,
    "audio_token_id": 95,
    "audio_eos_token_id": 96,
    "codec_config": {"model_type": "mimi", "num_filters": 4, "hidden_size": 16}
    | {"num_hidden_layers": 1, "codebook_size": 32, "upsample_groups": 16}
    | {"vector_quantization_hidden_dimension": 16, "num_attention_heads": 2}
    | {"num_key_value_heads": 2, "intermediate_size": 16, "upsampling_ratios": [2, 2]}
    | {"codebook_dim": 16, "num_quantizers": 4},
}
"""A tiny CSM: a backbone over frames, a depth decoder over their codebooks."""

CONFIGS = {
    "llama": SHAPE | DIM,
    "qwen3": SHAPE | DIM,
    "mistral": SHAPE | DIM | WINDOW,
    "gemma2": SHAPE | DIM | WINDOW | {"query_pre_attn_scalar": 16},
    "gemma3_text": SHAPE | DIM | WINDOW | {"layer_types": HALF},
    "gpt_oss": SHAPE | DIM | WINDOW | {"num_local_experts": 4, "layer_types": HALF},
    "deepseek_v3": SHAPE | MLA,
    "qwen3_next": SHAPE | DIM | MOE | DELTA,
    "bamba": SHAPE | MAMBA | {"attn_layer_indices": [1, 3]},
    "falcon_h1": SHAPE | MAMBA | {"mamba_d_ssm": 96, "mamba_n_heads": 12},
    "jamba": SHAPE
    | {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
    | {"use_mamba_kernels": False},
    "lfm2": SHAPE | {"full_attn_idxs": [1, 3]},
    "gemma4_text": SHAPE
    | DIM
    | WINDOW
    | {"layer_types": HALF, "num_kv_shared_layers": 2, "global_head_dim": 32}
    | {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97},
}
EAGER = ("gemma2", "gpt_oss")
STATEFUL = ("qwen3_next", "bamba", "falcon_h1", "jamba")  # refuse assisted decoding


@cache
def model_of(family):
    """A random model whose greedy tokens do not collapse into one: wide weights."""
    config = transformers.AutoConfig.for_model(family, **CONFIGS[family])
    torch.manual_seed(5)
    attention = "eager" if family in EAGER else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model.eval()


def ids_of(rows, length, seed=7):
    """int64[rows, length] of token ids that are no padding."""
    return torch.randint(3, 97, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(lengths, side, seed=7):
    """(ids, mask) of rows of different lengths."""
    longest = max(lengths)
    ids = ids_of(len(lengths), longest, seed)
    column = torch.arange(longest)
    for row, length in enumerate(lengths):
        outside = column < longest - length if side == "left" else column >= length
        ids[row][outside] = 0
    return ids, (ids > 0).long()


def generate(model, ids, cache, mask=None, new=7, **options):
    """Greedy tokens of a prompt, and the logits of each step."""
    mask = torch.ones_like(ids) if mask is None else mask
    with torch.no_grad():
        found = model.generate(
            ids,
            attention_mask=mask,
            cache=cache,
            max_new_tokens=new,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
    return found.sequences, torch.stack(found.logits)
