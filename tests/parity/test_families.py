"""Tiny random models in float64: the engine's tokens are those of transformers' generate()."""

import copy

import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, SamplingParams

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
WINDOWED = ["sliding_attention", "full_attention"] * 2
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
GPT2 = {
    "vocab_size": 97,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": ("Llama", SHAPE, "sdpa"),
    "llama-one-head": ("Llama", SHAPE | {"num_key_value_heads": 1}, "sdpa"),
    "qwen2": ("Qwen2", SHAPE, "sdpa"),
    "qwen2-windowed": (
        "Qwen2",
        SHAPE | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        "sdpa",
    ),
    "qwen3": ("Qwen3", SHAPE, "sdpa"),
    "mistral": ("Mistral", SHAPE | {"sliding_window": 9}, "sdpa"),
    "phi3": ("Phi3", SHAPE | {"sliding_window": 10}, "sdpa"),
    "gemma": ("Gemma", SHAPE, "sdpa"),
    "gemma2": ("Gemma2", SHAPE | {"sliding_window": 8, "query_pre_attn_scalar": 24}, "eager"),
    "gemma3": ("Gemma3", SHAPE | {"sliding_window": 8, "layer_types": WINDOWED}, "sdpa"),
    "gpt-oss": (
        "GptOss",
        SHAPE | {"sliding_window": 8, "num_local_experts": 4, "layer_types": WINDOWED},
        "eager",
    ),
    "gpt2": ("GPT2", GPT2, "sdpa"),
    "granite": ("Granite", SHAPE | {"attention_multiplier": 0.2}, "sdpa"),
    "olmo2": ("Olmo2", SHAPE, "sdpa"),
    "smollm3": ("SmolLM3", SHAPE, "sdpa"),
    "starcoder2": ("Starcoder2", SHAPE | {"sliding_window": 12}, "sdpa"),
    "mixtral": ("Mixtral", SHAPE | {"num_local_experts": 4}, "sdpa"),
    "qwen3-moe": ("Qwen3Moe", SHAPE | MOE, "sdpa"),
    "cohere2": ("Cohere2", SHAPE | {"sliding_window": 8}, "sdpa"),
    "exaone4": ("Exaone4", SHAPE | {"sliding_window": 8}, "sdpa"),
    "glm4-moe": ("Glm4Moe", SHAPE | ROUTED, "sdpa"),
    "gpt-bigcode": ("GPTBigCode", GPT2, "sdpa"),
    "laguna": (
        "Laguna",
        SHAPE | MOE | {"sliding_window": 8, "layer_types": WINDOWED},
        "sdpa",
    ),
    "mimo-v2": (
        "MiMoV2Flash",
        SHAPE | ROUTED | {"v_head_dim": 12, "sliding_window": 8, "head_dim": 24},
        "eager",
    ),
    "nemotron": ("Nemotron", SHAPE, "sdpa"),
    "olmo3": ("Olmo3", SHAPE | {"sliding_window": 8}, "sdpa"),
    "opt": ("OPT", SHAPE | {"ffn_dim": 96}, "sdpa"),
    "smollm3-windowed": (
        "SmolLM3",
        SHAPE | {"use_sliding_window": True, "sliding_window": 8},
        "sdpa",
    ),
}
NEW = 12


def build(family):
    """A random model whose greedy tokens vary, in float64, with its usual attention."""
    kind, shape, attention = FAMILIES[family]
    config_class = {"Gemma3": "Gemma3TextConfig"}.get(kind, f"{kind}Config")
    model_class = getattr(
        transformers, f"{kind}ForCausalLM" if kind != "GPT2" else "GPT2LMHeadModel"
    )
    config = getattr(transformers, config_class)(**copy.deepcopy(shape))
    config.tie_word_embeddings = False  # tied random weights repeat the last token
    config._attn_implementation = attention
    config._experts_implementation = "eager"  # the grouped kernel has no float64
    torch.manual_seed(7)
    model = model_class(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.ndim > 1 else 0.1
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


def prompts():
    """Three of different lengths; the last two share their first 20 tokens."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(2, 97, (120,), generator=generator).tolist()
    return [ids[:5], ids[10:47], ids[10:30] + ids[50:94]]


def reference(model, prompt, new=NEW):
    """Greedy tokens of transformers' own generate()."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False
    )
    return found[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A model with the tokens its own generate() gives."""
    model = build(request.param)
    return model, [reference(model, prompt) for prompt in prompts()]


def plan_for(model, *, page_size, order, tokens=512):
    """A plan of at least ``tokens`` tokens in float64."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    row = sum(layer.elements_per_token for layer in spec.layers) * 8
    memory = (tokens + 2 * page_size) * row + 64 * 2 * len(spec.layers)
    return octavo.plan(spec, memory, page_size=page_size, dtype="fp64", order=order)


@pytest.mark.parametrize(("page_size", "order"), [(4, "head"), (3, "token"), (16, "head")])
def test_tokens_of_generate(family, poison, page_size, order):
    """Ragged chunks beside decodes, poisoned pools, both orders: every token is generate()'s."""
    model, expected = family
    plan = plan_for(model, page_size=page_size, order=order)
    with Engine(model, plan, max_step_tokens=24) as engine:
        requests = [engine.submit(p, SamplingParams(max_tokens=NEW)) for p in prompts()]
        poison(engine)
        while engine.step():
            engine.cache.check()
            poison(engine)

        assert expected == [request.output for request in requests]
        assert engine.cache.stats().live == 0


def test_random_tokens_vary(family):
    """The models are worth comparing: prompts lead to different tokens, and to many."""
    _, expected = family

    assert len({tuple(tokens) for tokens in expected}) == 3
    assert len(set().union(*expected)) > 6


def test_model_is_given_back(family):
    """After an engine is closed the model generates by itself as before."""
    model, expected = family
    with Engine(model, plan_for(model, page_size=4, order="head")) as engine:
        engine.generate([prompts()[0]], SamplingParams(max_tokens=2))

    assert expected[0] == reference(model, prompts()[0])
