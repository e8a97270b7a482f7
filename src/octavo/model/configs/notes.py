"""What a config says that its reader did not use, for people who check the figures.

Knows names that look like sizes of a cache, and no family.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

_SIZE = re.compile(
    "head|kv|key|value|size|layer|dim|width|window|rank|group|state|conv|cache|latent|block|hidden"
    "|embd|d_model"
    "|loop|recur|gram|compress|index|sink|linear|stride|mtp|nextn|predict|hybrid|pattern|swa"
)
_SHOWN = 6
_WORDS = """
token vocab intermediate moe expert rout ffn mlp ffw feed patch image video audio vision vq
codec encoder perceiver rope rotary theta position embed proj adapter norm init drop topk top_k
scal mult softcap logit bias loss _id version quant q_lora o_lora nope qk_head index_n_heads
o_groups beam pretrain dt_ time_step residual altup laurel per_layer_input dense interval
n_group topk_group expert_group hc_ attn_res hash chunk filter radius block_size factor
model_base model_dim random_blocks local_blocks dim_ff mid_dim keep_window
aligner resampler kpool flow_ latent_stats gate_rank number_of_conv code_groups ngram
adaptor depthwise t2u_ predictor_kernel net_layers feat_ cross_hidden swa_num_attention_heads
cross_num_attention_heads sliding_attention_heads global_block attention_hidden mem_blocks
conv_layers conv_channels max_window_layers rel_ spatial generation task_ relative backbone
cross_attention_hidden kernel_sizes conv_dim conv_stride num_attention_heads_per_layer tp_size
qformer sparse_step num_sparse sparse_topk sparse_init sparse_local sparse_block sparse_disable
decoder_sparse block_sparse num_index_heads conv_kernel inner_hidden clip_ mm_ indexer_n_heads
indexer_budget indexer_compress krope blocksparse block_dim block_ff share_q visual query_heads
gqa_groups codebook_size mtp_transformer input_size ep_size frame_size parallel batch world_size
"""
_OTHERS = tuple(_WORDS.split())
"""Words of what keeps no cache: feed-forwards, positions, training, encoders."""


def unread_sizes(fields: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """A sentence for each field that looks like a size and was not read. O(fields).

    Args:
        fields: what was not read.
        known: names that readers have no use for where they did not ask for them.
    """
    found = {
        name: value
        for name, value in _flat(fields).items()
        if name.rpartition(".")[2] not in known and _is_size(name, value)
    }
    return [
        f"{name} is {_shown(value)} in the file and was not read" for name, value in found.items()
    ]


def _shown(value: object) -> str:
    """A number, or a list that is cut where it is long."""
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return f"a list of {len(value)} objects"
    if isinstance(value, list | tuple) and len(value) > _SHOWN:
        return f"[{', '.join(map(str, value[:_SHOWN]))}, ...]"
    return str(value)


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields, and those of parts by ``part.name``."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            found[name] = value
    return found


def _is_size(name: str, value: object) -> bool:
    whole = _counts(value) or (isinstance(value, list | tuple) and any(map(_says, value)))
    return whole and _SIZE.search(name) is not None and not any(word in name for word in _OTHERS)


def _says(item: object) -> bool:
    return _counts(item) or isinstance(item, Mapping)


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_SAME_LENGTH = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""Kinds of rope scaling whose files say the scaled length as the model's own."""


def scaled_length(scaling: object, own: int | None) -> list[str]:
    """A sentence where rope scaling makes a model longer than its own length, or is malformed.

    It multiplies the length by its factor, as vLLM does; yarn's may say the length before. Kinds
    that are already in the model's own length, and parts by type of layer, have nothing to say.
    O(1).
    """
    if scaling is None:
        return []
    if not isinstance(scaling, Mapping):
        return [f"rope_scaling is {scaling!r} and no JSON object: it was passed over"]
    kind: Any = scaling.get("rope_type", scaling.get("type", "default"))
    factor: Any = scaling.get("factor")
    by_type = any(isinstance(part, Mapping) for part in scaling.values())
    if kind in _SAME_LENGTH or by_type or ("alpha" in scaling and factor is None):
        return []
    number = isinstance(factor, int | float) and not isinstance(factor, bool)
    if not isinstance(kind, str) or not number or not 1 <= factor < 2**31:
        right = "a type, and a factor of at least 1"
        return [f"rope_scaling is {dict(scaling)} and not {right}: it was passed over"]
    said: Any = scaling.get("original_max_position_embeddings")
    before = said if "yarn" in kind and _counts(said) else own or 0
    length = int(before * factor)
    if own is None or length <= own:
        return []
    scaled = f"{length:,} with its rope_scaling ({kind}, factor {factor:g})"
    asks = f"--max-len {length} (max_length={length}) asks for that"
    return [f"its own length is {own:,} tokens, and {scaled}: {asks}"]


_ASKS = (
    *("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_dtype", "kv_cache_type"),
    *("kv_cache_quant_config", "kv_cache_quantization", "cache_dtype"),
)
_PARTS = ("quantization_config", "quantization", "export", "cache_config")
_COUNTED = ("fp8", "int8", "int4")


def cache_type(config: Mapping[str, Any]) -> list[str]:
    """A sentence where the file asks for a cache of fewer bits than its weights' type. O(fields).

    In the forms of compressed-tensors, ModelOpt, Quark and Mistral, beside the model's fields or in
    a part about quantisation.
    """
    for part in _quantised(config):
        for name in _ASKS:
            asked = _wish(part.get(name))
            if asked:
                return [f"{name} asks for a cache in {asked}: {_advice(asked)}"]
        if part.get("kv_cache_group"):
            return [f"kv_cache_group asks for a quantised cache: {_advice('fp8')}"]
    return []


def _quantised(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and its parts that may say it, down to parts of parts."""
    yield config
    for name in _PARTS:
        part = config.get(name)
        if isinstance(part, Mapping):
            yield from _quantised(part)


def _advice(asked: str) -> str:
    dtype = next((name for name in _COUNTED if asked.startswith(name)), None)
    if dtype is None:
        return "no element type here is that, and --dtype fp8 (dtype='fp8') counts twice the bits"
    return f"--dtype {dtype} (dtype='{dtype}') counts it"


def _wish(value: object) -> str | None:
    """The element type in words, where it is one of eight bits or fewer."""
    if isinstance(value, Mapping):
        bits, kind = value.get("num_bits", value.get("bits")), value.get("type", "int")
        if isinstance(bits, int) and bits <= 8:
            return f"fp{bits}" if kind == "float" else f"int{bits}"
        inner = (_wish(item) for item in (value.get("dtype"), *value.values()) if item is not value)
        return next((found for found in inner if found), None)
    text = str(value).lower() if isinstance(value, str) else ""
    found = re.search(r"nvfp4|mxfp4|fp4|fp8|float8|int8|int4", text)
    return found[0].replace("float8", "fp8") if found else None
