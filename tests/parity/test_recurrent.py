"""Models that keep states: the engine's tokens are those of transformers' generate().

Tiny random models in float64, states in float64.
"""

import copy
import functools
from functools import cache
from typing import NamedTuple

import pytest
import torch
from recurrent_models import CONFIGS, INKLING, LOOPS, NGRAMS, build, model_of

import octavo
from octavo.engine import Engine, HostMemory, PromptLookup, SamplingParams, mixers
from octavo.engine.speculation.lookup import NGrams
from octavo.integrations.transformers import models
from octavo.storage import load_prefix, save_prefix

NEW = 5
COPIED = HostMemory("64MiB", copy_rate=1e15, prefill_rate=1e-3)
"""With which it always pays to copy pages back."""
SEVERAL = ["falcon_h1", "jamba", "lfm2", "mamba2", "zamba2"]
"""Of each way: beside attention, forgetful, convolutions alone, states alone, bounded."""


class Reference(NamedTuple):
    """Greedy tokens of transformers' own generate(), and their log probabilities."""

    tokens: list[int]
    logprobs: list[float]


def prompts():
    """Four of different lengths, one of a single token; the second begins like the third."""
    ids = torch.randint(3, 97, (60,), generator=torch.Generator().manual_seed(5)).tolist()
    return [ids[:5], ids[10:24], ids[10:19] + ids[30:40], ids[:1]]


@cache
def references(family):
    """What generate() gives for each prompt."""
    return [reference(model_of(family), prompt) for prompt in prompts()]


def reference(model, prompt):
    """What generate() gives for one prompt."""
    if hasattr(model, "_setup_cache"):  # RecurrentGemma's blocks keep the last call's states
        model._setup_cache(model.config, 1, model.device, model.dtype)
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = found.sequences[0, len(prompt) :].tolist()
    rows = torch.cat(found.logits).double().log_softmax(-1)
    return Reference(tokens, [row[token].item() for row, token in zip(rows, tokens, strict=True)])


@torch.no_grad()
def logprobs_of(model, tokens):
    """How probable each token but the first is to a forward pass over them all."""
    if hasattr(model, "_setup_cache"):
        model._setup_cache(model.config, 1, model.device, model.dtype)
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, :-1]
    return logits.double().log_softmax(-1)[range(len(tokens) - 1), tokens[1:]].tolist()


