"""Where a config keeps its decoder: models of images or sound nest it beside their encoders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo.errors import ConfigError
from octavo.model.configs.families import FAMILIES

PARTS = (
    *("text_config", "llm_config", "language_config", "thinker_config", "decoder_config"),
    *("decoder", "talker_config", "lm_config", "text_model_config", "language_model_config"),
)
"""Names that files give the decoder's part, the likeliest first."""
_AHEAD = "use_bidirectional_attention"

WRAPPERS: dict[str, str] = {
    "Llama_Nemotron_Nano_VL": "llama",
    "NVLM_D": "qwen2",
    "NemotronH_Nano_VL_V2": "nemotron_h",
    "apertus1p5": "apertus1p5_text",
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "bagel": "qwen2",
    "bee": "qwen3",
    "blip": "blip_text_model",
    "blip-2": "opt",
    "canary": "canary_decoder",
    "cohere2_vision": "cohere2",
    "cohere_compass": "cohere_compass_text",
    "cosmos3_edge": "cosmos3_edge_text",
    "cosmos3_omni": "qwen3_vl_text",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "dia": "dia_decoder",
    "dots3_note": "dots3_note_text",
    "emu3": "emu3_text_model",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "fish_qwen3_omni": "fish_qwen3",
    "florence2": "bart",
    "fun_asr_nano": "qwen3",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm5_next": "glm5_next_text",
    "glm_image": "glm_image_text",
    "glm_ocr": "glm_ocr_text",
    "glmasr": "llama",
    "glmga": "glm4v_text",
    "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text",
    "granite_docling": "granite_docling_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "h2ovl_chat": "mistral",
    "hunyuan_vl": "hunyuan_vl_text",
    "hy_v4_vl": "hy_v4_vl_text",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "inkling2": "inkling2_text",
    "inkling2_loop": "inkling2_loop_text",
    "inkling_mm_model": "inkling_text",
    "instructblip": "opt",
    "instructblipvideo": "opt",
    "interns1": "qwen3_moe",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "kimi_vl": "deepseek_v3",
    "kosmos-2": "kosmos_2_text_model",
    "kosmos-2.5": "kosmos_2_5_text_model",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "midashenglm": "qwen2_5_omni_text",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmo": "qwen2",
    "minicpmv": "qwen2",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "minimax_vl_01": "minimax_text_01",
    "mistral3": "mistral",
    "mistral_large4": "mistral_large4_text",
    "mllama": "mllama_text_model",
    "molmo2": "molmo2_text",
    "moss_transcribe_diarize": "qwen3",
    "muse_glimmer": "muse_glimmer_text",
    "muse_spark": "muse_spark_text",
    "musicflamingo": "qwen2",
    "musicgen": "musicgen_decoder",
    "musicgen_melody": "musicgen_melody_decoder",
    "nemo_speechlm": "nemotron_h",
    "nemotron_h_omni": "nemotron_h",
    "omniasr": "llama",
    "opencua": "qwen2",
    "openvla": "llama",
    "ovis": "qwen2",
    "ovis2": "qwen2",
    "ovis2_5": "qwen3",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "phi3_v": "phi3",
    "pix2struct": "pix2struct_text_model",
    "pp_chart2table": "qwen2",
    "pp_formulanet": "pp_formulanet_text",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_talker": "qwen3_omni_moe_talker_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_tts": "qwen3",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen4_exp": "qwen4_exp_text",
    "shieldgemma2": "gemma3_text",
    "skywork_chat": "qwen2",
    "smolvlm": "llama",
    "step3_vl": "step3_text",
    "step3p7": "step3p5",
    "step_audio_2": "qwen2",
    "t5gemma": "t5_gemma_module",
    "t5gemma2": "t5gemma2_decoder",
    "ultravox": "llama",
    "unlimited_ocr": "unlimited_ocr_text",
    "vibevoice": "qwen2",
    "vibevoice_asr": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
    "voxtral_realtime": "voxtral_realtime_text",
}
"""By the whole model's ``model_type``, the decoder's where its part of the file names none."""

_VOXTRAL = {
    "hidden_size": 3072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}
PART_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "glmasr": {
        "num_hidden_layers": 28,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
    },
    "voxtral": {"num_hidden_layers": 30, **_VOXTRAL},
    "voxtral_realtime": {"num_hidden_layers": 26, "sliding_window": 8192, **_VOXTRAL},
}
"""By the whole model's ``model_type``, what its decoder's part may leave out, where that is not
what the decoder's family takes by itself."""

PREFIXES = frozenset(("paligemma",))
"""Models in which the tokens of a prompt see each other, which then come in one step."""

DECODING_ENCODERS = frozenset(
    (
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"),
        *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer"),
        *("xlm-roberta", "xlm-roberta-xl", "xmod"),
    )
)
"""Encoders whose classes become decoders with ``is_decoder``, and then keep a cache."""

ENCODERS = DECODING_ENCODERS | frozenset(
    (
        *("albert", "deberta", "deberta-v2", "distilbert", "esm", "eurobert", "longformer"),
        *("modernbert", "mpnet", "nomic_bert"),
        *("beit", "clip", "convnext", "deit", "detr", "dinov2", "dinov3_vit", "pixtral", "resnet"),
        *("siglip", "siglip2", "swin", "vit", "hubert", "wav2vec2", "wavlm"),
    )
)
"""Models that read everything at once and generate nothing, those among them that can decode."""

