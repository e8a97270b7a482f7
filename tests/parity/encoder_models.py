"""Tiny random encoder-decoders, and inputs as their processors would give them."""

from functools import partial

import torch
import transformers
from matrix import Case

NEW = 6
VOCAB, START = 97, 3
IDS = {
    "vocab_size": VOCAB,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": START,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
BART = IDS | {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
}
T5 = IDS | {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
}
GEMMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": 8,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
EYE = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}


def text(seed, length=9):
    """A source of token ids."""
    ids = torch.randint(4, VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _features(name, *shape, mask=None):
    """A source of features, which many of the families hear."""

    def made(seed, length=None):
        found = {name: torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed))}
        if mask:
            found["attention_mask"] = torch.ones(1, mask, dtype=torch.long)
        return found

    return made


FAMILIES = {
    "Bart": ("ForConditionalGeneration", BART, text),
    "MBart": ("ForConditionalGeneration", BART, text),
    "Blenderbot": ("ForConditionalGeneration", BART, text),
    "BlenderbotSmall": ("ForConditionalGeneration", BART, text),
    "Marian": ("MTModel", BART, text),
    "Pegasus": ("ForConditionalGeneration", BART, text),
    "PegasusX": (
        "ForConditionalGeneration",
        BART | {"block_size": 4, "num_global_tokens": 2},
        text,
    ),
    "BigBirdPegasus": (
        "ForConditionalGeneration",
        BART | {"attention_type": "original_full"},
        text,
    ),
    "M2M100": ("ForConditionalGeneration", BART, text),
    "Mvp": ("ForConditionalGeneration", BART, text),
    "PLBart": ("ForConditionalGeneration", BART, text),
    "LED": (
        "ForConditionalGeneration",
        BART
        | {
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        text,
    ),
    "NllbMoe": (
        "ForConditionalGeneration",
        BART
        | {
            "num_experts": 4,
            "expert_capacity": 64,
            "encoder_sparse_step": 1,
            "decoder_sparse_step": 2,
        },
        text,
    ),
    "T5": ("ForConditionalGeneration", T5, text),
    "MT5": ("ForConditionalGeneration", T5, text),
    "UMT5": ("ForConditionalGeneration", T5, text),
    "LongT5": ("ForConditionalGeneration", T5 | {"local_radius": 3}, text),
    "SwitchTransformers": (
        "ForConditionalGeneration",
        T5
        | {
            "num_experts": 4,
            "expert_capacity": 64,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
        },
        text,
    ),
    "T5Gemma": (
        "ForConditionalGeneration",
        {"encoder": GEMMA, "decoder": GEMMA, "vocab_size": VOCAB, "pad_token_id": 1},
        text,
    ),
    "T5Gemma2": (
        "ForConditionalGeneration",
        {"encoder": {"text_config": GEMMA, "vision_config": EYE}, "decoder": GEMMA},
        text,
    ),
    "Whisper": (
        "ForConditionalGeneration",
        BART
        | {
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 256,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        _features("input_features", 8, 24),
    ),
    "Speech2Text": (
        "ForConditionalGeneration",
        BART
        | {
            "max_source_positions": 64,
            "max_target_positions": 256,
            "input_feat_per_channel": 8,
            "conv_channels": 16,
            "num_conv_layers": 2,
            "conv_kernel_sizes": [3, 3],
        },
        _features("input_features", 20, 8, mask=20),
    ),
    "Moonshine": (
        "ForConditionalGeneration",
        IDS
        | {
            "hidden_size": 32,
            "intermediate_size": 48,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 2,
            "decoder_num_attention_heads": 4,
            "max_position_embeddings": 256,
        },
        _features("input_values", 3000),
    ),
    "SeamlessM4T": ("ForTextToText", BART | {"hidden_size": 32}, text),
    "SeamlessM4Tv2": ("ForTextToText", BART | {"hidden_size": 32}, text),
}


def model_of(family):
    """A tiny random model whose greedy tokens vary."""
    kind, fields, _ = FAMILIES[family]
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**fields)
    model = getattr(transformers, f"{family}{kind}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    generation = model.generation_config
    generation.decoder_start_token_id = START
    generation.eos_token_id, generation.pad_token_id, generation.bos_token_id = None, 1, 0
    return model


def case_of(family):
    """Starts of several lengths; two sources of one length, and one of another."""
    model, source = model_of(family), FAMILIES[family][2]
    starts = [[START], [START, *range(8, 20)], [START, 8, 9, 10, 11, 12]]
    asked = list(zip(starts, [source(1), source(2, 14), source(3)], strict=True))
    why = {"draft model": "it cannot read the source of an encoder-decoder"}
    return Case(model, asked, partial(reference, model), {"input_tokens": 24}, why)


def reference(model, start, source):
    """What transformers answers."""
    options = {"max_new_tokens": NEW, "do_sample": False}
    ids = torch.tensor([start])
    found = transformers.GenerationMixin.generate(model, **source, decoder_input_ids=ids, **options)
    return found[0, len(start) :].tolist()
