"""What files call the same thing: one table of names, and where a family means something else.

A reader asks by the first name of a row and is given whichever of them a file has.
"""

from collections.abc import Mapping

Names = Mapping[str, tuple[str, ...]]

NAMES: Names = {
    "num_hidden_layers": (
        "num_hidden_layers",
        "n_layer",
        "n_layers",
        "num_layers",
    ),
    "hidden_size": (
        "hidden_size",
        "n_embd",
        "d_model",
        "dim",
        "n_embed",
        "emb_dim",
        "embed_dim",
        "model_dim",
    ),
    "num_attention_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "attention_heads",
        "n_attention_heads",
        "num_q_heads",
        "num_query_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_kv_heads",
        "n_kv_head",
        "n_head_kv",
        "n_heads_kv",
        "num_heads_kv",
        "num_head_kv",
        "num_kv_head",
        "kv_n_heads",
        "kv_heads",
        "n_kv",
        "head_count_kv",
        "num_attention_heads_kv",
        "num_kv_attention_heads",
        "num_query_groups",
        "n_query_groups",
        "num_attention_groups",
        "multi_query_group_num",
    ),
    "head_dim": (
        "head_dim",
        "head_size",
        "kv_channels",
        "d_head",
        "d_kv",
        "dim_head",
        "attention_head_dim",
        "attention_head_size",
        "size_per_head",
        "n_embd_head",
    ),
    "v_head_dim": ("v_head_dim", "value_head_dim", "v_dim", "d_v", "attention_v_dim"),
    "max_position_embeddings": (
        "model_max_length",  # Command-R's: its positions go further than its embeddings' number
        "max_position_embeddings",
        "max_position_embedding",
        "n_positions",
        "n_ctx",
        "max_seq_len",
        "max_seq_length",
        "max_sequence_length",
        "seq_length",
        "seq_len",
        "context_length",
        "max_context_length",
        "max_target_positions",
        "max_decoder_position_embeddings",
    ),
    "sliding_window": (
        "sliding_window",
        "sliding_window_size",
        "attention_window_size",
        "window_size",
    ),
    "kv_lora_rank": ("kv_lora_rank", "attention_kv_lora_dim"),
    "qk_rope_head_dim": ("qk_rope_head_dim", "attention_qk_rope_dim"),
    "layer_types": ("layer_types", "layers_block_type"),
    "sliding_window_pattern": ("sliding_window_pattern", "_sliding_window_pattern"),
    "num_nextn_predict_layers": (
        "num_nextn_predict_layers",
        "num_mtp_layers",
        "_num_mtp_layers",
        "mtp_num_hidden_layers",
        "mtp_num_layers",
        "num_mtp_modules",
        "num_mtp_heads",
        "n_mtp_layers",
        "mtp_layers",
        "num_nextn_layers",
        "nextn_predict_layers",
        "num_mtp_predict_layers",
        "n_predict",
    ),
    "decoder_layers": ("decoder_layers", "num_decoder_layers"),
    "decoder_attention_heads": ("decoder_attention_heads", "num_decoder_attention_heads"),
    # mixers of the Mamba line; attention beside them has heads of its own
    "mamba_d_state": ("mamba_d_state", "ssm_state_size", "state_size", "d_state"),
    "mamba_d_conv": ("mamba_d_conv", "conv_kernel", "d_conv", "mamba_conv_kernel"),
    "mamba_expand": ("mamba_expand", "expand"),
    "mamba_n_heads": ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", "nheads"),
    "mamba_d_head": ("mamba_d_head", "mamba_head_dim", "mamba_headdim", "headdim"),
    "mamba_n_groups": ("mamba_n_groups", "mamba_ngroups", "n_groups", "ngroups"),
}
"""What families call the same thing: the name that readers ask by, then the names in files.

The common name of a thing comes first; where two names in a file differ, the first counts.
"""

ALIKE = frozenset(
    (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "num_nextn_predict_layers",
        "max_position_embeddings",
    )
)
"""Things of which two different values in a file are worth a note."""

