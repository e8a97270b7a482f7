"""The engine goes on, whatever is done to it: only what a failure concerns ends.

Requests come, fork, have priorities and deadlines, are cancelled, have listeners that raise and
tokens for which the model raises or gives NaN, and Ctrl-C comes in its midst; pools are tiny. Each
request ends, with the first tokens of what it gets alone.
"""

import random
import time
from contextlib import suppress

import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, HostMemory, SamplingParams

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
    "eos_token_id": None,
}
FATAL, NAN = 31, 30  # tokens of prompts for which the model raises, or is not finite
KINDS = {
    "full": (transformers.LlamaForCausalLM, transformers.LlamaConfig, {}),
    "window": (transformers.MistralForCausalLM, transformers.MistralConfig, {"sliding_window": 9}),
}

PAGES = {"llama": 23, "mistral": 11}  # little more than the longest request takes


class Fragile(torch.nn.Module):
    """A last layer's MLP that fails for some tokens, and where it is interrupted."""

    def __init__(self, inner, owner):
        super().__init__()
        self.inner, self.owner = inner, [owner]

    def forward(self, states):
        """As the inner one."""
        ids, interrupt = self.owner[0].ids, self.owner[0].interrupt
        if interrupt:
            self.owner[0].interrupt = False
            raise KeyboardInterrupt
        if FATAL in ids:
            raise ZeroDivisionError
        found = self.inner(states)
        return torch.where(ids[..., None] == NAN, torch.nan, found)


class Broken:
    """What the model is to do next."""

    ids, interrupt = torch.zeros(1), False


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    """A tiny random model in float64 that can fail, and what it does next."""
    kind, config, more = KINDS[request.param]
    torch.manual_seed(0)
    made, broken = kind(config(**SHAPE, **more)).double().eval(), Broken()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.4)
    made.model.layers[-1].mlp = Fragile(made.model.layers[-1].mlp, broken)
    made.model.embed_tokens.register_forward_pre_hook(
        lambda _, given: setattr(broken, "ids", given[0])
    )
    return made, broken


def _plan(model, pages):
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    token = sum(layer.elements_per_token for layer in spec.layers) * 8
    memory = (pages + 1) * 4 * token
    return octavo.plan(
        spec, memory, page_size=4, dtype="fp64", order="head", max_step_tokens=1, max_length=88
    )


def _params(tokens, n=1):
    """The likeliest tokens, of several samples too, but for those that make the model fail."""
    banned = [[FATAL], [NAN]]
    return SamplingParams(max_tokens=tokens, n=n, temperature=1e-9, bad_words_ids=banned)


def _alone(asked, engine):
    """What each prompt gets that nothing fails for."""
    return {
        prompt: engine.generate([list(prompt)], _params(24))[0].token_ids
        for prompt in asked
        if not {FATAL, NAN} & {*prompt}
    }


def _prompts(chance, count):
    """Prompts of which some begin alike, and of every eight two make the model fail."""
    for number in range(count):
        size = chance.randint(1, 40)
        common = [*range(1, 1 + chance.randint(0, 20))]
        prompt = common + [chance.randint(1, 20) for _ in range(size)]
        if number % 8 == 0:
            prompt[chance.randrange(len(prompt))] = FATAL
        if number % 8 == 4:
            prompt[-1] = NAN
        yield tuple(prompt)


def _listener(chance):
    """None, or one that raises at some token."""
    if chance.randint(0, 8):
        return None
    at = chance.randint(1, 6)

    def listen(request, _token):
        if len(request.output) == at:
            raise RuntimeError("no more of this")

    return listen


