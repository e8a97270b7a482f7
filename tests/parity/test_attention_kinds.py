"""Latents and shared keys: the engine's tokens are those of transformers' generate()."""

import pytest
import torch
from attention_models import CONFIGS, model_of

import octavo
from octavo.engine import Engine, SamplingParams

NEW = 6
GREEDY = SamplingParams(max_tokens=NEW)


def prompts():
    """Four of different lengths, one of a single token; the second begins like the third."""
    ids = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    return [ids[:5], ids[10:29], ids[10:22] + ids[30:39], ids[:1]]


def reference(model, prompt):
    """Greedy tokens of transformers' own generate()."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    found = model.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    return found[0, len(prompt) :].tolist()


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    """A model with the tokens its own generate() gives."""
    model = model_of(request.param)
    return model, [reference(model, prompt) for prompt in prompts()]


def plan_for(model, order="head"):
    """A plan in float64 throughout."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    types = {"dtype": "fp64", "state_dtype": "fp64"}
    return octavo.plan(spec, "1MiB", page_size=4, order=order, **types)


@pytest.mark.parametrize("order", ["head", "token"])
def test_tokens_of_generate(family, poison, order):
    """Chunks beside decodes, then once more where prefixes are found: every token is the same."""
    model, expected = family
    with Engine(model, plan_for(model, order), max_step_tokens=9) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in prompts()]
        while engine.step():
            poison(engine)
        again = engine.generate(prompts(), GREEDY)
        engine.cache.check()

        assert expected == [request.output for request in requests]
        assert expected == [each.token_ids for each in again]
        assert [4, 16, 20, 0] == [each.cached_tokens for each in again]
    assert expected[0] == reference(model, prompts()[0])


def test_random_tokens_vary(family):
    """The models are worth comparing: prompts lead to different tokens, and to many."""
    _, expected = family
    assert len({tuple(tokens) for tokens in expected}) == 4
    assert len(set().union(*expected)) > 6


def test_latents_behind_a_bias_are_refused():
    """Keys that are more than a matrix of latents cannot be read as rows."""
    model = model_of("deepseek_v2")
    layer = model.model.layers[1].self_attn
    layer.kv_b_proj.bias = torch.nn.Parameter(torch.ones(layer.kv_b_proj.out_features).double())
    try:
        with pytest.raises(octavo.UnsupportedModel, match="more than a matrix"):
            Engine(model, plan_for(model))
    finally:
        layer.kv_b_proj.bias = None
