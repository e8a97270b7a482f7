"""Never stuck: whatever the layers keep, and however tight the pool, every request ends."""

import random

import numpy as np
import pytest

import octavo
from octavo import Attention, Cache, ModelSpec, NeverFits, Plan, State
from octavo.scheduling import Scheduler

KINDS = {
    "full": lambda chance: Attention(1, 8, 8),
    "window": lambda chance: Attention(1, 8, 8, window=chance.randint(1, 20)),
    "sinks": lambda chance: Attention(
        1, 8, 8, window=chance.randint(1, 20), sink_tokens=chance.randint(1, 5)
    ),
    "chunk": lambda chance: Attention(1, 8, 8, chunk=chance.randint(2, 20)),
    "state": lambda chance: State(4),
}


class Wanted:
    """A request."""

    def __init__(self, chance, shared):
        size, common = chance.randint(1, 60), chance.randint(0, 60)
        own = [chance.randint(0, 3) for _ in range(size)]
        self.prompt = np.array(shared[: min(common, size)] + own[common:], np.int32)
        self.limit, self.sequence = size + chance.randint(0, 30), None


def _plan(chance, *, packed):
    groups = {name: KINDS[name](chance) for name in chance.sample([*KINDS], chance.randint(1, 3))}
    if list(groups) == ["state"]:
        groups["full"] = KINDS["full"](chance)
    size = chance.choice([1, 2, 4, 8])
    if packed:
        spec = ModelSpec("few", tuple(groups.values()) * chance.randint(1, 2))
        memory = chance.randint(8_000, 200_000)
        return octavo.plan(spec, memory, page_size=size, dtype="fp32", max_step_tokens=64)
    return Plan.from_pages(chance.randint(3, 41), size, groups)


def _cache(chance, plan, *, rollback):
    return Cache(
        plan,
        max_sequences=chance.randint(1, 6),
        max_length=200,
        rollback=rollback,
        prefix=chance.random() < 0.8,
        snapshots=chance.choice(["branch", "grid"]),
    )


def _run(chance, cache, scheduler):
    """Drive a world to its end; how many requests ended and how many could never fit."""
    shared = [chance.randint(0, 3) for _ in range(60)]
    coming = [Wanted(chance, shared) for _ in range(chance.randint(1, 12))]
    ended = never = steps = 0
    while coming or scheduler:
        while coming and (chance.random() < 0.5 or not scheduler):
            try:
                scheduler.add(coming.pop())
            except NeverFits:
                never += 1
        oldest = next(iter(scheduler.running), None)
        turn = scheduler.schedule()
        if turn is None:
            continue
        assert oldest is None or oldest in scheduler.running
        cache.commit(turn.step, np.array([chance.randint(0, 3) for _ in turn.requests], np.int32))
        for request in turn.requests:
            sequence = request.sequence
            if sequence.length == request.limit and sequence.computed >= request.limit - 1:
                scheduler.remove(request)
                ended += 1
        steps += 1
        assert steps < 3000
    return ended, never


@pytest.mark.parametrize("rollback", [0, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_every_request_ends(packed, rollback):
    """No OutOfPages, the oldest keeps its pages, and without preemption all others do too."""
    preempted = 0
    for seed in range(150):
        chance = random.Random(f"{packed}/{rollback}/{seed}")
        try:
            cache = _cache(chance, _plan(chance, packed=packed), rollback=rollback)
        except octavo.LengthError:  # not even the tables of one sequence
            continue
        preemption = chance.random() < 0.7
        scheduler = Scheduler(
            cache,
            chance.choice([1, 2, 5, 16, 64]),
            preemption=preemption,
            watermark=chance.choice([0, 0.01, 0.1]),
        )
        ended, _ = _run(chance, cache, scheduler)
        cache.check()
        stats = cache.stats()
        preempted += stats.preemptions

        assert (0, 0) == (stats.live, stats.sequences)
        assert preemption or packed or stats.preemptions == 0
        assert ended >= 0
    assert preempted or packed
