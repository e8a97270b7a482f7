"""The simulator predicts the engine to the step: both run the same requests on equal caches.

The engine runs tiny random models in float64, and its tokens are those of transformers' generate(),
whoever waited and whoever was preempted; the simulator is told how long the answers were.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo.engine import Engine, HostMemory, SamplingParams
from octavo.scheduling import Scheduler
from octavo.simulation import Setting, TimeModel, Trace, TraceRequest, serve

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
BOTH = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "full": ("LlamaForCausalLM", "LlamaConfig", {}),
    "window": ("MistralForCausalLM", "MistralConfig", {"sliding_window": 9}),
    "both": ("Gemma3ForCausalLM", "Gemma3TextConfig", BOTH),
}
PAGE = 4
A_SECOND = TimeModel(step_seconds=1.0, prefill_rate=1e300, decode_rate=1e300)
COPIED = HostMemory("64MiB", copy_rate=1e15, prefill_rate=1e-3)
FREE = {"host_memory": 2**20, "prefill_rate": 1e22, "copy_rate": 1e300}
LIMITS = {"max_step_tokens": 20, "max_sequences": 6}
SETTINGS = {
    "room for all": {},
    "scarce": {"tokens": 84},
    "no watermark, all at once": {"tokens": 84, "watermark": 0.0, "at_once": True},
    "much is left": {"tokens": 84, "watermark": 0.3},
    "no preemption, all at once": {"tokens": 84, "preemption": False, "at_once": True},
    "slru": {"tokens": 100, "policy": "slru"},
    "short steps": {"tokens": 140, "max_step_tokens": 6},
    "long steps, all at once": {"tokens": 84, "max_step_tokens": 512, "at_once": True},
    "copies, all at once": {"tokens": 84, "at_once": True} | FREE,
    "room for some copies": {"tokens": 84, "at_once": True} | FREE | {"host_memory": 20_000},
    # of full pages, whose tokens have 512 bytes, two copies take a little less than computing
    "copies that hardly pay": {"tokens": 84, "at_once": True} | FREE | {"copy_rate": 1.05e25},
}
COPYING = ("copies, all at once", "room for some copies")
PREEMPTING = ("scarce", "no watermark, all at once", "slru", "long steps, all at once", *COPYING)
PREEMPTING += ("copies that hardly pay",)


def _requests():
    """(steps before it arrives, prompt, tokens of the answer), most of them below one prompt.

    The last is longer than a scarce pool holds, but for the windows alone.
    """
    chance = np.random.default_rng(3)
    shared = chance.integers(2, 97, 24)
    for number in range(14):
        own = chance.integers(2, 97, int(chance.integers(1, 36)))
        prompt = own if number % 4 == 0 else np.append(shared[: 8 * (number % 4)], own)
        yield number // 2, prompt.astype(np.int32), int(chance.integers(1, 16))
    yield 8, chance.integers(2, 97, 130, dtype=np.int32), 5


REQUESTS = list(_requests())
LONGEST = max(len(prompt) + new for _, prompt, new in REQUESTS[:-1])


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """A tiny random model, and its greedy answers alone."""
    kind, config, more = MODELS[request.param]
    torch.manual_seed(0)
    shape = getattr(transformers, config)(**SHAPE, **more)
    made = getattr(transformers, kind)(shape).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return made, [_alone(made, prompt, new) for _, prompt, new in REQUESTS]


def _alone(model, prompt, new):
    """What generate() makes of one prompt."""
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    with torch.no_grad():
        found = model.generate(ids, max_new_tokens=new, do_sample=False)
    return found[0, len(prompt) :].tolist()


def _plan(model, tokens=2000):
    """Pages for about so many tokens, of sequences that are as long as the longest but one."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    options = {"page_size": PAGE, "dtype": "fp64", "max_step_tokens": 1}
    memory = octavo.memory_for(spec, sequences=1, length=LONGEST, **options)
    longer = 3 if model.config.model_type == "mistral" else 1  # windows hold little of any length
    return octavo.plan(spec, longer * memory * tokens // LONGEST, order="head", **options)


@pytest.fixture
def turns(monkeypatch):
    """Every turn of a scheduler: who computes how much, who came in with what, who lost all."""
    made, schedule = [], Scheduler.schedule

    def noted(self, *drafts):
        before = list(self.running)
        turn = schedule(self, *drafts)
        if turn is not None:
            made.append(
                (
                    list(zip(turn.requests, turn.step.counts.tolist(), strict=True)),
                    [(each, each.sequence.cached) for each in turn.admitted],
                    [each for each in before if each in self.waiting],
                )
            )
        return turn

    monkeypatch.setattr(Scheduler, "schedule", noted)
    return made


def _by_number(turns, number):
    """The same with numbers in place of requests; forgotten for the next run."""
    named = [
        (
            [(number(each), new) for each, new in rows],
            [(number(each), cached) for each, cached in admitted],
            [number(each) for each in lost],
        )
        for rows, admitted, lost in turns
    ]
    turns.clear()
    return named


def _run_engine(model, plan, options, *, at_once):
    """The requests that were not refused and, of each, the step it ended in; the totals."""
    options, host = dict(options), None
    if "host_memory" in options:
        host = HostMemory(
            *(options.pop(name) for name in ("host_memory", "copy_rate", "prefill_rate"))
        )
    with Engine(model, plan, host=host, **options) as engine:
        found, ended, coming = [], {}, list(REQUESTS)
        while coming or not all(request.done for request in found):
            while coming and (at_once or coming[0][0] <= engine.stats.steps):
                _, prompt, new = coming.pop(0)
                try:
                    found.append(engine.submit(prompt, SamplingParams(max_tokens=new)))
                except octavo.NeverFits:
                    assert len(prompt) == 130
            engine.step()
            for number, request in enumerate(found):
                if request.done:
                    ended.setdefault(number, engine.stats.steps)
        engine.cache.check()
        return found, ended, engine.cache.stats(), engine.stats.restored_tokens


def _simulate(plan, options, answers, *, at_once):
    """The same requests, in steps of a second."""
    arrivals = [0 if at_once or not steps else steps - 0.5 for steps, _, _ in REQUESTS]
    requests = [
        TraceRequest(number, at, len(prompt), new, tokens=prompt, output=np.int32(answer))
        for number, (at, (_, prompt, new), answer) in enumerate(
            zip(arrivals, REQUESTS, answers, strict=True)
        )
    ]
    policy, options = options.get("policy", "lru"), dict(options)
    options.pop("policy", None)
    trace = Trace("same", "log", requests)
    return serve(trace, Setting(plan, policy), replace(A_SECOND, **options))


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_simulator_predicts_the_engine(model, turns, setting):
    """Who is admitted when with what, who computes how much in each step, who is preempted, ends.

    And whatever happened to a request, its tokens are those that it gets alone.
    """
    model, alone = model
    options = LIMITS | SETTINGS[setting]
    plan, at_once = _plan(model, options.pop("tokens", 2000)), options.pop("at_once", False)
    found, ended, stats, restored = _run_engine(model, plan, options, at_once=at_once)
    engine = _by_number(turns, found.index)
    run = _simulate(plan, options, alone, at_once=at_once)
    simulated = _by_number(turns, lambda job: job.request.number)

    assert alone[: len(found)] == [request.output for request in found]
    assert engine == simulated
    assert ended == {job.request.number: job.finished for job in run.jobs}
    whole = run.whole
    assert (restored, stats.preemptions, stats.cached_tokens, stats.evicted, stats.peak_live) == (
        whole.restored_tokens,
        whole.preemptions,
        whole.cached_tokens,
        sum(whole.evicted.values()),
        whole.peak_live,
    )
    assert len(REQUESTS) - len(found) == whole.refused
    full = "full" in plan.groups  # of windows alone, whoever has room once has room for good
    assert (stats.preemptions > 0) == (full and setting in PREEMPTING)
    if [*plan.groups] == ["full"]:  # with windows beside, all that is lost is found
        assert (restored > 0) == (setting in COPYING) or setting == "copies that hardly pay"


@pytest.mark.parametrize("host", [None, COPIED])
@pytest.mark.parametrize(
    ("tokens", "prefix", "steps", "spared"),
    [(2000, True, 20, 0), (2000, False, 512, 0), (84, True, 20, 1), (84, False, 20, 1)],
)
def test_tokens_of_generate_preempted_at_every_step(
    model, monkeypatch, tokens, prefix, steps, spared, host
):
    """Before every step all lose their pages, in tiny pools all but the oldest, who must go on.

    What they lose is computed again, or copied back.
    """
    model, alone = model
    schedule, lost = Scheduler.schedule, 0

    def preempting(self, *drafts):
        nonlocal lost
        while len(self.running) > spared:
            self._preempt_last()
            lost += 1
        self._denied = None
        return schedule(self, *drafts)

    monkeypatch.setattr(Scheduler, "schedule", preempting)
    options = {"max_step_tokens": steps, "prefix": prefix, "host": host}
    with Engine(model, _plan(model, tokens), **options) as engine:
        each = [SamplingParams(max_tokens=new) for _, _, new in REQUESTS[:-1]]
        found = engine.generate([prompt for _, prompt, _ in REQUESTS[:-1]], each)

        assert alone[:-1] == [completion.token_ids for completion in found]
        assert lost > 20
        assert (host is not None) == (engine.stats.restored_tokens > 20)
        engine.cache.check()


def test_one_long_prompt_of_windows_in_a_pool_of_little_more(model):
    """A chunk holds more of windows than is kept: it is cut until it fits, and the prompt ends."""
    model, _ = model
    prompt = np.random.default_rng(5).integers(2, 97, 180).astype(np.int32)
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    options = {"page_size": PAGE, "dtype": "fp64", "max_step_tokens": 1}
    memory = octavo.memory_for(spec, sequences=1, length=188, **options)
    plan = octavo.plan(spec, memory, order="head", **options)
    with Engine(model, plan, max_step_tokens=2048) as engine:
        (found,) = engine.generate([prompt], SamplingParams(max_tokens=8))

    assert _alone(model, prompt, 8) == found.token_ids
