"""How long the steps of an engine take, measured, so that a simulator can tell those of others.

Drives an engine through steps whose work is known: chunks of prompts of several lengths, at the
begin of a prompt and behind one that is cached, and rows that decode, few and many, with short and
long contexts.
"""

import time
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from octavo.checks import Ints
from octavo.engine.engine import Engine
from octavo.engine.recordings import FIRST, MOST_TOKENS
from octavo.engine.sampling import SamplingParams
from octavo.errors import PlanError
from octavo.simulation import MeasuredStep, StepWork

TIMES = 3
"""How often each kind of work is timed; the median counts."""
_CHUNKS, _ROWS, _CONTEXTS = (16, 64, 256, 512), (1, 4, 16, 64), (16, 128, 1024)
_MOST = 2048  # tokens of prompts that decode together: more would take minutes to compute
_IDS = 16  # token ids that every model has

Clock = Callable[[], float]
Chance = np.random.Generator


def measure(
    engine: Engine,
    *,
    max_step_tokens: int = 2048,
    clock: Clock = time.perf_counter,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> list[MeasuredStep]:
    """Time some steps of an engine; what its cache keeps may be evicted.

    Args:
        engine: with nothing to do, and stepped by nobody else.
        max_step_tokens: as the engine has it.
        clock: seconds, of any beginning.
        progress: called with how many kinds of work are done, and how many there are.

    Returns:
        The median step of each kind of work that its pool and the model's context have room for.

    Raises:
        PlanError: they have room for none.

    Cost: 12,000 tokens of prompts and some 130 steps; half a minute of a small model on a CPU.
    """
    chunks = [(n, past) for n in _CHUNKS for past in (0, n) if _fits(engine, 1, n + past, 1)]
    batches = list[tuple[int, int, int]]()
    for rows, length in product(_ROWS, _CONTEXTS):
        if rows * length <= _MOST and 2 * rows <= max_step_tokens:
            answer = FIRST + TIMES + 2 + rows * length // (max_step_tokens - rows)
            batches += [(rows, length, answer)] if _fits(engine, rows, length, answer) else []
    whole, found = len(chunks) + len(batches), list[MeasuredStep]()
    for done in range(whole):
        progress(done, whole)
        chance = np.random.default_rng(done)
        if done < len(chunks):
            steps = [*_prefill(engine, *chunks[done], chance, clock)]
        else:
            steps = [*_decode(engine, *batches[done - len(chunks)], chance, clock)]
        steps.sort(key=lambda step: step.seconds)
        found += [steps[len(steps) // 2]] if steps else []
    progress(whole, whole)
    if not found:
        raise PlanError("engine", engine, "its pool has no room for a step to measure")
    return found


def _fits(engine: Engine, rows: int, length: int, answer: int) -> bool:
    """Whether so many prompts and their answers have room at once."""
    limit, spec = length + answer, engine.cache.plan.spec
    longest = engine.cache.max_length
    if spec is not None and spec.max_length is not None:
        longest = min(longest, spec.max_length)
    if limit > longest or rows > engine.cache.max_sequences:
        return False
    prompts = [_tokens(np.random.default_rng(at), length) for at in range(rows)]
    return bool(engine.cache.fits([(prompt, limit) for prompt in prompts], reuse=False))


def _tokens(chance: Chance, count: int) -> Ints:
    return chance.integers(0, _IDS, count, dtype=np.int32)


def _prefill(
    engine: Engine, size: int, past: int, chance: Chance, clock: Clock
) -> Iterator[MeasuredStep]:
    """Steps that compute ``size`` tokens of a prompt behind ``past`` others."""
    before = _tokens(chance, past)
    if past:
        engine.generate([before], SamplingParams(max_tokens=1))
    warm = FIRST if size <= MOST_TOKENS else 0
    for at in range(warm + TIMES):
        prompt = np.append(before, _tokens(chance, size))
        request = engine.submit(prompt, SamplingParams(max_tokens=1))
        seconds = _time_step(engine, clock)
        new = prompt.size - request.cached_tokens
        if at >= warm and request.done and new > 1:  # else it took several steps
            context = new * request.cached_tokens + new * (new + 1) // 2
            yield MeasuredStep(StepWork(prefill=new, prefill_context=context), seconds)
        engine.run()


def _decode(
    engine: Engine, rows: int, length: int, answer: int, chance: Chance, clock: Clock
) -> Iterator[MeasuredStep]:
    """Steps of so many rows that decode, ``length`` tokens and a few more behind each."""
    params = SamplingParams(max_tokens=answer)
    requests = [engine.submit(_tokens(chance, length), params) for _ in range(rows)]
    while not all(request.output for request in requests):
        engine.step()
    for _ in range(FIRST):  # as those that follow are the many
        engine.step()
    for _ in range(TIMES):
        context = sum(length + len(request.output) for request in requests)
        before = engine.stats.computed_tokens
        seconds = _time_step(engine, clock)
        if engine.stats.computed_tokens - before == rows:  # nobody was preempted or ended
            yield MeasuredStep(StepWork(decode=rows, decode_context=context), seconds)
    for request in requests:
        engine.cancel(request)


def _time_step(engine: Engine, clock: Clock) -> float:
    began = clock()
    engine.step()
    return clock() - began
