"""One request on its way through a server."""

from typing import Any

from octavo.cache.sequence import Sequence
from octavo.simulation.requests import Ints, Request


class Job:
    """A request, its sequence while it has one, and when what happened to it.

    Attributes:
        request: what was asked.
        sequence: the cache's handle, or None.
        produced: tokens of the answer so far.
        admitted, first, finished: seconds; None: not yet, or refused.
        reached: positions computed when it was preempted.
        waited: whether there was no room when it was its turn.
    """

    __slots__ = (
        "_prompt",
        "admitted",
        "finished",
        "first",
        "produced",
        "reached",
        "request",
        "sequence",
        "waited",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sequence: Any = None  # None only while it is in the queue
        self.produced = self.reached = 0
        self.admitted: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self.waited = False
        self._prompt: Ints | None = None

    @property
    def prompt(self) -> Ints:
        """The prompt's ids, kept until the request is admitted."""
        if self._prompt is None:
            self._prompt = self.request.prompt()
        return self._prompt

    def admit(self, sequence: Sequence, now: float) -> None:
        """It has a sequence, which knows the ids from now on."""
        self.sequence, self.admitted, self._prompt = sequence, now, None
