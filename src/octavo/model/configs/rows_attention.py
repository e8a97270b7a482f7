"""Rows of the table of families: attention alone, over every token or through windows."""

from octavo.model.configs import dense, looped, pruned, sparse, windowed
from octavo.model.configs.registry import Family, row

# model_type: reader, (layers, width, heads, key/value heads, head dim, longest sequence), others
_DENSE: dict[str, Family] = {
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
    "mpt": row(dense.mpt, (24, 2048, 16, None, None, 2048)),
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
    "apertus1p5_text": row(dense.full, (32, 4096, 32, None, None, 65536)),
    "cosmos3_edge_text": row(dense.full, (28, 2048, 16, 8, 128, 131072)),
    "cpmant": row(dense.unshared_wide, (48, 4096, 32, None, 128, None)),
    "ctrl": row(dense.unshared, (48, 1280, 16, None, None, 256)),
    "evolla": row(dense.full, (32, 4096, 32, 8, None, 8192)),
    "glm_image_text": row(dense.full, (40, 4096, 32, 2, None, 131072)),
    "git": row(dense.unshared, (6, 768, 12, None, None, 1024)),
    "gpt-sw3": row(dense.unshared, (12, 768, 12, None, None, 1024)),
    "granite_docling_text": row(dense.full, (28, 1024, 16, 4, None, 32768)),
    "hunyuan_vl_text": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "hyperclovax": row(dense.full, (32, 4096, 32, None, None, 2048)),
    "iquestcoder": row(dense.full, (80, 5120, 40, 8, 128, 131072)),
    "kosmos_2_5_text_model": row(dense.unshared, (24, 1536, 16, None, None, 4096)),
    "kosmos_2_text_model": row(dense.unshared, (24, 2048, 32, None, None, 2048)),
    "molmo2_text": row(dense.full, (36, 4096, 32, 8, 128, 36864)),
    "unlimited_ocr_text": row(dense.referring, (12, 1280, 10, 10, None, 32768)),
}

_QWEN2_VL = row(
    windowed.qwen, (80, 8192, 64, 8, None, 32768), {"sliding_window": 4096, "max_window_layers": 80}
)
_WINDOWED: dict[str, Family] = {
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
        windowed.mimo_v2,
        (48, 4096, 64, 4, 192, 131072),
        {"v_head_dim": 128, "sliding_window": 129},
        mtp=windowed.mimo_v2_mtp,
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
    "beam": row(windowed.sixth_and_last, (52, 5120, 48, 8, 128, 8192), {"sliding_window": 512}),
    "cohere2_moe": row(
        windowed.after_dense, (40, 8192, 64, None, 128, 8192), {"sliding_window": 4096}
    ),
    "cohere_compass_text": row(
        dense.full, (40, 8192, 64, None, None, 8192), {"sliding_window": 4096}
    ),
    "doge": row(windowed.every_layer, (32, 1024, 8, None, None, 2048), {"sliding_window": None}),
    "flint": row(windowed.flint, (49, 2048, 32, 4, 128, 262144), {"sliding_window": 513}),
    "granite_swa": row(
        windowed.from_the_second, (24, 2560, 20, 4, None, 8192), {"sliding_window": 128}
    ),
    "granitemoe_swa": row(
        windowed.from_the_second, (32, 4096, 32, None, None, 2048), {"sliding_window": 128}
    ),
    "kolibri1": row(windowed.four_of_five, (50, 2560, 48, 4, 128, 262144), {"sliding_window": 513}),
    "mellum": row(
        dense.full,
        (28, 2304, 32, 4, 128, 131072),
        {"sliding_window": 1024},
        mtp=windowed.mellum_mtp,
    ),
    "modernbert-decoder": row(
        windowed.modernbert, (22, 768, 12, None, None, 8192), {"local_attention": 128}
    ),
    "muse_glimmer_text": row(
        windowed.from_the_end, (52, 6656, 32, 2, 128, 131072), {"sliding_window": 2048}
    ),
    "muse_spark_text": row(
        windowed.from_the_end, (62, 8192, 128, 16, 64, 1048576), {"sliding_window": 2048}
    ),
    "voxtral_realtime_text": row(
        windowed.every_layer, (32, 4096, 32, 8, None, 131072), {"sliding_window": 4096}
    ),
    "vaultgemma": row(windowed.alternating, (26, 2304, 8, 4, 256, 8192), {"sliding_window": 4096}),
}

_OTHERS: dict[str, Family] = {
    "dory": row(looped.dory, (36, 2560, 16, 4, 256, 8192), {"sliding_window": 1024}),
    "hrm_text": row(looped.hrm, (16, 1536, 12, None, 128, 2048), {"H_cycles": 2, "L_cycles": 3}),
    "minimax_m3_vl_text": row(
        sparse.minimax_m3, (60, 6144, 64, 4, 128, 524288), {"index_head_dim": 128}
    ),
    "step3p5": row(
        pruned.step3p5, (45, 4096, 64, 8, 128, 128000), {"sliding_window": None}, pruned.step3p5_mtp
    ),
}
ATTENTION = _DENSE | _WINDOWED | _OTHERS
"""Families by ``model_type``."""
