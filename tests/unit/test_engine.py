"""The engine on a tiny random model: batching, sharing, ending, refusing, what failures leave."""

import gc
import sys
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers

import octavo
from octavo import SamplingError
from octavo.engine import Engine, SamplingParams

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
PROMPTS = [[5, 6, 7], list(range(1, 30)), [9] * 11]


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama in float64."""
    torch.manual_seed(0)
    found = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).double()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.4)
    return found


def plan_for(model, pages=40, page_size=4, **options):
    """A plan of exactly ``pages`` usable pages."""
    spec = octavo.ModelSpec.from_config(model.config)
    token = sum(layer.elements_per_token for layer in spec.layers) * 8
    memory = (pages + 1) * page_size * token
    return octavo.plan(spec, memory, page_size=page_size, dtype="fp64", order="head", **options)


def greedy(new=8, **options):
    """Greedy sampling of ``new`` tokens."""
    return SamplingParams(max_tokens=new, **options)


@pytest.fixture
def engine(model):
    """An engine with 40 pages of 4 tokens."""
    with Engine(model, plan_for(model)) as found:
        yield found


@pytest.fixture(scope="module")
def alone(model):
    """The tokens of each prompt run by itself without prefix caching."""
    with Engine(model, plan_for(model), prefix=False) as engine:
        return [engine.generate([prompt], greedy())[0].token_ids for prompt in PROMPTS]


def conserved(engine):
    """Whether nothing is held and the cache's laws hold."""
    engine.cache.check()
    stats = engine.cache.stats()
    return stats.live == 0 and stats.sequences == 0


@pytest.mark.parametrize("max_step_tokens", [1, 2, 7, 2048])
def test_beside_others(model, alone, max_step_tokens):
    """A prompt's tokens are the same beside others, however its prefill is cut."""
    with Engine(model, plan_for(model), max_step_tokens=max_step_tokens) as engine:
        found = engine.generate(PROMPTS, greedy())

        assert alone == [completion.token_ids for completion in found]
        assert conserved(engine)


def test_arriving_later(engine, alone):
    """A request submitted while others decode gets the tokens it gets alone."""
    first = engine.submit(PROMPTS[1], greedy())
    for _ in range(3):
        engine.step()
    second = engine.submit(PROMPTS[0], greedy())
    engine.run()

    assert alone[1] == first.output
    assert alone[0] == second.output


def test_steps_stay_within_their_budget(model):
    """No forward pass computes more tokens than max_step_tokens."""
    with Engine(model, plan_for(model), max_step_tokens=6) as engine:
        for prompt in PROMPTS:
            engine.submit(prompt, greedy())
        computed = [0]
        while engine.step():
            computed.append(engine.stats.computed_tokens)
        assert max(b - a for a, b in pairwise(computed)) == 6


def test_waits_for_room(model, alone):
    """Without preemption requests that cannot all run to their limits wait in order."""
    with Engine(model, plan_for(model, pages=10), preemption=False) as engine:
        requests = [engine.submit(prompt, greedy()) for prompt in PROMPTS]
        engine.step()

        assert [True, False, False] == [request.sequence is not None for request in requests]
        engine.run()
        assert alone == [request.output for request in requests]
        assert 0 == engine.cache.stats().preemptions
        assert conserved(engine)


def test_the_newest_is_preempted(model, alone):
    """Where pages run out the newest gives way, comes back, and gets the tokens it gets alone."""
    with Engine(model, plan_for(model, pages=10)) as engine:
        requests = [engine.submit(prompt, greedy()) for prompt in PROMPTS]
        lost = set()
        while engine.step():
            lost |= {at for at, r in enumerate(requests) if r.sequence and r.sequence.preempted}
            engine.cache.check()

        assert {1} == lost
        assert alone == [request.output for request in requests]
        assert conserved(engine)


