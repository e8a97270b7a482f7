"""Families with layers that see a window or a chunk of the tokens, or another layer's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from octavo.errors import ConfigError
from octavo.model.configs.dense import full, only_causal, unshared
from octavo.model.configs.fields import (
    CHUNKED,
    FULL,
    SLIDING,
    Fields,
    Kinds,
    keys_and_values,
    with_windows,
)
from octavo.model.layers import Attention, Layer, Shared


def _all_but_each(fields: Fields, period: int) -> list[Layer]:
    """The last of every ``period`` layers sees everything; of 0, all do."""
    return with_windows(fields, lambda layer: period > 0 and (layer + 1) % period != 0)


def every_layer(fields: Fields) -> list[Layer]:
    """Every layer has the window, where there is one."""
    return with_windows(fields, lambda layer: True)


def alternating(fields: Fields) -> list[Layer]:
    """Layers 0, 2, 4 ... have a window."""
    only_causal(fields)
    return _all_but_each(fields, 2)


def three_of_four(fields: Fields) -> list[Layer]:
    """All but each ``sliding_window_pattern``-th layer, by default the fourth, have a window."""
    return _all_but_each(fields, fields.count("sliding_window_pattern", default=4, low=0))


def from_the_second(fields: Fields) -> list[Layer]:
    """Layers 0, 4, 8 ... see everything, the others have a window (CWM)."""
    return with_windows(fields, lambda layer: layer % 4 != 0)


def four_of_five(fields: Fields) -> list[Layer]:
    """Every fifth layer sees everything, the others have a window."""
    return _all_but_each(fields, 5)


def sixth_and_last(fields: Fields) -> list[Layer]:
    """Every sixth layer and the last see everything, the others have a window."""
    last = fields.layers - 1
    return with_windows(fields, lambda layer: layer != last and (layer + 1) % 6 != 0)


def from_the_end(fields: Fields) -> list[Layer]:
    """The last layer and each fourth before it see everything, the others have a window."""
    last = fields.layers - 1
    return with_windows(fields, lambda layer: (last - layer) % 4 != 0)


def flint(fields: Fields) -> list[Layer]:
    """The first two layers, each fourth from the second and the last see everything."""
    last = fields.layers - 1
    return with_windows(fields, lambda layer: layer > 1 and layer % 4 != 1 and layer != last)


def after_dense(fields: Fields) -> list[Layer]:
    """As three of four, each pattern anew after the ``first_k_dense_replace`` dense layers."""
    dense = fields.count("first_k_dense_replace", default=0, low=0)
    before = fields.count("prefix_dense_sliding_window_pattern", default=1)
    after = fields.count("sliding_window_pattern", default=4)
    return with_windows(
        fields,
        lambda i: (i + 1) % before != 0 if i < dense else (i - dense + 1) % after != 0,
    )


def modernbert(fields: Fields) -> list[Layer]:
    """Every third layer sees everything; ``local_attention`` of the others is of both sides."""
    every = fields.count("global_attn_every_n_layers", default=3)
    window = max(1, fields.count("local_attention") // 2)
    fields.ignore("sliding_window")
    own = fields.replaced({"sliding_window": window})
    return with_windows(own, lambda layer: layer % every != 0)


def mellum_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers slide unless ``mtp_layer_types`` says otherwise."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    types = fields.listed("mtp_layer_types", [SLIDING] * count)
    plain = keys_and_values(fields)
    slides = replace(plain, window=fields.window()) if SLIDING in types else plain
    return tuple(slides if kind == SLIDING else plain for kind in types[:count])


def exaone4(fields: Fields) -> list[Layer]:
    """As three of four, but the pattern may be a word of L (local) and G (global)."""
    pattern = fields.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return three_of_four(fields)
    if not pattern or set(pattern) - {"L", "G"}:
        raise ConfigError("sliding_window_pattern", pattern, "it must be made of L and G")
    last = fields.layers - 1  # sees everything, whatever the pattern
    return with_windows(fields, lambda i: i < last and pattern[i % len(pattern)] == "L")


def afmoe(fields: Fields) -> list[Layer]:
    """All but each ``global_attn_every_n_layers``-th layer have a window."""
    return _all_but_each(fields, fields.count("global_attn_every_n_layers", default=4))


def qwen(fields: Fields) -> list[Layer]:
    """A window only when ``use_sliding_window`` says so, from ``max_window_layers`` on."""
    if not fields.flag("use_sliding_window"):
        return full_unless_listed(fields)
    first = fields.count("max_window_layers", low=0)
    return with_windows(fields, lambda layer: layer >= first)


def dots(fields: Fields) -> list[Layer]:
    """A window from ``max_window_layers`` on."""
    first = fields.count("max_window_layers", low=0)
    return with_windows(fields, lambda layer: layer >= first)


def qwen_moe(fields: Fields) -> list[Layer]:
    """As qwen, but every other layer slides, up to ``max_window_layers``."""
    if not fields.flag("use_sliding_window"):
        return full_unless_listed(fields)
    last = fields.count("max_window_layers", low=0)
    return with_windows(fields, lambda layer: layer % 2 == 0 and layer < last)


def qwen3_moe(fields: Fields) -> list[Layer]:
    """All layers slide when ``use_sliding_window`` says so."""
    return every_layer(fields) if fields.flag("use_sliding_window") else full_unless_listed(fields)


def full_unless_listed(fields: Fields) -> list[Layer]:
    """Every layer sees everything; a file that lists layers that slide contradicts itself."""
    if SLIDING in fields.layer_types((FULL, SLIDING), lambda layer: FULL):
        right = "layer_types has layers that slide, so it must be true"
        raise ConfigError("use_sliding_window", fields.get("use_sliding_window"), right)
    return full(fields)


def smollm3(fields: Fields) -> list[Layer]:
    """With ``use_sliding_window``, the layers without position codes have a window."""
    if not fields.flag("use_sliding_window"):
        return full_unless_listed(fields)
    codes = position_codes(fields)
    return with_windows(fields, lambda layer: not codes[layer])


def position_codes(fields: Fields) -> list[Any]:
    """Whether each layer has position codes: ``no_rope_layers``, which holds 1 for those that do.

    Where it is left out or empty, each ``no_rope_layer_interval``-th layer has none.
    """
    period = fields.count("no_rope_layer_interval", default=4)
    codes = fields.listed("no_rope_layers", [])
    if not codes:
        return [(layer + 1) % period != 0 for layer in range(fields.layers)]
    if len(codes) != fields.layers or set(map(str, codes)) - {"0", "1", "True", "False"}:
        right = f"it must hold 0 or 1 for each of the {fields.layers} layers"
        raise ConfigError("no_rope_layers", codes, right)
    return codes


def llama4(fields: Fields) -> list[Layer]:
    """Layers with position codes see their own chunk of ``attention_chunk_size`` tokens."""
    plain, codes = keys_and_values(fields), position_codes(fields)
    chunked = fields.get("attention_chunk_size") is not None
    kinds: Kinds = {
        FULL: lambda: plain,
        CHUNKED: lambda: replace(plain, chunk=fields.count("attention_chunk_size")),
    }
    return fields.by_type(kinds, lambda layer: CHUNKED if chunked and codes[layer] else FULL)


def gpt_oss(fields: Fields) -> list[Layer]:
    """Alternating windows; every layer has one learned sink logit per head."""
    return [replace(cast("Attention", kind), sink_logits=True) for kind in alternating(fields)]


def mimo_v2(fields: Fields) -> list[Layer]:
    """Layer 0 and each sixth see everything; the others have a window, sinks and more heads.

    ``hybrid_layer_pattern``, where it is there, holds 1 for those that slide, and ``swa_`` fields
    their heads, else twice as many. ``sliding_window_size`` does not count the query's own
    position.
    """
    plain = Attention(fields.kv_heads(), fields.head_dim(), fields.count("v_head_dim"))
    kinds: Kinds = {FULL: lambda: plain, SLIDING: lambda: _mimo_window(fields)}
    usual = [int(i != 0 and (i + 1) % 6 != 0) for i in range(fields.layers)]
    pattern = fields.listed("hybrid_layer_pattern", usual)
    if len(pattern) != fields.layers or set(map(str, pattern)) - {"0", "1"}:
        right = f"it must hold 0 or 1 for each of the {fields.layers} layers"
        raise ConfigError("hybrid_layer_pattern", pattern, right)
    return fields.by_type(kinds, lambda layer: SLIDING if pattern[layer] else FULL)


def mimo_v2_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers slide, whatever the last layer does."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    return (_mimo_window(fields),) * count if count else ()


def _mimo_window(fields: Fields) -> Attention:
    """A layer that slides: its window may be said without the query's own position."""
    size = fields.get("sliding_window_size")
    window = fields.window() if size is None else fields.count("sliding_window_size") + 1
    return Attention(
        _mimo_heads(fields, 2 * fields.kv_heads()),
        fields.count("swa_head_dim", default=fields.head_dim()),
        fields.count("swa_v_head_dim", default=fields.count("v_head_dim")),
        window=window,
        sink_logits=True,
    )


