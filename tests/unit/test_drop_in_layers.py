"""OctavoCache checks that each layer of a pass kept its keys and attended, once, through octavo."""

from contextlib import nullcontext

import pytest
import torch
import transformers
from drop_in_models import SHAPE, generate, ids_of, model_of
from transformers import DynamicCache

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.errors import UnsupportedModel
from octavo.integrations.transformers import OctavoCache, models

IDS = ids_of(1, 20)
OTHERWISE = {
    "diffllama": ({}, "attended to more than 1 times"),
    "jetmoe": ({"kv_channels": 16, "num_local_experts": 4, "num_experts_per_tok": 2}, "4 heads"),
}


def tiny(family="llama", **options):
    """A small model of its own, for tests that change it."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(family, **SHAPE | options)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def cache_for(model):
    """A small cache."""
    return OctavoCache.for_model(model, "4MiB", page_size=8)


def level(cache, name):
    """Gathered, or octavo's own attention."""
    return cache.attend() if name == "attend" else nullcontext()


@pytest.mark.parametrize("family", OTHERWISE)
def test_models_that_attend_otherwise_are_refused_in_place_alone(family):
    """Two attentions a layer over halves of its values, keys repeated: gathered they are right."""
    options, why = OTHERWISE[family]
    model = tiny(family, **options)
    cache = cache_for(model)
    with cache.attend(), pytest.raises(UnsupportedModel, match=why):
        generate(model, IDS, cache)
    assert cache.pages.stats().live == 0
    expected = generate(model, IDS, DynamicCache(config=model.config))
    assert torch.equal(generate(model, IDS, cache)[0], expected[0])


@pytest.mark.parametrize("family", OTHERWISE)
def test_the_engine_refuses_them_where_it_does_not_know_them(family, monkeypatch):
    """The check is the hook's own, whoever runs the model; those it knows run by rows."""
    options, why = OTHERWISE[family]
    model = tiny(family, **options)
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    plan = octavo.plan(spec, "4MiB", page_size=8, dtype="fp32", order="head")
    prompt, two = [IDS[0].tolist()], SamplingParams(max_tokens=2)
    with monkeypatch.context() as patch:
        patch.setattr(models, "BY_ROWS", {})
        with Engine(model, plan) as engine, pytest.raises(UnsupportedModel, match=why):
            engine.generate(prompt, two)
    with Engine(model, plan) as engine:
        found = engine.generate(prompt, two)[0].token_ids
    expected = model.generate(IDS[:1], attention_mask=torch.ones_like(IDS[:1]), max_new_tokens=2)
    assert expected[0, -2:].tolist() == found


@pytest.mark.parametrize("where", ["gather", "attend"])
def test_a_layer_that_is_left_out_is_refused(where, monkeypatch):
    """Its pages would be found later, and hold what was there before."""
    model = tiny()
    cache = cache_for(model)
    monkeypatch.setattr(model.model.layers[2], "forward", lambda hidden, **_: hidden)
    with (
        level(cache, where),
        pytest.raises(UnsupportedModel, match=r"3 of 4 layers .* \[2\] did not"),
    ):
        generate(model, IDS, cache)
    monkeypatch.undo()
    assert cache.pages.stats().live == cache.pages.stats().evictable == 0
    assert torch.equal(generate(model, IDS, cache)[0], generate(model, IDS, None)[0])


@pytest.mark.parametrize("where", ["gather", "attend"])
def test_a_layer_that_runs_twice_is_refused(where, monkeypatch):
    """Two layers of one number: the second would take the first one's place."""
    model = tiny()
    cache = cache_for(model)
    monkeypatch.setattr(model.model.layers[2].self_attn, "layer_idx", 1)
    with level(cache, where), pytest.raises(UnsupportedModel, match="layer 1: it writes twice"):
        generate(model, IDS, cache)
    assert cache.pages.stats().live == 0


def test_keys_that_lost_their_mark_are_refused(monkeypatch):
    """Copied, and without the keywords, they lead to no pages: only the new ones are seen."""
    model = tiny()
    cache = cache_for(model)
    update = cache.layers[1].update

    def without(keys, values, **_rest):
        keys, values = update(keys, values)
        return keys.clone(), values

    monkeypatch.setattr(cache.layers[1], "update", without)
    with (
        cache.attend(),
        pytest.raises(UnsupportedModel, match=r"3 of 4 layers attended .* \[1\] did not"),
    ):
        generate(model, IDS, cache)
    assert cache.pages.stats().live == 0


def test_an_early_exit_drafts_beside_the_cache():
    """The draft of assisted decoding runs some layers, with a cache of its own."""
    model = model_of("llama")
    cache = cache_for(model)
    found = generate(model, IDS, cache, assistant_early_exit=2)
    assert torch.equal(found[0], generate(model, IDS, None)[0])
    cache.close()