def test_cancel_a_preempted_request(model, alone):
    """One that lost its pages can be cancelled; it keeps its tokens, and the others run on."""
    with Engine(model, plan_for(model, pages=10)) as engine:
        first, second, third = (engine.submit(prompt, greedy()) for prompt in PROMPTS)
        while not (second.sequence and second.sequence.preempted):
            engine.step()
        engine.cancel(second)
        engine.run()

        assert ("cancelled", alone[1][: len(second.output)]) == (
            second.finish_reason,
            second.output,
        )
        assert [alone[0], alone[2]] == [first.output, third.output]
        assert conserved(engine)


def test_max_sequences(model, alone):
    """At most max_sequences run at once."""
    with Engine(model, plan_for(model), max_sequences=2) as engine:
        requests = [engine.submit(prompt, greedy()) for prompt in PROMPTS]
        engine.step()

        assert 2 == sum(request.sequence is not None for request in requests)
        engine.run()
        assert alone == [request.output for request in requests]


def test_prompts_of_one_batch_share_their_prefix(model):
    """Of prompts submitted together that begin alike, the first computes the common pages."""
    shared = list(range(1, 25))
    prompts = [[*shared, 40], [*shared, 41, 42], [*shared, 43]]
    with Engine(model, plan_for(model), prefix=False) as engine:
        expected = [c.token_ids for c in engine.generate(prompts, greedy())]
    with Engine(model, plan_for(model), max_step_tokens=10) as engine:
        found = engine.generate(prompts, greedy())

    assert [0, 24, 24] == [completion.cached_tokens for completion in found]
    assert expected == [completion.token_ids for completion in found]


def test_later_prompt_reuses_the_pages(engine):
    """A prompt after another that began alike computes only what is new."""
    engine.generate([list(range(1, 20))], greedy())
    before = engine.stats.computed_tokens
    found = engine.generate([[*range(1, 20), 50]], greedy(1))

    assert 16 == found[0].cached_tokens
    assert 4 == engine.stats.computed_tokens - before


def test_without_prefix_nothing_is_reused(model):
    """With prefix=False every prompt is computed whole, also one submitted beside its like."""
    with Engine(model, plan_for(model), prefix=False) as engine:
        found = engine.generate([PROMPTS[1], PROMPTS[1]], greedy(2))

    assert [0, 0] == [completion.cached_tokens for completion in found]


def test_ends_at_max_tokens(engine, alone):
    """max_tokens tokens come, for the reason length."""
    found = engine.generate([PROMPTS[0]], greedy(3))[0]

    assert (alone[0][:3], "length", 3) == (
        found.token_ids,
        found.finish_reason,
        found.prompt_tokens,
    )


def test_max_tokens_zero(engine):
    """No tokens are asked for: done at once, for the reason length, and no step is run."""
    request = engine.submit(PROMPTS[0], greedy(0))

    assert (True, [], "length") == (request.done, request.output, request.finish_reason)
    assert not engine.step()
    assert 0 == engine.stats.steps


def test_ends_at_stop_token(engine, alone):
    """A stop token ends the request and is its last token."""
    stop = alone[1][4]
    found = engine.submit(PROMPTS[1], greedy(stop_token_ids=[stop]))
    engine.run()

    assert alone[1][: alone[1].index(stop) + 1] == found.output
    assert ("stop", stop) == (found.finish_reason, found.stop_reason)
    assert conserved(engine)


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, tokens, **_):
        """A letter a token."""
        return "".join(chr(65 + token) for token in tokens)


def test_ends_at_stop_text(model, alone):
    """A stop text ends the request with the token that completes it."""
    text = Letters().decode(alone[1][2:5])
    with Engine(model, plan_for(model), tokenizer=Letters()) as engine:
        request = engine.submit(PROMPTS[1], greedy(stop=text))
        engine.run()

    assert text == request.stop_reason
    assert Letters().decode(request.output).endswith(text)
    assert len(request.output) <= 5
    assert Letters().decode(request.output) == request.completion().text + text


