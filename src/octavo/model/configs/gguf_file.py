"""The metadata of a GGUF file as a config: its header is read, no tensor.

Knows the format's key-value pairs and what they are called in a ``config.json``; no layers.
"""

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MOST = 2**24  # bytes of a string, items of an array, pairs: more is no metadata

FAMILIES = {
    "bailingmoe": "bailing_moe",
    "bailingmoe2": "bailing_moe_v2",
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "ernie4_5-moe": "ernie4_5_moe",
    "exaone-moe": "exaone_moe",
    "gemma3": "gemma3_text",
    "glm4moe": "glm4_moe",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "minimax-m2": "minimax_m2",
    "mistral3": "mistral",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
}
"""By architecture of GGUF, the ``model_type`` of the same family; others have one name."""

_NAMES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "nextn_predict_layers": "num_nextn_predict_layers",
}


def gguf_config(file: "Path") -> dict[str, Any]:
    """The config that the metadata of a GGUF file amounts to. O(metadata).

    Raises:
        ConfigError: no GGUF file, damaged, or sizes that no reader has a name for.
    """
    try:
        with file.open("rb") as stream:
            found = _pairs(stream)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError("path", str(file), f"no GGUF file that can be read: {error}") from None
    architecture = found.get("general.architecture")
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): item for key, item in found.items() if key.startswith(prefix)}
    return {"model_type": FAMILIES.get(str(architecture), architecture)} | _named(own)


def _named(own: Mapping[str, Any]) -> dict[str, Any]:
    config = {name: own[key] for key, name in _NAMES.items() if key in own}
    if own.get("attention.sliding_window") == 0:
        del config["sliding_window"]
    for name in ("num_attention_heads", "num_key_value_heads"):
        listed = config.get(name)
        if isinstance(listed, list):
            if len(set(listed)) > 1:
                raise ConfigError(name, listed, "heads that differ by layer are not read of GGUF")
            config[name] = listed[0]
    if "kv_lora_rank" in config:
        config["qk_rope_head_dim"] = own.get("rope.dimension_count")
        del config["num_key_value_heads"]
    elif own.get("attention.value_length", config.get("head_dim")) != config.get("head_dim"):
        right = "it must be attention.key_length, as no reader knows other values"
        raise ConfigError("attention.value_length", own["attention.value_length"], right)
    ahead = config.get("num_nextn_predict_layers", 0)
    if "num_hidden_layers" in config:  # blocks count prediction layers too
        config["num_hidden_layers"] -= ahead
    return config


def _pairs(stream: BinaryIO) -> dict[str, Any]:
    if stream.read(4) != b"GGUF":
        raise ValueError("it does not begin as one")
    version, _, count = struct.unpack("<IQQ", stream.read(20))
    if version not in (2, 3) or count > _MOST:
        raise ValueError(f"version {version} with {count} pairs")
    return {_string(stream): _value(stream, _number(stream, "<I")) for _ in range(count)}


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        inner, size = _number(stream, "<I"), _size(stream)
        return [_value(stream, inner) for _ in range(size)]
    if kind not in _SCALARS:
        raise ValueError(f"a value of type {kind}")
    return _number(stream, _SCALARS[kind])


def _string(stream: BinaryIO) -> str:
    return stream.read(_size(stream)).decode("utf-8", errors="replace")


def _size(stream: BinaryIO) -> int:
    size: int = _number(stream, "<Q")
    if size > _MOST:
        raise ValueError(f"{size} items")
    return size


def _number(stream: BinaryIO, form: str) -> Any:
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]
