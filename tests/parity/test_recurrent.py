"""Models that keep states: the engine's tokens are those of transformers' generate().

Tiny random models in float64, states in float64.
"""

import pytest
import torch
import transformers
from recurrent_models import CONFIGS, model_of

import octavo
from octavo.engine import Engine, SamplingParams

NEW = 6


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


def plan_for(model, memory="1MiB"):
    """A plan in float64 throughout."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    types = {"dtype": "fp64", "state_dtype": "fp64"}
    return octavo.plan(spec, memory, page_size=4, order="head", **types)


def test_tokens_of_generate(family):
    """Chunks beside decodes, then once more where prefixes are found: every token is the same."""
    model, expected = family
    with Engine(model, plan_for(model), max_step_tokens=9) as engine:
        greedy = SamplingParams(max_tokens=NEW)
        first = engine.generate(prompts(), greedy)
        again = engine.generate(prompts(), greedy)
        engine.cache.check()

        assert expected == [each.token_ids for each in first]
        assert expected == [each.token_ids for each in again]
        assert [4, 16, 20, 0] == [each.cached_tokens for each in again]
        assert engine.cache.stats().live == 0
    assert expected[0] == reference(model, prompts()[0])


def test_states_that_no_cache_is_asked_for_are_refused():
    """RWKV hands its states from call to call itself."""
    config = transformers.RwkvConfig(vocab_size=97, hidden_size=32, num_hidden_layers=2)
    model = transformers.RwkvForCausalLM(config).double()
    with pytest.raises(octavo.UnsupportedModel, match="no module of it asks the cache"):
        Engine(model, plan_for(model))
