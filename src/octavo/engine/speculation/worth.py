"""How many guesses pay: their chances of being accepted against what their time costs.

A guess is verified where its chance of being accepted is above its price: the tokens that come in
the time it takes::

    chance of a request's i-th guess = (share of its guesses that are accepted) ** i
    price = (seconds per further token of a step + seconds to make a guess) * tokens per second

All of these are measured while the engine runs, and what is newer counts more. A batch that keeps
the processor busy, or a text that says nothing twice, so ends speculation by itself; a request
whose guesses do not pay is tried again with one guess every `PAUSE` steps.
"""

from math import log
from weakref import WeakKeyDictionary

from octavo.engine.request import Request
from octavo.errors import uncopied

PAUSE = 16
"""Steps after which a request whose guesses do not pay is given one."""
_STEPS = 0.98  # what a step counts beside the one after it
_GUESSES = 0.9  # the same of a request's guesses
_SLOWEST = 4.0  # times the mean: a step that took longer was held up by something else


class Costs:
    """What steps of one token per request, and of guesses behind them, have cost so far."""

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self) -> None:
        self._steps = self._tokens = self._squares = 0.0  # sums; newer steps count more
        self._seconds = self._products = self._gained = self._drafting = self._guesses = 0.0

    def note(self, tokens: int, seconds: float, gained: int, guesses: int, drafting: float) -> None:
        """Take a step into account. O(1).

        Args:
            tokens: that it computed.
            seconds: that it took, without ``drafting``.
            gained: tokens that came of it.
            guesses: that were made for it, in ``drafting`` seconds.
        """
        if self._steps:
            seconds = min(seconds, _SLOWEST * self._seconds / self._steps)
        self._steps = _STEPS * self._steps + 1
        self._tokens = _STEPS * self._tokens + tokens
        self._squares = _STEPS * self._squares + tokens * tokens
        self._seconds = _STEPS * self._seconds + seconds
        self._products = _STEPS * self._products + tokens * seconds
        self._gained = _STEPS * self._gained + gained
        self._drafting = _STEPS * self._drafting + drafting
        self._guesses = _STEPS * self._guesses + guesses

    @property
    def price(self) -> float:
        """Tokens that come in the time of a guess; 0 while nothing is known. O(1)."""
        total = self._seconds + self._drafting
        if total <= 0:
            return 0.0
        drafting = self._drafting / self._guesses if self._guesses else 0.0
        return (self._slope() + drafting) * self._gained / total

    def _slope(self) -> float:
        """Seconds per further token: the line through the steps, from 0 to all of their time."""
        spread = self._steps * self._squares - self._tokens**2
        if spread <= 1e-6 * self._squares:  # all had as many tokens: nothing is known
            return 0.0
        slope = (self._steps * self._products - self._tokens * self._seconds) / spread
        return min(max(slope, 0.0), self._seconds / self._tokens)


class Chance:
    """How often one request's guesses were right: at first, as two of three would be."""

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self) -> None:
        self._right, self._wrong = 2.0, 1.0
        self._quiet = 0  # steps since it was last given a guess

    def note(self, guesses: int, right: int) -> None:
        """Take verified guesses into account; those behind a wrong one say nothing. O(1)."""
        self._right = _GUESSES * self._right + right
        self._wrong = _GUESSES * self._wrong + (right < guesses)
        self._quiet = 0

    def count(self, price: float, most: int) -> int:
        """How many guesses are worth their price, at most ``most``. O(1)."""
        if price <= 0:
            return most
        share = self._right / (self._right + self._wrong)
        paying = int(log(price) / log(share)) if price < 1 else 0
        self._quiet += 1
        return min(most, paying or int(self._quiet > PAUSE))


class Worth:
    """Costs of an engine's steps, and the chances of its requests' guesses.

    Attributes:
        costs: of steps.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self) -> None:
        self.costs = Costs()
        self._chances: WeakKeyDictionary[Request, Chance] = WeakKeyDictionary()

    def count(self, request: Request, most: int) -> int:
        """How many guesses are worth their time, at most ``most``. O(1)."""
        return self._chance(request).count(self.costs.price, most)

    def note(self, request: Request, guesses: int, right: int) -> None:
        """Take a request's verified guesses into account. O(1)."""
        self._chance(request).note(guesses, right)

    def _chance(self, request: Request) -> Chance:
        return self._chances.setdefault(request, Chance())
