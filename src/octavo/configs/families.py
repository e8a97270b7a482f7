"""The table of families: which reader a ``model_type`` has, and what its file may leave out.

To add a family, add its row; a reader beside it only where none of those that are there fits.
Defaults are those of the family's class in transformers, which a test compares; families that
transformers does not have say where theirs come from.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo.configs import dense, encdec, hybrid, latent, speech, windowed
from octavo.configs.fields import Fields
from octavo.spec import Layer, ModelSpec

Reader = Callable[[Fields], list[Layer]]
Predictors = Callable[[Fields, list[Layer]], tuple[Layer, ...]]


class Family(NamedTuple):
    """A row of the table.

    Attributes:
        read: from the fields to the layers.
        defaults: what fields that are left out are; None: nothing, as if the file said null.
        mtp: from the fields and the layers to those that predict more than one token.
    """

    read: Reader
    defaults: Mapping[str, Any]
    mtp: Predictors


def like_the_last(fields: Fields, layers: list[Layer]) -> tuple[Layer, ...]:
    """``num_nextn_predict_layers`` layers that keep what the last layer does."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    return (layers[-1],) * count


def _row(
    read: Reader,
    layers: int | None,
    width: int | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    length: int | None,
    *,
    mtp: Predictors = like_the_last,
    **more: object,
) -> Family:
    """A family by its reader, the defaults that all families have, and those of its own."""
    defaults = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": length,
        **more,
    }
    return Family(read, defaults, mtp)


# model_type: reader, layers, width, heads, key/value heads, head dim, longest sequence, ...
_DENSE = {
    "apertus": _row(dense.full, 32, 4096, 32, None, None, 65536),
    "arcee": _row(dense.full, 32, 2560, 32, None, None, 4096),
    "aria_text": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "biogpt": _row(dense.full, 24, 1024, 16, None, None, 1024),
    "bitnet": _row(dense.full, 30, 2560, 20, 5, None, 2048),
    "bloom": _row(dense.full, 2, 64, 8, None, None, None),
    "chameleon": _row(dense.full, 32, 4096, 32, 32, None, 4096),
    "codegen": _row(dense.full, 28, 4096, 16, None, None, 2048),
    "cohere": _row(dense.full, 40, 8192, 64, None, None, 8192),
    "dbrx": _row(dense.nested_heads, 24, 2048, 16, None, None, 2048),
    "deepseek_ocr2_text": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "diffllama": _row(dense.full, 16, 2048, 32, None, None, 2048),
    "emu3_text_model": _row(dense.full, 32, 4096, 32, 8, None, 9216),
    "ernie4_5": _row(dense.full, 18, 1024, 16, 2, 128, 131072),
    "ernie4_5_moe": _row(dense.full, 28, 2560, 20, 4, None, 131072),
    "ernie4_5_vl_moe_text": _row(dense.full, 28, 2560, 20, 4, None, 131072),
    "exaone": _row(dense.full, 32, 4096, 32, 8, None, 4096),
    "falcon": _row(
        *(dense.falcon, 32, 4544, 71, None, None, 2048),
        **{"num_kv_heads": None, "multi_query": True, "new_decoder_architecture": False},
    ),
    "flex_olmo": _row(dense.full, 32, 4096, 32, None, None, 4096),
    "gemma": _row(dense.causal, 28, 3072, 16, 16, 256, 8192),
    "glm": _row(dense.full, 40, 4096, 32, 2, 128, 131072),
    "glm4": _row(dense.full, 40, 4096, 32, 2, 128, 131072),
    "glm4_moe": _row(dense.full, 46, 4096, 96, 8, None, 131072, num_nextn_predict_layers=1),
    "glm4v_moe_text": _row(dense.full, 46, 4096, 96, 8, None, 65536),
    "glm4v_text": _row(dense.full, 40, 4096, 32, 2, None, 32768),
    "glm_ocr_text": _row(dense.full, 16, 1024, 16, 8, None, 131072),
    "gpt2": _row(dense.full, 12, 768, 12, None, None, 1024),
    "gpt_bigcode": _row(dense.one_or_all_heads, 12, 768, 12, None, None, 1024, multi_query=True),
    "gpt_neox": _row(dense.full, 44, 6144, 64, None, None, 2048),
    "gpt_neox_japanese": _row(dense.full, 32, 2560, 32, None, None, 2048),
    "gptj": _row(dense.full, 28, 4096, 16, None, None, 2048),
    "granite": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "granite4_vision_text": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "granitemoe": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "granitemoeshared": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "helium": _row(dense.full, 24, 2560, 20, 20, 128, 4096),
    "hunyuan_v1_dense": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "hunyuan_v1_moe": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "hy_v3": _row(dense.full, 80, 4096, 64, 8, 128, 131072),
    "internlm3": _row(dense.full, 48, 4096, 32, 2, 128, 32768),
    "jais2": _row(dense.full, 32, 3328, 26, None, None, 8192),
    "jetmoe": _row(dense.heads_by_expert, 12, 2048, None, 16, 128, 4096, kv_channels=128),
    "llama": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "minimax_m2": _row(dense.full, 62, 3072, 48, 8, 128, 196608),
    "mpt": _row(dense.full, 24, 2048, 16, None, None, 2048),
    "nanochat": _row(dense.full, 12, 768, 6, None, None, 2048),
    "nemotron": _row(dense.full, 32, 6144, 48, None, None, 4096),
    "olmo": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "olmo2": _row(dense.full, 32, 4096, 32, None, None, 2048),
    "olmoe": _row(dense.full, 16, 2048, 16, None, None, 4096),
    "opt": _row(dense.full, 12, 768, 12, None, None, 2048),
    "paddleocr_vl_text": _row(dense.full, 18, 1024, 16, 2, 128, 131072),
    "persimmon": _row(dense.full, 36, 4096, 64, None, None, 16384),
    "phi": _row(dense.full, 24, 2048, 32, None, None, 2048),
    "qwen3_vl_moe_text": _row(dense.full, 24, 2048, 16, 16, None, 128000),
    "qwen3_vl_text": _row(dense.full, 32, 4096, 32, 32, 128, 128000),
    "sarvam_moe": _row(dense.full, 19, 4096, 64, 4, 64, 131072),
    "seed_oss": _row(dense.full, 64, 4096, 80, 8, 128, 524288),
    "solar_open": _row(dense.full, 48, 4096, 64, 8, 128, 131072),
    "stablelm": _row(dense.full, 32, 2560, 32, 32, None, 4096),
    "xglm": _row(dense.full, 24, 1024, 16, None, None, 2048),
}

