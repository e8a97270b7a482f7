"""Families that keep a state of constant size, alone, between attention layers or beside them.

A convolution keeps its last kernel - 1 inputs, as vLLM and SGLang store them; transformers keeps a
whole kernel.
"""

from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.configs.fields import (
    CONV,
    FULL,
    HYBRID,
    LINEAR,
    SLIDING,
    Fields,
    Kinds,
    keys_and_values,
)
from octavo.model.configs.latent import row
from octavo.model.layers import Attention, Layer, Shape, State


def _conv(channels: int, kernel: int) -> Shape:
    return (channels, kernel - 1) if kernel > 1 else ()


def _inner(fields: Fields) -> int:
    """Inner width of a mamba mixer: the width times what it expands by, maybe a fraction."""
    value = fields.get("mamba_expand")
    if isinstance(value, float) and value > 0 and (value * fields.width).is_integer():
        return int(value * fields.width)
    return fields.count("mamba_expand") * fields.width


def _mamba1(fields: Fields, inner: int) -> State:
    """Mamba 1: a recurrence for each inner channel; the convolution runs over these alone."""
    state, kernel = fields.count("mamba_d_state"), fields.count("mamba_d_conv")
    return State((inner, state), _conv(inner, kernel))


def _mamba2(fields: Fields, heads: int, dim: int) -> State:
    """Mamba 2: a recurrence for each head; the convolution takes B and C of each group along."""
    groups, state = fields.count("mamba_n_groups"), fields.count("mamba_d_state")
    channels = heads * dim + 2 * groups * state
    conv = _conv(channels, fields.count("mamba_d_conv"))
    return State((heads, dim, state), conv, groups, 2 * state)


def _mamba_d(fields: Fields, inner: int) -> State:
    """Mamba 2 by the names of the Bamba line; its head may be ``auto``: inner width / heads."""
    heads, dim = fields.count("mamba_n_heads"), fields.get("mamba_d_head")
    dim = inner // heads if dim == "auto" else fields.count("mamba_d_head")
    if heads * dim != inner:
        raise ConfigError("mamba_d_head", dim, f"{heads} heads of it must make up {inner}")
    return _mamba2(fields, heads, dim)


def mamba(fields: Fields) -> list[Layer]:
    """A Mamba 1 state in every layer, no attention.

    ``intermediate_size`` is the inner width where it is there: Falcon Mamba's ``expand`` is not.
    """
    given = fields.get("mamba_inner") is not None
    inner = fields.count("mamba_inner") if given else _inner(fields)
    return [_mamba1(fields, inner)] * fields.layers


def mamba2(fields: Fields) -> list[Layer]:
    """A Mamba 2 state in every layer, no attention."""
    return [_mamba_d(fields, _inner(fields))] * fields.layers


def mamba_ssm(fields: Fields) -> list[Layer]:
    """Files of mamba-ssm: mixers, and attention in the layers of ``attn_layer_idx``.

    ``layer`` says which Mamba; Mamba 2's heads follow from the width.
    """
    attends = fields.layer_indices("attn_layer_idx")
    attention = _convolved(fields) if attends else ()
    mixers = _mamba_ssm(fields)
    return [attention if at in attends else mixer for at, mixer in enumerate(mixers)]


def _convolved(fields: Fields) -> Layer:
    """Attention as ``attn_cfg`` says; queries, keys and values may pass a convolution."""
    own = fields.inner("attn_cfg", {"hidden_size": fields.width})
    kind, kernel = keys_and_values(own), own.count("mamba_d_conv", default=0, low=0)
    channels = (own.heads + 2 * kind.kv_heads) * kind.k_dim
    return (kind, State((), _conv(channels, kernel))) if kernel > 1 else kind


