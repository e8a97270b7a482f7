"""Families of attention with short convolutions before it, of which the last inputs are kept."""

from dataclasses import replace

from octavo.model.configs.fields import HYBRID, Fields, Kinds, keys_and_values
from octavo.model.layers import Attention, Layer, State

_SLIDES = "hybrid_sliding"


def inkling(fields: Fields) -> list[Layer]:
    """Keys, values, attention and feed-forward each pass a short convolution; five of six slide."""
    kinds: Kinds = {HYBRID: lambda: _wide(fields), _SLIDES: lambda: _narrow(fields)}
    every = {layer for layer in range(fields.layers) if (layer + 1) % 6}
    local = fields.layer_indices("local_layer_ids", sorted(every))
    return fields.by_type(kinds, lambda layer: _SLIDES if layer in local else HYBRID)


def inkling_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers see everything but those of ``mtp_local_layer_ids``."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    local = fields.listed("mtp_local_layer_ids", [])
    return tuple(_narrow(fields) if at in local else _wide(fields) for at in range(count))


def _wide(fields: Fields) -> Layer:
    return _convolved(fields, keys_and_values(fields))


def _narrow(fields: Fields) -> Layer:
    dim = fields.count("swa_head_dim")
    heads, window = fields.count("swa_num_key_value_heads"), fields.window()
    return _convolved(fields, Attention(heads, dim, dim, window=window))


def _convolved(fields: Fields, kind: Attention) -> Layer:
    """Convolutions over keys and values go by heads, those over the width are on every rank."""
    columns = fields.count("conv_kernel_size") - 1
    width = 2 * fields.width
    state = State((), (kind.elements_per_token + width, columns), 1, width)
    return kind, state


def zaya(fields: Fields) -> list[Layer]:
    """Queries and keys pass two convolutions, half of the values come a token later."""
    kind = keys_and_values(fields)
    columns = fields.count("cca_time0") + fields.count("cca_time1") - 2
    channels = (fields.heads + kind.kv_heads) * kind.k_dim
    state = State((kind.kv_heads * kind.k_dim // 2,), (channels, columns))
    kinds: Kinds = {
        HYBRID: lambda: (kind, state),
        _SLIDES: lambda: (replace(kind, window=fields.window()), state),
    }
    return fields.by_type(kinds, lambda layer: HYBRID)
