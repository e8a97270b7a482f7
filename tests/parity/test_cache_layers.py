"""Tiny random models: the spec's layers are those that transformers' own cache fills."""

from math import prod

import pytest
import torch
import transformers
from cached_models import EXCLUDED, MODELS, MOE, SHAPE, TOKENS, build, filled
from transformers.cache_utils import EncoderDecoderCache

from octavo import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.model.configs import FAMILIES
from octavo.model.configs.families import REMOTE


def tokens_of(layer):
    """Heads, dims and window of what a layer of the cache keeps for every token."""
    (_, heads, length, k_dim), v_dim = layer.keys.shape, layer.values.shape[-1]
    assert TOKENS == length
    return heads, k_dim, v_dim, getattr(layer, "sliding_window", None)


def indexer_of(layer):
    """Elements of the indexer's key, 0 where the layer has none."""
    keys = getattr(layer, "indexer_keys", getattr(layer, "idx_keys", None))
    return 0 if keys is None or not keys.numel() else keys.shape[-1]


def compare(kind, layer):
    """One kind of a spec against the layer that transformers filled."""
    if isinstance(kind, Attention):
        window = kind.window or kind.chunk
        assert (kind.kv_heads, kind.k_dim, kind.v_dim, window) == tokens_of(layer)
        assert kind.indexer == indexer_of(layer)
    elif isinstance(kind, Latent):
        assert kind.indexer == indexer_of(layer)
        if not kind.rank:
            return
        assert (1, kind.rank, kind.rope, kind.window) == tokens_of(layer)
    elif isinstance(kind, State):
        states = [state for state in layer.conv_states.values() if state is not None]
        channels, columns = sum(state.shape[1] for state in states), states[0].shape[2]
        spare = columns - kind.conv[1]  # transformers keeps a whole kernel, Zaya's code its inputs
        recurrent = layer.recurrent_states[0]
        assert kind.conv[0] == channels
        assert spare in (0, 1)
        assert kind.recurrent == (() if recurrent is None else tuple(recurrent.shape[1:]))
    else:
        assert isinstance(kind, Shared)
        assert getattr(layer, "keys", None) is None


@pytest.mark.parametrize("family", sorted(MODELS))
def test_layers_are_those_of_the_cache(family):
    """Every layer keeps what transformers keeps: heads, dims, windows, states, or nothing."""
    model, spec = build(family)
    cache = filled(model, spec)
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache

    assert len(spec.layers) == len(own.layers)
    for number, item in enumerate(spec.layers):
        kinds = item if isinstance(item, tuple) else (item,)
        if not kinds:
            assert type(own.layers[number]).__name__ == "DummyLayer"
        for kind in kinds:
            if isinstance(kind, Cross):
                both = isinstance(cache, EncoderDecoderCache)
                other = (cache.cross_attention_cache if both else cache).layers[number]
                assert (kind.kv_heads, kind.k_dim) == (other.keys.shape[1], other.keys.shape[3])
            else:
                compare(kind, own.layers[number])


def test_lightning_attention_keeps_a_matrix_a_head():
    """MiniMax has a cache of its own for it, beside the attention layers'."""
    config = transformers.AutoConfig.for_model("minimax", **SHAPE | MOE)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = ModelSpec.from_config(config.to_dict())
    cache = filled(model, spec)

    for number, kind in enumerate(spec.layers):
        if isinstance(kind, State):
            assert kind.recurrent == tuple(cache.get_linear_cache(number).shape[1:])
        else:
            compare(kind, cache.layers[number])


V4 = (
    SHAPE
    | MOE
    | {
        "num_key_value_heads": 1,
        "head_dim": 32,
        "index_head_dim": 16,
        "index_n_heads": 4,
        "q_lora_rank": 16,
        "o_lora_rank": 16,
        "o_groups": 2,
        "sliding_window": 8,
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
        "layer_types": ["sliding_attention", "compressed_sparse_attention"] * 2
        + ["heavily_compressed_attention"] * 2,
    }
)