def _mamba_ssm(fields: Fields) -> list[Layer]:
    if fields.get("layer", default="Mamba1") == "Mamba1":
        return mamba(fields.replaced({"d_state": fields.count("mamba_d_state", default=16)}))
    dim, inner = fields.count("mamba_d_head", default=64), _inner(fields)
    heads = fields.divide(fields.called("hidden_size"), inner, dim)
    known = {"mamba_d_state": 128, "mamba_n_groups": 1}
    own = fields.replaced(
        {name: fields.count(name, default=usual) for name, usual in known.items()}
    )
    return [_mamba2(own, heads, dim)] * fields.layers


def jamba(fields: Fields) -> list[Layer]:
    """Attention where layer % ``attn_layer_period`` == ``attn_layer_offset``, else Mamba 1."""
    period = fields.count("attn_layer_period")
    offset = fields.count("attn_layer_offset", low=0)
    if offset >= period:
        raise ConfigError("attn_layer_offset", offset, f"it must be less than {period}")
    state = _mamba1(fields, _inner(fields))
    kinds: Kinds = {FULL: lambda: keys_and_values(fields), LINEAR: lambda: state}
    return fields.by_type(kinds, lambda layer: FULL if layer % period == offset else LINEAR)


def bamba(fields: Fields) -> list[Layer]:
    """Attention in the layers of ``attn_layer_indices``, else Mamba 2."""
    attention = fields.layer_indices("attn_layer_indices")
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        LINEAR: lambda: _mamba_d(fields, _inner(fields)),
    }
    return fields.by_type(kinds, lambda layer: FULL if layer in attention else LINEAR)


def granite_hybrid(fields: Fields) -> list[Layer]:
    """``layer_types`` names the attention layers; without it every layer is Mamba 2."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        fields.ignore(name)
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        LINEAR: lambda: _mamba_d(fields, _inner(fields)),
    }
    return fields.by_type(kinds, lambda layer: LINEAR)


def falcon_h1(fields: Fields) -> list[Layer]:
    """Attention and Mamba 2 side by side in every layer.

    The mixer is ``mamba_d_ssm`` wide where the file says so, else ``mamba_expand`` widths.
    """
    given = fields.get("mamba_d_ssm") is not None
    inner = fields.count("mamba_d_ssm") if given else _inner(fields)
    return [(keys_and_values(fields), _mamba_d(fields, inner))] * fields.layers


_NEMOTRON = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KEEPS_NOTHING = ("mlp", "moe")


def nemotron_h(fields: Fields) -> list[Layer]:
    """Mixers and feed-forwards are layers of their own, a letter for each.

    M in ``hybrid_override_pattern`` is Mamba 2, * attention; - and E keep nothing.
    """
    types = _nemotron_types(fields)
    layers = fields.get("num_hidden_layers")
    if layers is not None and fields.layers != len(types):
        right = f"hybrid_override_pattern has {len(types)} layers"
        raise ConfigError("num_hidden_layers", layers, right)
    return _nemotron_layers(fields, types)


def nemotron_h_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """``num_nextn_predict_layers`` times the pattern ``mtp_hybrid_override_pattern``."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    name = "mtp_hybrid_override_pattern"
    types = fields.listed("mtp_layers_block_type", ["attention", "moe"])
    types = types if fields.get(name) is None else _letters(name, fields.get(name))
    return tuple(_nemotron_layers(fields, types)) * count if count else ()


def _nemotron_types(fields: Fields) -> list[Any]:
    if fields.get("layer_types") is not None:
        return fields.listed("layer_types")
    pattern = fields.get("hybrid_override_pattern")
    return _letters("hybrid_override_pattern", pattern)


def _letters(name: str, pattern: object) -> list[str]:
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_NEMOTRON):
        raise ConfigError(name, pattern, "it must hold M, *, - or E for every layer")
    return [_NEMOTRON[letter] for letter in pattern]


