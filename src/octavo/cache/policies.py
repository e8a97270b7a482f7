"""Eviction policies: in which order pages nobody holds are given up.

Idle pages wait in *lanes*, each first in, first out; a page of a lower lane is always given up
before one of a higher lane. A policy chooses the lane of a page that becomes idle and may move the
oldest pages of a lane down. Lane 0 is the cold end: pages a sliding window left behind go there
whatever the policy. Policies know counts only; not pages, tokens or tables.
"""

from typing import ClassVar, Protocol, runtime_checkable

from octavo.checks import check_int
from octavo.errors import PlanError

__all__ = ["LRU", "SLRU", "Policy", "find_policy"]


@runtime_checkable
class Policy(Protocol):
    """What a policy answers; each question costs O(1)."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def lanes(self) -> int:
        """How many lanes it uses above the cold one; they are numbered 1..lanes."""
        ...

    def lane(self, *, reused: bool) -> int:
        """Lane of a page that becomes idle; ``reused``: it was hit since it was published."""
        ...

    def excess(self, lane: int, waiting: int, usable: int) -> int:
        """How many of the oldest of ``waiting`` pages to move from ``lane`` to the one below."""
        ...


class LRU:
    """Least recently used: one lane."""

    name: ClassVar[str] = "lru"
    lanes: ClassVar[int] = 1

    def lane(self, *, reused: bool) -> int:  # noqa: ARG002, all pages are alike
        """Always lane 1."""
        return 1

    def excess(self, lane: int, waiting: int, usable: int) -> int:  # noqa: ARG002, no lane below
        """Nothing ever moves."""
        return 0


class SLRU:
    """Segmented LRU: pages hit at least once wait in a protected lane of bounded size.

    A page seen once is given up before any page that was reused, so that a flood of prompts that
    never come again cannot flush the shared prefixes.

    Source: Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994.

    Args:
        percent: most idle pages the protected lane holds, as a share of all usable pages.
    """

    name: ClassVar[str] = "slru"
    lanes: ClassVar[int] = 2

    def __init__(self, percent: int = 20) -> None:
        self.percent = check_int("percent", percent, 0, 100)

    def lane(self, *, reused: bool) -> int:
        """Lane 2 for a reused page, lane 1 for any other."""
        return 2 if reused else 1

    def excess(self, lane: int, waiting: int, usable: int) -> int:
        """What the protected lane holds beyond its share."""
        return max(0, waiting - usable * self.percent // 100) if lane == 2 else 0


POLICIES: dict[str, type[LRU] | type[SLRU]] = {"lru": LRU, "slru": SLRU}


def find_policy(policy: str | Policy) -> Policy:
    """The policy called ``policy``, or ``policy`` itself. O(1).

    Raises:
        PlanError: no policy has that name.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise PlanError("policy", policy, f"known policies are: {', '.join(POLICIES)}")
        return POLICIES[policy]()
    if isinstance(policy, type) or not isinstance(policy, Policy):
        raise PlanError(
            "policy", policy, "it must be a name or an object with name, lanes, lane and excess"
        )
    return policy
