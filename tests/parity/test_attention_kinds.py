"""Latents, shared keys, attention of a model's own: tokens are those of its generate()."""

import pytest
import torch
from attention_models import BY_ROWS, CONFIGS, model_of

import octavo
from octavo.engine import Engine, HostMemory, SamplingParams
from octavo.engine.rows import Pass, part_of, passes_of
from octavo.integrations.transformers import attention, models
from octavo.integrations.transformers.models import why_by_rows
from octavo.integrations.transformers.paged import PagedLayer

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


@pytest.fixture(scope="module", params=CONFIGS | BY_ROWS)
def family(request):
    """A model with the tokens its own generate() gives."""
    model = model_of(request.param)
    return model, [reference(model, prompt) for prompt in prompts()]


@pytest.fixture(scope="module", params=BY_ROWS)
def by_rows(request):
    """The name and a model of a family that runs a row at a time."""
    return request.param, model_of(request.param)


def plan_for(model, order="head"):
    """A plan in float64 throughout."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    types = {"dtype": "fp64", "state_dtype": "fp64", "indexer_dtype": "fp32"}
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
        if not any(getattr(kind, "chunk", None) for _, kind in engine.cache.plan.spec.kinds()):
            assert [4, 16, 20, 0] == [each.cached_tokens for each in again]
    assert expected[0] == reference(model, prompts()[0])


def test_tokens_copied_back_at_every_step(family):
    """The last that runs loses its pages, latents and an indexer's keys too, to host memory."""
    model, expected = family
    host = HostMemory("64MiB", copy_rate=1e15, prefill_rate=1e-3)  # copying always pays
    with Engine(model, plan_for(model), max_step_tokens=9, host=host) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in prompts()]
        while engine.step():
            if len(engine._core.scheduler.running) > 1:
                engine._core.scheduler._preempt_last()
            engine.cache.check()

        assert engine.stats.restored_tokens > 0
    assert expected == [request.output for request in requests]


def test_random_tokens_vary(family):
    """The models are worth comparing: prompts lead to different tokens, and to many."""
    _, expected = family
    assert len({tuple(tokens) for tokens in expected}) == 4
    assert len(set().union(*expected)) > 6


def test_rows_keep_their_own_attention(by_rows):
    """A model that runs by rows is told apart when it is given, and stays as it is."""
    name, model = by_rows
    own = model.config._attn_implementation
    with Engine(model, plan_for(model)):
        assert own == model.config._attn_implementation
        assert why_by_rows(model, octavo.ModelSpec.from_config(model.config.to_dict())), name


def test_rows_of_a_step():
    """Each row with new tokens is a step of its own, with its own part of every array."""
    plan = octavo.plan(octavo.ModelSpec("m", (octavo.Attention(1, 8, 8),)), "64KiB", page_size=4)
    cache = octavo.Cache(plan)
    first, idle, last = (cache.admit(range(3 + at, 9 + at)) for at in range(3))
    step = cache.extend([first, idle, last], [5, 0, 2])
    passes = passes_of(step, {}, by_rows=True)
    rows = [part_of(step, each.rows) for each in passes]

    assert [Pass([0]), Pass([2])] == passes
    assert [Pass([0, 2])] == passes_of(step, {}, by_rows=False)
    assert [(first,), (last,)] == [row.sequences for row in rows]
    assert [[3, 4, 5, 6, 7], [5, 6]] == [row.input_ids.tolist() for row in rows]
    assert [[0, 5], [0, 2]] == [row.query_start.tolist() for row in rows]
    assert [[4], [1]] == [row.last.tolist() for row in rows]
    assert step.slots().tolist() == [slot for row in rows for slot in row.slots().tolist()]
    assert all(row.open for row in rows)


def test_keys_of_an_indexer_must_be_exact():
    """Eight bits would choose other tokens than the model."""
    model = model_of("deepseek_v32")
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    with pytest.raises(octavo.PlanError, match="indexer_dtype='fp32'"):
        Engine(model, octavo.plan(spec, "1MiB", dtype="fp64"))


def test_what_attention_has_no_use_for_is_refused(monkeypatch):
    """A bias of the scores, or keys that a model rearranges, would be computed otherwise."""
    monkeypatch.setattr(models, "BY_ROWS", {})
    model = model_of("jetmoe")
    with pytest.raises(octavo.UnsupportedModel, match="attends to 4 heads"):
        Engine(model, plan_for(model)).generate([[5, 6, 7]], GREEDY)
    one = torch.zeros(1, 1, 1, 8)
    one.octavo_pages = None, PagedLayer(0, octavo.Attention(1, 8, 8), "full", 1, 0)
    with pytest.raises(octavo.UnsupportedModel, match="position_bias"):
        attention.attend(model, one, one, one, None, position_bias=one)


def test_adapters_on_what_expands_latents_are_refused():
    """Latents are read as they are, so that such an adapter would be left out."""
    model = model_of("deepseek_v2")
    layer = model.model.layers[2].self_attn
    with Engine(model, plan_for(model)) as engine:
        engine.generate([[5, 6, 7]], GREEDY)
        layer.kv_b_proj.lora_A = torch.nn.ModuleDict()
        try:
            with pytest.raises(octavo.UnsupportedModel, match="layer 2: kv_b_proj expands"):
                engine.generate([[5, 6, 7]], GREEDY)
        finally:
            del layer.kv_b_proj.lora_A


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
