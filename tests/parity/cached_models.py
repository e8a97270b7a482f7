"""Tiny random models of the families that transformers has: shapes, models, their filled caches."""

import importlib
import inspect

import torch
import transformers

from octavo import Cross, ModelSpec

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 8}
DIM = {"head_dim": 24}
MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 4,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
BAMBA = {"mamba_n_heads": 16, "mamba_d_head": 8, "mamba_d_state": 12}
GEMMA = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}
GPT = {
    "vocab_size": 97,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "rotary_dim": 8,
}
PAIR = {
    "vocab_size": 97,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
}
T5 = {
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

PLAIN = [
    "apertus",
    "arcee",
    "bitnet",
    "cohere",
    "diffllama",
    "ernie4_5",
    "exaone",
    "glm",
    "glm4",
    "granite",
    "internlm3",
    "jais2",
    "llama",
    "ministral3",
    "mistral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "stablelm",
    "starcoder2",
    "biogpt",
    "gpt_neox",
]
EXPERTS = [
    "ernie4_5_moe",
    "flex_olmo",
    "glm4_moe",
    "granitemoe",
    "granitemoeshared",
    "hy_v3",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "sarvam_moe",
    "solar_open",
]
LATENT = ["deepseek_v2", "deepseek_v3", "minicpm3", "sarvam_mla", "youtu", "glm4_moe_lite"]
MODELS = {
    **{name: {**SHAPE} for name in PLAIN},
    **dict.fromkeys(EXPERTS, SHAPE | MOE),
    **dict.fromkeys(LATENT, SHAPE | MOE | MLA),
    "afmoe": SHAPE | MOE | WINDOW,
    "bamba": SHAPE | BAMBA | {"attn_layer_indices": [1, 3]},
    "bart": PAIR,
    "bloom": {"vocab_size": 97, "hidden_size": 64, "n_layer": 3, "n_head": 4},
    "codegen": GPT,
    "cohere2": SHAPE | WINDOW,
    "cwm": SHAPE | WINDOW | DIM,
    "deepseek_v32": SHAPE | MOE | MLA,
    "dots1": SHAPE | MOE | WINDOW | {"max_window_layers": 3},
    "exaone4": SHAPE | WINDOW,
    "falcon": SHAPE,
    "falcon_h1": SHAPE | BAMBA | {"mamba_d_ssm": 96, "mamba_n_heads": 12},
    "falcon_mamba": SHAPE,
    "gemma": SHAPE | DIM,
    "gemma2": SHAPE | WINDOW | DIM,
    "gemma3_text": SHAPE | WINDOW | DIM,
    "gemma3n_text": SHAPE
    | WINDOW
    | GEMMA
    | {"num_hidden_layers": 10, "num_kv_shared_layers": 3, "laurel_rank": 4}
    | {"altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 10},
    "gemma4_text": SHAPE
    | WINDOW
    | GEMMA
    | DIM
    | {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}
    | {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    "glm_moe_dsa": SHAPE | MOE | MLA | {"index_topk_freq": 2},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_oss": SHAPE | MOE | WINDOW | DIM,
    "gptj": GPT,
    "granitemoehybrid": SHAPE
    | BAMBA
    | {"layer_types": ["mamba", "attention"] * 3, "num_local_experts": 0},
    "helium": SHAPE | {"head_dim": 16},
    "hunyuan_v1_dense": SHAPE | DIM,
    "hunyuan_v1_moe": SHAPE | MOE | DIM,
    "jamba": SHAPE
    | {"num_experts": 2, "attn_layer_period": 3, "attn_layer_offset": 1}
    | {"use_mamba_kernels": False},
    "jetmoe": SHAPE | {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "kimi_linear": SHAPE
    | MOE
    | MLA
    | {"linear_attn_config": {"num_heads": 4, "head_dim": 12, "short_conv_kernel_size": 4}},
    "laguna": SHAPE | MOE | WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 3},
    "lfm2": SHAPE | {"full_attn_idxs": [1, 3]},
    "llama4_text": SHAPE | MOE | DIM | {"attention_chunk_size": 8, "intermediate_size_mlp": 64},
    "longcat_flash": SHAPE
    | MOE
    | MLA
    | {"num_layers": 3, "zero_expert_num": 2, "expert_ffn_hidden_size": 32, "head_dim": 8},
    "mamba": SHAPE,
    "mamba2": SHAPE | {"num_heads": 16, "head_dim": 8, "n_groups": 2, "state_size": 12},
    "marian": PAIR,
    "mimo_v2_flash": SHAPE | MOE | WINDOW | DIM | {"v_head_dim": 16},
    "ministral": SHAPE | WINDOW | DIM,
    "mistral-windowed": SHAPE | WINDOW | DIM,
    "moonshine": {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 32,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 3,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
        "decoder_num_key_value_heads": 2,
    },
    "mpt": {"vocab_size": 97, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 64},
    "nemotron_h": {key: value for key, value in SHAPE.items() if key != "num_hidden_layers"}
    | MOE
    | DIM
    | {"hybrid_override_pattern": "M*-M*E", "mamba_num_heads": 4, "mamba_head_dim": 8}
    | {"n_groups": 2, "ssm_state_size": 12},
    "olmo3": SHAPE | WINDOW,
    "olmo_hybrid": SHAPE | DELTA,
    "pegasus": PAIR,
    "qwen2-windowed": SHAPE | WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_5_text": SHAPE | DELTA,
    "qwen3_5_moe_text": SHAPE | DELTA | MOE,
    "qwen3_next": SHAPE | DELTA | MOE,
    "seed_oss": SHAPE | DIM,
    "smollm3-windowed": SHAPE | WINDOW | {"use_sliding_window": True},
    "t5": T5,
    "vaultgemma": SHAPE | WINDOW | DIM,
    "whisper": PAIR | {"max_target_positions": 64, "num_mel_bins": 8, "max_source_positions": 10},
    "zamba": SHAPE | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": SHAPE | {"layers_block_type": ["linear_attention", "hybrid"] * 3, "mamba_d_state": 8},
}
PAIRS = ("bigbird_pegasus", "mvp", "fsmt", "plbart", "mbart", "m2m_100", "blenderbot")
INKLING = {
    "swa_num_key_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_head_dim": 16,
    "sliding_window_size": 8,
    "d_rel": 4,
    "rel_extent": 8,
}
MODELS |= {
    **dict.fromkeys(("apertus1p5_text", "granite_docling_text", "hyperclovax", "jais2"), SHAPE),
    **dict.fromkeys(("molmo2_text", "iquestcoder", "hrm_text"), SHAPE | DIM),
    **dict.fromkeys(("beam", "flint", "kolibri1", "mellum"), SHAPE | MOE | WINDOW | DIM),
    **dict.fromkeys(("cohere2_moe", "exaone_moe", "muse_spark_text"), SHAPE | MOE | WINDOW | DIM),
    **dict.fromkeys(("axk1", "axk2", "hy_v4", "mistral4"), SHAPE | MOE | MLA),
    **dict.fromkeys(("longt5", "mt5", "umt5"), T5),
    "granite_swa": SHAPE | WINDOW,
    **dict.fromkeys(
        PAIRS, PAIR | {"src_vocab_size": 97, "tgt_vocab_size": 97, "langs": ["a", "b"]}
    ),
    "bailing_hybrid": SHAPE | MOE | MLA | {"head_dim": 16, "layer_group_size": 3},
    "cosmos3_edge_text": SHAPE | {"head_dim": 128},
    "ctrl": GPT | {"dff": 32},
    "doge": SHAPE,
    "dory": SHAPE | WINDOW | DIM | {"n_input_layers": 2, "n_output_layers": 2},
    "dots3_note_text": SHAPE | MOE | MLA | {"sliding_window": 8},
    "gemma4_unified_text": MODELS["gemma4_text"],
    "glm5_next_text": SHAPE
    | MOE
    | MLA
    | {"qk_rope_head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 4, "index_kpool": 2},
    "gpt_neox_japanese": SHAPE,
    "granitemoe_swa": SHAPE | MOE | WINDOW,
    "inkling2_loop_text": SHAPE
    | MOE
    | DIM
    | INKLING
    | {"loop_layer_index_start": 2, "loop_layer_index_end": 4, "n_layers_per_attn_res_block": 2},
    "inkling2_text": SHAPE | MOE | DIM | INKLING,
    "inkling_text": SHAPE | MOE | DIM | INKLING,
    "lara_mini": SHAPE | DELTA | WINDOW | DIM,
    "led": PAIR
    | {"attention_window": 4, "max_encoder_position_embeddings": 64}
    | {"max_decoder_position_embeddings": 64},
    "lfm2_moe": SHAPE | MOE | {"layer_types": ["conv", "full_attention"] * 3},
    "lfm3": SHAPE | WINDOW | {"head_dim": 16, "conv_L_cache": 3},
    "minimax_m3_vl_text": SHAPE
    | MOE
    | DIM
    | {"layer_types": ["full_attention"] * 2 + ["minimax_m3_sparse"] * 4, "index_head_dim": 16}
    | {"index_n_heads": 2, "index_block_size": 4, "rotary_dim": 8},
    "modernbert-decoder": {key: SHAPE[key] for key in SHAPE if key != "num_key_value_heads"}
    | {"local_attention": 16},
    "muse_glimmer_text": SHAPE | WINDOW | DIM,
    "pegasus_x": PAIR | {"block_size": 4},
    "qwen4_exp_text": SHAPE
    | DELTA
    | MOE
    | {"head_dim": 16, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    | {"indexer_budget": 4, "indexer_compress_ratio": 2, "hc_count": 2, "hc_lowrank": 8},
    "xglm": {
        "vocab_size": 97,
        "d_model": 64,
        "num_layers": 3,
        "attention_heads": 4,
        "ffn_dim": 32,
    },
    "zaya": SHAPE | MOE | {"head_dim": 16, "num_experts_per_tok": 1},
}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
PICTURES = SHAPE | {"rope_parameters": SECTIONS}
GLM = SHAPE | {"head_dim": 16, "rope_parameters": SECTIONS | {"mrope_section": [1, 1, 2]}}
KOSMOS = {"vocab_size": 97, "embed_dim": 64, "layers": 3, "ffn_dim": 32, "attention_heads": 4}
MUSIC = {
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 32,
    "num_codebooks": 1,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MODELS |= {
    **dict.fromkeys(("emu3_text_model", "evolla", "phi4_multimodal", "canary_decoder"), SHAPE),
    **dict.fromkeys(("aria_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), PICTURES | MOE),
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"), PICTURES),
    **dict.fromkeys(("qwen3_vl_text", "paddleocr_vl_text"), PICTURES | {"head_dim": 16}),
    **dict.fromkeys(("glm4v_text", "glm_image_text", "glm_ocr_text"), GLM),
    **dict.fromkeys(("kosmos_2_text_model", "kosmos_2_5_text_model"), KOSMOS),
    **dict.fromkeys(("blenderbot-small", "pp_formulanet_text"), PAIR),
    "chameleon": SHAPE
    | {"vocabulary_map": {"<image>": 1}}
    | {
        "vq_config": {
            "embed_dim": 8,
            "num_embeddings": 8,
            "latent_channels": 8,
            "base_channels": 32,
        }
    },
    "cohere_compass_text": SHAPE
    | WINDOW
    | {"rope_parameters": {"full_attention": PLAIN_ROPE, "sliding_attention": PLAIN_ROPE}},
    "csm_depth_decoder_model": SHAPE | {"num_codebooks": 4, "backbone_hidden_size": 64},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 97}
    | {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0}}
    | {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1}},
    "ernie4_5_vl_moe_text": SHAPE
    | MOE
    | {"rope_parameters": SECTIONS | {"mrope_section": [2, 2, 4]}}
    | {"moe_intermediate_size": [32, 16]},
    "git": {key: SHAPE[key] for key in SHAPE if key != "num_key_value_heads"},
    "glm4v_moe_text": GLM | MOE,
    "gpt-sw3": GPT,
    "gradium_phonon_tts": SHAPE | {"flow_head_config": {"condition_dim": 64}},
    "hy_v4_vl_text": SHAPE
    | MOE
    | MLA
    | {"rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1]}},
    "mistral_large4_text": SHAPE
    | MOE
    | MLA
    | {"kv_source_layers": [0, 0, 2, 3, 2, 5], "index_topk_pattern": "FSFFFS"},
    "mllama_text_model": SHAPE
    | {"num_hidden_layers": 5, "cross_attention_layers": [1, 3]}
    | {"rope_parameters": PLAIN_ROPE},
    "musicgen_decoder": MUSIC,
    "nllb-moe": PAIR | {"num_experts": 2},
    "speech_to_text": PAIR
    | {"max_target_positions": 64, "max_source_positions": 64, "input_feat_per_channel": 8}
    | {"conv_channels": 16, "conv_kernel_sizes": [3, 3]},
    "step3p5": SHAPE | MOE | WINDOW | {"head_dim": 16},
    "trocr": PAIR | {"cross_attention_hidden_size": 64},
    "udop": T5,
}
TOKENS = 3
EXCLUDED = {
    **dict.fromkeys(
        ("blip_text_model", "dia_decoder", "hunyuan_vl_text", "pix2struct_text_model"),
        "its decoder cannot be built or run without the whole model",
    ),
    **dict.fromkeys(
        ("csm", "deepseek_ocr2_text", "granite4_vision_text", "t5gemma2_decoder"),
        "its decoder cannot be built or run without the whole model",
    ),
    **dict.fromkeys(
        ("qwen2_5_omni_talker", "qwen3_omni_moe_talker_code_predictor", "moshi_depth"),
        "its input is another model's output",
    ),
    **dict.fromkeys(
        ("qwen3_omni_moe_talker_text", "voxtral_realtime_text", "unlimited_ocr_text"),
        "its input is another model's output",
    ),
    **dict.fromkeys(
        ("higgs_audio_v2", "kyutai_speech_to_text", "moshi", "pocket_tts", "pop2piano"),
        "its input is sound",
    ),
    **dict.fromkeys(
        ("cohere_asr", "moonshine_streaming", "seamless_m4t", "seamless_m4t_v2", "speecht5"),
        "its input is sound",
    ),
    "cpmant": "it puts tokens of its own before the prompt",
    "gpt_neo": "transformers keeps all tokens where the model sees a window",
    "musicgen_melody_decoder": "its input of sound comes before the tokens",
    **dict.fromkeys(("prophetnet", "switch_transformers"), "it wants a cache of another class"),
    "t5_gemma_module": "it is a part of t5gemma",
}
"""Families that transformers has and that are not compared here, and why."""


def build(family):
    """A random model of the family, and the spec of its config."""
    name = family.removesuffix("-windowed")
    config = transformers.AutoConfig.for_model(name, **MODELS[family])
    pairs = (transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq)
    autos = pairs if config.is_encoder_decoder else (transformers.AutoModelForCausalLM,)
    auto = next((auto for auto in autos if type(config) in auto._model_mapping), None)
    torch.manual_seed(3)
    made = _decoder(config)._from_config(config) if auto is None else auto.from_config(config)
    return made.eval(), ModelSpec.from_config(config.to_dict() | {"model_type": name})


def _decoder(config):
    """The class in the family's code that is of this config: with a head, or else the smallest."""
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    heads = ("ForCausalLM", "ForConditional", "LMHead", "Decoder")

    def of_it(made):
        own = issubclass(made, transformers.PreTrainedModel) and made.__module__ == module.__name__
        named = not made.__name__.endswith("PreTrainedModel")
        return own and named and made.config_class is type(config)

    def order(made):
        name = made.__name__
        return not any(head in name for head in heads), "Encoder" in name, len(name)

    return min(
        (made for _, made in inspect.getmembers(module, inspect.isclass) if of_it(made)), key=order
    )


def filled(model, spec):
    """The cache after a forward of a few tokens, with another input where layers attend to one."""
    ids = torch.tensor([[5, 6, 7]])
    inputs = {"input_ids": ids, "decoder_input_ids": ids, "bbox": torch.zeros(1, 3, 4)}
    if any(isinstance(kind, Cross) for _, kind in spec.kinds()):
        other = torch.zeros(1, 5, 64)
        inputs |= {"encoder_hidden_states": other, "cross_attention_states": other}
        shape = (1, 20, 8) if model.config.model_type == "speech_to_text" else (1, 8, 20)
        inputs |= {"input_features": torch.zeros(shape), "input_values": torch.zeros(1, 2000)}
    taken = inspect.signature(model.forward).parameters
    with torch.no_grad():
        given = {name: value for name, value in inputs.items() if name in taken}
        return model(**given, use_cache=True).cache
