"""Families with an indexer beside attention, or with rows that stand for several tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.errors import ConfigError
from octavo.model.configs.fields import (
    FULL,
    INDEXED,
    LINEAR,
    SLIDING,
    Fields,
    Kinds,
    keys_and_values,
)
from octavo.model.configs.hybrid import delta, kimi_state
from octavo.model.configs.latent import own_indexers, row
from octavo.model.configs.windowed import position_codes
from octavo.model.layers import Attention, Compressed, Latent, Layer, Shared, State

_SPARSE = "minimax_m3_sparse"
_LIGHT, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {_LIGHT: 4, _HEAVY: 128}


def minimax_m3(fields: Fields) -> list[Layer]:
    """Keys and values of every token; layers that attend sparsely keep an indexer's key too."""
    plain = keys_and_values(fields)
    given = fields.inner("sparse_attention_config", {"sparse_index_dim": None})
    dim = given.count("sparse_index_dim", default=fields.count("index_head_dim"))
    listed = given.listed("sparse_attention_freq", [0] * fields.layers)
    if len(listed) < fields.layers or set(map(str, listed)) - {"0", "1"}:
        right = f"it must hold 0 or 1 for each of the {fields.layers} layers"
        raise ConfigError("sparse_attention_freq", listed, right)
    kinds: Kinds = {FULL: lambda: plain, _SPARSE: lambda: replace(plain, indexer=dim)}
    return fields.by_type(kinds, lambda layer: _SPARSE if listed[layer] else FULL)


def deepseek_v4(fields: Fields) -> list[Layer]:
    """A window in every layer; beside it a row for every few tokens, or for every many.

    A row for every few tokens has an indexer's key beside it. Keys and values are one.
    """
    return [_v4(fields, kind) for kind in _v4_types(fields)[: fields.layers]]


def deepseek_v4_mtp(fields: Fields, _: list[Layer]) -> tuple[Layer, ...]:
    """Prediction layers are those that the file lists beyond the model's; else windows alone."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    types = _v4_types(fields)[fields.layers :][:count]
    return tuple(_v4(fields, kind) for kind in [*types, *[SLIDING] * (count - len(types))])


def _v4_types(fields: Fields) -> list[str]:
    """The type of each layer, of prediction layers too where the file lists them."""
    layers, ratios = fields.layers, fields.get("compress_ratios")
    if fields.get("layer_types") is not None:
        listed = fields.listed("layer_types")
    elif ratios is not None:
        by_rate = {0: SLIDING, 4: _LIGHT, 128: _HEAVY}
        listed = [by_rate.get(ratio) for ratio in fields.listed("compress_ratios")]
    else:
        listed = [_LIGHT if layer > 2 and layer % 2 else _HEAVY for layer in range(layers)]
    if len(listed) < layers or set(map(str, listed)) - {SLIDING, _LIGHT, _HEAVY}:
        name = "compress_ratios" if fields.get("layer_types") is None else "layer_types"
        right = f"it must hold 0, 4 or 128, or its type, for each of the {layers} layers"
        raise ConfigError(name, fields.get(name), right)
    return listed


def _v4(fields: Fields, kind: str) -> Layer:
    dim = fields.count("head_dim")
    window = State((), rows=(fields.count("sliding_window"), dim))
    if kind == SLIDING:
        return window
    every = _RATES[kind]
    older = {_LIGHT: "compress_rate_csa", _HEAVY: "compress_rate_hca"}[kind]
    given = fields.inner("compress_rates")
    every = given.count(kind, default=fields.count(older, default=every))
    rope = fields.count("qk_rope_head_dim", default=dim // 8, low=0)
    if not rope < dim:
        raise ConfigError("qk_rope_head_dim", rope, f"it must be less than head_dim, {dim}")
    if kind == _HEAVY:  # keys and gates of the tokens of a row that is not whole
        return Compressed(every, dim - rope, rope), replace(window, buffer=(2, every, dim))
    index = fields.count("index_head_dim")  # windows overlap: twice the tokens, twice as wide
    buffer = (2, 2 * every, 2 * (dim + index))
    return Compressed(every, dim - rope, rope, index), replace(window, buffer=buffer)


def dots3(fields: Fields) -> list[Layer]:
    """Latent rows with an indexer's key; other layers have wider rows and a window."""
    sparse = fields.get("use_dsa", default=True)
    full = row(fields, fields.count("index_head_dim") if sparse else 0)
    kinds: Kinds = {
        FULL: lambda: full,
        INDEXED: lambda: full,
        SLIDING: lambda: _dots3_window(fields),
    }
    slides = fields.get("use_sliding_window", default=True)
    return fields.by_type(
        kinds, lambda layer: SLIDING if slides and layer > 1 and layer % 4 != 1 else INDEXED
    )


