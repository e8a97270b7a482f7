"""Families whose layers differ as a list in the file says: pruned models, heads by layer."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.configs.fields import FULL, SLIDING, Fields, Kinds, keys_and_values
from octavo.model.layers import Attention, Layer


def blocks(fields: Fields) -> list[Layer]:
    """``block_configs`` says of each block whether it attends, with how many heads per group."""
    listed = fields.listed("block_configs")
    if len(listed) != fields.layers:
        raise ConfigError("block_configs", listed, f"it must list all {fields.layers} layers")
    return [_block(fields, item) for item in listed]


def _block(fields: Fields, block: Any) -> Layer:
    given = block.get("attention") if isinstance(block, Mapping) else None
    if not isinstance(given, Mapping):
        raise ConfigError("block_configs", block, "each must be an object with an attention part")
    own = Fields(given, {})
    if own.flag("no_op") or own.flag("replace_with_linear"):
        return ()
    dim = fields.head_dim()
    kind = Attention(_block_heads(fields, own), dim, dim)
    if own.get("window_length") is None:
        return kind
    sinks = own.count("num_sink_tokens", default=0, low=0)
    return replace(kind, window=own.count("window_length"), sink_tokens=sinks)


def _block_heads(fields: Fields, own: Fields) -> int:
    """Key/value heads: as many as query heads make groups, or as the block itself says."""
    if own.get("n_heads_in_group") is None and own.get("num_key_value_heads") is not None:
        return own.count("num_key_value_heads")
    group = own.count("n_heads_in_group")
    if fields.heads % group:
        raise ConfigError("n_heads_in_group", group, f"it must divide {fields.heads} heads")
    return fields.heads // group


def by_layer(fields: Fields) -> list[Layer]:
    """``num_key_value_heads_per_layer`` says the heads of each layer (DeciLM)."""
    listed = fields.get("num_key_value_heads_per_layer")
    if listed is None:
        return [keys_and_values(fields)] * fields.layers
    dim = fields.head_dim()
    heads = fields.listed("num_key_value_heads_per_layer")
    if len(heads) != fields.layers or any(type(item) is not int for item in heads):
        right = f"it must hold a number for each of the {fields.layers} layers"
        raise ConfigError("num_key_value_heads_per_layer", heads, right)
    return [Attention(item, dim, dim) for item in heads]


def step3p5(fields: Fields) -> list[Layer]:
    """``layer_types`` says which layers slide; these have heads of ``attention_other_setting``."""
    return _step(fields, _step_types(fields)[: fields.layers])


def step3p5_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers are of ``mtp_layer_types``, else those listed beyond the model's."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    beyond = _step_types(fields)[fields.layers :]
    types = fields.listed("mtp_layer_types", beyond)[:count]
    return tuple(_step(fields, [*types, *[FULL] * (count - len(types))]))


def _step_types(fields: Fields) -> list[Any]:
    return fields.listed("layer_types", [FULL] * fields.layers)


def _step(fields: Fields, types: list[Any]) -> list[Layer]:
    if not types:
        return []
    kind = keys_and_values(fields)
    other = fields.inner("attention_other_setting")
    other.ignore("attention_type")
    dim = other.count("head_dim", default=kind.k_dim)
    heads = other.count("num_key_value_heads", default=kind.kv_heads)
    other.ignore("num_attention_heads")
    kinds: Kinds = {
        FULL: lambda: kind,
        SLIDING: lambda: Attention(heads, dim, dim, window=fields.window()),
    }
    own = Fields({"num_hidden_layers": len(types), "layer_types": types}, {})
    return own.by_type(kinds, lambda layer: FULL)