def test_rows_of_several_tokens():
    """DeepSeek-V4 keeps a row for every few tokens, an indexer's key beside it, and a window."""
    config = transformers.AutoConfig.for_model("deepseek_v4", **V4)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = ModelSpec.from_config(config.to_dict())
    with torch.no_grad():
        layers = model(torch.arange(5, 18)[None], use_cache=True).cache.layers

    assert 6 == len(spec.layers)
    for item, layer in zip(spec.layers, layers, strict=True):
        kinds = item if isinstance(item, tuple) else (item,)
        *rows, state = kinds
        assert (8 - 1, 32) == layer.keys.shape[2:]  # and the query's own, which comes with it
        assert state.rows == (8, 32)
        for kind in rows:
            names = ("compressor", "indexer") if kind.indexer else ("compressor",)
            dims = (kind.rank + kind.rope, kind.indexer)
            for name, dim in zip(names, dims, strict=False):
                assert (13 // kind.every, dim) == layer.compressed_kv[name].shape[1:]
                buffered = layer.buffer_kv[name].numel() + layer.buffer_gate[name].numel()
                assert buffered <= prod(state.buffer)


def test_states_of_models_without_a_cache_class():
    """RWKV and xLSTM hand their states on by themselves: as many elements as the spec counts."""
    rwkv = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 3}
    xlstm = {"vocab_size": 97, "hidden_size": 256, "num_heads": 2, "num_hidden_layers": 2}
    for name, sizes in (("rwkv", rwkv), ("xlstm", xlstm)):
        config = transformers.AutoConfig.for_model(name, **sizes)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            out = model(torch.tensor([[5, 6, 7]]), use_cache=True)
        held = out.state if name == "rwkv" else [x for s in out.cache.rnn_state.values() for x in s]
        kinds = [kind for _, kind in ModelSpec.from_config(config.to_dict()).kinds()]
        told = sum(prod(kind.recurrent) + (prod(kind.conv) if kind.conv else 0) for kind in kinds)
        assert sum(tensor.numel() for tensor in held) == told


def test_states_that_a_model_keeps_in_itself():
    """RecurrentGemma's blocks hold their states; keys and values go to the caller's cache."""
    sizes = {"num_key_value_heads": 1, "lru_width": 48, "attention_window_size": 8, "head_dim": 16}
    config = transformers.AutoConfig.for_model("recurrent_gemma", **SHAPE | sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    cache = transformers.DynamicCache(config=config)
    with torch.no_grad():
        model(torch.tensor([[5, 6, 7]]), cache=cache, use_cache=True)

    spec = ModelSpec.from_config(config.to_dict())
    for number, (kind, layer) in enumerate(zip(spec.layers, model.model.layers, strict=True)):
        block = layer.temporal_block
        if isinstance(kind, State):
            assert kind.recurrent == tuple(block.rg_lru.recurrent_states.shape[1:])
            assert kind.conv == tuple(block.conv1d_state.shape[1:])
        else:
            compare(kind, cache.layers[number])


def test_falcons_heads_are_repeated_by_transformers():
    """The new architecture has num_kv_heads; transformers stores a copy for every query head."""
    shape = SHAPE | {"new_decoder_architecture": True, "num_kv_heads": 2}
    config = transformers.AutoConfig.for_model("falcon", **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = ModelSpec.from_config(config.to_dict())

    assert {2} == {layer.kv_heads for layer in spec.layers}
    assert 4 == tokens_of(filled(model, spec).layers[0])[0]


def test_every_family_is_compared_or_says_why_not():
    """Families that transformers has are compared with it, not only read."""
    compared = {name.removesuffix("-windowed") for name in MODELS}
    alone = {"deepseek_v4", "minimax", "recurrent_gemma", "rwkv", "xlstm"}

    assert set(FAMILIES) - set(REMOTE) == compared | alone | set(EXCLUDED)
    assert not (compared | alone) & set(EXCLUDED)