def _nemotron_layers(fields: Fields, types: list[Any]) -> list[Layer]:
    """The layers of these types; the file's own count of layers has no say."""
    kinds: Kinds = {
        FULL: lambda: _nemotron_attention(fields),
        LINEAR: lambda: _nemotron_state(fields),
        **dict.fromkeys(_KEEPS_NOTHING, tuple),
    }
    own = Fields({"num_hidden_layers": len(types), "layer_types": types}, {})
    return own.by_type(kinds, lambda layer: FULL)


def _nemotron_attention(fields: Fields) -> Attention:
    dim = fields.count("head_dim")
    return Attention(fields.kv_heads(), dim, dim)


def _nemotron_state(fields: Fields) -> State:
    return _mamba2(fields, fields.count("mamba_n_heads"), fields.count("mamba_d_head"))


_ZAMBA2 = "m" + "mmmmmh" * 7 + "mmmmh" + "mmmh" + "mm"


def zamba(fields: Fields) -> list[Layer]:
    """Mamba 1 with heads in every layer; attention over the doubled width beside it in some."""
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", low=0)
    heads, inner = fields.count("mamba_n_heads"), _inner(fields)
    recurrent = (heads, fields.divide("mamba_expand", inner, heads), fields.count("mamba_d_state"))
    state = State(recurrent, _conv(inner, fields.count("mamba_d_conv")))
    dim = _wide(fields)
    kinds: Kinds = {
        HYBRID: lambda: (Attention(fields.kv_heads(), dim, dim), state),
        LINEAR: lambda: state,
    }

    def rule(layer: int) -> str:
        """The third layer is the first with attention; then they come by period."""
        own = layer == 2 if layer < 3 else (layer - 3) % period == offset
        return HYBRID if own else LINEAR

    return fields.by_type(kinds, rule)


def _wide(fields: Fields) -> int:
    """Elements of a head of attention over the doubled width."""
    fields.ignore("kv_channels")
    if fields.get("head_dim") is not None:
        return fields.count("head_dim")
    return fields.divide("hidden_size", 2 * fields.width, fields.heads)


def zamba2(fields: Fields) -> list[Layer]:
    """Mamba 2 in every layer; attention over the doubled width beside it in some.

    All attention layers share weights, and every one of them keeps keys and values of its own.
    """
    heads, inner = fields.count("mamba_n_heads"), _inner(fields)
    fields.ignore("mamba_d_head")
    state = _mamba2(fields, heads, fields.divide("mamba_expand", inner, heads))
    wide = _wide(fields)
    both = (Attention(fields.kv_heads(), wide, wide), state)
    if fields.get("layer_types") is None and fields.layers != len(_ZAMBA2):
        right = f"the family's rule has {len(_ZAMBA2)} layers only"
        raise ConfigError("layers_block_type", None, right)
    kinds: Kinds = {HYBRID: lambda: both, LINEAR: lambda: state}
    rule = {"m": LINEAR, "h": HYBRID}
    return fields.by_type(kinds, lambda layer: rule[_ZAMBA2[layer]])


def lfm2(fields: Fields) -> list[Layer]:
    """Short convolutions, of which the last inputs are all that is kept, between attention layers.

    Without ``layer_types``, ``full_attn_idxs`` lists the attention layers; without both, all are.
    """
    attention = fields.layer_indices("full_attn_idxs", list(range(fields.layers)))
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        CONV: lambda: State((), _conv(fields.width, fields.count("conv_L_cache"))),
    }
    return fields.by_type(kinds, lambda layer: FULL if layer in attention else CONV)


def delta(fields: Fields) -> State:
    """Gated delta rule: a matrix for each value head; q, k and v share one convolution."""
    names = ("key_heads", "value_heads")
    k_heads, v_heads = (fields.count(f"linear_num_{name}") for name in names)
    k_dim, v_dim = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    conv = _conv(2 * k_heads * k_dim + v_heads * v_dim, fields.count("linear_conv_kernel_dim"))
    return State((v_heads, k_dim, v_dim), conv, k_heads if conv else 0, 2 * k_dim)