def test_the_text_of_answers(model, alone):
    """With a tokenizer an answer has its text, which a stop token is no part of."""
    params = [greedy(), greedy(stop_token_ids=[alone[1][4]]), greedy(stop="never")]
    with Engine(model, plan_for(model), tokenizer=Letters()) as engine:
        found = engine.generate([PROMPTS[0], PROMPTS[1], PROMPTS[1]], params)
        running = engine.submit(PROMPTS[0], greedy())
        engine.step()

        assert Letters().decode(alone[0][:1]) == running.text
    end = alone[1].index(alone[1][4])
    expected = [Letters().decode(tokens) for tokens in (alone[0], alone[1][:end], alone[1])]
    assert expected == [done.text for done in found]


def test_without_a_tokenizer_there_is_no_text(engine):
    """Tokens alone."""
    assert engine.generate([PROMPTS[0]], greedy(1))[0].text is None


def test_ends_where_the_context_ends(engine):
    """A request that asks for more than the model's context ends there, for the reason length."""
    found = engine.generate([[3] * 60], greedy(50))[0]

    assert (4, "length") == (len(found.token_ids), found.finish_reason)


def test_tokens_are_told_as_they_come(engine, alone):
    """on_token is called for each token, after the request has it."""
    heard = []
    request = engine.submit(
        PROMPTS[0], greedy(), on_token=lambda r, t: heard.append((t, r.output[-1], r.done))
    )
    engine.run()

    assert [(t, t, i == 7) for i, t in enumerate(alone[0])] == heard
    assert request.done


def test_generate_takes_params_for_each(engine):
    """Each prompt may have its own parameters, one a prompt."""
    found = engine.generate(PROMPTS[:2], [greedy(2), greedy(5)])

    assert [2, 5] == [len(completion.token_ids) for completion in found]
    with pytest.raises(octavo.LengthError, match=r"len\(params\) is 1"):
        engine.generate(PROMPTS[:2], [greedy()])


def test_cancel(engine, alone):
    """A cancelled request keeps its tokens, gives its pages back and disturbs nobody."""
    first, second = (engine.submit(prompt, greedy()) for prompt in PROMPTS[:2])
    waiting = engine.submit(PROMPTS[2], greedy())
    engine.cancel(waiting)
    for _ in range(3):
        engine.step()
    engine.cancel(first)
    engine.cancel(first)
    engine.run()

    assert (alone[0][:3], "cancelled") == (first.output, first.finish_reason)
    assert ([], "cancelled") == (waiting.output, waiting.finish_reason)
    assert alone[1] == second.output
    assert conserved(engine)