_EMBEDS = "it embeds its input and generates nothing, so it keeps no cache"
_AT_ONCE = "it makes the whole spectrogram or recording at once and keeps no cache"
_ANY_TWO = (
    "any two models may be in it: config['decoder'] by itself says what its decoder keeps, which "
    "with add_cross_attention has as many heads for the other's output"
)
_DRAFTS = "it drafts from the cache of another model and keeps none of its own"
REFUSED: Mapping[str, str] = {
    "bark": "three models run one after another: config['semantic_config'] and "
    "config['coarse_acoustics_config'] are read by themselves, the third keeps nothing",
    "blt": "its layers over bytes and over patches keep different counts of positions, and how "
    "many bytes a patch has depends on the text",
    "colmodernvbert": _EMBEDS,
    "colpali": _EMBEDS,
    "diffusion_gemma": "it rewrites a canvas of tokens again and again; nothing is kept by token",
    "encoder-decoder": _ANY_TWO,
    "fastspeech2_conformer": _AT_ONCE,
    "fastspeech2_conformer_with_hifigan": _AT_ONCE,
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "idefics": "its layers over images keep keys that no field counts: give them by hand",
    "openai-gpt": "its code computes every token anew and keeps no cache",
    "pi0": "it makes a chunk of actions at once from its input; no token is generated",
    "reformer": "its layers keep hidden states and buckets of hashes, no keys and values",
    "speech-encoder-decoder": _ANY_TWO,
    "vision-encoder-decoder": _ANY_TWO,
    "vits": _AT_ONCE,
    "xlm": "it predicts at a mask and reads all tokens anew; it keeps no cache",
    "xlnet": "its memory is hidden states of the last tokens, no keys and values",
}
"""Models that generate, and why their config says nothing of a cache."""


class DecoderPart(NamedTuple):
    """The part of a config that is about the decoder.

    Attributes:
        family: its ``model_type``.
        fields: its fields.
        nested: whether the file has further parts beside it.
    """

    family: object
    fields: Mapping[str, Any]
    nested: bool


def find_decoder(config: Mapping[str, Any]) -> DecoderPart:
    """The decoder of a config, which may itself be nested, or the fields of which may be outside.

    A part that names no family has the one of its architecture, else the one its parent has by
    rule.

    Raises:
        ConfigError: a part is no object, the model is an encoder, or it keeps no cache to plan.
    """
    family, fields, nested = config.get("model_type"), config, False
    while isinstance(family, str) and family in WRAPPERS:
        part = _part(fields)
        if part is None:  # older files have the decoder's fields outside
            return DecoderPart(WRAPPERS[family], fields, nested)
        part = {**_predictors(fields), **PART_DEFAULTS.get(family, {}), **part}
        if family in PREFIXES:
            part = {name: value for name, value in part.items() if name != _AHEAD}
        if not part.get("model_type") and _part(part) is not None:
            fields, nested = part, True
            continue
        family = part.get("model_type") or _architecture(part) or WRAPPERS[family]
        fields, nested = part, True
    if isinstance(family, str) and family in REFUSED:
        raise ConfigError("model_type", family, REFUSED[family])
    if isinstance(family, str) and family in ENCODERS:
        decodes = family in DECODING_ENCODERS
        if not (decodes and fields.get("is_decoder")):
            right = "an encoder reads all its input at once and keeps no cache"
            way_out = "; with is_decoder it is a decoder" if decodes else ""
            raise ConfigError("model_type", family, right + way_out)
    return DecoderPart(family, fields, nested)


def _part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in PARTS:
        part = config.get(name)
        if part is None or (part == {} and "num_hidden_layers" in config):
            continue
        if not isinstance(part, Mapping):
            raise ConfigError(name, part, "it must be a JSON object")
        return part
    return None


def other_parts(config: Mapping[str, Any]) -> list[str]:
    """Further parts of a nested config that hold decoders by name. O(names)."""
    there = [name for name in PARTS if isinstance(config.get(name), Mapping)]
    return [name for name in there[1:] if config[name].get("model_type")]


def _predictors(config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``mtp_config`` beside a part says of the part's prediction layers."""
    given = config.get("mtp_config")
    if not isinstance(given, Mapping):
        return {}
    names = {
        "num_nextn_predict_layers": "num_nextn_predict_layers",
        "mtp_local_layer_ids": "local_layer_ids",
    }
    return {name: given[other] for name, other in names.items() if given.get(other) is not None}


def _architecture(part: Mapping[str, Any]) -> str | None:
    """The family that the name of the part's class begins with; None: it names none."""
    listed = part.get("architectures")
    name = listed[0] if isinstance(listed, list | tuple) and listed else None
    stem = name.partition("For")[0].lower() if isinstance(name, str) else ""
    return next((known for known in FAMILIES if known.replace("_", "") == stem), None)


def inner_name(config: Mapping[str, Any]) -> str | None:
    """Which part of a config that has no reader names an architecture of its own, if one does."""
    parts = (name for name in PARTS if isinstance(config.get(name), Mapping))
    return next((name for name in parts if config[name].get("model_type")), None)
