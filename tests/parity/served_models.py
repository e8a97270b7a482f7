"""A tiny random model of every family of AutoModelForCausalLM, as cases for every condition."""

from contextlib import nullcontext
from functools import partial
from importlib import import_module
from unittest.mock import patch

import speech_models
import torch
import transformers
from cached_models import MODELS, MOE, MUSIC, SHAPE
from matrix import Case
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from octavo.model.configs.nested import DECODING_ENCODERS

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
PLAIN = {
    "eos_token_id": None,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,
}
OWN = {  # shapes beside those of `cached_models`
    **dict.fromkeys(
        DECODING_ENCODERS,
        {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
        | {"is_decoder": True, "embedding_size": 64},
    ),
    "deepseek_v4": SHAPE
    | {"index_head_dim": 16, "compress_rates": {"heavily_compressed_attention": 3}}
    | {"layer_types": ["sliding_attention", "heavily_compressed_attention"] * 3},
    "dots3_note_text": MODELS["dots3_note_text"]
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 24}
    | {"swa_qk_nope_head_dim": 16, "swa_v_head_dim": 12, "swa_q_lora_rank": 20}
    | {"swa_kv_lora_rank": 24, "shared_experts_intermediate_size": 32},
    "gpt_neo": {"vocab_size": 97, "hidden_size": 64, "num_layers": 4, "num_heads": 4}
    | {"attention_types": [[["global", "local"], 2]], "window_size": 8, LENGTHS[0]: 64},
    "csm": speech_models.SPEECH,
    "cpmant": {"vocab_size": 97, "hidden_size": 64, "num_attention_heads": 4, "dim_head": 16}
    | {"dim_ff": 64, "num_hidden_layers": 3},
    "minimax": SHAPE | MOE,
    "moshi": SHAPE
    | {"ffn_dim": 64, "num_codebooks": 2, "audio_vocab_size": 20}
    | {"depth_decoder_config": {"hidden_size": 32, "input_size": 64, "num_hidden_layers": 1}},
    "phi4_multimodal": SHAPE
    | {"vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}}
    | {"audio_config": {"hidden_size": 32, "intermediate_size": 32, "num_blocks": 1}},
    "prophetnet": {"vocab_size": 97, "hidden_size": 64, "decoder_ffn_dim": 32}
    | {"num_encoder_layers": 3, "num_decoder_layers": 3, "num_decoder_attention_heads": 4}
    | {"is_decoder": True, "add_cross_attention": False, LENGTHS[0]: 64},
    "recurrent_gemma": SHAPE
    | {"num_key_value_heads": 1, "lru_width": 48, "attention_window_size": 8, "head_dim": 16},
    "rwkv": {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3},
    "musicgen_melody_decoder": MUSIC,
    "xlstm": {"vocab_size": 97, "hidden_size": 256, "num_heads": 2, "num_hidden_layers": 2},
}
OWN["big_bird"] = OWN["big_bird"] | {"attention_type": "original_full"}
OWN["xmod"] = OWN["xmod"] | {"languages": ["en"], "default_language": "en"}
CHUNKED = {
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid"), "mamba_chunk_size"),
    **dict.fromkeys(("mamba2", "nemotron_h", "zamba2"), "chunk_size"),
}
"""Families that compute a state every so many tokens, 256 by default, and their word for it."""
MANY = {"index_n_heads": 32}  # with few an indexer's scores are equal, zero
INNER = {
    "dots3_note": "dots3_note_text",
    "emu3": "emu3_text_model",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "got_ocr2": "qwen2",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "moss_transcribe_diarize": "qwen3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen4_exp": "qwen4_exp_text",
}
"""Families whose decoder is a part of their config."""
EYE = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
DECODERS = {"musicgen": "musicgen_decoder", "musicgen_melody": "musicgen_melody_decoder"}
"""Families whose model takes the config of that part alone."""
PARTS = {
    "dots3_note": {
        "vision_config": EYE
        | {"num_hidden_layers": 1, "mlp_layer_types": ["dense"], "adapter_in_dim": 32}
        | {"adapter_out_dim": 64},
        "audio_config": EYE
        | {"num_hidden_layers": 1, "adapter_input_size": 32, "adapter_out_dim": 64}
        | {"downsample_hidden_size": 8},
    },
    "gemma3n": {
        "vision_config": {"hidden_size": 32, "vocab_offset": 97},
        "audio_config": {"hidden_size": 32, "conf_num_attention_heads": 2, "vocab_offset": 225}
        | {"conf_num_hidden_layers": 1},
    },
}
"""What stands beside it there, where its own sizes are not tiny."""
SMALL = {*DECODING_ENCODERS, "bart", "git", "marian", "mvp", "plbart", "trocr"}
"""Families whose norms come last: with larger weights they repeat one token."""
BESIDE = {
    "chameleon": "ChameleonForConditionalGeneration",
    "csm": "CsmForConditionalGeneration",
    "emu3_text_model": "Emu3ForCausalLM",
    "kosmos_2_5_text_model": "Kosmos2_5TextForCausalLM",
    "kosmos_2_text_model": "Kosmos2TextForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
}
"""Others that make text, and their classes."""
FAMILIES = sorted([*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *BESIDE])
SINGLE = ("inkling2_loop_text", "inkling2_text", "kosmos_2_text_model", "xglm")
"""Families whose code mixes in float32, and is compared in it."""
NEW = 5


def config_of(family):
    """A small config; the family's own where nothing is known of it."""
    if family in INNER:
        inner = INNER[family]
        text = _shape(inner) | {"model_type": inner}
        parts = PARTS.get(family, {})
        return CONFIG_MAPPING[family](text_config=text, tie_word_embeddings=False, **parts)
    name = DECODERS.get(family, family)
    return transformers.AutoConfig.for_model(name, **_shape(name))


def _shape(family):
    """Of a hundred positions and more, with no tokens that end a text, untied."""
    shape = dict(OWN.get(family) or MODELS.get(family) or {})
    if not shape:
        return shape
    shape |= {key: 256 for key in LENGTHS if key in shape} | PLAIN
    if "decoder_layers" in shape:
        shape |= {"encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4}
    if "index_topk" in shape:
        shape |= MANY
    if family in CHUNKED:
        shape[CHUNKED[family]] = 8
    if "d_rel" in shape:
        shape |= {"unpadded_vocab_size": 97}
    return shape


def model_of(family):
    """A random model, whose greedy tokens vary, to be run by itself."""
    config = config_of(family)
    for part in (config, config.get_text_config(decoder=True)):
        part.tie_word_embeddings, part._experts_implementation = False, "eager"
        part.eos_token_id = None
    config.is_encoder_decoder = False
    torch.manual_seed(7)
    dtype = torch.float32 if family in SINGLE else torch.float64
    model = _built(family, config).to(dtype).eval()
    small = family in SMALL
    with torch.no_grad():
        for parameter in model.parameters():
            spread = (0.05 if small else 0.3) if parameter.ndim > 1 else 0.1 * (not small)
            parameter.add_(torch.randn_like(parameter) * spread)
    vars(model.generation_config).update(PLAIN)
    return model


def _built(family, config):
    if family in BESIDE:
        code = import_module(type(config).__module__.replace("configuration_", "modeling_"))
        return getattr(code, BESIDE[family])(config)
    if family in DECODERS:
        return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])._from_config(config)
    eyes = patch.object(transformers.TimmWrapperModel, "__new__", lambda *_: torch.nn.Identity())
    with eyes if family == "gemma3n" else nullcontext():  # they need timm, and see nothing here
        return transformers.AutoModelForCausalLM.from_config(config)


def prompts():
    """Three of different lengths; the last two begin alike."""
    ids = torch.randint(3, 97, (80,), generator=torch.Generator().manual_seed(5)).tolist()
    return [ids[:5], ids[10:31], ids[10:28] + ids[50:58]]


def reference(model, prompt, _inputs=None):
    """Greedy tokens of transformers' own generate()."""
    if hasattr(model, "_setup_cache"):  # RecurrentGemma's blocks keep the last call's states
        model._setup_cache(model.config, 1, model.device, model.dtype)
    ids = torch.tensor([prompt])
    run = partial(model.generate, attention_mask=torch.ones_like(ids), do_sample=False)
    return run(ids, max_new_tokens=NEW)[0, len(prompt) :].tolist()


def case_of(family):
    """Its model, and three prompts."""
    if family == "csm":
        return speech_models.case()
    model = model_of(family)
    options = {"page_size": 12} if family == "deepseek_v4" else {}  # of whole rows of three tokens
    return Case(model, [(each, None) for each in prompts()], partial(reference, model), options)