def _dots3_window(fields: Fields) -> Latent:
    """Sizes come by ``swa_`` fields, or in ``per_layer_config``, alike for all that slide."""
    window = fields.count("sliding_window", default=512)
    parts: Mapping[str, Any] = fields.part("per_layer_config")
    if parts:  # what it leaves out is as in all layers
        own = Fields(next(iter(parts.values())), {})
        rank = own.count("kv_lora_rank", default=fields.count("kv_lora_rank"))
        rope = own.count("qk_rope_head_dim", default=fields.count("qk_rope_head_dim"), low=0)
        return Latent(rank, rope, window=window)
    dim = fields.count("swa_head_dim", default=256)
    nope = fields.count("swa_qk_nope_head_dim", default=192)
    rope = fields.count("swa_qk_rope_head_dim", default=dim - nope, low=0)
    return Latent(fields.count("swa_kv_lora_rank", default=1024), rope, window=window)


def mistral_large4(fields: Fields) -> list[Layer]:
    """As GLM's sparse latents; ``kv_source_layers`` says which layer's latents a layer reads.

    Layers without position codes keep the latent alone. A layer that reads another's latents may
    have an indexer of its own, and keeps its keys.
    """
    sources = fields.listed("kv_source_layers", list(range(fields.layers)))
    if len(sources) != fields.layers or any(type(item) is not int for item in sources):
        raise ConfigError("kv_source_layers", sources, f"it must list all {fields.layers} layers")
    if any(not 0 <= source <= at or sources[source] != source for at, source in enumerate(sources)):
        right = "each must be an earlier layer that reads its own, or itself"
        raise ConfigError("kv_source_layers", sources, right)
    own, codes, key = own_indexers(fields), position_codes(fields), fields.count("index_head_dim")
    layers: list[Layer] = []
    for at, source in enumerate(sources):
        indexer = key if own[at] else 0
        if source == at:
            kind = row(fields, indexer)
            layers.append(kind if codes[at] else replace(kind, rope=0))
        else:
            layers.append((Shared(source), Latent(0, indexer=key)) if indexer else Shared(source))
    return layers


def glm5_next(fields: Fields) -> list[Layer]:
    """Every fourth layer keeps a latent row, and mostly an indexer's key; the others a state.

    Beside the key of a token the indexer keeps the gate by which keys are pooled.
    """
    own = own_indexers(fields)
    key = 2 * fields.count("index_head_dim") + 1
    linear = fields.inner("linear_attn_config")
    types = fields.layer_types(
        (FULL, INDEXED, LINEAR), lambda layer: INDEXED if layer % 4 == 3 else LINEAR
    )
    state = kimi_state(fields, linear)
    return [
        state if kind == LINEAR else row(fields, key if own[at] else 0)
        for at, kind in enumerate(types)
    ]


def qwen4(fields: Fields) -> list[Layer]:
    """Gated delta states; each fourth layer attends and keeps the keys of an indexer.

    Layers of ``ple_layer_ids`` also keep what a convolution over n-grams last saw, and the last
    ids.
    """
    every = fields.count("full_attention_interval", default=4)
    heads = fields.count("indexer_kv_heads", default=1)
    keys = heads * fields.count("indexer_head_dim", default=128)
    attention = replace(keys_and_values(fields), indexer=keys)
    kinds: Kinds = {
        LINEAR: lambda: delta(fields),
        INDEXED: lambda: attention,
        FULL: lambda: attention,
    }
    layers = fields.by_type(kinds, lambda layer: LINEAR if (layer + 1) % every else INDEXED)
    ngrams = fields.layer_indices("ple_layer_ids")
    return [_with_ngrams(fields, kind) if at in ngrams else kind for at, kind in enumerate(layers)]


def _with_ngrams(fields: Fields, kind: Layer) -> Layer:
    size = fields.count("ngram_size")
    columns = (fields.count("ple_conv_kernel_size") - 1) * size
    rows = (columns, fields.count("hc_count") * fields.width)
    ids = (size - 1, 2)  # of eight bytes each, as two of four
    if isinstance(kind, State):
        return replace(kind, rows=rows, buffer=ids)
    assert isinstance(kind, Attention)
    return kind, State((), rows=rows, buffer=ids)
