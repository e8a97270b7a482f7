"""Readers of families whose code comes with the model's files, where no other reader fits."""

from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.configs.dense import full, unshared
from octavo.model.configs.fields import (
    FULL,
    LINEAR,
    Fields,
    Kinds,
    keys_and_values,
    with_windows,
)
from octavo.model.configs.hybrid import delta, kimi_state
from octavo.model.configs.latent import latent, longcat, row
from octavo.model.layers import Attention, Cross, Latent, Layer, Shared, State


def grouped_linear(fields: Fields) -> list[Layer]:
    """The last of every ``layer_group_size`` layers attends, and what no group is left for."""
    size = fields.count("layer_group_size")
    whole = fields.layers // size * size
    dim = fields.head_dim()
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        LINEAR: lambda: State((fields.heads, dim, dim)),
    }
    return fields.by_type(
        kinds, lambda layer: FULL if (layer + 1) % size == 0 or layer >= whole else LINEAR
    )


def shared_across(fields: Fields) -> list[Layer]:
    """With ``use_cla`` each group of ``cla_share_factor`` layers reads its first one's keys."""
    plain, every = keys_and_values(fields), 1
    if fields.flag("use_cla"):
        every = fields.count("cla_share_factor", default=2)
    return [Shared(at - at % every) if at % every else plain for at in range(fields.layers)]


def reused_last(fields: Fields) -> list[Layer]:
    """The last ``num_kv_reuse_layers`` layers read what the last one before them keeps."""
    reused = fields.count("num_kv_reuse_layers", low=0)
    own = fields.layers - reused
    if own < 1:
        right = f"it must be less than the {fields.layers} layers"
        raise ConfigError("num_kv_reuse_layers", reused, right)
    layers: list[Layer] = [keys_and_values(fields)] * own
    return layers + [Shared(own - 1)] * reused


def looped_window(fields: Fields) -> list[Layer]:
    """Every layer runs ``loop_num`` times: once over everything, then over a window."""
    plain = keys_and_values(fields)
    window = replace(plain, window=fields.count("loop_window_size", default=64))
    again = fields.count("loop_num", default=2) - 1
    layers: list[Layer] = [plain] * fields.layers
    return layers + [window] * (fields.layers * again)


def heads_by_list(fields: Fields) -> list[Layer]:
    """``num_kv_heads`` lists the key/value heads of each layer (OpenELM)."""
    layers, dim = fields.layer_count("num_transformer_layers"), fields.count("head_dim")
    heads = fields.listed("num_kv_heads")
    if len(heads) != layers or any(type(item) is not int for item in heads):
        raise ConfigError("num_kv_heads", heads, f"it must hold a number for each of {layers}")
    return [Attention(item, dim, dim) for item in heads]


