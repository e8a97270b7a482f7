"""The table of families: which reader a ``model_type`` has, and what its file may leave out.

To add a family, add its row; a reader beside it only where none of those that are there fits.
Defaults are those of the family's class in transformers, which a test compares; families that
transformers does not have say where theirs come from.
"""

from collections.abc import Callable, Mapping
from typing import Any

from octavo.model.configs import dense, encdec, hybrid, latent, speech, windowed
from octavo.model.configs.fields import Fields
from octavo.model.configs.registry import Family, ModelLayers, row

# model_type: reader, (layers, width, heads, key/value heads, head dim, longest sequence), others
_DENSE = {
    "apertus": row(dense.full, (32, 4096, 32, None, None, 65536)),
    "arcee": row(dense.full, (32, 2560, 32, None, None, 4096)),
    "aria_text": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "biogpt": row(dense.unshared, (24, 1024, 16, None, None, 1024)),
    "bitnet": row(dense.full, (30, 2560, 20, 5, None, 2048)),
    "bloom": row(dense.unshared, (2, 64, 8, None, None, None)),
    "chameleon": row(dense.full, (32, 4096, 32, 32, None, 4096)),
    "codegen": row(dense.unshared, (28, 4096, 16, None, None, 2048)),
    "cohere": row(dense.full, (40, 8192, 64, None, None, 8192)),
    "dbrx": row(dense.nested_heads, (24, 2048, 16, None, None, 2048)),
    "deepseek_ocr2_text": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "diffllama": row(dense.full, (16, 2048, 32, None, None, 2048)),
    "emu3_text_model": row(dense.full, (32, 4096, 32, 8, None, 9216)),
    "ernie4_5": row(dense.full, (18, 1024, 16, 2, 128, 131072)),
    "ernie4_5_moe": row(dense.full, (28, 2560, 20, 4, None, 131072)),
    "ernie4_5_vl_moe_text": row(dense.full, (28, 2560, 20, 4, None, 131072)),
    "exaone": row(dense.full, (32, 4096, 32, 8, None, 4096)),
    "falcon": row(
        dense.falcon,
        (32, 4544, 71, None, None, 2048),
        {"multi_query": True, "new_decoder_architecture": False},
    ),
    "flex_olmo": row(dense.full, (32, 4096, 32, None, None, 4096)),
    "gemma": row(dense.causal, (28, 3072, 16, 16, 256, 8192)),
    "glm": row(dense.full, (40, 4096, 32, 2, 128, 131072)),
    "glm4": row(dense.full, (40, 4096, 32, 2, 128, 131072)),
    "glm4_moe": row(dense.full, (46, 4096, 96, 8, None, 131072), {"num_nextn_predict_layers": 1}),
    "glm4v_moe_text": row(dense.full, (46, 4096, 96, 8, None, 65536)),
    "glm4v_text": row(dense.full, (40, 4096, 32, 2, None, 32768)),
    "glm_ocr_text": row(dense.full, (16, 1024, 16, 8, None, 131072)),
    "gpt2": row(dense.unshared, (12, 768, 12, None, None, 1024)),
    "gpt_bigcode": row(
        dense.one_or_all_heads, (12, 768, 12, None, None, 1024), {"multi_query": True}
    ),
    "gpt_neox": row(dense.unshared, (44, 6144, 64, None, None, 2048)),
    "gpt_neox_japanese": row(dense.unshared, (32, 2560, 32, None, None, 2048)),
    "gptj": row(dense.unshared, (28, 4096, 16, None, None, 2048)),
    "granite": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "granite4_vision_text": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "granitemoe": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "granitemoeshared": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "helium": row(dense.full, (24, 2560, 20, 20, 128, 4096)),
    "hunyuan_v1_dense": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "hunyuan_v1_moe": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "hy_v3": row(dense.full, (80, 4096, 64, 8, 128, 131072)),
    "internlm3": row(dense.full, (48, 4096, 32, 2, 128, 32768)),
    "jais2": row(dense.full, (32, 3328, 26, None, None, 8192)),
    "jetmoe": row(dense.heads_by_expert, (12, 2048, None, 16, 128, 4096)),
    "llama": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "minimax_m2": row(dense.full, (62, 3072, 48, 8, 128, 196608)),
    "mpt": row(dense.unshared, (24, 2048, 16, None, None, 2048)),
    "nanochat": row(dense.full, (12, 768, 6, None, None, 2048)),
    "nemotron": row(dense.full, (32, 6144, 48, None, None, 4096)),
    "olmo": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "olmo2": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "olmoe": row(dense.full, (16, 2048, 16, None, None, 4096)),
    "opt": row(dense.unshared, (12, 768, 12, None, None, 2048)),
    "paddleocr_vl_text": row(dense.full, (18, 1024, 16, 2, 128, 131072)),
    "persimmon": row(dense.unshared, (36, 4096, 64, None, None, 16384)),
    "phi": row(dense.full, (24, 2048, 32, None, None, 2048)),
    "qwen3_vl_moe_text": row(dense.full, (24, 2048, 16, 16, None, 128000)),
    "qwen3_vl_text": row(dense.full, (32, 4096, 32, 32, 128, 128000)),
    "sarvam_moe": row(dense.full, (19, 4096, 64, 4, 64, 131072)),
    "seed_oss": row(dense.full, (64, 4096, 80, 8, 128, 524288)),
    "solar_open": row(dense.full, (48, 4096, 64, 8, 128, 131072)),
    "stablelm": row(dense.full, (32, 2560, 32, 32, None, 4096)),
    "xglm": row(dense.unshared, (24, 1024, 16, None, None, 2048)),
}

