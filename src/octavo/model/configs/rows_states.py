"""Rows of the table of families: latents, indexers, states of constant size."""

from octavo.model.configs import hybrid, inkling, latent, looped, sparse
from octavo.model.configs.registry import Family, row

# model_type: reader, (layers, width, heads, key/value heads, head dim, longest sequence), others
_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_DEEPSEEK_V3 = row(
    latent.latent, (61, 7168, 128, 128, None, 4096), {**_MLA, "num_nextn_predict_layers": 1}
)
_LATENT: dict[str, Family] = {
    "deepseek_v2": row(latent.deepseek_v2, (32, 4096, 32, None, None, 2048), _MLA),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": row(
        latent.indexed, (61, 7168, 128, 128, 64, 163840), {**_MLA, "index_head_dim": 128}
    ),
    "glm4_moe_lite": row(latent.latent, (47, 2048, 20, 20, 64, 202752), _MLA),
    "glm_moe_dsa": row(
        latent.glm_dsa,
        (78, 6144, 64, 64, 64, 202752),
        {**_MLA, "index_head_dim": 128},
        mtp=latent.glm_dsa_mtp,
    ),
    "longcat_flash": row(latent.longcat, (28, 6144, 64, None, 64, 131072), _MLA),
    "minicpm3": row(
        latent.latent,
        (62, 2560, 40, 40, None, 32768),
        {"kv_lora_rank": 256, "qk_rope_head_dim": 32},
    ),
    "mistral4": row(
        latent.latent,
        (36, 4096, 32, 32, None, 1048576),
        {"kv_lora_rank": 256, "qk_rope_head_dim": 64},
    ),
    "sarvam_mla": row(latent.latent, (32, 4096, 64, None, None, 4096), _MLA),
    "axk1": row(latent.latent, (61, 7168, 64, 64, None, 32768), _MLA),
    "axk2": row(
        latent.indexed,
        (48, 2048, 32, 32, 64, 131072),
        {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "index_head_dim": 128},
    ),
    "deepseek_v4": row(
        sparse.deepseek_v4,
        (43, 4096, 64, 1, 512, 1048576),
        {"sliding_window": 128, "index_head_dim": 128, "num_nextn_predict_layers": 1},
        mtp=sparse.deepseek_v4_mtp,
    ),
    "dots3_note_text": row(
        sparse.dots3, (46, 5120, 128, 128, 256, 524288), {**_MLA, "index_head_dim": 128}
    ),
    "hy_v4": row(latent.hy_v4, (34, 2816, 32, 32, 256, 262144), {**_MLA, "index_head_dim": 128}),
    "hy_v4_vl_text": row(
        latent.hy_v4, (78, 6144, 64, 32, 256, 262144), {**_MLA, "index_head_dim": 128}
    ),
    "mistral_large4_text": row(
        sparse.mistral_large4, (72, 6144, 64, 64, 64, 1048576), {**_MLA, "index_head_dim": 128}
    ),
    "youtu": row(latent.latent, (32, 2048, 16, 16, None, 131072), _MLA),
}