def gated_delta(fields: Fields) -> list[Layer]:
    """Each ``full_attention_interval``-th layer attends, the others keep a gated delta state."""
    every = fields.count("full_attention_interval", default=4)
    kinds: Kinds = {FULL: lambda: keys_and_values(fields), LINEAR: lambda: delta(fields)}
    return fields.by_type(kinds, lambda layer: LINEAR if (layer + 1) % every else FULL)


def gated_delta_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers attend, whatever the last layer does."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    return (keys_and_values(fields),) * count


def latent_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers keep a latent row, whatever the last layer does."""
    return (row(fields),) * fields.layer_count("num_nextn_predict_layers", default=0, low=0)


def bailing(fields: Fields) -> list[Layer]:
    """Each ``layer_group_size``-th layer keeps a latent row, the others Kimi delta states."""
    every = fields.count("layer_group_size")
    linear = Fields(
        {
            "num_heads": fields.count("linear_num_heads", default=fields.heads),
            "head_dim": fields.count("linear_head_dim", default=fields.count("head_dim")),
            "short_conv_kernel_size": fields.count("short_conv_kernel_size"),
        },
        {},
    )
    kinds: Kinds = {FULL: lambda: row(fields), LINEAR: lambda: kimi_state(fields, linear)}
    return fields.by_type(kinds, lambda layer: LINEAR if (layer + 1) % every else FULL)


_LARA = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)


def lara(fields: Fields) -> list[Layer]:
    """Gated delta states, windows and full attention, in a pattern of five layers."""
    plain = keys_and_values(fields)
    kinds: Kinds = {
        FULL: lambda: plain,
        SLIDING: lambda: replace(plain, window=fields.window()),
        LINEAR: lambda: delta(fields),
    }
    return fields.by_type(kinds, lambda layer: _LARA[layer % len(_LARA)])


def lfm3(fields: Fields) -> list[Layer]:
    """Short convolutions; of four layers one sees everything and one, but the first, a window."""
    plain = keys_and_values(fields)
    kinds: Kinds = {
        FULL: lambda: plain,
        SLIDING: lambda: replace(plain, window=fields.window()),
        CONV: lambda: State((), _conv(fields.width, fields.count("conv_L_cache"))),
    }
    rule = {2: FULL, 0: SLIDING}
    return fields.by_type(kinds, lambda layer: rule.get(layer % 4, CONV) if layer else CONV)


def rwkv(fields: Fields) -> list[Layer]:
    """Numerator, denominator and maximum of each channel, and the last input of both mixers."""
    inner = fields.count("attention_hidden_size", default=fields.width)
    return [State((inner, 3), (2 * fields.width, 1))] * fields.layers


def xlstm(fields: Fields) -> list[Layer]:
    """A matrix per head with its normaliser and maximum (mLSTM)."""
    heads = fields.heads
    keys, values = (
        -(-int(fields.width * float(fields.get(name, default=usual))) // 64) * 64 // heads
        for name, usual in (("qk_dim_factor", 0.5), ("v_dim_factor", 1.0))
    )
    return [State((heads, keys * values + keys + 1))] * fields.layers


def olmo_hybrid(fields: Fields) -> list[Layer]:
    """As gated delta: each fourth layer attends, and the last where that would be none."""
    layers = fields.layers
    kinds: Kinds = {FULL: lambda: keys_and_values(fields), LINEAR: lambda: _olmo_delta(fields)}
    last = layers - 1 if layers < 4 else None
    return fields.by_type(kinds, lambda i: FULL if i % 4 == 3 or i == last else LINEAR)


def _olmo_delta(fields: Fields) -> State:
    """What is left out follows from the attention heads; values are twice as wide as keys."""
    heads = fields.heads
    k_heads = fields.count("linear_num_key_heads", default=heads)
    k_dim = fields.count("linear_key_head_dim", default=int(0.75 * fields.width / k_heads))
    given = {
        "linear_num_key_heads": k_heads,
        "linear_num_value_heads": fields.count("linear_num_value_heads", default=heads),
        "linear_key_head_dim": k_dim,
        "linear_value_head_dim": fields.count("linear_value_head_dim", default=2 * k_dim),
        "linear_conv_kernel_dim": fields.count("linear_conv_kernel_dim"),
    }
    return delta(Fields(given, {}))


def kimi_linear(fields: Fields) -> list[Layer]:
    """Latent attention in some layers, Kimi delta attention in the others.

    ``linear_attn_config`` lists both from 1 on and holds the sizes; without lists, each fourth
    layer from 4 on attends.
    """
    linear = fields.inner("linear_attn_config", {"num_hidden_layers": fields.layers})
    attention = set(range(4, fields.layers, 4))
    if linear.get("full_attn_layers") is not None:
        attention = linear.layer_indices("full_attn_layers", first=1)
        _all_once(linear, attention)
    kinds: Kinds = {FULL: lambda: row(fields), LINEAR: lambda: kimi_state(fields, linear)}
    return fields.by_type(kinds, lambda layer: FULL if layer in attention else LINEAR)


def _all_once(linear: Fields, attention: set[int]) -> None:
    """Every layer stands in one of the two lists and in one only."""
    others = linear.layer_indices("kda_layers", first=1)
    if attention & others or len(attention) + len(others) != linear.layers:
        right = f"with full_attn_layers it must list each of the {linear.layers} layers once"
        raise ConfigError("kda_layers", sorted(layer + 1 for layer in others), right)


def kimi_state(fields: Fields, linear: Fields) -> State:
    """Kimi delta attention: a matrix for each head; q, k and v have a convolution each."""
    heads = linear.count("num_heads", default=fields.get("linear_num_heads"))
    dim = linear.count("head_dim", default=fields.get("linear_head_dim"))
    kernel = fields.get("linear_conv_kernel_dim")
    kernel = linear.count("short_conv_kernel_size", default=kernel)
    return State((heads, dim, dim), _conv(3 * heads * dim, kernel))


def minimax(fields: Fields) -> list[Layer]:
    """Lightning attention keeps a matrix per head; every other layer attends."""
    dim = fields.head_dim()
    state = State((fields.heads, dim, dim))
    kinds: Kinds = {FULL: lambda: keys_and_values(fields), LINEAR: lambda: state}
    return fields.by_type(kinds, lambda layer: LINEAR if layer % 2 else FULL)


def minimax_listed(fields: Fields) -> list[Layer]:
    """As MiniMax in transformers, but ``attn_type_list`` holds 1 for attention, 0 for lightning."""
    types = fields.listed("attn_type_list")
    if len(types) != fields.layers or set(map(str, types)) - {"0", "1"}:
        right = f"it must hold 0 or 1 for each of the {fields.layers} layers"
        raise ConfigError("attn_type_list", types, right)
    dim = fields.head_dim()
    kinds: list[Layer] = [State((fields.heads, dim, dim)), keys_and_values(fields)]
    return [kinds[item] for item in types]


def recurrent_gemma(fields: Fields) -> list[Layer]:
    """``block_types`` repeats: a gated recurrence of ``lru_width``, or attention with a window."""
    pattern = fields.listed("block_types")
    if not pattern or set(map(str, pattern)) - {"recurrent", "attention"}:
        raise ConfigError("block_types", pattern, "each must be recurrent or attention")
    lru = fields.count("lru_width", default=fields.width)
    state = State((lru,), _conv(lru, fields.count("conv1d_width")))
    attention = replace(keys_and_values(fields), window=fields.window())
    kinds: Kinds = {SLIDING: lambda: attention, LINEAR: lambda: state}
    slides = [item == "attention" for item in pattern]
    return fields.by_type(kinds, lambda i: SLIDING if slides[i % len(slides)] else LINEAR)
