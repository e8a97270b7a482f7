"""Continuous batching on one cache: who waits, who runs, and how far each goes in the next step.

Requests have one order (`octavo.scheduling.order`): higher priorities first, then first come, first
served. A request is admitted in its turn, when it has room beside all that run; where those that
run behind it hold its room, they give way. Every request that runs takes part in every step: with
one token, or where it is behind (its prompt, or what a preemption lost) with as many as the step
has room for, the first in order first. Where a chunk holds more of windows than is free, chunks are
halved; where not even a token each has room, the last in order is preempted, which comes back when
one before it has ended: computed again, or copied from host memory (`octavo.scheduling.host`).

Nobody starves. The first in order is never preempted and takes at least one token per step. Nobody
is admitted past one that waits. So a request is preempted at most once for each that goes before
it, and of those there are the ones that it found and a bounded number of later ones. In steps: the
request that is first ends within as many as its limit has tokens; if it waits, within as many more
as the longest limit of those that run. Only where it runs alone and its packed pages are scattered
over all there are does it begin anew, once, and nobody is admitted beside it until it has ended.

Knows no model, no clock and no text: whoever drives it runs the steps it hands out, commits or
aborts them, removes what has ended, and says what time it is.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Generic

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.cache import Cache
from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import check_flag, check_int
from octavo.errors import OutOfPages, PlanError, StepError, uncopied
from octavo.planner import pools
from octavo.scheduling.host import HostPages
from octavo.scheduling.order import PATIENCE, Order
from octavo.scheduling.requests import WATERMARK, R, Turn, check_request, check_watermark


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
        patience: how many later requests may go before one, per priority that they are higher.
        host: where pages of preempted requests may go; None: they are computed again.

    Attributes:
        cache: as given.
        waiting: requests without pages, in their order.
        running: requests with pages, in their order.
        recomputed_tokens: positions that preempted requests lost, less those found on resuming,
            or copied back.
        host: as given.

    Raises:
        LengthError: max_step_tokens or patience is below 1. PlanError: watermark is not in [0, 1),
            or host is of another cache.
    """

    __reduce__ = uncopied("it hands out the steps of one cache; make a new one for another cache")

    def __init__(
        self,
        cache: Cache,
        max_step_tokens: int,
        *,
        preemption: bool = True,
        watermark: float = WATERMARK,
        patience: int = PATIENCE,
        host: HostPages[R] | None = None,
    ) -> None:
        if not isinstance(cache, Cache):
            raise PlanError("cache", cache, "it must be an octavo.Cache")
        if host is not None and not (isinstance(host, HostPages) and host.cache is cache):
            raise PlanError("host", host, "it must be HostPages of this cache, or None")
        self.cache, self._preemption = cache, check_flag("preemption", preemption)
        self._most = check_int("max_step_tokens", max_step_tokens, 1)
        self._most_rows = min(cache.max_sequences, self._most)
        self.waiting = list[R]()
        self.running = dict[R, Sequence]()
        self.recomputed_tokens, self.host = 0, host
        self._order = Order[R](patience)
        self._denied: R | None = None  # it and all behind it found no room since one last ended
        self._alone: R | None = None  # who began anew, and runs with nobody beside it
        self._behind = dict[R, Sequence]()  # those with more than a token to compute, in order
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
        """Whether a request waits or runs here. O(1)."""
        return request in self._order

    @property
    def restored_tokens(self) -> int:
        """Positions of preempted requests that were copied back from host memory. O(1)."""
        return 0 if self.host is None else self.host.restored_tokens

    @property
    def full(self) -> bool:
        """Whether the first that waits found no room since a request last ended. O(1)."""
        if self._denied is None or not self.waiting:
            return False
        return not self._order.before(self.waiting[0], self._denied)

    def add(self, request: R, *, priority: int = 0, deadline: float | None = None) -> None:
        """Queue a request. O(groups + log waiting).

        Args:
            request: not here yet.
            priority: higher ones go first, but for requests that came long before them:
                see `octavo.scheduling.order`.
            deadline: the time from which `expire` ends it, on whatever clock that is told; None:
                never.

        Raises:
            IdentityError: it cannot be hashed, lacks a prompt or a limit, or is here.
            LengthError: its prompt is empty or no list, its limit is below the prompt, or the
                priority is no int of 32 bits.
            PlanError: the deadline is no number.
            CapacityError: its limit is beyond the cache's ``max_length``.
            NeverFits: its limit needs more pages than the pool has.
        """
        length, limit = check_request(request)
        prompt = request.prompt
        self.cache.check_limit(length, limit, prompt.extra if isinstance(prompt, Prompt) else ())
        self._order.add(request, priority, deadline)
        insort(self.waiting, request, key=self._order.place)

    def remove(self, request: R) -> None:
        """End a request that waits or runs; its pages go back. O(pages), or O(waiting).

        Allowed at any moment: where its step is open, the step's results for it are ignored.

        Raises:
            ValueError: it does neither.
        """
        if request not in self.running:
            self.waiting.remove(request)
        if request.sequence is not None:
            self.cache.release(request.sequence)
        if request in self.running:
            self._stop(request)
            self._denied = None
        elif request is self._denied:
            self._denied = None
        if request is self._alone:
            self._alone = None
        request.sequence = self._next = None
        self._order.remove(request)
        if self.host is not None:
            self.host.drop(request)

    def fork(self, request: R, child: R, token: int) -> bool:
        """Let ``child`` go on from what ``request`` has computed, with a last token of its own.

        Its place is right behind the request's, and it has its priority and deadline.

        Args:
            request: it runs, and knows one token more than it has computed.
            child: of the same prompt and limit; not here yet.
            token: the last that the child is to know, in place of the request's.

        Returns:
            Whether it runs. Where it has no room beside the others it waits, as if it had been
            added: its ``sequence`` is None, and it will begin with its prompt.

        Raises:
            IdentityError: the child is here. StepError: a step is open.

        Cost: O(columns + rows).
        """
        self._require_closed()
        self._order.fork(request, child)
        sequence = self._forked(self.running[request])
        if sequence is None:
            insort(self.waiting, child, key=self._order.place)
            return False
        self.cache.drop(sequence, 1)
        self.cache.learn(sequence, [token])
        child.sequence = sequence
        self._run(child, sequence)
        return True

    def _forked(self, parent: Sequence) -> Sequence | None:
        """A fork that has room beside all that run, or None."""
        if len(self.running) >= self._most_rows or not self._has_row():
            return None
        try:
            (sequence,) = self.cache.fork(parent)
        except OutOfPages:
            return None
        goal = sequence.length + 1 if self._preemption else sequence.limit
        if self.cache.fits([*self._wants(), (sequence, goal)], spare=self._spare):
            return sequence
        self.cache.release(sequence)
        return None

    def expire(self, now: float) -> list[R]:
        """End the requests whose deadline has come; returns them.

        Args:
            now: on the clock of their deadlines.

        Cost: O(1) while none has; else O(requests with a deadline), and as `remove` for each.
        """
        late = self._order.late(now)
        for request in late:
            self.remove(request)
        return late

    def schedule(self, drafts: Mapping[R, int] | None = None) -> Turn[R] | None:
        """Admit what has room, and open the next step of all that run.

        Args:
            drafts: by request that runs, how many tokens are guessed beyond those it knows. They
                take what prompts leave of the step's tokens, and only pages that are there: where
                those run out the step has no drafts. `Step.unknown` says how many it has.

        Returns:
            None only where nothing waits and nothing runs.

        Raises:
            StepError: the step of the turn before is open.
            TokenError: an entry of a prompt is no token id; the request waits until it is removed.
            OutOfPages: sequences that are not this scheduler's hold the pages; nothing is lost.
            CapacityError: they hold all rows.

        Cost: O(rows), and O(prompt) for each request admitted, or waiting first.
        """
        self._require_closed()
        self._behind = {r: s for r, s in self._behind.items() if s.length - s.computed > 1}
        self._admit()
        if not self.running:
            return None
        step = self._step = self._extend(drafts or {})
        admitted, self._admitted = self._admitted, []
        return Turn(step, self._rows.copy(), admitted)

    def part(self, turn: Turn[R], requests: Iterable[R]) -> Turn[R] | None:
        """A turn of some requests of a turn that was aborted, each with as many tokens as there.

        Where the model raises, turns of half of the requests, and of half of those, tell for whom.

        Args:
            turn: the last; nothing was scheduled since its step was aborted.
            requests: of the turn's; those that were removed since sit out.

        Returns:
            None where all of them were.

        Raises:
            StepError: the turn's step is open.

        Cost: O(rows + tokens).
        """
        self._require_closed()
        chosen = {*requests} & self.running.keys()
        there = zip(turn.requests, turn.step.counts.tolist(), strict=True)
        counts = {request: count for request, count in there if request in chosen}
        rows = [self.running[request] for request in counts]
        if not rows:
            return None
        # what an abort has cost a state may end at a stop earlier than the turn did
        most = [min(n, _ahead(row)) for n, row in zip(counts.values(), rows, strict=True)]
        step = self._step = self.cache.extend(rows, most)
        return Turn(step, [*counts], [])

    def _require_closed(self) -> None:
        if self._step is not None and self._step.is_open:
            raise StepError("the turn before is open: commit or abort its step first")

    # -- admitting -----------------------------------------------------------------------------

    def _admit(self) -> None:
        if self._alone in self.running:
            return
        while self.waiting and not self.full and len(self.running) < self._most_rows:
            request = self.waiting[0]
            if self._is_being_computed(request):
                return
            if request.sequence is None and self.running and not self._has_row():
                return
            reuse = self._has_room(request)
            while not reuse and self._precedes_running(request):
                self._preempt_last()
                reuse = self._has_room(request)
            if not reuse and self.running:
                self._deny(request)
                return
            if not reuse:  # what is published of it takes room that the pool does not have
                self._require_room(request)
            self._start(request, reuse=reuse)

    def _has_room(self, request: R) -> bool:
        """Whether the first that waits has room beside all that run."""
        spare = self._spare if self.running else 0
        return bool(self.cache.fits([*self._wants(), self._wish(request)], spare=spare))

    def _has_row(self) -> bool:
        """Whether the cache has a row for a new sequence: preempted ones keep theirs. O(1)."""
        return self.cache.stats().sequences < self.cache.max_sequences

    def _precedes_running(self, request: R) -> bool:
        """Whether one that waits goes before one that runs, which may give way. O(1)."""
        if not self._preemption or not self.running:
            return False
        return self._order.before(request, next(reversed(self.running)))

    def _deny(self, request: R) -> None:
        """Until one has ended, neither it nor any behind it is tried again."""
        if self._denied is None or self._order.before(request, self._denied):
            self._denied = request

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

    def _start(self, request: R, *, reuse: bool) -> None:
        """Let the first that waits run."""
        sequence = request.sequence
        if sequence is None:
            sequence = self.cache.admit(self._read(request), limit=request.limit, reuse=reuse)
            request.sequence, self._next = sequence, None
            self._admitted.append(request)
        else:
            self._resume(request, sequence, reuse=reuse)
        self._run(request, sequence)
        self.waiting.remove(request)  # not before: a request is always in one of them

    def _resume(self, request: R, sequence: Sequence, *, reuse: bool) -> None:
        """Give back to one that was preempted what can be found or copied of it."""
        alone = request is self._alone
        self.cache.resume(sequence, reuse=reuse, publish=not alone)
        if self.host is not None:
            if alone:  # which takes its pages token by token
                self.host.drop(request)
            elif not self.host.restore(request, sequence, self._most):
                self.cache.resume(sequence, reuse=reuse)
        self.recomputed_tokens -= sequence.computed

    def _run(self, request: R, sequence: Sequence) -> None:
        """Give one that has pages its row. O(those behind it)."""
        self._insert(self.running, request, sequence)
        self._insert(self._behind, request, sequence)
        self._batch.add(sequence)
        self._rows.append(request)

    def _insert(self, table: dict[R, Sequence], request: R, sequence: Sequence) -> None:
        """Put a request into its place in order. O(those behind it)."""
        behind = [*takewhile(lambda each: self._order.before(request, each), reversed(table))]
        table[request] = sequence
        for each in reversed(behind):
            table[each] = table.pop(each)

    # -- stepping ------------------------------------------------------------------------------

    def _extend(self, drafts: Mapping[R, int]) -> Step:
        """The next step of all that run, or of the oldest of them that have room."""
        most = self._most
        while True:
            counts, rows = self._counts(most, drafts), len(self._rows)
            try:
                return self.cache.extend(self._batch, counts, ahead=max(drafts.values(), default=0))
            except OutOfPages:
                if drafts:  # nobody gives way to a guess
                    drafts = {}
                    continue
                tokens = rows if isinstance(counts, int) else int(counts.sum())
                # a chunk holds more of windows than afterwards: less at a time may have room
                if tokens > rows and (rows == 1 or self.cache.fits(self._wants())):
                    most = max(rows, tokens // 2)
                elif rows > 1:
                    self._preempt_last()
                    most = self._most
                elif not self._start_over():
                    raise

    def _counts(self, most: int, drafts: Mapping[R, int]) -> int | NDArray[np.int64]:
        """Next tokens of each row, ``most`` together where that is at least one each. O(rows)."""
        left, counts = 0 if self._alone in self.running else most - len(self._rows), None
        for sequence, wish in self._wishes(drafts):
            more = min(wish, left)
            if more > 0:
                counts = np.ones(len(self._rows), np.int64) if counts is None else counts
                counts[self._batch.row(sequence)] += more
                left -= more
        return 1 if counts is None else counts

    def _wishes(self, drafts: Mapping[R, int]) -> Iterator[tuple[Sequence, int]]:
        """What rows would compute beside a token each: what is known first, then guesses."""
        for sequence in self._behind.values():
            yield sequence, _ahead(sequence) - 1
        for request, guessed in drafts.items():
            if request in self.running and request not in self._behind:
                sequence = self.running[request]
                yield sequence, min(guessed, sequence.limit - sequence.length - 1)

    def _start_over(self) -> bool:
        """Let one that runs alone begin anew in an empty pool, token by token.

        Of packed pages it may hold more parents than its pages fill, where windows slid beside what
        is published, and with chunks. Token by token, and publishing nothing, it opens a parent
        only where its others are full.
        """
        request = next(iter(self.running))
        if not self.cache.plan.packed or request is self._alone:
            return False
        self._preempt_last()
        with suppress(StepError):  # where others hold pages, theirs stay
            self.cache.reset()
        self._alone = request
        self._start(request, reuse=False)
        return True

    def _preempt_last(self) -> None:
        """Take the pages of the last in order; it comes back when one before it has ended."""
        request, sequence = next(reversed(self.running.items()))
        self.recomputed_tokens += sequence.computed
        if self.host is not None:
            self.host.save(request, sequence)
        self.cache.preempt(sequence)
        insort(self.waiting, request, key=self._order.place)
        self._stop(request)
        self._deny(request)

    def _stop(self, request: R) -> None:
        """Take a running request out of its row; the last one moves into it. O(columns)."""
        sequence = self.running.pop(request)
        self._behind.pop(request, None)
        row = self._batch.remove(sequence).row
        last = self._rows.pop()
        if last is not request:
            self._rows[row] = last


def _ahead(sequence: Sequence) -> int:
    """Tokens that a sequence has to compute, up to where its states are to be kept. O(1)."""
    length = sequence.length
    return min(sequence.next_stop or length, length) - sequence.computed
