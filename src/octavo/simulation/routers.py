"""Several caches that share the work: which of them a request goes to."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from octavo.cache.cache import Cache
from octavo.cache.prompt import Prompt
from octavo.errors import PlanError
from octavo.simulation.requests import Ints

_SLACK = 1.25


class Replica(Protocol):
    """What a router sees of a replica.

    Attributes:
        cache: its cache.
    """

    cache: Cache

    @property
    def load(self) -> int:
        """Tokens of work: with a time model those not computed yet, else all so far."""
        ...


class ReplicaRouter(Protocol):
    """Chooses a replica for a request."""

    def choose(self, replicas: Sequence[Replica], size: int, prompt: Callable[[], Ints]) -> int:
        """Number of the replica for a prompt of ``size`` tokens; ``prompt()`` are its ids."""
        ...


class RoundRobin:
    """One after the other. O(1)."""

    def __init__(self) -> None:
        self._turn = count()

    def choose(self, replicas: Sequence[Replica], size: int, prompt: Callable[[], Ints]) -> int:  # noqa: ARG002, all prompts are alike
        """The next one."""
        return next(self._turn) % len(replicas)


class LeastLoaded:
    """Where there is least work; of several the first. O(replicas)."""

    def choose(self, replicas: Sequence[Replica], size: int, prompt: Callable[[], Ints]) -> int:  # noqa: ARG002, all prompts are alike
        """The one with the least load."""
        return min(range(len(replicas)), key=lambda at: replicas[at].load)


class LongestPrefix:
    """Where most of the prompt is cached; of several the least loaded.

    Replicas with more than 1.25 times the average load, this prompt counted, are left out, lest all
    requests follow one popular prefix to one replica. O(replicas x prompt).
    """

    def choose(self, replicas: Sequence[Replica], size: int, prompt: Callable[[], Ints]) -> int:
        """The one with the longest hit among those that are not overloaded."""
        if len(replicas) == 1:
            return 0
        wanted = Prompt(prompt())
        most = _SLACK * (sum(each.load for each in replicas) / len(replicas) + size)
        fair = [at for at, each in enumerate(replicas) if each.load <= most]
        hits = {at: replicas[at].cache.peek(wanted).tokens for at in fair}
        return min(fair, key=lambda at: (-hits[at], replicas[at].load))


ROUTERS: dict[str, Callable[[], ReplicaRouter]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix": LongestPrefix,
}


def find_router(name: str) -> ReplicaRouter:
    """A new router of that name, which may count what it has done.

    Raises:
        PlanError: none has that name.
    """
    if name not in ROUTERS:
        raise PlanError("router", name, f"known routers are: {', '.join(ROUTERS)}")
    return ROUTERS[name]()