def test_failure_in_the_model_changes_nothing(model, engine, alone, monkeypatch):
    """A forward pass that fails midway is taken back; stepping again gives the same tokens."""
    requests = [engine.submit(prompt, greedy()) for prompt in PROMPTS]
    engine.step()
    before = engine.cache.stats()
    layer = model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(layer.mlp, "forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()

    engine.cache.check()
    assert before.live == engine.cache.stats().live
    engine.run()
    assert alone == [request.output for request in requests]
    assert conserved(engine)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_generate_leaves_nothing_behind(engine, monkeypatch, error):
    """When generate raises, even interrupted, its requests are gone and all pages are back."""

    def fail(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("octavo.engine.core.sample_accepted", fail)
        with pytest.raises(error):
            engine.generate(PROMPTS, greedy())

    assert conserved(engine)
    assert not engine.step()


def test_listener_that_fails_costs_only_its_request(engine, alone):
    """An on_token that raises cancels its request; the others hear every token."""
    heard = []

    def fail(request, token):
        raise RuntimeError(token)

    failing = engine.submit(PROMPTS[0], greedy(), on_token=fail)
    engine.submit(PROMPTS[1], greedy(), on_token=lambda _, token: heard.append(token))
    with pytest.raises(RuntimeError):
        engine.run()
    engine.run()

    assert "cancelled" == failing.finish_reason
    assert alone[1] == heard
    assert conserved(engine)


class Moody(Letters):
    """A tokenizer that cannot decode a token."""

    def __init__(self, bad):
        self.bad = bad

    def decode(self, tokens, **_):
        """A letter a token, while it works."""
        if self.bad in tokens:
            raise RuntimeError("no decoding today")
        return super().decode(tokens)


def test_tokenizer_that_fails_costs_only_its_request(model, alone):
    """A decode that raises in the middle cancels its request; every other token is booked."""
    with Engine(model, plan_for(model), tokenizer=Moody(alone[0][2])) as engine:
        failing = engine.submit(PROMPTS[0], greedy(stop="never"))
        other = engine.submit(PROMPTS[1], greedy())
        with pytest.raises(RuntimeError, match="no decoding today") as caught:
            engine.run()
        assert (3, 3) == (len(failing.output), len(other.output))
        engine.run()

        assert ("cancelled", caught.value) == (failing.finish_reason, failing.error)
        assert alone[1] == other.output
        assert conserved(engine)


def test_sampler_that_fails_costs_only_its_request(engine, alone):
    """A sampler that raises cancels its request, which gets no token; the others get theirs."""
    failing = engine.submit(PROMPTS[0], greedy(logits_processors=[lambda *_: 1 / 0]))
    other = engine.submit(PROMPTS[1], greedy())
    with pytest.raises(ZeroDivisionError):
        engine.run()
    engine.run()

    assert ("cancelled", []) == (failing.finish_reason, failing.output)
    assert (alone[1], None) == (other.output, other.error)
    assert conserved(engine)


def test_logits_that_are_no_numbers(model, engine, alone, monkeypatch):
    """A request whose logits are NaN is cancelled with that reason, not given token 0."""
    failing, other = (engine.submit(prompt, greedy()) for prompt in PROMPTS[:2])
    engine.step()
    run = model.forward

    def spoil(*args, **options):
        found = run(*args, **options)
        found.logits[0, 0] = float("nan")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", spoil)
        with pytest.raises(octavo.UnsupportedModel, match="^logits: the model gave nan"):
            engine.step()
    engine.run()

    assert ("cancelled", alone[0][:1]) == (failing.finish_reason, failing.output)
    assert alone[1] == other.output


@pytest.mark.parametrize("interrupted", [False, True])
def test_later_prompts_find_nothing_of_a_step_that_failed(model, engine, monkeypatch, interrupted):
    """Keys and values behind logits that are no numbers are not published; earlier ones stay."""
    prompt = list(range(1, 41))
    with Engine(model, plan_for(model)) as other:
        right = [each.token_ids for each in other.generate([prompt, [*prompt, 50]], greedy())]
    engine.generate([prompt[:20]], greedy())

    def spoil(module, args, out):
        out[:, -3:] = float("nan")

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    request = engine.submit(prompt, greedy())
    hook = model.model.embed_tokens.register_forward_hook(spoil)
    if interrupted:  # between what is done for the row that failed and the commit
        with monkeypatch.context() as patch:
            patch.setattr(engine.cache, "commit", interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.step()
    with pytest.raises(octavo.UnsupportedModel, match="^logits: the model gave nan"):
        engine.step()
    hook.remove()

    assert "cancelled" == request.finish_reason
    found = engine.generate([prompt, [*prompt, 50]], greedy())
    assert right == [each.token_ids for each in found]
    assert (0 if interrupted else 20) == found[0].cached_tokens  # an interrupt begins anew
    assert conserved(engine)


@pytest.mark.parametrize("samples", [1, 3])
def test_later_prompts_find_nothing_of_a_chunk_that_failed(model, samples):
    """A chunk that wants no token is not published where what it computed are no numbers."""
    prompt = list(range(1, 41))
    with Engine(model, plan_for(model)) as other:
        (right,) = other.generate([prompt], greedy())

    def spoil(module, args, out):
        out[:, 2:3] = float("nan")

    params = greedy() if samples == 1 else greedy(temperature=1.0, n=samples)
    with Engine(model, plan_for(model), max_step_tokens=16) as engine:
        request = engine.submit(prompt, params)
        engine.step()
        hook = model.model.embed_tokens.register_forward_hook(spoil)
        with pytest.raises(octavo.UnsupportedModel, match="behind a chunk of the prompt"):
            engine.step()
        hook.remove()
        assert ["cancelled"] * samples == [each.finish_reason for each in request.samples]
        (found,) = engine.generate([prompt], greedy())
        assert right.token_ids == found.token_ids
        assert 16 == found.cached_tokens
        assert conserved(engine)


def test_all_that_listen_hear_before_the_first_failure_is_raised(engine):
    """Each of several listeners that raise is noted on its own request; the first is raised."""

    def fail(request, token):
        raise RuntimeError(request.prompt_tokens)

    requests = [engine.submit(prompt, greedy(), on_token=fail) for prompt in PROMPTS[:2]]
    with pytest.raises(RuntimeError, match="3"):
        engine.step()

    assert ["3", "29"] == [str(request.error) for request in requests]
    assert conserved(engine)


def test_token_beyond_the_vocabulary(engine):
    """The message names the largest token id of the model."""
    with pytest.raises(octavo.TokenError, match=r"token 1 is 61; token ids are ints in 0\.\.60"):
        engine.submit([1, 61])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.submit(PROMPTS[0], {"max_tokens": 3}), SamplingError),
        (lambda e: e.submit(PROMPTS[0], on_token=[]), SamplingError),
        (lambda e: e.submit(5), octavo.TokenError),
        (lambda e: e.submit(None), octavo.TokenError),
        (lambda e: e.submit("text"), octavo.TokenError),
        (lambda e: e.generate(5), octavo.TokenError),
        (lambda e: e.generate("text"), octavo.TokenError),
        (lambda e: e.generate([1, 2]), octavo.TokenError),
        (lambda e: e.generate(PROMPTS[:1], 5), SamplingError),
        (lambda e: e.generate(PROMPTS[:1], "x"), SamplingError),
        (lambda e: e.cancel(5), octavo.StepError),
    ],
)
def test_refuses_arguments_of_other_types(engine, call, error):
    """What is no prompt, no parameters and no request is refused by a typed error."""
    with pytest.raises(error):
        call(engine)
    assert not engine.step()


