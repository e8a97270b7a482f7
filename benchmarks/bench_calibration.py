"""Claim: after `octavo simulate --calibrate` the simulator tells the engine's runs of SmolLM2-135M:
steps, preemptions, hits and evictions exactly, and its time within 20 per cent.

First `octavo.engine.calibration.measure` times steps of the engine and `octavo.simulation.fit` fits
the model of time to them. Then three runs of other requests, all there from the start, are made by
the engine and by the simulator, which gets lengths and answers from the engine's run. Seconds are
those of the process on one thread in fp32, so that what else the machine does counts little; of
three equal runs the median counts. Before them an engine makes the run once, so that its memory has
been touched and its steps are recorded, as those of an engine that has served for a while.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import machine_line

import octavo
from octavo.checkpoints import loading
from octavo.engine import Engine, SamplingParams
from octavo.engine.calibration import measure
from octavo.simulation import Setting, TimeModel, Trace, TraceRequest, fit, serve

RUNS = 3  # of the engine, all the same; the median of their seconds counts
A_STEP = TimeModel(step_seconds=1.0, prefill_rate=1e300, decode_rate=1e300)
WITHIN = 0.2


class Case(NamedTuple):
    """Requests of one run, and what it runs on.

    Attributes:
        requests: how many.
        shared: tokens that all prompts begin with.
        own: least and most tokens of a prompt beyond these.
        answer: least and most tokens of an answer.
        tokens: of the pool.
        limits: max_step_tokens, max_sequences and the like.
        policy: which page is given up first.
    """

    requests: int
    shared: int
    own: tuple[int, int]
    answer: tuple[int, int]
    tokens: int
    limits: dict[str, Any]
    policy: str = "lru"


CASES = {
    "a shared prompt": Case(10, 128, (16, 64), (12, 24), 4096, {}),
    "a scarce pool": Case(10, 0, (48, 128), (24, 48), 512, {"watermark": 0.0}),
    "short steps": Case(
        12, 64, (16, 160), (8, 20), 768, {"max_step_tokens": 64, "max_sequences": 4}, "slru"
    ),
}


class Outcome(NamedTuple):
    """What a run did; of the simulator's what it tells."""

    steps: int
    preemptions: int
    cached_tokens: int
    evicted: int
    seconds: float


def prompts(case: Case) -> Iterator[tuple[Any, int]]:
    """Prompts and the lengths of their answers."""
    chance = np.random.default_rng(5)
    shared = chance.integers(0, 49_000, case.shared)
    for _ in range(case.requests):
        own = chance.integers(0, 49_000, int(chance.integers(*case.own)))
        yield np.append(shared, own).astype(np.int32), int(chance.integers(*case.answer))


def plan_for(loaded: Any, tokens: int) -> octavo.Plan:
    """A pool of so many tokens."""
    page = octavo.plan(loaded.spec, "64MiB", dtype=loaded.dtype, order="head")
    memory = (tokens // page.page_size + 1) * page.page_bytes
    return octavo.plan(loaded.spec, memory, dtype=loaded.dtype, order="head")


def run_engine(engine: Engine, case: Case) -> tuple[Outcome, Trace]:
    """A run of an engine that knows no prompts, and the trace of what it was asked and answered."""
    engine.reset()
    asked = list(prompts(case))
    steps, before = engine.stats.steps, engine.cache.stats()
    requests = [engine.submit(ids, SamplingParams(max_tokens=new)) for ids, new in asked]
    began = time.process_time()
    engine.run()
    seconds, stats = time.process_time() - began, engine.cache.stats()
    done = Outcome(
        engine.stats.steps - steps,
        stats.preemptions - before.preemptions,
        stats.cached_tokens - before.cached_tokens,
        stats.evicted - before.evicted,
        seconds,
    )
    traced = [
        TraceRequest(at, 0.0, ids.size, new, tokens=ids, output=np.array(r.output, np.int32))
        for at, ((ids, new), r) in enumerate(zip(asked, requests, strict=True))
    ]
    return done, Trace("recorded", "log", traced)


def simulate(trace: Trace, plan: octavo.Plan, case: Case, model: TimeModel) -> Outcome:
    """What the simulator tells of it."""
    setting = Setting(plan, case.policy)
    steps = serve(trace, setting, replace(A_STEP, **case.limits)).duration
    told = serve(trace, setting, replace(model, **case.limits))
    whole = told.whole
    evicted = sum(whole.evicted.values())
    return Outcome(round(steps), whole.preemptions, whole.cached_tokens, evicted, told.duration)


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    torch.set_num_threads(1)
    print(machine_line("numpy", "torch", "transformers", "octavo"))
    loaded = loading.load("smollm2-135m", "fp32")
    with Engine(loaded.model, plan_for(loaded, 4608)) as engine:
        began = time.process_time()
        found = fit(measure(engine, clock=time.process_time), TimeModel())
        spent = time.process_time() - began
    model = found.model
    print(
        f"calibrated by {found.steps} kinds of steps in {spent:.0f} s: "
        f"{1000 * model.step_seconds:.1f} ms, prompt tokens / {model.prefill_rate:.1f}, decoding "
        f"rows / {model.decode_rate:.1f}, context of prompts / {model.prefill_context_rate:.4g}, "
        f"of decoding rows / {model.decode_context_rate:.4g}; "
        f"{100 * found.mean_error:.1f} % off on average, {100 * found.worst_error:.1f} % at most\n"
    )
    print(f"{'run':<18}{'':<11}{'steps':>6}{'preempted':>11}{'hit':>7}{'evicted':>9}{'seconds':>9}")
    holds = True
    for name, case in CASES.items():
        plan = plan_for(loaded, case.tokens)
        with Engine(loaded.model, plan, policy=case.policy, **case.limits) as engine:
            first, *runs = [run_engine(engine, case) for _ in range(1 + RUNS)]
        holds = holds and first[0][:-1] == runs[0][0][:-1]
        done, trace = sorted(runs, key=lambda run: run[0].seconds)[RUNS // 2]
        holds = holds and all(other[:-1] == done[:-1] for other, _ in runs)
        told = simulate(trace, plan, case, model)
        for who, each in (("engine", done), ("simulator", told)):
            print(
                f"{name if who == 'engine' else '':<18}{who:<11}{each.steps:>6}"
                f"{each.preemptions:>11}{each.cached_tokens:>7}{each.evicted:>9}{each.seconds:>9.2f}"
            )
        off = told.seconds / done.seconds - 1
        print(f"{'':<18}time is off by {100 * off:+.1f} %", flush=True)
        holds = holds and done[:-1] == told[:-1] and abs(off) <= WITHIN
    print(f"\nall exact, and time within {100 * WITHIN:.0f} %: {'yes' if holds else 'no'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