_QWEN2_VL = _row(
    *(windowed.qwen, 80, 8192, 64, 8, None, 32768), sliding_window=4096, max_window_layers=80
)
_WINDOWED = {
    "afmoe": _row(windowed.afmoe, 32, 2048, 16, None, 128, 16384, sliding_window=1024),
    "cohere2": _row(windowed.three_of_four, 40, 8192, 64, None, None, 8192, sliding_window=4096),
    "cwm": _row(windowed.from_the_second, 64, 6144, 48, 8, 128, 131072, sliding_window=8192),
    "dots1": _row(
        *(windowed.dots, 62, 4608, 32, 32, None, 2048),
        **{"sliding_window": 4096, "max_window_layers": 62},
    ),
    "exaone4": _row(windowed.exaone4, 32, 4096, 32, 32, None, 2048, sliding_window=4096),
    "exaone_moe": _row(windowed.exaone4, 32, 4096, 32, 32, None, 2048, sliding_window=4096),
    "gemma2": _row(windowed.alternating, 26, 2304, 8, 4, 256, 8192, sliding_window=4096),
    "gemma3_text": _row(windowed.gemma3, 26, 2304, 8, 4, 256, 131072, sliding_window=4096),
    "gemma3n_text": _row(
        *(windowed.gemma3n, 35, 2048, 8, 2, 256, 32768),
        **{"sliding_window": 512, "num_kv_shared_layers": 15},
    ),
    "gemma4_text": _row(
        *(windowed.gemma4, 30, 2304, 8, 4, 256, 131072),
        **{"sliding_window": 512, "num_kv_shared_layers": 0},
        **{"global_head_dim": 512, "attention_k_eq_v": False},
    ),
    "gemma4_unified_text": _row(
        *(windowed.gemma4, 30, 2304, 8, 4, 256, 262144),
        **{"sliding_window": 1024, "num_kv_shared_layers": 0},
        **{"global_head_dim": 512, "attention_k_eq_v": False},
    ),
    "gpt_neo": _row(
        *(windowed.gpt_neo, 24, 2048, 16, None, None, 2048),
        **{"window_size": 256, "attention_types": [[["global", "local"], 12]]},
    ),
    "gpt_oss": _row(windowed.gpt_oss, 36, 2880, 64, 8, 64, 131072, sliding_window=128),
    "laguna": _row(windowed.listed_only, 40, 2048, 48, 8, 128, 131072, sliding_window=512),
    "llama4_text": _row(
        *(windowed.llama4, 48, 5120, 40, 8, 128, 131072), attention_chunk_size=8192
    ),
    "mimo_v2_flash": _row(
        *(windowed.mimo_v2, 48, 4096, 64, 4, 192, 131072), v_head_dim=128, sliding_window=129
    ),
    "ministral": _row(windowed.every_layer, 32, 4096, 32, 8, None, 131072, sliding_window=4096),
    "ministral3": _row(windowed.every_layer, 34, 4096, 32, 8, 128, 262144, sliding_window=None),
    "mistral": _row(windowed.every_layer, 32, 4096, 32, 8, None, 131072, sliding_window=4096),
    "mixtral": _row(windowed.every_layer, 32, 4096, 32, 8, None, 131072, sliding_window=None),
    "olmo3": _row(windowed.three_of_four, 32, 4096, 32, None, None, 2048, sliding_window=4096),
    "phi3": _row(windowed.every_layer, 32, 3072, 32, None, None, 4096, sliding_window=None),
    "phi4_multimodal": _row(
        *(windowed.every_layer, 32, 3072, 32, 8, None, 131072), sliding_window=None
    ),
    "phimoe": _row(windowed.every_layer, 32, 4096, 32, 8, None, 131072, sliding_window=None),
    "qwen2": _row(
        *(windowed.qwen, 32, 4096, 32, 32, None, 32768), sliding_window=4096, max_window_layers=28
    ),
    "qwen2_5_omni_text": _row(
        *(windowed.qwen, 28, 3584, 28, 4, None, 32768), sliding_window=32768, max_window_layers=28
    ),
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen2_moe": _row(
        *(windowed.qwen_moe, 24, 2048, 16, 16, None, 32768),
        **{"sliding_window": 4096, "max_window_layers": 28},
    ),
    "qwen2_vl_text": _QWEN2_VL,
    "qwen3": _row(
        *(windowed.qwen, 32, 4096, 32, 32, 128, 32768), sliding_window=4096, max_window_layers=28
    ),
    "qwen3_moe": _row(windowed.qwen3_moe, 24, 2048, 32, 4, None, 32768, sliding_window=4096),
    "qwen3_omni_moe_text": _row(
        *(windowed.qwen3_moe, 28, 2048, 28, 4, None, 32768), sliding_window=None
    ),
    "smollm3": _row(windowed.smollm3, 36, 2048, 16, 4, None, 32768, sliding_window=None),
    "starcoder2": _row(windowed.every_layer, 30, 3072, 24, 2, None, 4096, sliding_window=None),
    "vaultgemma": _row(windowed.alternating, 26, 2304, 8, 4, 256, 8192, sliding_window=4096),
}

_MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
_DEEPSEEK_V3 = _row(
    *(latent.latent, 61, 7168, 128, 128, None, 4096), num_nextn_predict_layers=1, **_MLA
)
_LATENT = {
    "deepseek_v2": _row(latent.deepseek_v2, 32, 4096, 32, None, None, 2048, **_MLA),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": _row(
        *(latent.indexed, 61, 7168, 128, 128, 64, 163840), index_head_dim=128, **_MLA
    ),
    "glm4_moe_lite": _row(latent.latent, 47, 2048, 20, 20, 64, 202752, **_MLA),
    "glm_moe_dsa": _row(
        *(latent.glm_dsa, 78, 6144, 64, 64, 64, 202752), index_head_dim=128, **_MLA
    ),
    "longcat_flash": _row(latent.longcat, 28, 6144, 64, None, 64, 131072, **_MLA),
    "minicpm3": _row(
        *(latent.latent, 62, 2560, 40, 40, None, 32768), kv_lora_rank=256, qk_rope_head_dim=32
    ),
    "mistral4": _row(
        *(latent.latent, 36, 4096, 32, 32, None, 1048576), kv_lora_rank=256, qk_rope_head_dim=64
    ),
    "sarvam_mla": _row(latent.latent, 32, 4096, 64, None, None, 4096, **_MLA),
    "youtu": _row(latent.latent, 32, 2048, 16, 16, None, 131072, **_MLA),
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
    "bamba": _row(hybrid.bamba, 32, 4096, 32, 8, None, 262144, mamba_d_head="auto", **_BAMBA),
    "falcon_h1": _row(
        *(hybrid.falcon_h1, 32, 4096, 32, 8, None, 8192),
        **{"mamba_d_ssm": 1024, "mamba_d_head": "auto"},
        **_BAMBA,
    ),
    "falcon_mamba": _row(hybrid.mamba, 32, 768, None, None, None, None, **_MAMBA1),
    "granitemoehybrid": _row(
        *(hybrid.granite_hybrid, 32, 4096, 32, None, None, 2048), mamba_d_head="auto", **_BAMBA
    ),
    "jamba": _row(
        *(hybrid.jamba, 32, 4096, 32, 8, None, 262144),
        **{"attn_layer_period": 8, "attn_layer_offset": 4},
        **{"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
    ),
    "kimi_linear": _row(
        *(hybrid.kimi_linear, 27, 2304, 32, 32, None, 1048576),
        **{"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4},
        **_MLA,
    ),
    "lfm2": _row(hybrid.lfm2, 32, 2560, 32, 8, None, 128000, conv_L_cache=3),
    "lfm2_moe": _row(hybrid.lfm2, 32, 2048, 32, 8, None, 128000, conv_L_cache=3),
    "mamba": _row(hybrid.mamba, 32, 768, None, None, None, None, **_MAMBA1),
    "mamba2": _row(
        *(hybrid.mamba2, 64, 4096, None, None, 64, None),
        **{"num_heads": 128, "state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8},
    ),
    "minimax": _row(hybrid.minimax, 32, 4096, 32, 8, None, 131072),
    "nemotron_h": _row(
        *(hybrid.nemotron_h, None, 4096, 32, 8, 128, 4096),
        **{"ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64},
        **{"n_groups": 8, "conv_kernel": 4},
        mtp=hybrid.nemotron_h_mtp,
    ),
    "olmo_hybrid": _row(
        *(hybrid.olmo_hybrid, 32, 3840, 30, None, None, 65536), linear_conv_kernel_dim=4
    ),
    "qwen3_5_moe_text": _row(
        *(hybrid.gated_delta, 40, 2048, 16, 2, 256, 32768), mtp=hybrid.gated_delta_mtp, **_DELTA
    ),
    "qwen3_5_text": _row(
        *(hybrid.gated_delta, 32, 4096, 16, 4, 256, 32768), mtp=hybrid.gated_delta_mtp, **_DELTA
    ),
    "qwen3_next": _row(hybrid.gated_delta, 48, 2048, 16, 2, 256, 32768, **_DELTA),
    "recurrent_gemma": _row(
        *(hybrid.recurrent_gemma, 26, 2560, 10, None, None, None),
        **{"lru_width": None, "attention_window_size": 2048, "conv1d_width": 4},
        **{"block_types": ["recurrent", "recurrent", "attention"]},
    ),
    "zamba": _row(
        *(hybrid.zamba, 76, 3712, 16, 16, None, 4096),
        **{"attn_layer_period": 6, "attn_layer_offset": 4, "n_mamba_heads": 2},
        **{"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2},
    ),
    "zamba2": _row(
        *(hybrid.zamba2, 54, 2560, 32, None, None, 4096),
        **{"n_mamba_heads": 8, "mamba_ngroups": 1},
        **{"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2},
    ),
}


def _bart(layers: int, width: int, heads: int, length: int) -> Family:
    return _row(
        *(encdec.bart, None, width, None, None, None, length),
        **{"decoder_layers": layers, "decoder_attention_heads": heads},
    )


def _t5(layers: int, width: int, heads: int, decoder: int | None = None) -> Family:
    return _row(
        *(encdec.t5, layers, width, heads, None, None, None),
        **{"d_kv": 64, "num_decoder_layers": decoder},
    )


_ENCODER_DECODER = {
    "bart": _bart(12, 1024, 16, 1024),
    "blenderbot": _bart(24, 2560, 32, 128),
    "blenderbot-small": _bart(8, 512, 16, 512),
    "longt5": _t5(6, 512, 8),
    "m2m_100": _bart(12, 1024, 16, 1024),
    "marian": _bart(12, 1024, 16, 1024),
    "mbart": _bart(12, 1024, 16, 1024),
    "mllama_text_model": _row(encdec.mllama, 40, 4096, 32, 8, None, 131072),
    "moonshine": _row(
        *(encdec.moonshine, None, 288, None, None, None, 512),
        **{"decoder_num_hidden_layers": 6, "decoder_num_attention_heads": 8},
        decoder_num_key_value_heads=None,
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
    "whisper": _bart(4, 384, 6, 448),
}

_SPEECH = {"csm": _row(dense.full, 16, 2048, 32, 8, None, 2048)}

REMOTE = {
    # baichuan-inc/Baichuan2 configuration_baichuan.py: two sizes under one name, heads not shared
    "baichuan": _row(dense.full, 32, 4096, None, None, None, None),
    # THUDM/chatglm3-6b configuration_chatglm.py
    "chatglm": _row(
        *(dense.chatglm, 28, 4096, 32, None, None, 2048),
        **{"kv_channels": 128, "multi_query_attention": False, "multi_query_group_num": 1},
    ),
    # fishaudio/fish-speech fish_speech/models/text2semantic/llama.py: nothing is left out there
    "dual_ar": _row(speech.fish, None, None, None, None, None, None),
    "fish_qwen3": _row(speech.fish, None, None, None, None, None, None),
    # internlm/internlm2-7b configuration_internlm2.py
    "internlm2": _row(dense.full, 32, 4096, 32, None, None, 2048),
    # moonshotai/Kimi-K2-Instruct configuration_deepseek.py: DeepSeek-V3's under another name
    "kimi_k2": _DEEPSEEK_V3,
    # MiniMaxAI/MiniMax-Text-01 configuration_minimax_text_01.py, and MiniMax-M1's
    "minimax_m1": _row(hybrid.minimax_listed, 32, 4096, 32, 8, None, 131072),
    "minimax_text_01": _row(hybrid.minimax_listed, 32, 4096, 32, 8, None, 131072),
    # microsoft/Phi-4-multimodal-instruct configuration_phi4mm.py
    "phi4mm": _row(windowed.every_layer, 32, 3072, 32, None, None, 4096, sliding_window=None),
}
"""Families that transformers does not have, whose code comes with the model's files."""

FAMILIES: dict[str, Family] = dict(
    sorted(
        (_DENSE | _WINDOWED | _LATENT | _HYBRID | _ENCODER_DECODER | _SPEECH | REMOTE).items()
    )
)
"""Every family by its ``model_type``."""
DEFAULTS: dict[str, Mapping[str, Any]] = {name: row.defaults for name, row in FAMILIES.items()}
"""By family, what fields that a file leaves out are."""
DEPTHS: dict[str, Callable[[Fields], ModelSpec]] = {
    "csm": speech.csm_depth,
    "dual_ar": speech.dual_ar_depth,
    "fish_qwen3_omni": speech.fish_depth,
}
"""By the whole model's ``model_type``, from its fields to its second decoder."""
REQUIRED = ("num_hidden_layers", "hidden_size", "decoder_layers", "decoder_num_hidden_layers")
"""Fields that a file may not leave out unless it nests the decoder, see ``octavo.configs``."""
