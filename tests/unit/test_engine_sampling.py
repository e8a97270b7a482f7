"""Sampling in the engine: the tokens of generate(), in company, and what is told of them."""

import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, PromptLookup, SamplingParams
from octavo.engine.sampling import draws

PROMPTS = [[5, 6, 7, 5, 6], [*range(1, 30)], [9] * 11]


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama in float64."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    found = transformers.LlamaForCausalLM(config).double()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.4)
    return found


def engine_of(model, pages=200, **options):
    """An engine with ``pages`` usable pages of 4 tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    token = sum(layer.elements_per_token for layer in spec.layers) * 8
    plan = octavo.plan(spec, (pages + 1) * 4 * token, page_size=4, dtype="fp64", order="head")
    return Engine(model, plan, **options)


def generated(model, prompt, new=10, **options):
    """The tokens of transformers."""
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0} | options
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return out[0, len(prompt) :].tolist()


CHANGES = [
    ({"repetition_penalty": 1.5}, {}),
    ({"bad_words_ids": [[28], [0, 54]]}, {}),
    ({"logit_bias": {3: 4.0, 28: -float("inf")}}, {"sequence_bias": {(3,): 4.0, (28,): -1e9}}),
    ({"min_tokens": 6, "stop_token_ids": [0, 44]}, {"min_new_tokens": 6, "eos_token_id": [0, 44]}),
    (
        {"repetition_penalty": 1.2, "min_tokens": 4, "stop_token_ids": [49]},
        {"min_new_tokens": 4, "eos_token_id": [49]},
    ),
    ({"temperature": 1.3, "top_k": 12, "top_p": 0.9, "seed": 5}, {"do_sample": True}),
    ({"temperature": 0.9, "min_p": 0.1, "seed": 6}, {"do_sample": True, "top_k": 0}),
    ({"temperature": 1.1, "typical_p": 0.8, "seed": 7}, {"do_sample": True, "top_k": 0}),
    (
        {"temperature": 1.5, "top_p": 0.8, "repetition_penalty": 1.3, "seed": 8},
        {"do_sample": True, "top_k": 0},
    ),
]
OURS = {"logit_bias", "min_tokens", "stop_token_ids", "seed"}


def sampled(model, prompt, seed, new=10, **options):
    """The tokens of a loop over generate()'s own processors, drawn as octavo does."""
    options = transformers.GenerationConfig(**{"top_k": 0} | options)
    model._prepare_special_tokens(options)
    processors = model._get_logits_processor(options, len(prompt), torch.tensor([prompt]))
    ids, every = torch.tensor([prompt]), torch.arange(model.config.vocab_size)[None]
    for at in range(new):
        with torch.inference_mode():
            logits = model(ids).logits[:, -1].float()
        chances = processors(ids, logits).softmax(-1)
        keys = draws.keys_of([seed], [at], chances.device)
        token = draws.race(every, chances, torch.zeros(1), keys)
        ids = torch.cat([ids, torch.tensor([token])], 1)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def expected(model):
    """What generate() gives for each change of each prompt, or a loop that samples."""
    found = []
    for params, options in CHANGES:
        same = {name: value for name, value in params.items() if name not in OURS}
        for prompt in PROMPTS:
            if "seed" in params:
                found.append(sampled(model, prompt, params["seed"], **same, **options))
            else:
                found.append(generated(model, prompt, **same, **options))
    return found


@pytest.mark.parametrize("options", [{}, {"max_step_tokens": 7}, {"pages": 22}])
def test_tokens_of_generate(model, expected, options):
    """All changes beside each other, also in chunks and preempted, give what generate() gives."""
    prompts = [prompt for _ in CHANGES for prompt in PROMPTS]
    each = [SamplingParams(max_tokens=10, **params) for params, _ in CHANGES for _ in PROMPTS]
    with engine_of(model, **options) as engine:
        found = [done.token_ids for done in engine.generate(prompts, each)]
        engine.cache.check()
        assert ("pages" in options) == (engine.cache.stats().preemptions > 0)

    assert expected == found


