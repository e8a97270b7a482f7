"""Rules at random, seeded: the state machine's long run, without Hypothesis."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.testing.drawing import Chance
from octavo.testing.rules import RULES
from octavo.testing.shapes import SHAPES, Shape
from octavo.testing.world import World

_NAMES = [name for name, rule in RULES.items() for _ in range(rule.weight)]
LIFETIME = 500
"""Rules after which a world is ended, everything in it released, and another one begun."""


@dataclass
class Report:
    """What a stress run did.

    Attributes:
        rules: how often each rule ran.
        counts: verbs that succeeded, errors by name, steps of batches and of lists, what they did.
        digest: SHA-256 over every result and array: equal for equal seeds in every process.
    """

    rules: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    digest: str = ""


def stress(
    rules: int,
    seed: int,
    shapes: Sequence[Shape] = SHAPES,
    *,
    world_type: type[World] = World,
) -> Report:
    """Run ``rules`` rules, spread over worlds of all ``shapes``, checking all laws after each.

    Args:
        world_type: the World to drive; its `make_cache` makes the cache under test.

    Raises:
        AssertionError: a law does not hold; the message names seed, shape, world and rule number.

    Cost: about a thousand rules per second.
    """
    report, digest, left, number = Report(), hashlib.sha256(), rules, 0
    while left:
        share = -(-left // max(1, len(shapes) - number % len(shapes)))
        count = min(LIFETIME, share)
        world = run_world(count, seed, number, shapes[number % len(shapes)], report, world_type)
        digest.update(world.digest.encode())
        left, number = left - count, number + 1
    report.digest = digest.hexdigest()
    return report


def run_world(
    rules: int,
    seed: int,
    number: int,
    shape: Shape,
    report: Report,
    world_type: type[World] = World,
) -> World:
    """One world from beginning to end: what a failure names is run again by this alone."""
    world, chance = world_type(shape), Chance(f"{seed}/{number}")
    for at in range(rules):
        name = choose(world, chance)
        try:
            RULES[name].act(world, chance)
            world.check()
        except Exception as error:
            where = f"seed {seed}, world {number} ({shape}), rule {at} ({name})"
            raise AssertionError(f"{where}: {error!r}") from error
        report.rules[name] += 1
    try:
        world.finish()
    except Exception as error:
        raise AssertionError(f"seed {seed}, world {number} ({shape}), end: {error!r}") from error
    evicted = world.cache.stats().evicted
    report.counts.update(world.counts)
    report.counts["evicted"] += evicted
    return world


def choose(world: World, chance: Chance) -> str:
    """The next rule, by weight, of those the world allows."""
    while True:
        name = _NAMES[chance.integer(0, len(_NAMES) - 1)]
        if RULES[name].needs(world):
            return name
