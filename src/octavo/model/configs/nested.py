"""Where a config keeps its decoder: models of images or sound nest it beside their encoders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo.errors import ConfigError
from octavo.model.configs.families import FAMILIES

_PARTS = (
    *("text_config", "llm_config", "language_config", "thinker_config", "decoder_config"),
    *("decoder", "vlm_config", "semantic_config"),
)
_AHEAD = "use_bidirectional_attention"

WRAPPERS: dict[str, str] = {
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "blip-2": "opt",
    "cohere2_vision": "cohere2",
    "deepseek_ocr2": "deepseek_ocr2_text",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "deepseek_vl_v2": "deepseek_v2",
    "emu3": "emu3_text_model",
    "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "fish_qwen3_omni": "fish_qwen3",
    "florence2": "bart",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "got_ocr2": "qwen2",
    "granite4_vision": "granite4_vision_text",
    "granite_speech": "granite",
    "idefics2": "mistral",
    "idefics3": "llama",
    "instructblip": "opt",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpmv": "qwen2",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "ovis2": "qwen2",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "perception_lm": "llama",
    "phi3_v": "phi3",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen2_5_omni_thinker": "qwen2_5_omni_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker": "qwen3_omni_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "shieldgemma2": "gemma3_text",
    "smolvlm": "llama",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""By the whole model's ``model_type``, the decoder's where its part of the file names none."""

PREFIXES = frozenset(("paligemma",))
"""Models in which the tokens of a prompt see each other, which then come in one step."""

ENCODERS = frozenset(
    (
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie"),
        *(
            "esm",
            "eurobert",
            "longformer",
            "modernbert",
            "mpnet",
            "nomic_bert",
            "roberta",
            "xlm-roberta",
        ),
        *("beit", "clip", "convnext", "deit", "detr", "dinov2", "dinov3_vit", "pixtral", "resnet"),
        *("siglip", "siglip2", "swin", "vit", "hubert", "wav2vec2", "wavlm"),
    )
)
"""Models that read everything at once and generate nothing."""


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
        ConfigError: a part is no object, or the model is an encoder.
    """
    family, fields, nested = config.get("model_type"), config, False
    while isinstance(family, str) and family in WRAPPERS:
        part = _part(fields)
        if part is None:  # older files have the decoder's fields outside
            return DecoderPart(WRAPPERS[family], fields, nested)
        if family in PREFIXES:
            part = {name: value for name, value in part.items() if name != _AHEAD}
        if not part.get("model_type") and _part(part) is not None:
            fields, nested = part, True
            continue
        family = part.get("model_type") or _architecture(part) or WRAPPERS[family]
        fields, nested = part, True
    if isinstance(family, str) and family in ENCODERS:
        right = "an encoder reads all its input at once and keeps no cache"
        raise ConfigError("model_type", family, right)
    return DecoderPart(family, fields, nested)


def _part(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for name in _PARTS:
        part = config.get(name)
        if part is None or (part == {} and "num_hidden_layers" in config):
            continue
        if not isinstance(part, Mapping):
            raise ConfigError(name, part, "it must be a JSON object")
        return part
    return None


def _architecture(part: Mapping[str, Any]) -> str | None:
    """The family that the name of the part's class begins with; None: it names none."""
    listed = part.get("architectures")
    name = listed[0] if isinstance(listed, list | tuple) and listed else None
    stem = name.partition("For")[0].lower() if isinstance(name, str) else ""
    return next((known for known in FAMILIES if known.replace("_", "") == stem), None)


def inner_name(config: Mapping[str, Any]) -> str | None:
    """Which part of a config that has no reader names an architecture of its own, if one does."""
    parts = (name for name in _PARTS if isinstance(config.get(name), Mapping))
    return next((name for name in parts if config[name].get("model_type")), None)