def test_refuses_a_request_of_another_engine(model, engine):
    """An engine cancels its own requests only."""
    with Engine(model, plan_for(model)) as other:
        request = other.submit(PROMPTS[0], greedy())
        with pytest.raises(octavo.StepError, match="another engine"):
            engine.cancel(request)
        assert not request.done


def test_closed_engine_takes_no_work(model):
    """After close every call that would run the model is refused; what came before can be read."""
    engine = Engine(model, plan_for(model))
    request = engine.submit(PROMPTS[0], greedy())
    engine.close()
    engine.close()

    assert "cancelled" == request.finish_reason
    for call in (engine.step, engine.run, lambda: engine.submit([1]), lambda: engine.generate([])):
        with pytest.raises(octavo.StepError, match="the engine is closed"):
            call()
    engine.cancel(request)
    assert 1 == engine.stats.finished


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": 5}, octavo.UnsupportedModel),
        ({"plan": None}, octavo.PlanError),
        ({"plan": "1GiB"}, octavo.PlanError),
        ({"tokenizer": "gpt2"}, octavo.UnsupportedModel),
        ({"max_sequences": "2"}, octavo.LengthError),
        ({"max_step_tokens": None}, octavo.LengthError),
    ],
)
def test_refuses_to_be_made_of_other_things(model, changes, error):
    """A model, plan or tokenizer that is none is refused by a typed error."""
    arguments = {"model": model, "plan": plan_for(model)} | changes
    with pytest.raises(error):
        Engine(**arguments)


@pytest.mark.parametrize(
    ("tokens", "new", "error"),
    [
        ([], 8, octavo.LengthError),
        ([1, 61], 8, octavo.TokenError),
        ([-1], 8, octavo.TokenError),
        (["a"], 8, octavo.TokenError),
        ([1] * 64, 8, octavo.CapacityError),
        ([1] * 65, 1, octavo.CapacityError),
    ],
)
def test_refuses_prompts_at_submit(engine, tokens, new, error):
    """A prompt that cannot be served is refused when it is submitted."""
    with pytest.raises(error):
        engine.submit(tokens, greedy(new))
    assert not engine.step()