def plan_for(model, page_size=4, memory="1MiB"):
    """A plan in the model's type throughout; of an indexer's keys in fp32."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    types = dict.fromkeys(("dtype", "state_dtype", "conv_dtype"), f"fp{model.dtype.itemsize * 8}")
    options = types | {"page_size": page_size, "order": "head", "indexer_dtype": "fp32"}
    return octavo.plan(spec, memory, **options)


def tokens_of(references):
    """Of each prompt."""
    return [each.tokens for each in references]


@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_and_logprobs_of_generate(family):
    """Chunks beside decodes, then once more where prefixes are found: all is the same."""
    model, expected = model_of(family), references(family)
    with Engine(model, plan_for(model), max_step_tokens=9) as engine:
        greedy = SamplingParams(max_tokens=NEW, logprobs=0)
        first = engine.generate(prompts(), greedy)
        again = engine.generate(prompts(), greedy)
        engine.cache.check()

        for found in (first, again):
            assert tokens_of(expected) == [each.token_ids for each in found]
            for one, wanted in zip(found, expected, strict=True):
                logprobs = [each.logprob for each in one.logprobs]
                near = pytest.approx(logprobs, rel=1e-4, abs=1e-4)
                assert wanted.logprobs == near
        assert [4, 12, 16, 0] == [each.cached_tokens for each in again]
        assert engine.cache.stats().live == 0
    assert expected[0] == reference(model, prompts()[0])


@pytest.mark.parametrize("family", SEVERAL)
@pytest.mark.parametrize(("page_size", "step"), [(1, 1), (256, 2048)])
def test_tokens_whatever_the_pages_and_chunks(family, page_size, step):
    """Token by token, and whole."""
    model = model_of(family)
    plan = plan_for(model, page_size, "8MiB")
    with Engine(model, plan, max_step_tokens=step) as engine:
        found = engine.generate(prompts(), SamplingParams(max_tokens=NEW))

    assert tokens_of(references(family)) == [each.token_ids for each in found]


@pytest.mark.parametrize("host", [None, COPIED])
@pytest.mark.parametrize("family", [*SEVERAL, "lara_mini"])
def test_tokens_preempted_at_every_step(family, host):
    """The last that runs loses its states, and goes on from kept ones, copies or the beginning."""
    model = model_of(family)
    with Engine(model, plan_for(model), max_step_tokens=9, host=host) as engine:
        requests = [engine.submit(p, SamplingParams(max_tokens=NEW)) for p in prompts()]
        for _ in range(200):
            if not engine.step():
                break
            scheduler = engine._core.scheduler
            if len(scheduler.running) > 1:
                scheduler._preempt_last()
            engine.cache.check()

        assert (host is not None) == (engine.stats.restored_tokens > 0)
    assert tokens_of(references(family)) == [request.output for request in requests]


@pytest.mark.parametrize("family", SEVERAL)
def test_tokens_after_steps_that_failed(family):
    """A model that raises behind its mixers has overwritten states; they are fetched again."""
    model, calls = model_of(family), []

    def fail(*_):
        calls.append(1)
        if len(calls) in (2, 4, 7, 11):
            raise ZeroDivisionError

    hook = model.get_output_embeddings().register_forward_pre_hook(fail)
    with Engine(model, plan_for(model), max_step_tokens=9) as engine:
        requests = [engine.submit(p, SamplingParams(max_tokens=NEW)) for p in prompts()]
        for _ in range(60):
            try:
                if not engine.step():
                    break
            except ZeroDivisionError:
                engine.cache.check()
    hook.remove()

    assert len(calls) > 11
    assert tokens_of(references(family)) == [request.output for request in requests]


@pytest.mark.parametrize("family", SEVERAL)
def test_tokens_of_several_samples(family):
    """Forks of one prompt go on from its states, each with its own."""
    model = model_of(family)
    with Engine(model, plan_for(model), max_step_tokens=9) as engine:
        found = engine.generate(prompts(), SamplingParams(max_tokens=NEW, temperature=1e-6, n=3))

    assert [each.tokens for each in references(family) for _ in range(3)] == [
        each.token_ids for each in found
    ]


@pytest.mark.parametrize("family", SEVERAL)
def test_tokens_with_guesses(family, monkeypatch):
    """States of guesses that were wrong are taken back; those of right ones are gone on from."""
    texts = [p + r.tokens for p, r in zip(prompts(), references(family), strict=True)]

    def guess(ngrams, count):
        read = ngrams._tokens
        (text,) = (each for each in texts if each[: len(read)] == read)
        found = [*text[len(read) :], 2, 2, 2, 2][:count]
        return [2 if at == len(read) % 4 else token for at, token in enumerate(found)]

    monkeypatch.setattr(NGrams, "guess", guess)
    monkeypatch.setattr("octavo.engine.speculation.speculation.perf_counter", lambda: 0.0)
    model, lookup = model_of(family), PromptLookup(max_tokens=3)
    with Engine(model, plan_for(model), max_step_tokens=20, speculation=lookup) as engine:
        found = engine.generate(prompts(), SamplingParams(max_tokens=NEW))
        engine.cache.check()

        assert tokens_of(references(family)) == [each.token_ids for each in found]
        assert 0 < engine.stats.accepted_tokens < engine.stats.drafted_tokens


@pytest.mark.parametrize(
    ("options", "near"),
    [
        ({}, 1e-5),
        ({"speculation": PromptLookup(max_tokens=3)}, 1e-5),
        ({"max_step_tokens": 9}, 1e-3),
    ],
)
@pytest.mark.parametrize("family", CONFIGS)
def test_log_probabilities_of_prompts(family, options, near):
    """Whole, with room for guesses, and in chunks: those of one forward pass."""
    model, params = model_of(family), SamplingParams(max_tokens=1, prompt_logprobs=0)
    with Engine(model, plan_for(model), **options) as engine:
        found = engine.generate(prompts(), params)
        engine.cache.check()

    for prompt, one in zip(prompts(), found, strict=True):
        told = [each.logprob for each in one.prompt_logprobs[1:]]
        assert logprobs_of(model, prompt) == pytest.approx(told, rel=1e-6, abs=near)


@pytest.mark.parametrize(
    ("options", "found"),
    [({}, 0), ({"snapshots": "grid"}, 8), ({"snapshots": "grid", "snapshot_bytes": 0}, 0)],
)
def test_states_are_kept_where_asked(options, found):
    """On a grid the first prompt that parts from another finds a state; within the bytes given."""
    model, (one, other) = model_of("mamba2"), prompts()[1:3]
    with Engine(model, plan_for(model), **options) as engine:
        engine.generate([one], SamplingParams(max_tokens=1))
        (answer,) = engine.generate([other], SamplingParams(max_tokens=NEW))

    assert (found, references("mamba2")[2].tokens) == (answer.cached_tokens, answer.token_ids)


@pytest.mark.parametrize("family", SEVERAL)
def test_tokens_behind_states_out_of_a_file(family, tmp_path):
    """An engine that has run nothing goes on from another's states."""
    model, path = model_of(family), tmp_path / "prefix"
    prompt, wanted = prompts()[2], references(family)[2]
    with Engine(model, plan_for(model)) as engine:
        engine.generate([prompt], SamplingParams(max_tokens=1))
        save_prefix(path, engine.cache, engine.storage, prompt, model="one")
    with Engine(model, plan_for(model)) as engine:
        load_prefix(path, engine.cache, engine.storage, model="one")
        found = engine.generate([prompt], SamplingParams(max_tokens=NEW))

    assert (wanted.tokens, 16) == (found[0].token_ids, found[0].cached_tokens)


