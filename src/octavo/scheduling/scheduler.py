"""Continuous batching on one cache: who waits, who runs, and how far each goes in the next step.

First come, first served. A request is admitted when it has room beside all that run. Every request
that runs takes part in every step: with one token, or where it is behind (its prompt, or what a
preemption lost) with as many as the step has room for, the oldest first. Where a chunk holds more
of windows than is free, chunks are halved; where not even a token each has room, the newest is
preempted. It is the first to come back, when another has ended. The oldest is never preempted and
takes at least one token per step, so every request ends.

Knows no model, no clock and no text: whoever drives it runs the steps it hands out, commits or
aborts them, and removes what has ended.
"""

from collections import deque
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.cache import Cache
from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import Tokens, check_flag, check_int, check_number, has_entries
from octavo.errors import (
    IdentityError,
    LengthError,
    OutOfPages,
    PlanError,
    StepError,
    uncopied,
)
from octavo.planner import pools


class Schedulable(Protocol):
    """What the scheduler sees of a request; it must be hashable, and equal to no other.

    Attributes:
        prompt: token ids, a list or an int32 array, or a Prompt, which may have extras; read when
            it is the next to run.
        limit: most tokens, prompt and answer together; an empty pool must hold as many.
        sequence: set by the scheduler: its handle in the cache; None before and after.
    """

    sequence: Sequence | None

    @property
    def prompt(self) -> Tokens | Prompt:
        """Token ids, at least one."""
        ...

    @property
    def limit(self) -> int:
        """Tokens, at least the prompt's."""
        ...


R = TypeVar("R", bound=Schedulable)
WATERMARK = 0.01
"""Share of the pool that is left when a request is admitted beside others, if none is named."""


def check_watermark(value: object) -> float:
    """A share of the pool, checked.

    Raises:
        PlanError: it is not in [0, 1).
    """
    share = check_number("watermark", value)
    if not 0 <= share < 1:
        raise PlanError("watermark", value, "it must be at least 0 and below 1")
    return share


def _sizes(request: Schedulable) -> tuple[int, int]:
    """Tokens of a request's prompt, and its limit, checked. O(1)."""
    try:
        hash(request)
    except Exception as error:
        right = "it must be hashable, as a dataclass with eq=False is"
        raise IdentityError("request", request, right) from error
    for name in ("prompt", "limit"):
        if not hasattr(request, name):
            raise IdentityError("request", request, "it must have a prompt and a limit")
    prompt: Any = request.prompt
    try:
        listed = isinstance(prompt, Prompt) or has_entries(prompt)
        length = len(request.prompt) if listed else None
    except Exception:  # noqa: BLE001, whatever a stranger's object raises
        length = None
    if length is None:
        right = "it must be a list or array of token ids"
        raise LengthError("request.prompt", prompt, None, None, right)
    check_int("len(request.prompt)", length, 1)
    return length, check_int("request.limit", request.limit, length)


class Turn(NamedTuple, Generic[R]):
    """One forward pass to run, and to commit or abort before the next.

    Attributes:
        step: open.
        requests: by row of the step.
        admitted: those that were admitted since the turn before.
    """

    step: Step
    requests: list[R]
    admitted: list[R]