@pytest.mark.parametrize("host", [None, HostMemory("1MiB", copy_rate=1e15, prefill_rate=1e-3)])
def test_every_request_ends_as_it_should(model, host):
    """And the pages are conserved at every step, whether or not what is lost is copied back."""
    model, broken = model
    chance = random.Random(3)
    asked = [*_prompts(chance, 24)]
    with Engine(model, _plan(model, 200), prefix=False) as engine:
        alone = _alone(asked, engine)
    options = {"max_step_tokens": chance.choice([8, 64]), "max_sequences": chance.choice([4, 12])}
    requests = []
    with Engine(
        model, _plan(model, PAGES[model.config.model_type]), watermark=0.0, host=host, **options
    ) as engine:
        coming = list(asked)
        while coming or not all(each.done for each in requests):
            while coming and (not chance.randint(0, 2) or all(each.done for each in requests)):
                requests += engine.submit(
                    coming.pop(),
                    _params(24, n=chance.choice([1, 1, 1, 3])),
                    priority=chance.choice([0, 0, 1, -1]),
                    deadline=None if chance.randint(0, 9) else 0.0,
                    on_token=_listener(chance),
                ).samples
            if requests and not chance.randint(0, 15):
                engine.cancel(chance.choice(requests))
            broken.interrupt = not chance.randint(0, 20)
            _step(engine)
            engine.cache.check()
        stats = engine.cache.stats()
        assert (0, 0) == (stats.live, stats.sequences)
        assert stats.preemptions > 0
        assert (host is not None) == (engine.stats.restored_tokens > 0)

    reasons = {each.finish_reason for each in requests}
    assert {"length", "deadline", "cancelled"} == reasons
    for request in requests:
        prompt = tuple(request.prompt_token_ids.tolist())
        right = alone.get(prompt, [])
        assert right[: len(request.output)] == request.output
        assert request.finish_reason != "length" or right == request.output
        if prompt not in alone:
            assert not isinstance(request.error, RuntimeError)
    errors = {type(each.error) for each in requests}
    assert {ZeroDivisionError, octavo.UnsupportedModel, RuntimeError} <= errors


def _step(engine):
    """A step of a loop that outlasts what requests raise, as that of a thread of its own."""
    with suppress(KeyboardInterrupt):
        engine._drive(engine._core.serve)


def test_a_model_that_raises_ends_whom_it_raises_for(model):
    """In a thread of its own the engine finds the one, and the others get their tokens."""
    model, _ = model
    prompts = [[1, 2, 3], [4, FATAL, 5], list(range(6, 26)), [7]]
    with Engine(model, _plan(model, 100)) as engine:
        right = engine.generate([prompts[at] for at in (0, 2, 3)], _params(5))
        engine.start()
        requests = [engine.submit(prompt, _params(5)) for prompt in prompts]
        found = [requests[at].result(60).token_ids for at in (0, 2, 3)]
        with pytest.raises(ZeroDivisionError):
            requests[1].result(60)
        engine.stop()
        engine.cache.check()

    assert [each.token_ids for each in right] == found


def test_deadlines(model, monkeypatch):
    """A request ends with the tokens it has when its time is over, and its samples with it."""
    model, _ = model
    moment = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    with Engine(model, _plan(model, 100)) as engine:
        params = _params(30, n=2)
        late = engine.submit([1, 2, 3], params, deadline=2.5)
        rest = engine.submit([4, 5], _params(8))
        for _ in range(3):
            engine.step()
        moment = 102.5
        engine.run()

        assert ["deadline"] * 2 == [each.finish_reason for each in late.samples]
        assert [3, 3] == [len(each.output) for each in late.samples]
        assert ("length", 8) == (rest.finish_reason, len(rest.output))
        assert "deadline" == late.result().finish_reason
        assert 0 == engine.cache.stats().live


def test_priorities(model):
    """A later request of a higher priority goes first; what is malformed is refused."""
    model, _ = model
    with Engine(model, _plan(model, 100), max_sequences=1) as engine:
        ended = []
        params = _params(2)
        for priority in (0, 2, 1):
            engine.submit(
                [1 + priority],
                params,
                priority=priority,
                on_token=lambda request, _: ended.append(request.priority),
            )
        engine.run()
        assert [2, 2, 1, 1, 0, 0] == ended
        with pytest.raises(octavo.LengthError, match="priority is 'high'"):
            engine.submit([1], params, priority="high")
        with pytest.raises(octavo.PlanError, match="deadline is 'soon'"):
            engine.submit([1], params, deadline="soon")
        assert not engine.step()