_MAMBA1 = {"state_size": 16, "expand": 2, "conv_kernel": 4}
_BAMBA = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_INKLING = {"conv_kernel_size": 4, "swa_head_dim": 128}
_HYBRID: dict[str, Family] = {
    "bailing_hybrid": row(
        hybrid.bailing,
        (42, 2560, 32, 32, 128, 262144),
        {**_MLA, "layer_group_size": 6, "short_conv_kernel_size": 4, "num_nextn_predict_layers": 1},
        mtp=hybrid.latent_mtp,
    ),
    "glm5_next_text": row(
        sparse.glm5_next,
        (45, 4096, 64, 64, 0, 1048576),
        {
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 0,
            "index_head_dim": 128,
            "linear_head_dim": 128,
            "linear_num_heads": 64,
            "linear_conv_kernel_dim": 4,
        },
    ),
    "inkling_text": row(
        inkling.inkling,
        (66, 6144, 64, 8, 128, 131072),
        {"sliding_window_size": 512, "swa_num_key_value_heads": 16, **_INKLING},
        mtp=inkling.inkling_mtp,
    ),
    "inkling2_loop_text": row(
        looped.inkling2,
        (24, 2304, 24, 8, 128, 1048576),
        {
            "sliding_window_size": 1024,
            "swa_num_key_value_heads": 8,
            "loop_layer_index_start": 6,
            "loop_layer_index_end": 18,
            "loop_num_passes": 3,
            **_INKLING,
        },
    ),
    "inkling2_text": row(
        inkling.inkling,
        (48, 4608, 48, 8, 128, 1048576),
        {"sliding_window_size": 1024, "swa_num_key_value_heads": 8, **_INKLING},
    ),
    "lara_mini": row(
        hybrid.lara,
        (34, 1024, 16, 4, 128, 131072),
        {**_DELTA, "linear_num_key_heads": 8, "linear_num_value_heads": 16, "sliding_window": 512},
    ),
    "lfm3": row(
        hybrid.lfm3, (24, 2048, 16, 4, 128, 128000), {"conv_L_cache": 7, "sliding_window": 256}
    ),
    "qwen4_exp_text": row(
        sparse.qwen4,
        (40, 2048, 16, 2, 256, 32768),
        {**_DELTA, "hc_count": 4, "ple_conv_kernel_size": 4, "ngram_size": 3},
        mtp=hybrid.gated_delta_mtp,
    ),
    "rwkv": row(hybrid.rwkv, (32, 4096, None, None, None, 1024)),
    "xlstm": row(hybrid.xlstm, (32, 4096, 8, None, None, None)),
    "zaya": row(
        inkling.zaya,
        (40, 2048, 8, 2, 128, 131072),
        {"cca_time0": 2, "cca_time1": 2, "sliding_window": None},
    ),
    "bamba": row(hybrid.bamba, (32, 4096, 32, 8, None, 262144), {**_BAMBA, "mamba_d_head": "auto"}),
    "falcon_h1": row(
        hybrid.falcon_h1,
        (32, 4096, 32, 8, None, 8192),
        {**_BAMBA, "mamba_d_ssm": 1024, "mamba_d_head": "auto"},
    ),
    "falcon_mamba": row(hybrid.mamba, (32, 768, None, None, None, None), _MAMBA1),
    "granitemoehybrid": row(
        hybrid.granite_hybrid, (32, 4096, 32, None, None, 2048), {**_BAMBA, "mamba_d_head": "auto"}
    ),
    "jamba": row(
        hybrid.jamba,
        (32, 4096, 32, 8, None, 262144),
        {
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "kimi_linear": row(
        hybrid.kimi_linear,
        (27, 2304, 32, 32, None, 1048576),
        {**_MLA, "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4},
    ),
    "lfm2": row(hybrid.lfm2, (32, 2560, 32, 8, None, 128000), {"conv_L_cache": 3}),
    "lfm2_moe": row(hybrid.lfm2, (32, 2048, 32, 8, None, 128000), {"conv_L_cache": 3}),
    "mamba": row(hybrid.mamba, (32, 768, None, None, None, None), _MAMBA1),
    "mamba2": row(
        hybrid.mamba2,
        (64, 4096, None, None, 64, None),
        {"num_heads": 128, "state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8},
    ),
    "minimax": row(hybrid.minimax, (32, 4096, 32, 8, None, 131072)),
    "nemotron_h": row(
        hybrid.nemotron_h,
        (None, 4096, 32, 8, 128, 4096),
        {
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
        },
        mtp=hybrid.nemotron_h_mtp,
    ),
    "olmo_hybrid": row(
        hybrid.olmo_hybrid, (32, 3840, 30, None, None, 65536), {"linear_conv_kernel_dim": 4}
    ),
    "qwen3_5_moe_text": row(
        hybrid.gated_delta, (40, 2048, 16, 2, 256, 32768), _DELTA, mtp=hybrid.gated_delta_mtp
    ),
    "qwen3_5_text": row(
        hybrid.gated_delta, (32, 4096, 16, 4, 256, 32768), _DELTA, mtp=hybrid.gated_delta_mtp
    ),
    "qwen3_next": row(
        hybrid.gated_delta, (48, 2048, 16, 2, 256, 32768), _DELTA, mtp=hybrid.gated_delta_mtp
    ),
    "recurrent_gemma": row(
        hybrid.recurrent_gemma,
        (26, 2560, 10, None, None, None),
        {
            "lru_width": None,
            "sliding_window": 2048,
            "conv1d_width": 4,
            "block_types": ["recurrent", "recurrent", "attention"],
        },
    ),
    "zamba": row(
        hybrid.zamba,
        (76, 3712, 16, 16, None, 4096),
        {
            "attn_layer_period": 6,
            "attn_layer_offset": 4,
            "n_mamba_heads": 2,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
    "zamba2": row(
        hybrid.zamba2,
        (54, 2560, 32, None, None, 4096),
        {
            "n_mamba_heads": 8,
            "mamba_ngroups": 1,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
    ),
}

STATES = _LATENT | _HYBRID
"""Families by ``model_type``."""
MLA = _MLA
DELTA = {**_DELTA, "linear_num_key_heads": 32, "linear_num_value_heads": 64}
DEEPSEEK_V3 = _DEEPSEEK_V3
