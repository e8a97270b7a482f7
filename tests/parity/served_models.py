"""A tiny random model of every family of AutoModelForCausalLM, and how the engine answers it.

`docs/model_table.py --engine` runs them all and writes what came out; tests run some of them.
"""

from functools import partial

import torch
import transformers
from cached_models import MODELS, MOE, MUSIC, SHAPE
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.model.configs.nested import DECODING_ENCODERS
from octavo.model.configs.nested import REFUSED as NO_CACHE

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
PLAIN = {
    "eos_token_id": None,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,
}
OWN = {
    **dict.fromkeys(
        DECODING_ENCODERS,
        {key: value for key, value in SHAPE.items() if key != "num_key_value_heads"}
        | {"is_decoder": True, "embedding_size": 64},
    ),
    "deepseek_v4": SHAPE
    | {"index_head_dim": 16, "compress_rates": {"heavily_compressed_attention": 3}}
    | {"layer_types": ["sliding_attention", "heavily_compressed_attention"] * 3},
    "gpt_neo": {"vocab_size": 97, "hidden_size": 64, "num_layers": 4, "num_heads": 4}
    | {"attention_types": [[["global", "local"], 2]], "window_size": 8, LENGTHS[0]: 64},
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
MANY = {"index_n_heads": 32}  # with few an indexer's scores are equal, zero
"""Shapes beside those of `cached_models`."""
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
DECODERS = {"musicgen": "musicgen_decoder", "musicgen_melody": "musicgen_melody_decoder"}
"""Families whose model takes the config of that part alone."""
UNTRIED = {
    "dots3_note": "its encoders take no small sizes; `dots3_note_text` is tried",
    "gemma3n": "its pictures need timm; `gemma3n_text` is tried",
}
FAMILIES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
SINGLE = ("inkling2_loop_text", "inkling2_text", "xglm")
"""Families whose code mixes in float32, and is compared in it."""
NEW = 8


def config_of(family):
    """A small config; the family's own where nothing is known of it."""
    if family in INNER:
        inner = INNER[family]
        text = _shape(inner) | {"model_type": inner}
        return CONFIG_MAPPING[family](text_config=text, tie_word_embeddings=False)
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
    if "swa_head_dim" in shape:
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
    small = family in DECODING_ENCODERS  # deep in norms, they repeat one token with more
    with torch.no_grad():
        for parameter in model.parameters():
            spread = (0.05 if small else 0.3) if parameter.ndim > 1 else 0.1 * (not small)
            parameter.add_(torch.randn_like(parameter) * spread)
    vars(model.generation_config).update(PLAIN)
    return model


def _built(family, config):
    if family in DECODERS:
        return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])._from_config(config)
    return transformers.AutoModelForCausalLM.from_config(config)


def prompts():
    """Three of different lengths; the last two begin alike."""
    ids = torch.randint(3, 97, (120,), generator=torch.Generator().manual_seed(5)).tolist()
    return [ids[:5], ids[10:47], ids[10:30] + ids[50:84]]


def reference(model, prompt):
    """Greedy tokens of transformers' own generate()."""
    ids = torch.tensor([prompt])
    run = partial(model.generate, attention_mask=torch.ones_like(ids), do_sample=False)
    return run(ids, max_new_tokens=NEW)[0, len(prompt) :].tolist()


def outcome(family):
    """How the engine answers: ``together``, ``by rows: why``, ``refused: why``, ``untried: why``.

    Raises:
        AssertionError: its tokens are not those of generate().
    """
    if family in UNTRIED:
        return f"untried: {UNTRIED[family]}"
    if family in NO_CACHE:
        return f"refused: {NO_CACHE[family]}"
    try:
        spec = octavo.ModelSpec.from_config(config_of(family).to_dict())
        model = model_of(family)
        types = {"dtype": str(model.dtype).removeprefix("torch."), "indexer_dtype": "fp32"}
        types["state_dtype"] = types["dtype"]
        plan = octavo.plan(spec, "64MiB", page_size=12, order="head", **types)
        with Engine(model, plan, max_step_tokens=24) as engine:
            greedy = SamplingParams(max_tokens=NEW)
            found = [each.token_ids for each in engine.generate(prompts(), greedy)]
            why = engine.by_rows
    except octavo.UnsupportedModel as error:
        return f"refused: {str(error).partition(': ')[2]}"
    assert found == [reference(model, prompt) for prompt in prompts()]
    return f"by rows: {why}" if why else "together"