class Scheduler(Generic[R]):
    """Waiting and running requests of one cache, which may have other sequences, too.

    Args:
        cache: pages and prefixes.
        max_step_tokens: most tokens per step; long prompts are cut into such chunks.
        preemption: whether a request is admitted as soon as all have room for what they know and
            one token more. Else only when all can reach their limits, so that none is preempted
            (but for packed pages, of which `octavo.Cache.fits` cannot be sure).
        watermark: with preemption, the share of the pool that must be left when a request is
            admitted beside others, lest it is preempted soon.

    Attributes:
        cache: as given.
        waiting: requests without pages, in the order they will run; preempted ones first.
        running: requests with pages, oldest first.
        full: whether the first that waits found no room since a request last ended.
        recomputed_tokens: positions that preempted requests lost, less those found on resuming.

    Raises:
        LengthError: max_step_tokens is below 1. PlanError: watermark is not in [0, 1).
    """

    __reduce__ = uncopied("it hands out the steps of one cache; make a new one for another cache")

    def __init__(
        self,
        cache: Cache,
        max_step_tokens: int,
        *,
        preemption: bool = True,
        watermark: float = WATERMARK,
    ) -> None:
        if not isinstance(cache, Cache):
            raise PlanError("cache", cache, "it must be an octavo.Cache")
        self.cache, self._preemption = cache, check_flag("preemption", preemption)
        self._most = check_int("max_step_tokens", max_step_tokens, 1)
        self.waiting = deque[R]()
        self.running = dict[R, Sequence]()
        self.full = False
        self.recomputed_tokens = 0
        self._behind = dict[R, Sequence]()  # those with more than a token to compute, oldest first
        share = check_watermark(watermark)
        self._spare = int(share * cache.plan.usable_pages) if preemption else 0
        self._batch, self._rows = cache.batch(), list[R]()
        self._admitted = list[R]()
        self._next: tuple[R, Prompt] | None = None  # the first that waits, as it was read
        self._step: Step | None = None  # of the turn before

    def __bool__(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self.running or self.waiting)

    def __contains__(self, request: object) -> bool:
        """Whether a request waits or runs here. O(1), or O(waiting)."""
        return request in self.running or request in self.waiting

    def add(self, request: R) -> None:
        """Queue a request. O(groups).

        Raises:
            IdentityError: it cannot be hashed, or lacks a prompt or a limit.
            LengthError: its prompt is empty or no list, or its limit is below the prompt.
            CapacityError: its limit is beyond the cache's ``max_length``.
            NeverFits: its limit needs more pages than the pool has.
        """
        length, limit = _sizes(request)
        prompt = request.prompt
        self.cache.check_limit(length, limit, prompt.extra if isinstance(prompt, Prompt) else ())
        self.waiting.append(request)

    def remove(self, request: R) -> None:
        """End a request that waits or runs; its pages go back. O(pages), or O(waiting).

        Raises:
            ValueError: it does neither.
        """
        if request not in self.running:
            self.waiting.remove(request)
        if request.sequence is not None:
            self.cache.release(request.sequence)
        if request in self.running:
            self._stop(request)
        request.sequence = self._next = None
        self.full = False

    def schedule(self) -> Turn[R] | None:
        """Admit what has room, and open the next step of all that run.

        Returns:
            None only where nothing waits and nothing runs.

        Raises:
            StepError: the step of the turn before is open.
            TokenError: an entry of a prompt is no token id; the request waits until it is removed.
            OutOfPages: sequences that are not this scheduler's hold the pages; nothing is lost.
            CapacityError: they hold all rows.

        Cost: O(rows), and O(prompt) for each request admitted, or waiting first.
        """
        if self._step is not None and self._step.is_open:
            raise StepError("the turn before is open: commit or abort its step first")
        self._behind = {r: s for r, s in self._behind.items() if s.length - s.computed > 1}
        self._admit()
        if not self.running:
            return None
        step = self._step = self._extend()
        admitted, self._admitted = self._admitted, []
        return Turn(step, self._rows.copy(), admitted)

    # -- admitting -----------------------------------------------------------------------------

    def _admit(self) -> None:
        most = min(self.cache.max_sequences, self._most)
        wants: list[tuple[Sequence, int]] | None = None
        while self.waiting and not self.full and len(self.running) < most:
            request = self.waiting[0]
            wants = self._wants() if wants is None else wants
            if self._is_being_computed(request):
                return
            spare = self._spare if self.running else 0
            reuse = bool(self.cache.fits([*wants, self._wish(request)], spare=spare))
            if not reuse and self.running:
                self.full = True
                return
            if not reuse:  # what is published of it takes room that the pool does not have
                self._require_room(request)
            wants.append(self._start(request, reuse=reuse))

    def _is_being_computed(self, request: R) -> bool:
        """Whether one that runs will soon publish more of a new prompt: worth a wait."""
        if request.sequence is not None or not self._behind or not self.cache.prefix:
            return False
        return self.cache.peek(self._read(request)).pending > 0

    def _read(self, request: R) -> Prompt:
        """The prompt of the first that waits, read once for all the cache is asked about it."""
        if self._next is None or self._next[0] is not request:
            given = request.prompt
            self._next = request, given if isinstance(given, Prompt) else Prompt(given)
        return self._next[1]

    def _wants(self) -> list[tuple[Sequence, int]]:
        """How far each that runs must be able to go, but for those that have the pages. O(rows)."""
        if not self._preemption:
            return [(sequence, sequence.limit) for sequence in self.running.values()]
        size, behind = self.cache.plan.page_size, self._behind
        return [
            (sequence, length + 1)
            for request, sequence in self.running.items()
            # one that decodes has a page for its next tokens until it comes to the end of it
            if (length := sequence.length) % size < 2 or request in behind
        ]

    def _wish(self, request: R) -> tuple[Sequence | Prompt, int]:
        """What the first that waits knows, and how far it must be able to go to be admitted."""
        known = request.sequence or self._read(request)
        if not self._preemption:
            return known, request.limit
        size = known.length if isinstance(known, Sequence) else len(known)
        return known, min(size + 1, request.limit)

    def _require_room(self, request: R) -> None:
        """Of one that runs alone: whether it has room without what is published of it.

        Raises:
            OutOfPages: it has none.
        """
        wish = self._wish(request)
        fit = self.cache.fits([wish], reuse=False)
        if not fit:
            stats, need = self.cache.stats(), pools.pages(self.cache.plan, wish[1])
            raise OutOfPages(need, stats.free, stats.evictable, fit.short)

    def _start(self, request: R, *, reuse: bool) -> tuple[Sequence, int]:
        """Let the first that waits run; returns its sequence and how far it must be able to go."""
        sequence = request.sequence
        if sequence is None:
            sequence = self.cache.admit(self._read(request), limit=request.limit, reuse=reuse)
            request.sequence, self._next = sequence, None
            self._admitted.append(request)
        else:
            self.recomputed_tokens -= self.cache.resume(sequence, reuse=reuse)
        self.running[request] = self._behind[request] = sequence
        self.waiting.popleft()  # not before: a request is always in one of them
        self._batch.add(sequence)
        self._rows.append(request)
        return sequence, sequence.length + 1 if self._preemption else sequence.limit

    # -- stepping ------------------------------------------------------------------------------

    def _extend(self) -> Step:
        """The next step of all that run, or of the oldest of them that have room."""
        most = self._most
        while True:
            counts, rows = self._counts(most), len(self._rows)
            try:
                return self.cache.extend(self._batch, counts)
            except OutOfPages:
                tokens = rows if isinstance(counts, int) else int(counts.sum())
                # a chunk holds more of windows than afterwards: less at a time may have room
                if tokens > rows and (rows == 1 or self.cache.fits(self._wants())):
                    most = max(rows, tokens // 2)
                elif rows > 1:
                    self._preempt_newest()
                    most = self._most
                else:
                    raise

    def _counts(self, most: int) -> int | NDArray[np.int64]:
        """Next tokens of each row, ``most`` together where that is at least one each. O(rows)."""
        left, counts = most - len(self._rows), None
        for sequence in self._behind.values():
            length = sequence.length
            stop = min(sequence.next_stop or length, length)
            more = min(stop - sequence.computed - 1, left)
            if more > 0:
                counts = np.ones(len(self._rows), np.int64) if counts is None else counts
                counts[self._batch.row(sequence)] += more
                left -= more
        return 1 if counts is None else counts

    def _preempt_newest(self) -> None:
        """Take the pages of the newest; nobody is admitted before it, nor until one has ended."""
        request, sequence = next(reversed(self.running.items()))
        self.recomputed_tokens += sequence.computed
        self.cache.preempt(sequence)
        self.waiting.appendleft(request)
        self._stop(request)
        self.full = True

    def _stop(self, request: R) -> None:
        """Take a running request out of its row; the last one moves into it. O(columns)."""
        sequence = self.running.pop(request)
        self._behind.pop(request, None)
        row = self._batch.remove(sequence).row
        last = self._rows.pop()
        if last is not request:
            self._rows[row] = last