def test_refuses_what_never_fits(model):
    """A request that needs more pages than there are is refused, with both numbers."""
    with Engine(model, plan_for(model, pages=5)) as engine:
        with pytest.raises(octavo.NeverFits) as caught:
            engine.submit([1] * 20, greedy(1))
        assert (6, 5) == (caught.value.need, caught.value.total)
        assert 20 == len(engine.generate([[1] * 12], greedy(8))[0].token_ids) + 12


def test_refuses_longer_than_planned(model):
    """A request beyond the max_length that was planned for is refused."""
    with (
        Engine(model, plan_for(model, max_length=20)) as engine,
        pytest.raises(octavo.CapacityError, match="max_length"),
    ):
        engine.submit([1] * 20, greedy(1))


def test_says_when_foreign_sequences_hold_the_pages(model):
    """A step that cannot start because others hold the pages raises and does not spin."""
    with Engine(model, plan_for(model, pages=10)) as engine:
        foreign = engine.cache.admit([1] * 30)
        step = engine.cache.extend(foreign, 30)
        engine.cache.commit(step)
        request = engine.submit(PROMPTS[2], greedy())
        with pytest.raises(octavo.OutOfPages):
            engine.step()
        engine.cache.release(foreign)
        engine.run()

        assert 8 == len(request.output)


def test_refuses_stop_texts_without_tokenizer(engine):
    """Stop texts can only be found with a tokenizer."""
    with pytest.raises(SamplingError, match="tokenizer"):
        engine.submit(PROMPTS[0], greedy(stop="END"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, of its compiler
def test_refuses_models_that_were_compiled(model):
    """Whoever compiles a model gives the engine the one before."""
    with pytest.raises(octavo.UnsupportedModel, match=r"torch\.compile"):
        Engine(torch.compile(model), plan_for(model))


def test_refuses_plan_for_another_model(model):
    """The plan must be for the model's layers and its dtype, and have bytes."""
    other = octavo.ModelSpec("other", (octavo.Attention(2, 8, 8),) * 3)
    with pytest.raises(octavo.PlanError, match="other layers"):
        Engine(model, octavo.plan(other, "1MiB", dtype="fp64"))
    spec = octavo.ModelSpec.from_config(model.config)
    with pytest.raises(octavo.PlanError, match="float64"):
        Engine(model, octavo.plan(spec, "1MiB", dtype="bf16"))
    with pytest.raises(octavo.PlanError, match="octavo.plan"):
        Engine(model, octavo.Plan.from_pages(8, 4))


@pytest.mark.parametrize(("kind", "shape"), [("DeepseekV4", {})])
def test_refuses_models_it_cannot_run(model, kind, shape):
    """Such are refused up front, before their weights are looked at."""

    class Stand:
        config = getattr(transformers, f"{kind}Config")(**shape)

    with pytest.raises((octavo.UnknownArchitecture, octavo.UnsupportedModel)):
        Engine(Stand(), plan_for(model))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: transformers.LlamaModel(transformers.LlamaConfig(**SHAPE)), "no output layer"),
        (
            lambda: transformers.CsmDepthDecoderForCausalLM(
                transformers.CsmDepthDecoderConfig(**SHAPE, backbone_hidden_size=32)
            ),
            "codebooks",
        ),
    ],
)
def test_refuses_what_its_steps_could_not_run(make, why):
    """Such are refused when the engine is made, not in its first step."""
    refused = make().double()
    with pytest.raises(octavo.UnsupportedModel, match=why):
        Engine(refused, plan_for(refused))


def test_refuses_positions_that_depend_on_others(model):
    """Position codes that change with the longest row are refused beyond their first range."""
    shape = SHAPE | {
        "rope_parameters": {
            "rope_type": "dynamic",
            "factor": 2.0,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 32,
        }
    }
    stretched = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).double()
    with pytest.raises(octavo.UnsupportedModel, match="max_length=32"):
        Engine(stretched, plan_for(stretched))
    with Engine(stretched, plan_for(stretched, max_length=32)) as engine:
        assert 2 == len(engine.generate([[1, 2]], greedy(2))[0].token_ids)