_QWEN2_VL = row(
    windowed.qwen, (80, 8192, 64, 8, None, 32768), {"sliding_window": 4096, "max_window_layers": 80}
)
_WINDOWED = {
    "afmoe": row(windowed.afmoe, (32, 2048, 16, None, 128, 16384), {"sliding_window": 1024}),
    "cohere2": row(
        windowed.three_of_four, (40, 8192, 64, None, None, 8192), {"sliding_window": 4096}
    ),
    "cwm": row(windowed.from_the_second, (64, 6144, 48, 8, 128, 131072), {"sliding_window": 8192}),
    "dots1": row(
        windowed.dots,
        (62, 4608, 32, 32, None, 2048),
        {"sliding_window": 4096, "max_window_layers": 62},
    ),
    "exaone4": row(windowed.exaone4, (32, 4096, 32, 32, None, 2048), {"sliding_window": 4096}),
    "exaone_moe": row(windowed.exaone4, (32, 4096, 32, 32, None, 2048), {"sliding_window": 4096}),
    "gemma2": row(windowed.alternating, (26, 2304, 8, 4, 256, 8192), {"sliding_window": 4096}),
    "gemma3_text": row(windowed.gemma3, (26, 2304, 8, 4, 256, 131072), {"sliding_window": 4096}),
    "gemma3n_text": row(
        windowed.gemma3n,
        (35, 2048, 8, 2, 256, 32768),
        {"sliding_window": 512, "num_kv_shared_layers": 15},
    ),
    "gemma4_text": row(
        windowed.gemma4,
        (30, 2304, 8, 4, 256, 131072),
        {
            "sliding_window": 512,
            "num_kv_shared_layers": 0,
            "global_head_dim": 512,
            "attention_k_eq_v": False,
        },
    ),
    "gemma4_unified_text": row(
        windowed.gemma4,
        (30, 2304, 8, 4, 256, 262144),
        {
            "sliding_window": 1024,
            "num_kv_shared_layers": 0,
            "global_head_dim": 512,
            "attention_k_eq_v": False,
        },
    ),
    "gpt_neo": row(
        windowed.gpt_neo,
        (24, 2048, 16, None, None, 2048),
        {"window_size": 256, "attention_types": [[["global", "local"], 12]]},
    ),
    "gpt_oss": row(windowed.gpt_oss, (36, 2880, 64, 8, 64, 131072), {"sliding_window": 128}),
    "laguna": row(dense.full, (40, 2048, 48, 8, 128, 131072), {"sliding_window": 512}),
    "llama4_text": row(
        windowed.llama4, (48, 5120, 40, 8, 128, 131072), {"attention_chunk_size": 8192}
    ),
    "mimo_v2_flash": row(
        windowed.mimo_v2, (48, 4096, 64, 4, 192, 131072), {"v_head_dim": 128, "sliding_window": 129}
    ),
    "ministral": row(
        windowed.every_layer, (32, 4096, 32, 8, None, 131072), {"sliding_window": 4096}
    ),
    "ministral3": row(
        windowed.every_layer, (34, 4096, 32, 8, 128, 262144), {"sliding_window": None}
    ),
    "mistral": row(windowed.every_layer, (32, 4096, 32, 8, None, 131072), {"sliding_window": 4096}),
    "mixtral": row(windowed.every_layer, (32, 4096, 32, 8, None, 131072), {"sliding_window": None}),
    "olmo3": row(
        windowed.three_of_four, (32, 4096, 32, None, None, 2048), {"sliding_window": 4096}
    ),
    "phi3": row(windowed.every_layer, (32, 3072, 32, None, None, 4096), {"sliding_window": None}),
    "phi4_multimodal": row(
        windowed.every_layer, (32, 3072, 32, 8, None, 131072), {"sliding_window": None}
    ),
    "phimoe": row(windowed.every_layer, (32, 4096, 32, 8, None, 131072), {"sliding_window": None}),
    "qwen2": row(
        windowed.qwen,
        (32, 4096, 32, 32, None, 32768),
        {"sliding_window": 4096, "max_window_layers": 28},
    ),
    "qwen2_5_omni_text": row(
        windowed.qwen,
        (28, 3584, 28, 4, None, 32768),
        {"sliding_window": 32768, "max_window_layers": 28},
    ),
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_moe": row(
        windowed.qwen_moe,
        (24, 2048, 16, 16, None, 32768),
        {"sliding_window": 4096, "max_window_layers": 28},
    ),
    "qwen2_vl_text": _QWEN2_VL,
    "qwen3": row(
        windowed.qwen,
        (32, 4096, 32, 32, 128, 32768),
        {"sliding_window": 4096, "max_window_layers": 28},
    ),
    "qwen3_moe": row(windowed.qwen3_moe, (24, 2048, 32, 4, None, 32768), {"sliding_window": 4096}),
    "qwen3_omni_moe_text": row(
        windowed.qwen3_moe, (28, 2048, 28, 4, None, 32768), {"sliding_window": None}
    ),
    "smollm3": row(windowed.smollm3, (36, 2048, 16, 4, None, 32768), {"sliding_window": None}),
    "starcoder2": row(
        windowed.every_layer, (30, 3072, 24, 2, None, 4096), {"sliding_window": None}
    ),
    "vaultgemma": row(windowed.alternating, (26, 2304, 8, 4, 256, 8192), {"sliding_window": 4096}),
}

