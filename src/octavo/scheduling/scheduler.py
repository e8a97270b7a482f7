"""Who takes part in the next step: continuous batching that never runs out of pages.

First come, first served. A request is admitted when it and all that run can reach their limits at
once, so no running request is ever taken back. Knows the cache and its requests; no model and no
tensors.
"""

from collections import deque
from typing import NamedTuple

from octavo.cache.cache import Cache
from octavo.cache.sequence import Sequence
from octavo.checks import check_int
from octavo.engine.request import Request
from octavo.errors import OutOfPages


class Turn(NamedTuple):
    """A request's part in a step: its next ``new`` positions."""

    request: Request
    sequence: Sequence
    new: int


class Scheduler:
    """Waiting and running requests of one cache.

    Args:
        cache: pages and prefixes.
        max_step_tokens: most tokens a step computes; long prompts are cut into such chunks.

    Attributes:
        cache: as given.
        waiting: requests not admitted yet, in order.
        running: requests with a sequence, in order of admission.

    Raises:
        LengthError: max_step_tokens is below 1.
    """

    def __init__(self, cache: Cache, max_step_tokens: int) -> None:
        self.cache = cache
        self.max_step_tokens = check_int("max_step_tokens", max_step_tokens, 1)
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, Sequence] = {}
        self._full = False

    def add(self, request: Request) -> None:
        """Queue a request. O(1)."""
        self.waiting.append(request)

    def knows(self, request: Request) -> bool:
        """Whether it waits or runs here. O(1), or O(waiting)."""
        return request in self.running or request in self.waiting

    def remove(self, request: Request) -> None:
        """End a request, waiting or running; its pages go back. O(pages), or O(waiting)."""
        sequence = self.running.pop(request, None)
        if sequence is None:
            self.waiting.remove(request)
        else:
            self.cache.release(sequence)
            request.sequence = None
        self._full = False

    def schedule(self) -> list[Turn]:
        """Admit what fits and give out the next step's tokens: one a decoding row, then prompts.

        Returns:
            No turn only where nothing waits and nothing runs.

        Raises:
            OutOfPages: nothing runs here and yet the next request does not fit, because sequences
                that are not this scheduler's hold the pages.

        Cost: O(running), and O(prompt) for each request admitted or waiting first.
        """
        self._admit()
        budget = self.max_step_tokens - len(self.running)
        turns = []
        for request, sequence in self.running.items():
            new = min(sequence.length - sequence.computed, 1 + budget)
            budget -= new - 1
            turns.append(Turn(request, sequence, new))
        return turns

    def _admit(self) -> None:
        rows = min(self.cache.max_sequences, self.max_step_tokens)
        while self.waiting and len(self.running) < rows and not self._full:
            request = self.waiting[0]
            if self._is_being_computed(request):
                return
            if not self._fits(request):
                self._full = bool(self.running)
                return
            sequence = self.cache.admit(request.prompt, limit=request.limit)
            self.waiting.popleft()
            self.running[request] = request.sequence = sequence
            request.cached_tokens = sequence.cached

    def _is_being_computed(self, request: Request) -> bool:
        """Whether a running request will soon publish more of this prompt: worth a wait."""
        if not self.running or not self.cache.prefix:
            return False
        return self.cache.peek(request.prompt).pending > 0

    def _fits(self, request: Request) -> bool:
        """Whether the request can run to its limit beside all that run.

        Raises:
            OutOfPages: it cannot although nothing runs.
        """
        running = [(sequence, sequence.limit) for sequence in self.running.values()]
        fit = self.cache.fits([*running, (request.prompt, request.limit)])
        if not fit and not self.running:
            stats = self.cache.stats()
            need = self.cache.plan.pages(request.limit)
            raise OutOfPages(need, stats.free, stats.evictable, fit.short)
        return bool(fit)
