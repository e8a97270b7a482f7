"""One model under every condition of the engine, each time to the tokens of its generate().

A case is a model, some prompts and what generate() answers. Every condition runs them all; its
answer is nothing, or what was seen instead. Knows no families.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transformers

import octavo
from octavo.engine import Draft, Engine, PromptLookup, SamplingParams
from octavo.engine.conditions import vocabulary_of
from octavo.engine.speculation.lookup import NGrams
from octavo.errors import UnsupportedModel

MEMORY = "64MiB"


@dataclass
class Case:
    """A model and what it is asked.

    Attributes:
        model: of transformers.
        asked: prompts, and the tensors of their media or source where they have some.
        reference: what generate() answers, as greedy tokens, to one of them.
        options: of `octavo.plan`, beside pages and memory.
        why: of each condition that is not for it, the reason.
        answer: what of a request is compared with generate().
    """

    model: Any
    asked: list[tuple[list[int], dict[str, torch.Tensor] | None]]
    reference: Callable[[list[int], dict[str, torch.Tensor] | None], list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    answer: Callable[[Any], list[Any]] = attrgetter("output")

    @cached_property
    def expected(self) -> list[list[Any]]:
        """What generate() answers to each."""
        return [self.reference(*each) for each in self.asked]

    @property
    def spec(self) -> octavo.ModelSpec:
        """Of the model."""
        return octavo.ModelSpec.from_config(self.model.config.to_dict())

    def engine(self, page_size: int = 16, draft: Any = None, **options: Any) -> Engine:
        """One on pages of so many tokens."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        made = {"page_size": page_size, "order": "head", "dtype": dtype, "state_dtype": dtype}
        made |= {"conv_dtype": dtype, "indexer_dtype": "fp32"} | self.options
        if draft is not None:
            made |= {"draft": octavo.ModelSpec.from_config(draft.config), "max_length": 100}
        return Engine(self.model, octavo.plan(self.spec, MEMORY, **made), **options)

    def submit(self, engine: Engine, at: int) -> Any:
        """Ask one."""
        ids, inputs = self.asked[at]
        return engine.submit(ids, SamplingParams(max_tokens=len(self.expected[at])), inputs=inputs)

    def together(self, engine: Engine) -> list[Any]:
        """Ask all at once, and wait for them."""
        requests = [self.submit(engine, at) for at in range(len(self.asked))]
        engine.run()
        return requests

    def check(self, requests: list[Any]) -> None:
        """Each has the tokens of generate()."""
        found = [self.answer(request) for request in requests]
        assert self.expected == found, f"{found}, not {self.expected}"

    def guess(self, known: list[int], count: int) -> list[int]:
        """What follows on tokens that are known, but for every third; none of other texts."""
        for (ids, _), answer in zip(self.asked, self.expected, strict=True):
            if [*ids, *answer][: len(known)] == known:
                right = [*ids, *answer][len(known) :][:count]
                places = enumerate(right, len(known))
                return [_wrong(token) if at % 3 == 0 else token for at, token in places]
        return []


def _wrong(token: int) -> int:
    """Another one, of any vocabulary."""
    return (token + 1) % 64


def alone(case: Case) -> None:
    """One by one, each in an engine of its own, whole."""
    for at in range(len(case.asked)):
        with case.engine() as engine:
            request = case.submit(engine, at)
            engine.run()
            found = case.answer(request)
            assert case.expected[at] == found, f"{found}, of prompt {at}"


def beside(case: Case, **options: Any) -> None:
    """All together, a prompt in chunks beside others that decode."""
    with case.engine(**{"max_step_tokens": 11} | options) as engine:
        case.check(case.together(engine))
        engine.cache.check()


def _beside(**options: Any) -> Callable[[Case], None]:
    return lambda case: beside(case, **options)


def found(case: Case) -> None:
    """After others, and after themselves: what was computed is found."""
    with case.engine(page_size=4) as engine:
        for _ in range(2):
            requests = []
            for at in range(len(case.asked)):
                requests.append(case.submit(engine, at))
                engine.run()
            case.check(requests)
        assert all(r.cached_tokens for r in requests if r.prompt_tokens > 4), "nothing was found"
        engine.cache.check()


def preempted(case: Case) -> None:
    """The last that runs gives its pages back after every step."""
    with case.engine(page_size=4, max_step_tokens=11) as engine:
        requests = [case.submit(engine, at) for at in range(len(case.asked))]
        scheduler = engine._core.scheduler
        for _ in range(300):
            if not engine.step():
                break
            if len(scheduler.running) > 1:
                scheduler._preempt_last()
        case.check(requests)
        assert engine.cache.stats().preemptions, "nobody was preempted"
        engine.cache.check()


