"""What is simulated: a plan, an eviction policy, how many replicas."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from octavo.cache.cache import Cache
from octavo.cache.policies import find_policy
from octavo.checks import check_int
from octavo.planner import pools
from octavo.planner.request import Plan
from octavo.simulation.routers import find_router

Progress = Callable[[int, int], None]
"""Called with how many requests of how many are done."""


@dataclass(frozen=True)
class Setting:
    """One configuration to run a trace on.

    Attributes:
        plan: of each replica.
        policy: which page is given up first: ``lru`` or ``slru``.
        replicas: how many caches share the requests.
        router: ``round-robin``, ``least-loaded`` or ``prefix``.
        label: its name among others of a sweep.
        max_length: longest sequence wanted; None: the model's own.
        model: name of the model, for whoever reads the result.
        own_page: pages added for the token of its own that a prompt of hash ids ends with.

    Raises:
        PlanError: unknown policy or router. LengthError: ``replicas`` below 1.
    """

    plan: Plan
    policy: str = "lru"
    replicas: int = 1
    router: str = "round-robin"
    label: str = ""
    max_length: int | None = None
    model: str = ""
    own_page: int = 0

    def __post_init__(self) -> None:
        find_policy(self.policy)
        find_router(self.router)
        check_int("replicas", self.replicas, 1)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence that fits into an empty replica."""
        return pools.max_length_for(self.plan, 1)

    @property
    def limit(self) -> int | None:
        """Tokens of the longest sequence allowed, whatever the pool holds; None: any."""
        if self.max_length is not None or self.plan.spec is None:
            return self.max_length or self.plan.max_length
        return self.plan.spec.max_length

    def too_long(self, length: int) -> bool:
        """Whether a sequence of ``length`` is not allowed, however large the pool is."""
        return self.limit is not None and length > self.limit

    def cache(self, lengths: Iterable[int], max_sequences: int) -> Cache:
        """An empty cache of one replica, with tables as wide as the longest length that it holds.

        Raises:
            PlanError: the plan cannot make a cache.
        """
        longest = max((n for n in lengths if n <= self.longest), default=1)
        return Cache(self.plan, max_sequences=max_sequences, max_length=longest, policy=self.policy)

    def to_dict(self) -> dict[str, Any]:
        """The configuration, as docs/simulate.md names it."""
        return {
            "label": self.label,
            "page_size": self.plan.page_size,
            "pages": self.plan.usable_pages,
            "page_bytes": self.plan.page_bytes,
            "pages_per_parent": {
                name: group.pages_per_parent for name, group in self.plan.groups.items()
            }
            if self.plan.packed
            else None,
            "own_page": self.own_page,
            "model": self.model or None,
            "dtype": None if self.plan.elements is None else self.plan.elements.kv.name,
            "max_length": self.limit,
            "weights": None if self.plan.memory is None else self.plan.memory.weights,
            "policy": self.policy,
            "replicas": self.replicas,
            "router": self.router,
        }