def shared_heads(fields: Fields) -> list[Layer]:
    """``n_shared_head`` query heads go to a key/value head (PLaMo)."""
    dim = fields.head_dim()
    heads = -(-fields.heads // fields.count("n_shared_head", default=8))
    return [Attention(heads, dim, dim)] * fields.layers


def with_last_ids(fields: Fields) -> list[Layer]:
    """As LongCat; the n-grams before the first layer keep the last ids."""
    first, *others = longcat(fields)
    ids = fields.count("emb_neighbor_num", default=4) - 1
    assert isinstance(first, Latent)
    return [(first, State((), buffer=(ids, 2))), *others] if ids else [first, *others]


def convolved_keys(fields: Fields) -> list[Layer]:
    """Keys and values pass a convolution of two; ``sliding_window_layers`` have own heads."""
    slides = fields.layer_indices("sliding_window_layers")
    layers: list[Layer] = []
    for layer in range(fields.layers):
        own, window = fields, None
        if layer in slides:
            changed = {
                "num_attention_heads": fields.count(
                    "num_swa_attention_heads", default=fields.heads
                ),
                "num_key_value_heads": fields.count(
                    "num_swa_key_value_heads", default=fields.kv_heads()
                ),
            }
            own, window = fields.replaced(changed), fields.window()
        kind = replace(keys_and_values(own), window=window)
        columns = fields.count("conv_window", default=2) - 1
        layers.append((kind, State((), (kind.elements_per_token, columns))))
    return layers


def codeshell(fields: Fields) -> list[Layer]:
    """``num_query_groups`` key/value heads where ``group_query_attention`` says so, else all."""
    if fields.get("group_query_attention", default=True):
        return full(fields)
    return unshared(fields)


def one_head(fields: Fields) -> list[Layer]:
    """One key/value head, whatever the number of query heads (Step 3)."""
    for name in ("num_attention_heads", "num_key_value_heads"):
        fields.ignore(name)
    dim = fields.count("head_dim")
    return [Attention(1, dim, dim)] * fields.layers


def plamo2(fields: Fields) -> list[Layer]:
    """Mamba 2 without groups; one layer of every ``mamba_step`` attends, or else the last."""
    step, last = fields.count("mamba_step", default=2, low=2), fields.layers - 1
    middle = min(step // 2, last)
    dim = fields.count("hidden_size_per_head", default=128)
    heads = fields.count("mamba_n_heads")
    size, kernel = fields.count("mamba_d_state"), fields.count("mamba_d_conv")
    state = State((heads, dim, size), (heads * dim, kernel - 1))
    mixes = fields.get("mamba_enabled", default=True)
    kinds: Kinds = {FULL: lambda: Attention(fields.kv_heads(), dim, dim), LINEAR: lambda: state}
    return fields.by_type(kinds, lambda at: LINEAR if mixes and at % step != middle else FULL)


def solar_open2(fields: Fields) -> list[Layer]:
    """One layer attends, then ``gqa_interval`` keep Kimi delta states; or by ``gqa_layers``."""
    usual = {
        "num_heads": fields.heads,
        "head_dim": fields.head_dim(),
        "short_conv_kernel_size": 4,
    }
    linear = fields.inner("linear_attn_config", usual)
    linear.ignore("num_key_value_heads")
    period = fields.count("gqa_interval", default=3) + 1
    attends = fields.layer_indices("gqa_layers", list(range(0, fields.layers, period)))
    kinds: Kinds = {
        FULL: lambda: keys_and_values(fields),
        LINEAR: lambda: kimi_state(fields, linear),
    }
    return fields.by_type(kinds, lambda at: FULL if at in attends else LINEAR)


def gigachat(fields: Fields) -> list[Layer]:
    """Latent rows in ``full_attention_layers``, gated delta states in the others, where any are."""
    if fields.get("linear_attention_type", "GatedDeltaNet") is None:
        return latent(fields)
    attends = fields.layer_indices("full_attention_layers")
    kinds: Kinds = {FULL: lambda: row(fields), LINEAR: lambda: delta(fields)}
    return fields.by_type(kinds, lambda at: FULL if at in attends else LINEAR)


def by_layout(fields: Fields) -> list[Layer]:
    """``sliding_window_layout`` holds 1 for layers that slide (SmallThinker)."""
    layout = fields.listed("sliding_window_layout", [0] * fields.layers)
    if len(layout) != fields.layers or set(map(str, layout)) - {"0", "1"}:
        right = f"it must hold 0 or 1 for each of the {fields.layers} layers"
        raise ConfigError("sliding_window_layout", layout, right)
    return with_windows(fields, lambda at: bool(layout[at]))


def rwkv7(fields: Fields) -> list[Layer]:
    """A matrix per head, and the last input of both mixers."""
    dim = fields.count("head_dim", default=64)
    heads = fields.divide("hidden_size", fields.width, dim)
    return [State((heads, dim, dim), (2 * fields.width, 1))] * fields.layers


def params(fields: Fields) -> list[Layer]:
    """A ``params.json``: latents where it has ``kv_lora_rank``, else keys and values.

    Windows are one for all layers, or a list that repeats, null for all tokens. Chunks are of
    layers with position codes. Layers that attend to images stand before some of the others.
    """
    fields.ignore("hidden_dim")  # the feed-forward's width; the model's is dim
    if fields.get("kv_lora_rank") is not None:
        return latent(fields)
    plain = keys_and_values(fields)
    if fields.get("attention_chunk_size") is not None:
        chunk = replace(plain, chunk=fields.count("attention_chunk_size"))
        every = fields.get("nope_layer_interval") and fields.count("nope_layer_interval")
        return [plain if every and (at + 1) % every == 0 else chunk for at in range(fields.layers)]
    windows = fields.get("sliding_window")
    if isinstance(windows, list):
        return _windows_in_turn(fields, plain, windows)
    if windows is not None:
        return [replace(plain, window=fields.window())] * fields.layers
    image = Cross(plain.kv_heads, plain.k_dim, plain.v_dim)
    before = _before(fields)
    return [(plain, image) if at in before else plain for at in range(fields.layers)]


def _windows_in_turn(fields: Fields, plain: Attention, windows: list[Any]) -> list[Layer]:
    name = fields.called("sliding_window")
    if not windows or fields.layers % len(windows):
        right = f"it must be a list whose length divides the {fields.layers} layers"
        raise ConfigError(name, windows, right)
    kinds = [
        replace(plain, window=None if item is None else Fields({name: item}, {}).count(name))
        for item in windows
    ]
    return [kinds[at % len(kinds)] for at in range(fields.layers)]


def _before(fields: Fields) -> set[int]:
    """Layers with one before them that attends to the image: counted evenly from the last."""
    count = fields.layer_count("vision_num_cross_attention_layers", default=0, low=0)
    layers = fields.layers
    if count > layers:
        right = f"it must be at most the {layers} layers"
        raise ConfigError("vision_num_cross_attention_layers", count, right)
    if not count:
        return set()
    step = -(-layers // count)
    return set(range(layers - 1, -1, -step)[:count])