def _mimo_heads(fields: Fields, usual: int) -> int:
    """Key/value heads of a layer that slides."""
    if fields.get("swa_num_key_value_heads") is not None:
        return fields.count("swa_num_key_value_heads")
    fields.divide("num_attention_heads", fields.heads, usual)
    return usual


def gpt_neo(fields: Fields) -> list[Layer]:
    """``attention_types`` repeats patterns of global and local layers; local ones have a window."""
    types: list[Any] = []
    for item in fields.listed("attention_types"):
        if not _is_pattern(item, fields.layers):
            right = f"each must be a list of layers and a count of at most {fields.layers}"
            raise ConfigError("attention_types", item, right)
        types += list(item[0]) * item[1]
    if len(types) != fields.layers or set(map(str, types)) - {"global", "local"}:
        right = f"it must say global or local for each of the {fields.layers} layers"
        raise ConfigError("attention_types", types, right)
    plain = cast("Attention", unshared(fields)[0])
    local = replace(plain, window=fields.window("window_size"))
    return [local if item == "local" else plain for item in types]


def _is_pattern(item: object, layers: int) -> bool:
    if not isinstance(item, list | tuple) or len(item) != 2:
        return False
    return isinstance(item[0], list | tuple) and type(item[1]) is int and item[1] <= layers