def test_model_outside_its_engine(model, engine):
    """The model cannot be run on its own while an engine has it, and can after close."""
    with pytest.raises(octavo.StepError, match="close"):
        model(torch.tensor([[1, 2]]), use_cache=False)
    engine.close()

    assert model(torch.tensor([[1, 2]])).logits.isfinite().all()


def test_two_engines_of_one_model(model, alone):
    """Engines of one model may take turns; closing one does not spoil the other."""
    with Engine(model, plan_for(model)) as first:
        with Engine(model, plan_for(model)) as second:
            assert alone[0] == second.generate([PROMPTS[0]], greedy())[0].token_ids
        assert alone[1] == first.generate([PROMPTS[1]], greedy())[0].token_ids
    assert "sdpa" == model.config._attn_implementation


def test_an_engine_that_is_lost_gives_its_model_back(model):
    """What nobody closed is collected with its requests, and the model has its own attention."""
    layers = [vars(module).copy() for module in model.modules()]
    engine = Engine(model, plan_for(model))
    request = engine.submit(PROMPTS[0], greedy())
    engine.step()
    lost = weakref.ref(engine)
    del engine, request
    gc.collect()

    assert lost() is None
    assert "sdpa" == model.config._attn_implementation
    assert layers == [vars(module) for module in model.modules()]


def test_a_lost_engine_leaves_a_model_to_the_one_that_runs_it(model, alone):
    """An engine that is collected amid another's step takes nothing from it."""
    lost = [Engine(model, plan_for(model))]
    lost[0].generate([PROMPTS[1]], greedy())

    def lose(request, token):
        lost.clear()
        gc.collect()

    with Engine(model, plan_for(model)) as engine:
        request = engine.submit(PROMPTS[0], greedy(), on_token=lose)
        engine.run()
        assert alone[0] == request.output
        assert "octavo" == model.config._attn_implementation
    assert "octavo" != model.config._attn_implementation


def test_refuses_a_model_that_bypasses_the_pages(model, engine, monkeypatch):
    """A layer that does not attend through octavo makes the step fail, not the output wrong."""
    request = engine.submit(PROMPTS[0], greedy())
    attention = model.model.layers[0].self_attn
    with monkeypatch.context() as patch:
        patch.setattr(attention, "forward", lambda hidden_states, **_: (hidden_states, None))
        with pytest.raises(octavo.UnsupportedModel, match="1 of 2 layers"):
            engine.step()
    engine.cancel(request)

    assert conserved(engine)


def test_import_is_light():
    """Importing the package itself needs neither torch nor transformers."""
    import subprocess
    import sys

    code = "import sys, octavo.engine; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("verb", "stride"), [("schedule", 97), ("_compute", 997), ("_book", 61), ("_finish", 61)]
)
def test_after_any_interrupt_a_reset_engine_is_empty_and_right(model, alone, verb, stride):
    """At many lines of the scheduler, the cache and what is booked."""
    source = str(Path(octavo.__file__).parent)
    count, more = 3, True
    with Engine(model, plan_for(model, pages=12)) as engine:
        while more:
            left = [count]
            requests = [engine.submit(prompt, greedy()) for prompt in PROMPTS]

            def line(frame, event, _arg, left=left):
                left[0] -= event == "line"
                if left[0] == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return line

            def call(frame, _event, _arg, line=line, left=left):
                code, back = frame.f_code, frame
                while back is not None and back.f_code.co_name != verb:
                    back = back.f_back
                mine = code.co_filename.startswith(source) and code.co_name != "__del__"
                return line if mine and back is not None and left[0] > 0 else None

            before = sys.gettrace()
            try:
                sys.settrace(call)
                engine.run()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            more = left[0] <= 0
            count += stride
            engine.reset()

            assert all(request.done for request in requests)
            assert conserved(engine)
        assert alone == [done.token_ids for done in engine.generate(PROMPTS, greedy())]
        assert count > 150