_BARK: Names = {"max_position_embeddings": ("block_size", "n_positions")}
_DECODER: Names = {
    "decoder_layers": ("decoder_layers", "num_hidden_layers"),
    "decoder_attention_heads": ("decoder_attention_heads", "num_attention_heads"),
}
_MODULES: Names = {
    "num_nextn_predict_layers": ("num_mtp_modules", "num_nextn_predict_layers", "num_mtp_layers")
}
OWN_NAMES: Mapping[str, Names] = {
    "falcon": {"num_key_value_heads": ("num_kv_heads", "n_head_kv")},
    "falcon_mamba": {"mamba_inner": ("intermediate_size", "d_inner")},
    "glm4_moe_lite": {"qk_rope_head_dim": ("qk_rope_head_dim", "head_dim")},
    "afm7": {"hidden_size": ("hidden_dim", "hidden_size")},
    "lille-130m": {"max_position_embeddings": ("block_size",)},
    "longcat_flash": {"num_hidden_layers": ("num_layers", "num_hidden_layers", "n_layers")},
    "longcat_flash_ngram": {"num_hidden_layers": ("num_layers", "num_hidden_layers", "n_layers")},
    "mamba_ssm": {"mamba_inner": ("d_inner",)},
    "minimax_m2": _MODULES,
    "minimax_m3": _MODULES,
    "minimax_m3_vl_text": _MODULES,
    "params": {"sliding_window": ("sliding_window", "_sliding_window")},
    "openelm": {"num_key_value_heads": ("num_kv_heads",)},
    "mamba": {"mamba_inner": ("intermediate_size", "d_inner")},
    "mamba2": {
        "mamba_n_heads": ("num_heads", "nheads"),
        "mamba_d_head": ("head_dim", "headdim"),
        "mamba_inner": ("d_inner", "d_ssm"),
    },
    "moonshine": {
        "decoder_num_hidden_layers": ("decoder_num_hidden_layers", "num_hidden_layers"),
        "decoder_num_attention_heads": ("decoder_num_attention_heads", "num_attention_heads"),
        "decoder_num_key_value_heads": ("decoder_num_key_value_heads", "num_key_value_heads"),
    },
    "RefinedWeb": {"num_key_value_heads": ("num_kv_heads", "n_head_kv")},
    "RefinedWebModel": {"num_key_value_heads": ("num_kv_heads", "n_head_kv")},
    "kosmos_2_5_text_model": {"num_hidden_layers": ("layers", "num_hidden_layers")},
    "kosmos_2_text_model": {"num_hidden_layers": ("layers", "num_hidden_layers")},
    "pix2struct_text_model": {
        "num_decoder_layers": ("num_decoder_layers", "num_layers", "num_hidden_layers")
    },
    "xlstm": {
        "num_hidden_layers": ("num_hidden_layers", "num_blocks"),
        "hidden_size": ("hidden_size", "embedding_dim"),
    },
    "coarse_acoustics": _BARK,
    "seamless_m4t": _DECODER,
    "seamless_m4t_v2": _DECODER,
    "semantic": _BARK,
    "trocr": _DECODER,
    "zamba": {"head_dim": ("attention_head_dim", "head_dim")},
    "zamba2": {"head_dim": ("attention_head_dim", "head_dim")},
}
"""By family, the names that mean something else there than in `NAMES`."""


_ALWAYS = frozenset(("max_position_embeddings", "sliding_window", "attention_chunk_size"))
_NULLS: Mapping[str, frozenset[str]] = {
    "num_key_value_heads": frozenset(
        (
            *("bamba", "bitnet", "csm", "csm_depth_decoder_model", "ernie4_5", "exaone"),
            *("cosmos3_edge_text", "glm_image_text", "granite_docling_text", "granite_swa"),
            *(
                "falcon_h1",
                "glm4v_text",
                "internlm3",
                "iquestcoder",
                "paddleocr_vl_text",
                "phi4_multimodal",
            ),
            *("qwen2", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3"),
            *("qwen3_vl_text", "seed_oss", "smollm3"),
        )
    ),
    "head_dim": frozenset(("afmoe", "ernie4_5", "glm", "internlm3", "paddleocr_vl_text")),
    "mamba_d_ssm": frozenset(("falcon_h1",)),
    "multi_query": frozenset(("falcon",)),
    "new_decoder_architecture": frozenset(("falcon",)),
}


_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "sliding_window": frozenset(
        (
            *("cwm", "exaone_moe", "gemma3n_text", "gemma4_text", "gemma4_unified_text"),
            *("laguna", "mimo_v2_flash", "recurrent_gemma", "deepseek_v4", "dory", "flint"),
            *("kolibri1", "kyutai_speech_to_text", "lara_mini", "moshi", "moshi_depth"),
        )
    ),
}


def null_says_none(name: str, family: str) -> bool:
    """Whether ``name`` as null is none, such as no window, and not what it is when left out. O(1).

    As the class of the family in transformers takes it; where that refuses null, it is left out.
    """
    if name in _ALWAYS:
        return family not in _LEFT_OUT.get(name, ())
    return family in _NULLS.get(name, ())
