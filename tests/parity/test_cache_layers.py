"""Tiny random models: the spec's layers are those that transformers' own cache fills."""

from math import prod

import pytest
import torch
import transformers
from transformers.cache_utils import EncoderDecoderCache

from octavo import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.model.configs import FAMILIES

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = {"sliding_window": 8}
DIM = {"head_dim": 24}
MOE = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_head_dim": 16,
    "index_n_heads": 4,
    "index_topk": 4,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
BAMBA = {"mamba_n_heads": 16, "mamba_d_head": 8, "mamba_d_state": 12}
GEMMA = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}
GPT = {
    "vocab_size": 97,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "rotary_dim": 8,
}
PAIR = {
    "vocab_size": 97,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "pad_token_id": 1,
}
T5 = {
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

PLAIN = [
    "apertus",
    "arcee",
    "bitnet",
    "cohere",
    "diffllama",
    "ernie4_5",
    "exaone",
    "glm",
    "glm4",
    "granite",
    "internlm3",
    "jais2",
    "llama",
    "ministral3",
    "mistral",
    "nanochat",
    "nemotron",
    "olmo",
    "olmo2",
    "opt",
    "persimmon",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "stablelm",
    "starcoder2",
    "biogpt",
    "gpt_neox",
]
EXPERTS = [
    "ernie4_5_moe",
    "flex_olmo",
    "glm4_moe",
    "granitemoe",
    "granitemoeshared",
    "hy_v3",
    "minimax_m2",
    "mixtral",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_moe",
    "sarvam_moe",
    "solar_open",
]
LATENT = ["deepseek_v2", "deepseek_v3", "minicpm3", "sarvam_mla", "youtu", "glm4_moe_lite"]
MODELS = {
    **{name: {**SHAPE} for name in PLAIN},
    **dict.fromkeys(EXPERTS, SHAPE | MOE),
    **dict.fromkeys(LATENT, SHAPE | MOE | MLA),
    "afmoe": SHAPE | MOE | WINDOW,
    "bamba": SHAPE | BAMBA | {"attn_layer_indices": [1, 3]},
    "bart": PAIR,
    "bloom": {"vocab_size": 97, "hidden_size": 64, "n_layer": 3, "n_head": 4},
    "codegen": GPT,
    "cohere2": SHAPE | WINDOW,
    "cwm": SHAPE | WINDOW | DIM,
    "deepseek_v32": SHAPE | MOE | MLA,
    "dots1": SHAPE | MOE | WINDOW | {"max_window_layers": 3},
    "exaone4": SHAPE | WINDOW,
    "falcon": SHAPE,
    "falcon_h1": SHAPE | BAMBA | {"mamba_d_ssm": 96, "mamba_n_heads": 12},
    "falcon_mamba": SHAPE,
    "gemma": SHAPE | DIM,
    "gemma2": SHAPE | WINDOW | DIM,
    "gemma3_text": SHAPE | WINDOW | DIM,
    "gemma3n_text": SHAPE
    | WINDOW
    | GEMMA
    | {"num_hidden_layers": 10, "num_kv_shared_layers": 3, "laurel_rank": 4}
    | {"altup_num_inputs": 2, "activation_sparsity_pattern": [0.0] * 10},
    "gemma4_text": SHAPE
    | WINDOW
    | GEMMA
    | DIM
    | {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}
    | {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    "glm_moe_dsa": SHAPE | MOE | MLA | {"index_topk_freq": 2},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_oss": SHAPE | MOE | WINDOW | DIM,
    "gptj": GPT,
    "granitemoehybrid": SHAPE
    | BAMBA
    | {"layer_types": ["mamba", "attention"] * 3, "num_local_experts": 0},
    "helium": SHAPE | {"head_dim": 16},
    "hunyuan_v1_dense": SHAPE | DIM,
    "hunyuan_v1_moe": SHAPE | MOE | DIM,
    "jamba": SHAPE
    | {"num_experts": 2, "attn_layer_period": 3, "attn_layer_offset": 1}
    | {"use_mamba_kernels": False},
    "jetmoe": SHAPE | {"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "kimi_linear": SHAPE
    | MOE
    | MLA
    | {"linear_attn_config": {"num_heads": 4, "head_dim": 12, "short_conv_kernel_size": 4}},
    "laguna": SHAPE | MOE | WINDOW | {"layer_types": ["sliding_attention", "full_attention"] * 3},
    "lfm2": SHAPE | {"full_attn_idxs": [1, 3]},
    "llama4_text": SHAPE | MOE | DIM | {"attention_chunk_size": 8, "intermediate_size_mlp": 64},
    "longcat_flash": SHAPE
    | MOE
    | MLA
    | {"num_layers": 3, "zero_expert_num": 2, "expert_ffn_hidden_size": 32, "head_dim": 8},
    "mamba": SHAPE,
    "mamba2": SHAPE | {"num_heads": 16, "head_dim": 8, "n_groups": 2, "state_size": 12},
    "marian": PAIR,
    "mimo_v2_flash": SHAPE | MOE | WINDOW | DIM | {"v_head_dim": 16},
    "ministral": SHAPE | WINDOW | DIM,
    "mistral-windowed": SHAPE | WINDOW | DIM,
    "moonshine": {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 32,
        "encoder_num_hidden_layers": 2,
        "decoder_num_hidden_layers": 3,
        "encoder_num_attention_heads": 4,
        "decoder_num_attention_heads": 4,
        "decoder_num_key_value_heads": 2,
    },
    "mpt": {"vocab_size": 97, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 64},
    "nemotron_h": {key: value for key, value in SHAPE.items() if key != "num_hidden_layers"}
    | MOE
    | DIM
    | {"hybrid_override_pattern": "M*-M*E", "mamba_num_heads": 4, "mamba_head_dim": 8}
    | {"n_groups": 2, "ssm_state_size": 12},
    "olmo3": SHAPE | WINDOW,
    "olmo_hybrid": SHAPE | DELTA,
    "pegasus": PAIR,
    "qwen2-windowed": SHAPE | WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_5_text": SHAPE | DELTA,
    "qwen3_5_moe_text": SHAPE | DELTA | MOE,
    "qwen3_next": SHAPE | DELTA | MOE,
    "seed_oss": SHAPE | DIM,
    "smollm3-windowed": SHAPE | WINDOW | {"use_sliding_window": True},
    "t5": T5,
    "vaultgemma": SHAPE | WINDOW | DIM,
    "whisper": PAIR | {"max_target_positions": 64, "num_mel_bins": 8, "max_source_positions": 10},
    "zamba": SHAPE | {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba2": SHAPE | {"layers_block_type": ["linear_attention", "hybrid"] * 3, "mamba_d_state": 8},
}
PAIRS = ("bigbird_pegasus", "mvp", "fsmt", "plbart", "mbart", "m2m_100", "blenderbot")
INKLING = {
    "swa_num_key_value_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_head_dim": 16,
    "sliding_window_size": 8,
    "d_rel": 4,
    "rel_extent": 8,
}
MODELS |= {
    **dict.fromkeys(("apertus1p5_text", "granite_docling_text", "hyperclovax", "jais2"), SHAPE),
    **dict.fromkeys(("molmo2_text", "iquestcoder", "hrm_text"), SHAPE | DIM),
    **dict.fromkeys(("beam", "flint", "kolibri1", "mellum"), SHAPE | MOE | WINDOW | DIM),
    **dict.fromkeys(("cohere2_moe", "exaone_moe", "muse_spark_text"), SHAPE | MOE | WINDOW | DIM),
    **dict.fromkeys(("axk1", "axk2", "hy_v4", "mistral4"), SHAPE | MOE | MLA),
    **dict.fromkeys(("longt5", "mt5", "umt5"), T5),
    "granite_swa": SHAPE | WINDOW,
    **dict.fromkeys(
        PAIRS, PAIR | {"src_vocab_size": 97, "tgt_vocab_size": 97, "langs": ["a", "b"]}
    ),
    "bailing_hybrid": SHAPE | MOE | MLA | {"head_dim": 16, "layer_group_size": 3},
    "cosmos3_edge_text": SHAPE | {"head_dim": 128},
    "ctrl": GPT | {"dff": 32},
    "doge": SHAPE,
    "dory": SHAPE | WINDOW | DIM | {"n_input_layers": 2, "n_output_layers": 2},
    "dots3_note_text": SHAPE | MOE | MLA | {"sliding_window": 8},
    "gemma4_unified_text": MODELS["gemma4_text"],
    "glm5_next_text": SHAPE
    | MOE
    | MLA
    | {"qk_rope_head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 4, "index_kpool": 2},
    "gpt_neox_japanese": SHAPE,
    "granitemoe_swa": SHAPE | MOE | WINDOW,
    "inkling2_loop_text": SHAPE
    | MOE
    | DIM
    | INKLING
    | {"loop_layer_index_start": 2, "loop_layer_index_end": 4, "n_layers_per_attn_res_block": 2},
    "inkling2_text": SHAPE | MOE | DIM | INKLING,
    "inkling_text": SHAPE | MOE | DIM | INKLING,
    "lara_mini": SHAPE | DELTA | WINDOW | DIM,
    "led": PAIR
    | {"attention_window": 4, "max_encoder_position_embeddings": 64}
    | {"max_decoder_position_embeddings": 64},
    "lfm2_moe": SHAPE | MOE | {"layer_types": ["conv", "full_attention"] * 3},
    "lfm3": SHAPE | WINDOW | {"head_dim": 16, "conv_L_cache": 3},
    "minimax_m3_vl_text": SHAPE
    | MOE
    | DIM
    | {"layer_types": ["full_attention"] * 2 + ["minimax_m3_sparse"] * 4, "index_head_dim": 16}
    | {"index_n_heads": 2, "index_block_size": 4, "rotary_dim": 8},
    "modernbert-decoder": {key: SHAPE[key] for key in SHAPE if key != "num_key_value_heads"}
    | {"local_attention": 16},
    "muse_glimmer_text": SHAPE | WINDOW | DIM,
    "pegasus_x": PAIR | {"block_size": 4},
    "qwen4_exp_text": SHAPE
    | DELTA
    | MOE
    | {"head_dim": 16, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    | {"indexer_budget": 4, "indexer_compress_ratio": 2, "hc_count": 2, "hc_lowrank": 8},
    "xglm": {
        "vocab_size": 97,
        "d_model": 64,
        "num_layers": 3,
        "attention_heads": 4,
        "ffn_dim": 32,
    },
    "zaya": SHAPE | MOE | {"head_dim": 16, "num_experts_per_tok": 1},
}
TOKENS = 3


def build(family):
    """A random model of the family, and the spec of its config."""
    config = transformers.AutoConfig.for_model(family.removesuffix("-windowed"), **MODELS[family])
    auto = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
        if config.model_type in ("whisper", "moonshine"):
            auto = transformers.AutoModelForSpeechSeq2Seq
    elif type(config) not in auto._model_mapping:
        auto = transformers.AutoModel
    torch.manual_seed(3)
    return auto.from_config(config).eval(), ModelSpec.from_config(config.to_dict())


def filled(model):
    """The cache after a forward of a few tokens."""
    ids = torch.tensor([[5, 6, 7]])
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs = {"input_ids": ids, "decoder_input_ids": ids}
    if model.config.model_type == "whisper":
        inputs = {"input_features": torch.zeros(1, 8, 20), "decoder_input_ids": ids}
    if model.config.model_type == "moonshine":
        inputs = {"input_values": torch.zeros(1, 2000), "decoder_input_ids": ids}
    with torch.no_grad():
        return model(**inputs, use_cache=True).cache


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
        assert (1, kind.rank, kind.rope, kind.window) == tokens_of(layer)
        assert kind.indexer == indexer_of(layer)
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
        assert type(layer).__name__ == "DummyLayer"


@pytest.mark.parametrize("family", sorted(MODELS))
def test_layers_are_those_of_the_cache(family):
    """Every layer keeps what transformers keeps: heads, dims, windows, states, or nothing."""
    model, spec = build(family)
    cache = filled(model)
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache

    assert len(spec.layers) == len(own.layers)
    for number, item in enumerate(spec.layers):
        kinds = item if isinstance(item, tuple) else (item,)
        if not kinds:
            assert type(own.layers[number]).__name__ == "DummyLayer"
        for kind in kinds:
            if isinstance(kind, Cross):
                other = cache.cross_attention_cache.layers[number]
                assert (kind.kv_heads, kind.k_dim) == (other.keys.shape[1], other.keys.shape[3])
            else:
                compare(kind, own.layers[number])


def test_lightning_attention_keeps_a_matrix_a_head():
    """MiniMax has a cache of its own for it, beside the attention layers'."""
    config = transformers.AutoConfig.for_model("minimax", **SHAPE | MOE)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = ModelSpec.from_config(config.to_dict())
    cache = filled(model)

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


def test_falcons_heads_are_repeated_by_transformers():
    """The new architecture has num_kv_heads; transformers stores a copy for every query head."""
    shape = SHAPE | {"new_decoder_architecture": True, "num_kv_heads": 2}
    config = transformers.AutoConfig.for_model("falcon", **shape)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    spec = ModelSpec.from_config(config.to_dict())

    assert {2} == {layer.kv_heads for layer in spec.layers}
    assert 4 == tokens_of(filled(model).layers[0])[0]


def test_most_families_run_here():
    """The families that transformers can build small are compared with it, not only read."""
    assert {name.removesuffix("-windowed") for name in MODELS} <= set(FAMILIES)
    assert len(MODELS) > 80
