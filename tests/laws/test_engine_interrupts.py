"""Ctrl-C anywhere in the steps of an engine: no request, no token and no page is lost.

Requests guess tokens, fork, and take each other's pages.
"""

import ast
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, HostMemory, PromptLookup, SamplingParams

HOME = str(Path(octavo.__file__).parent)
CORE = str(Path(HOME, "core"))  # compiled where a compiler is, then without lines
SHAPE = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
PROMPTS = ([5, 6, 7, 8] * 4, list(range(1, 20)), [9] * 11)
EVERY = 97
"""Of so many lines one is interrupted."""


class Lines:
    """Octavo's lines as they are reached, and a KeyboardInterrupt at the last time of one."""

    def __init__(self, wanted=None, times=0):
        self.wanted, self.times, self.seen = wanted, times, Counter()

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_raised):
        sys.settrace(self.before)

    def enter(self, frame, _event, _argument):
        """Follow octavo's functions alone, but for those of what is collected meanwhile."""
        code = frame.f_code
        mine = code.co_filename.startswith(HOME) and not code.co_filename.startswith(CORE)
        return self.line if mine and code.co_name != "__del__" else None

    def line(self, frame, event, _argument):
        """One line."""
        at = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and frame.f_lineno not in sealed(at[0]):
            self.seen[at] += 1
            if at == self.wanted and self.seen[at] == self.times:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.line


@cache
def sealed(file):
    """Lines at the end of a try that no interrupt reaches, which comes at calls and in loops."""
    found = set()
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        for each in getattr(node, "finalbody", ()):
            if not any(isinstance(part, ast.Call | ast.For | ast.While) for part in ast.walk(each)):
                found |= set(range(each.lineno, each.end_lineno + 1))
    return found


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


class Served:
    """An engine of few pages, and requests that have been submitted to it.

    Attributes:
        heard: how often a listener was told a token, by request and place.
    """

    def __init__(self, model):
        spec = octavo.ModelSpec.from_config(model.config)
        token = sum(layer.elements_per_token for layer in spec.layers) * 8
        plan = octavo.plan(spec, 12 * 4 * token, page_size=4, dtype="fp64", order="head")
        guesses = PromptLookup(max_tokens=3, min_match=1)
        host = HostMemory("1MiB", copy_rate=1e15, prefill_rate=1e-3)  # copying always pays
        options = {"speculation": guesses, "max_step_tokens": 16, "watermark": 0.0, "host": host}
        self.engine = Engine(model, plan, **options)
        self.heard = Counter()
        several = SamplingParams(max_tokens=6, temperature=1.0, seed=3, n=2)
        self.requests = [
            sample
            for priority, prompt in enumerate(PROMPTS)
            for params in (SamplingParams(max_tokens=8), several)[: 1 + priority % 2]
            for sample in self._submit(prompt, params, priority).samples
        ]

    def _submit(self, prompt, params, priority):
        return self.engine.submit(prompt, params, priority=priority, on_token=self.hear)

    def hear(self, request, token):
        """Note a token that is told."""
        self.heard[request, token] += 1

    def told(self):
        """What listeners should have heard."""
        return Counter((request, token) for request in self.requests for token in request.output)

    def outputs(self):
        """The tokens of each request."""
        return [request.output for request in self.requests]


def test_nothing_is_lost_to_an_interrupt(model, monkeypatch):
    """Every request gets its tokens, and all pages are back; the model is its own.

    Listeners are told each token once, but for one that was being told when it came.
    """
    monkeypatch.setattr("octavo.engine.speculation.worth.Costs.price", 0.0)  # guesses always pay
    served = Served(model)
    with served.engine, Lines() as lines:
        served.engine.run()
    right, stats = served.outputs(), served.engine.stats
    assert served.engine.cache.stats().preemptions > 0
    assert stats.accepted_tokens > 0

    interrupted = 0
    for at in [*lines.seen][::EVERY]:
        served = Served(model)
        with served.engine as engine:
            try:
                with Lines(at, lines.seen[at]):
                    engine.run()
            except KeyboardInterrupt:
                interrupted += 1
            engine.run()
            assert right == served.outputs(), at
            assert not served.heard - served.told(), at
            assert (served.told() - served.heard).total() <= 1, at
            engine.cache.check()
            assert (0, 0) == (engine.cache.stats().live, engine.cache.stats().sequences), at
        assert "sdpa" == model.config._attn_implementation, at
    assert interrupted > len(lines.seen) // EVERY // 2
