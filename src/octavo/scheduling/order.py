"""The one order of requests, waiting or running: who goes before whom, and until when they may.

A request of a higher priority goes before those of lower ones, but for those that came long before
it: each priority that it is higher is worth ``patience`` arrivals. Among equals it is first come,
first served. So the order of two requests never changes, and of one that waits it is known how many
later ones may go before it: at most ``patience`` for each priority that they are higher, and what
forks off those.
"""

from typing import Generic, NamedTuple, TypeVar

from octavo.checks import check_int, check_number
from octavo.errors import IdentityError, uncopied

H = TypeVar("H")
PATIENCE = 1024
"""Arrivals that a priority is worth, if nobody says how many."""
_HIGHEST = 2**31 - 1


class Place(NamedTuple):
    """Where a request stands; the least goes first.

    Attributes:
        turn: how many came before it, less ``patience`` for each priority.
        below: its priority, negative: of two in the same turn the higher goes first.
        fork: 0, or which one of all forks it is: they stand right behind what they came from.
    """

    turn: int
    below: int
    fork: int


class Order(Generic[H]):
    """The places and deadlines of requests, which must be hashable.

    Args:
        patience: arrivals that a priority is worth.

    Raises:
        LengthError: patience is below 1.
    """

    __reduce__ = uncopied("it is a part of one scheduler")

    def __init__(self, patience: int = PATIENCE) -> None:
        self._patience = check_int("patience", patience, 1)
        self._places = dict[H, Place]()
        self._deadlines = dict[H, float]()
        self._soonest = float("inf")  # no deadline is sooner
        self._came = self._forks = 0

    def __contains__(self, request: object) -> bool:
        """Whether a request has a place. O(1)."""
        return request in self._places

    def add(self, request: H, priority: int = 0, deadline: float | None = None) -> None:
        """Give a request its place. O(1).

        Raises:
            IdentityError: it has one. LengthError: the priority is no int of 32 bits.
            PlanError: the deadline is no number.
        """
        if request in self._places:
            raise IdentityError("request", request, "it was added before and has not ended")
        priority = check_int("priority", priority, -_HIGHEST, _HIGHEST)
        if deadline is not None:
            self._deadlines[request] = due = check_number("deadline", deadline)
            self._soonest = min(self._soonest, due)
        self._places[request] = Place(self._came - self._patience * priority, -priority, 0)
        self._came += 1

    def fork(self, request: H, child: H) -> None:
        """Give ``child`` a place right behind that of ``request``, and its deadline. O(1).

        Raises:
            IdentityError: it has a place.
        """
        if child in self._places:
            raise IdentityError("child", child, "it was added before and has not ended")
        if request in self._deadlines:
            self._deadlines[child] = self._deadlines[request]
        self._forks += 1
        self._places[child] = self._places[request]._replace(fork=self._forks)

    def remove(self, request: H) -> None:
        """Forget a request. O(1)."""
        del self._places[request]
        self._deadlines.pop(request, None)

    def place(self, request: H) -> Place:
        """Where it stands: requests are in order when sorted by it. O(1)."""
        return self._places[request]

    def before(self, one: H, other: H) -> bool:
        """Whether one goes before the other. O(1)."""
        return self._places[one] < self._places[other]

    def late(self, now: float) -> list[H]:
        """The requests whose deadline has come, in the order they were added.

        Cost: O(1) while none has; else O(requests with a deadline).
        """
        if now < self._soonest:
            return []
        found = [request for request, deadline in self._deadlines.items() if deadline <= now]
        left = (deadline for deadline in self._deadlines.values() if deadline > now)
        self._soonest = min(left, default=float("inf"))
        return found