def test_states_that_no_cache_is_asked_for_are_refused(monkeypatch):
    """RWKV hands its states from block to block: without word of how, it is not run."""
    model = model_of("rwkv")
    monkeypatch.setattr(mixers, "asking", lambda *_: None)
    with pytest.raises(octavo.UnsupportedModel, match="no module of it asks the cache"):
        Engine(model, plan_for(model))


def test_several_convolutions_in_layers_that_run_again():
    """Inkling's four states of a layer, by rows; the layers of its loop keep them per pass."""
    model = build("inkling2_loop_text", LOOPS)
    expected = [reference(model, prompt).tokens for prompt in prompts()[:2]]
    with Engine(model, plan_for(model), max_step_tokens=9) as engine:
        found = engine.generate(prompts()[:2], SamplingParams(max_tokens=NEW))

    assert expected == [each.token_ids for each in found]


def test_a_recurrence_narrower_than_its_model():
    """A first chunk of one token begins without a state, as wide as the recurrence."""
    shape = CONFIGS["recurrent_gemma"] | {"lru_width": 24}
    model = build("recurrent_gemma", shape).double()
    expected = [reference(model, prompt).tokens for prompt in prompts()[:3]]
    with Engine(model, plan_for(model), max_step_tokens=1) as engine:
        found = engine.generate(prompts()[:3], SamplingParams(max_tokens=NEW))

    assert expected == [each.token_ids for each in found]


def test_rows_of_tokens_in_states_are_refused():
    """Qwen 4's n-grams are kept beside its states."""
    model = build("qwen4_exp_text", CONFIGS["qwen4_exp_text"] | NGRAMS)
    with pytest.raises(octavo.UnsupportedModel, match="last rows of tokens"):
        Engine(model, plan_for(model))


def test_positions_in_scores_are_refused(monkeypatch):
    """Inkling adds a bias by distance to its scores: not by rows, they would lack it."""
    monkeypatch.setattr(models, "BY_ROWS", {})
    model = build("inkling_text", INKLING | {"mlp_layer_types": ["dense"] * 3})
    with (
        pytest.raises(octavo.UnsupportedModel, match="position_bias"),
        Engine(model, plan_for(model)) as engine,
    ):
        engine.generate([prompts()[0]])


def test_a_copy_of_a_model_in_an_engine_is_its_own():
    """Mixers are replaced in the model alone, and given back by close."""
    model = model_of("mamba2")
    mixer = model.backbone.layers[1].mixer
    mixer.forward = patched = functools.partial(mixer.forward)
    with Engine(model, plan_for(model)) as engine:
        twin = copy.deepcopy(model)
        tokens = engine.generate([prompts()[0]], SamplingParams(max_tokens=NEW))[0].token_ids
        with torch.no_grad():
            twin.backbone.layers[0].mixer.in_proj.weight.zero_()

        assert references("mamba2")[0].tokens == tokens
        assert references("mamba2")[0] != reference(twin, prompts()[0])
        assert (
            references("mamba2")[0].tokens
            == engine.generate([prompts()[0]], SamplingParams(max_tokens=NEW))[0].token_ids
        )
    assert "forward" not in vars(model.backbone.layers[0].mixer)
    assert mixer.forward is patched
    del mixer.forward