_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_DEEPSEEK_V3 = row(
    latent.latent, (61, 7168, 128, 128, None, 4096), {**_MLA, "num_nextn_predict_layers": 1}
)
_LATENT = {
    "deepseek_v2": row(latent.deepseek_v2, (32, 4096, 32, None, None, 2048), _MLA),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": row(
        latent.indexed, (61, 7168, 128, 128, 64, 163840), {**_MLA, "index_head_dim": 128}
    ),
    "glm4_moe_lite": row(latent.latent, (47, 2048, 20, 20, 64, 202752), _MLA),
    "glm_moe_dsa": row(
        latent.glm_dsa, (78, 6144, 64, 64, 64, 202752), {**_MLA, "index_head_dim": 128}
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
_HYBRID = {
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
    "qwen3_next": row(hybrid.gated_delta, (48, 2048, 16, 2, 256, 32768), _DELTA),
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


def _bart(layers: int, width: int, heads: int, length: int) -> Family:
    return row(
        encdec.bart,
        (None, width, None, None, None, length),
        {"decoder_layers": layers, "decoder_attention_heads": heads},
    )


def _t5(layers: int, width: int, heads: int, decoder: int | None = None) -> Family:
    return row(
        encdec.t5,
        (layers, width, heads, None, 64, None),
        {"num_decoder_layers": decoder},
    )


_ENCODER_DECODER = {
    "bart": _bart(12, 1024, 16, 1024),
    "blenderbot": _bart(24, 2560, 32, 128),
    "blenderbot-small": _bart(8, 512, 16, 512),
    "longt5": _t5(6, 512, 8),
    "m2m_100": _bart(12, 1024, 16, 1024),
    "marian": _bart(12, 1024, 16, 1024),
    "mbart": _bart(12, 1024, 16, 1024),
    "mllama_text_model": row(encdec.mllama, (40, 4096, 32, 8, None, 131072)),
    "moonshine": row(
        encdec.moonshine,
        (None, 288, None, None, None, 512),
        {
            "decoder_num_hidden_layers": 6,
            "decoder_num_attention_heads": 8,
            "decoder_num_key_value_heads": None,
        },
    ),
    "mt5": _t5(8, 512, 6),
    "nllb-moe": _bart(12, 1024, 16, 1024),
    "pegasus": _bart(12, 1024, 16, 1024),
    "plbart": _bart(6, 768, 12, 1024),
    "speech_to_text": _bart(6, 256, 4, 1024),
    "switch_transformers": _t5(12, 768, 12, 12),
    "t5": _t5(6, 512, 8),
    "trocr": _bart(12, 1024, 16, 512),
    "umt5": _t5(8, 512, 6),
    "whisper": _bart(4, 384, 6, 448)._replace(read=encdec.whisper),
}

_SPEECH = {
    "csm": row(speech.csm, (16, 2048, 32, 8, None, 2048)),
    "csm_depth_decoder_model": row(dense.full, (4, 1024, 8, 2, None, 33)),
}

REMOTE = {
    # baichuan-inc/Baichuan2 configuration_baichuan.py: two sizes under one name, heads not shared
    "baichuan": row(dense.unshared, (32, 4096, None, None, None, None)),
    # THUDM/chatglm3-6b configuration_chatglm.py
    "chatglm": row(
        dense.chatglm,
        (28, 4096, 32, None, 128, 2048),
        {"multi_query_attention": False, "multi_query_group_num": 1},
    ),
    # fishaudio/fish-speech fish_speech/models/text2semantic/llama.py: nothing is left out there
    "dual_ar": row(speech.fish, (None, None, None, None, None, None)),
    "fish_qwen3": row(speech.fish, (None, None, None, None, None, None)),
    # internlm/internlm2-7b configuration_internlm2.py
    "internlm2": row(dense.full, (32, 4096, 32, None, None, 2048)),
    # moonshotai/Kimi-K2-Instruct configuration_deepseek.py: DeepSeek-V3's under another name
    "kimi_k2": _DEEPSEEK_V3,
    # MiniMaxAI/MiniMax-Text-01 configuration_minimax_text_01.py, and MiniMax-M1's
    "minimax_m1": row(hybrid.minimax_listed, (32, 4096, 32, 8, None, 131072)),
    "minimax_text_01": row(hybrid.minimax_listed, (32, 4096, 32, 8, None, 131072)),
    # microsoft/Phi-4-multimodal-instruct configuration_phi4mm.py
    "phi4mm": row(windowed.every_layer, (32, 3072, 32, None, None, 4096), {"sliding_window": None}),
}
"""Families that transformers does not have: their code comes with the model's files."""

FAMILIES: dict[str, Family] = dict(
    sorted((_DENSE | _WINDOWED | _LATENT | _HYBRID | _ENCODER_DECODER | _SPEECH | REMOTE).items())
)
"""Every family by its ``model_type``."""
DEFAULTS: dict[str, Mapping[str, Any]] = {name: row.defaults for name, row in FAMILIES.items()}
"""By family, what fields that a file leaves out are."""
DEPTHS: dict[str, Callable[[Fields], ModelLayers]] = {
    "csm": speech.csm_depth,
    "dual_ar": speech.dual_ar_depth,
    "fish_qwen3_omni": speech.fish_depth,
}
"""By the whole model's ``model_type``, from its fields to its second decoder."""
REQUIRED = ("num_hidden_layers", "hidden_size", "decoder_layers", "decoder_num_hidden_layers")
"""Fields that a file may not leave out unless it nests the decoder: `octavo.model.configs`."""
