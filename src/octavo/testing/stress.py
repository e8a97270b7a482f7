"""Rules at random, seeded: the state machine's long run, without Hypothesis."""

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field

from octavo.testing.rules import RULES
from octavo.testing.world import SHAPES, Shape, World

_NAMES = [name for name, rule in RULES.items() for _ in range(rule.weight)]


class Chance:
    """A seeded source of choices."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Any int in ``low..high``."""
        return self._random.randint(low, high)


@dataclass
class Report:
    """What a stress run did.

    Attributes:
        rules: how often each rule ran.
        hits: prompt tokens found in the prefix cache.
        evicted: pages evicted.
        digest: SHA-256 over every statistic and page table seen: equal for equal seeds in every
            process.
    """

    rules: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    evicted: int = 0
    digest: str = ""


def stress(
    rules: int,
    seed: int,
    shapes: tuple[Shape, ...] = SHAPES,
    *,
    deep_every: int = 8,
    world_type: type[World] = World,
) -> Report:
    """Run ``rules`` rules, spread over worlds of all ``shapes``, checking all laws after each.

    Args:
        deep_every: of that many snapshots around verbs that raise, one is deep.
        world_type: the World to drive; its `make_cache` makes the cache under test.

    Raises:
        AssertionError: a law does not hold; the message names seed, shape and rule number.

    Cost: about two thousand rules a second.
    """
    report, digest = Report(), hashlib.sha256()
    for number, shape in enumerate(shapes):
        world = world_type(shape, deep_every=deep_every)
        for at in range(rules // len(shapes) + (number < rules % len(shapes))):
            name = _run_one(world, seed, number, at)
            report.rules[name] += 1
            digest.update(_seen(world))
        report.hits += world.cached_tokens
        report.evicted += world.cache.stats().evicted
    report.digest = digest.hexdigest()
    return report


def _run_one(world: World, seed: int, number: int, at: int) -> str:
    """One rule with its own seed, so that a failure can be told by its number."""
    chance = Chance(hash((seed, number, at)))
    name = _NAMES[chance.integer(0, len(_NAMES) - 1)]
    while not RULES[name].needs(world):
        name = _NAMES[chance.integer(0, len(_NAMES) - 1)]
    try:
        RULES[name].act(world, chance)
        world.check()
    except Exception as error:
        where = f"seed {seed}, {world.shape}, rule {at} ({name})"
        raise AssertionError(f"{where}: {error!r}") from error
    return name


def _seen(world: World) -> bytes:
    tables = [(pair.handle.id, pair.pages) for pair in world.live]
    return repr((tuple(world.cache.stats()), tables)).encode()