def lookup(case: Case) -> None:
    """Guesses by prompt lookup, of which some are wrong."""

    def guess(ngrams: Any, count: int) -> list[int]:
        return case.guess(ngrams._tokens, count)

    with ExitStack() as stack:
        stack.enter_context(patch.object(NGrams, "guess", guess))
        _guessing(case, stack, None, PromptLookup(max_tokens=3))


def draft(case: Case) -> None:
    """Guesses of a draft model, of which some are wrong."""
    vocabulary = vocabulary_of(case.model)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).to(case.model.dtype).eval()
    with ExitStack() as stack:
        _guessing(case, stack, model, Draft(model, max_tokens=3))


def _knowing(case: Case) -> Callable[..., Any]:
    """Has a draft model answer what follows each token of a prompt or an answer, mostly."""
    follows = {}
    for (ids, _), answer in zip(case.asked, case.expected, strict=True):
        text = [*ids, *answer]
        for at in range(1, len(text)):
            guess = _wrong(text[at]) if at % 3 == 0 else text[at]
            follows.setdefault((at - 1, text[at - 1]), guess)

    def hook(_model: Any, _args: Any, given: dict[str, Any], found: Any) -> Any:
        where = zip(given["position_ids"][0].tolist(), given["input_ids"][0].tolist(), strict=True)
        places = list(where)
        for row, at in enumerate(given["logits_to_keep"].tolist()):
            if places[at] in follows:
                found.logits[0, row, follows[places[at]]] = 1e4
        return found

    return hook


def _guessing(case: Case, stack: ExitStack, model: Any, way: Any) -> None:
    clock = "octavo.engine.speculation.speculation.perf_counter"
    stack.enter_context(patch(clock, lambda: 0.0))  # every guess is worth its time
    engine = case.engine(draft=model, page_size=4, max_step_tokens=20, speculation=way)
    with engine:
        if model is not None:
            model.register_forward_hook(_knowing(case), with_kwargs=True)
        case.check(case.together(engine))
        stats = engine.stats
        assert 0 < stats.accepted_tokens < stats.drafted_tokens, f"of guesses {stats}"
        engine.cache.check()


class Condition(NamedTuple):
    """How a case is run.

    Attributes:
        what: is run, in a few words.
        run: raises where an answer is another.
    """

    what: str
    run: Callable[[Case], None]


CONDITIONS = {
    "alone": Condition("one by one, each whole, in an engine of its own", alone),
    "beside others": Condition("all together, in chunks beside others that decode", beside),
    "after others": Condition("one by one, then all again, which find what was computed", found),
    "caching off": Condition("together; no later prompt finds anything", _beside(prefix=False)),
    "chunks of 1": Condition("together; one token per step", _beside(max_step_tokens=1)),
    "chunks of 5": Condition("together; five tokens per step", _beside(max_step_tokens=5)),
    "whole prompts": Condition("together; all prompts in one step", _beside(max_step_tokens=999)),
    "pages of 1": Condition("together, on pages of one token", _beside(page_size=1)),
    "pages of 256": Condition("together, on pages of 256 tokens", _beside(page_size=256)),
    "preempted": Condition("after every step the last that runs gives up its pages", preempted),
    "prompt lookup": Condition("guesses out of texts, of which some are wrong", lookup),
    "draft model": Condition("guesses of another model, of which some are wrong", draft),
}
"""By name. Pages are of 16 tokens or 4 where nothing else is said, and chunks of at most 11."""


def refusals(case: Case) -> dict[str, str]:
    """The conditions that a case does not meet, each with what was seen; none: it meets all.

    Raises:
        UnsupportedModel: the engine refuses the model under any condition.
        AssertionError: generate() answers all prompts alike, which proves nothing.
    """
    case.engine().close()
    assert len(set(map(tuple, case.expected))) > 1, f"all are answered {case.expected[0]}"
    seen = {}
    for name, condition in CONDITIONS.items():
        if name in case.why:
            seen[name] = case.why[name]
            continue
        try:
            condition.run(case)
        except UnsupportedModel as error:
            seen[name] = str(error).partition(": ")[2]
        except Exception as error:  # noqa: BLE001, as whatever was seen is told
            seen[name] = f"{type(error).__name__}: {error}"
    return seen