def gemma3(fields: Fields) -> list[Layer]:
    """All but each ``sliding_window_pattern``-th layer, by default the sixth, have a window."""
    only_causal(fields)
    return _all_but_each(fields, fields.count("sliding_window_pattern", default=6, low=0))


def gemma3n(fields: Fields) -> list[Layer]:
    """All but each fifth layer have a window; the last ``num_kv_shared_layers`` keep nothing."""
    return share(fields, _all_but_each(fields, 5))


def gemma4(fields: Fields) -> list[Layer]:
    """All but each sixth layer, and never the last, have a window; full ones have other heads.

    Full layers have heads of ``global_head_dim``, and ``num_global_key_value_heads`` of them where
    ``attention_k_eq_v``; the last ``num_kv_shared_layers`` keep nothing.
    """
    only_causal(fields)
    last = fields.layers - 1
    layers = with_windows(fields, lambda layer: layer != last and (layer + 1) % 6 != 0)
    own = [cast("Attention", kind) for kind in layers]
    own[last] = replace(own[last], window=None)
    by_layer = _per_layer(fields)
    return share(fields, [_heads(fields, by_layer.get(i), kind) for i, kind in enumerate(own)])


def _heads(fields: Fields, given: Mapping[str, Any] | None, kind: Attention) -> Attention:
    """A Gemma 4 layer with its own heads: ``given`` for it, or those of all full layers."""
    if given is None and (kind.window is not None or fields.part("per_layer_config")):
        return kind
    other = _global_heads(fields) if given is None else given
    said = {name: value for name, value in other.items() if value is not None}
    usual = {"num_attention_heads": fields.heads, "num_key_value_heads": kind.kv_heads}
    own = Fields({**usual, "head_dim": kind.k_dim, **said}, {})
    dim = own.count("head_dim")
    return replace(kind, kv_heads=own.kv_heads(), k_dim=dim, v_dim=dim)


def _per_layer(fields: Fields) -> dict[int, Mapping[str, Any]]:
    """``per_layer_config``: its keys are layers, written with leading zeros or without."""
    by_layer = {}
    for layer, other in fields.part("per_layer_config").items():
        number = str(layer)
        if not (number.isdecimal() and int(number) < fields.layers and isinstance(other, Mapping)):
            right = f"it must hold objects for layers 0 to {fields.layers - 1}"
            raise ConfigError("per_layer_config", {layer: other}, right)
        by_layer[int(number)] = other
    return by_layer


def _global_heads(fields: Fields) -> dict[str, Any]:
    """Full layers' heads where there is no ``per_layer_config``."""
    same = fields.flag("attention_k_eq_v")
    return {
        "head_dim": fields.get("global_head_dim"),
        "num_key_value_heads": fields.get("num_global_key_value_heads") if same else None,
    }


def share(fields: Fields, layers: list[Layer], name: str = "num_kv_shared_layers") -> list[Layer]:
    """As many of the last layers as ``name`` says read what the last before them of a type keeps.

    Raises:
        ConfigError: no layer would be left, or there is none of that type.
    """
    shared = fields.count(name, default=0, low=0)
    first = len(layers) - shared
    if first < 1:
        raise ConfigError(name, shared, f"it must be less than the {len(layers)} layers")
    owners = {_slides(layers[layer]): layer for layer in range(first)}
    if {_slides(kind) for kind in layers[first:]} - set(owners):
        right = f"the first {first} layers must have one of each type that the others read"
        raise ConfigError(name, shared, right)
    return layers[:first] + [Shared(owners[_slides(kind)]) for kind in layers[first:]]


def _slides(kind: Layer) -> bool:
    return isinstance(kind, Attention) and kind.window is not None