def logs_of(model, tokens):
    """What the model's own forward pass says of each token but the first."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0].float()
    return logits.log_softmax(-1)


@pytest.mark.parametrize("options", [{}, {"max_step_tokens": 5}, {"pages": 14}])
def test_log_probabilities_of_prompt_and_answer(model, options):
    """By the model, whatever is sampled, in chunks, preempted, and where the prompt is cached."""
    params = SamplingParams(
        max_tokens=6, temperature=2.0, seed=1, top_k=30, logprobs=3, prompt_logprobs=2
    )
    with engine_of(model, **options) as engine:
        plain = SamplingParams(max_tokens=6)
        engine.generate(PROMPTS, plain)
        found = engine.generate([*PROMPTS, PROMPTS[1]], [params, params, params, plain])
        engine.cache.check()
        assert ("pages" in options) == (engine.cache.stats().preemptions > 0)
    assert found[3].prompt_logprobs is None
    for prompt, done in zip(PROMPTS, found, strict=False):
        logs = logs_of(model, prompt + done.token_ids)
        told = done.prompt_logprobs + done.logprobs
        assert told[0] is None
        assert 0 == done.cached_tokens
        assert prompt[1:] + done.token_ids == [each.token for each in told[1:]]
        for at, each in enumerate(told[1:]):
            count = 2 if at + 1 < len(prompt) else 3
            top = logs[at].topk(count)
            assert each.logprob == pytest.approx(float(logs[at, each.token]), abs=1e-4)
            assert top.indices.tolist() == list(each.top)
            assert list(each.top.values()) == pytest.approx(top.values.tolist(), abs=1e-4)


def test_samples_share_what_is_told_of_their_prompt(model):
    """Each sample of one prompt has it; each has its own of the answer."""
    params = SamplingParams(
        n=3, max_tokens=4, temperature=1.5, seed=2, logprobs=0, prompt_logprobs=0
    )
    with engine_of(model) as engine:
        request = engine.submit(PROMPTS[0], params)
        engine.run()
    done = [sample.completion() for sample in request.samples]

    assert all(each.prompt_logprobs == done[0].prompt_logprobs for each in done)
    assert PROMPTS[0][1:] == [each.token for each in done[1].prompt_logprobs[1:]]
    assert done[0].logprobs != done[1].logprobs


def test_a_prompt_of_one_token(model):
    """It has nothing before it, so nothing is told."""
    with engine_of(model) as engine:
        (done,) = engine.generate([[5]], SamplingParams(max_tokens=1, prompt_logprobs=3))

    assert [None] == done.prompt_logprobs


def test_refuses_log_probabilities_without_a_token():
    """With max_tokens 0 the model is not run."""
    with pytest.raises(octavo.LengthError, match="max_tokens is 0.*prompt_logprobs"):
        SamplingParams(max_tokens=0, prompt_logprobs=1)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("speculation", [None, PromptLookup(max_tokens=3)])
def test_an_interrupt_changes_no_sampled_token(model, monkeypatch, committed, speculation):
    """Where a step is undone, its tokens are drawn again with the same random numbers."""
    params = SamplingParams(max_tokens=25, temperature=1.0, seed=5, n=2)
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    with engine_of(model, speculation=speculation) as engine:
        right = [each.output for each in engine.submit(prompt, params).samples]
        engine.run()
        commit = engine.cache.commit
        for step in range(6):
            request, left = engine.submit(prompt, params), [step]

            def interrupt(*args, left=left, **options):
                left[0] -= 1
                if left[0] == -1 and not committed:
                    raise KeyboardInterrupt
                done = commit(*args, **options)
                if left[0] == -1:
                    raise KeyboardInterrupt
                return done

            with monkeypatch.context() as patch:
                patch.setattr(engine.cache, "commit", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    engine.run()
                engine.run()
            assert right == [each.output for each in request.samples]
