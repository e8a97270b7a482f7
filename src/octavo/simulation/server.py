"""One replica under a model of time: continuous batching on the real cache.

First come, first served. A request is admitted when all that run, and it, have room for what they
know and one token more. A step decodes every row that decodes and fills up with chunks of prompts,
oldest first. Where pages run out the newest request is preempted; it is the first to come back,
when another has ended. The oldest is never preempted, so every request finishes.
"""

from collections import deque
from collections.abc import Callable

from octavo.cache.cache import Cache
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import NeverFits, OutOfPages
from octavo.simulation.clock import TimeModel
from octavo.simulation.job import Job
from octavo.simulation.requests import Answers, Ints
from octavo.simulation.rows import Rows
from octavo.simulation.tally import Tally
from octavo.simulation.timeline import Timeline

_SPAN = 2.0**-7  # seconds: what the timeline tells apart in a short run


class Server:
    """A cache, its queue, and a clock.

    Args:
        cache: the real one.
        model: how long steps take.
        answers: what requests are answered.
        told: called when a request has ended or is refused.

    Attributes:
        cache: the real one.
        now: seconds; the end of the last step.
        load: tokens of prompts and answers that have not been computed.
        tally: what happened.
    """

    def __init__(
        self,
        cache: Cache,
        model: TimeModel,
        answers: Answers,
        told: Callable[[], None] | None = None,
    ) -> None:
        self.cache = cache
        self.now, self.load = 0.0, 0
        self.tally = Tally(timeline=Timeline(_SPAN))
        self._model, self._answers, self._told = model, answers, told
        self._waiting, self._paused = deque[Job](), deque[Job]()
        self._running: list[Job] = []  # oldest first
        self._prefilling: list[Job] = []  # oldest first
        self._rows = Rows(self.cache, answers)
        self._begun, self._ended = list[Job](), list[Job]()  # in this step
        self._full, self._evicted = False, 0

    def add(self, job: Job) -> None:
        """Queue a request that has arrived. O(1)."""
        self._waiting.append(job)
        self.load += job.request.length

    def run_until(self, moment: float) -> None:
        """Make steps until the clock is at ``moment`` or past it, or nothing is left to do."""
        while self.now < moment and (self._running or self._paused or self._waiting):
            self._step()
        if self.now < moment < float("inf"):
            self.now = moment
            self.tally.timeline.add(moment, self.cache, 0, 0)

    def _step(self) -> None:
        self._admit()
        if not self._running:
            return
        decoded = self._decode()
        prefilled = self._prefill(self._model.max_step_tokens - decoded)
        seconds = self._model.seconds(prefilled, decoded)
        self.now += seconds
        self.tally.busy += seconds
        waiting = len(self._waiting) + len(self._paused)
        kept = self.tally.timeline.add(self.now, self.cache, len(self._running), waiting)
        self.tally.note(kept)
        self._stamp()

    def _stamp(self) -> None:
        """What a step has brought about is there at its end."""
        for job in self._begun:
            job.first = self.now
        for job in self._ended:
            job.finished = self.now
        self._begun.clear()
        self._ended.clear()

    # -- admitting -----------------------------------------------------------------------------

    def _admit(self) -> None:
        while not self._full and len(self._running) < self._model.max_sequences:
            if self._paused:
                if not self._resume(self._paused[0]):
                    return
            elif not (self._waiting and self._enter(self._waiting[0])):
                return

    def _resume(self, job: Job) -> bool:
        if not self._fits((job.sequence, job.sequence.length + 1)):
            return False
        known = self.cache.resume(job.sequence)
        again = job.reached - known
        self.tally.recomputed_tokens += again
        self.load += again
        self._start(self._paused.popleft())
        return True

    def _enter(self, job: Job) -> bool:
        """Admit the first of the queue, or refuse it for good; False: it has to wait."""
        if not self._fits((job.prompt, job.request.input_length + 1)):
            self.tally.waits += not job.waited
            job.waited = True
            return False
        self._waiting.popleft()
        try:
            sequence = self.cache.admit(job.prompt, limit=job.request.length)
        except NeverFits:
            self.load -= job.request.length
            self.tally.refuse(job.request.input_length, self.cache.plan.page_size)
            self._tell()
            return True
        job.admit(sequence, self.now)
        self.load -= sequence.cached
        self.tally.admitted(job.request.input_length, sequence.cached, self.cache.plan.page_size)
        self._start(job)
        return True

    def _fits(self, wanted: tuple[Sequence | Ints, int]) -> bool:
        """Whether there is room beside all that run; if not, nobody asks until one has ended."""
        if not self._running:
            return True
        running = [(job.sequence, job.sequence.length + 1) for job in self._running]
        self._full = not self.cache.fits([*running, wanted])
        return not self._full

    def _start(self, job: Job) -> None:
        self._running.append(job)
        self._prefilling.append(job)

    # -- stepping ------------------------------------------------------------------------------

    def _decode(self) -> int:
        """One token of every row that decodes; returns how many do."""
        step = self._reserve()
        if step is None:
            return 0
        self.cache.commit(step, self._rows.tokens())
        self._account("decode")
        count = len(self._rows)
        self._count(count)
        self.tally.output_tokens += count
        for job in self._rows.advance():
            self._rows.remove(job)
            self._end(job)
        return count

    def _reserve(self) -> Step | None:
        while len(self._rows):
            try:
                return self.cache.extend(self._rows.batch, 1)
            except OutOfPages:
                if len(self._running) == 1:
                    raise
                self._preempt_newest()
        return None

    def _prefill(self, budget: int) -> int:
        """Chunks of prompts, oldest first; returns the tokens computed."""
        left = budget
        for job in list(self._prefilling):
            if left and not job.sequence.preempted:
                left -= self._chunk(job, left)
        if left < budget:
            self._account("prefill")
            self._count(budget - left)
        return budget - left

    def _chunk(self, job: Job, most: int) -> int:
        """The next tokens of a prompt, at most ``most``; 0 where it was preempted instead."""
        step = self._reserve_chunk(job, most)
        if step is None:
            return 0
        complete = step.max_context == job.sequence.length
        self.cache.commit(step, self._next(job) if complete else None)
        if complete:
            self._answer(job)
        return int(step.max_query)

    def _reserve_chunk(self, job: Job, most: int) -> Step | None:
        """A step of one prompt; of one alone a smaller one, where windows hold more than fits."""
        sequence = job.sequence
        stop = min(sequence.next_stop or sequence.length, sequence.length)
        new = min(stop - sequence.computed, most)
        while not sequence.preempted:
            try:
                return self.cache.extend(sequence, new)
            except OutOfPages:
                if len(self._running) > 1:
                    self._preempt_newest()
                elif new > 1:
                    new //= 2
                else:
                    raise
        return None

    def _next(self, job: Job) -> Ints | None:
        """The answer's next token; None: it has none at all."""
        if not job.request.output_length:
            return None
        return self._answers.token(job.request.number, job.produced)

    def _answer(self, job: Job) -> None:
        """The prompt is computed, and with it the answer's next token, if there is one."""
        self._prefilling.remove(job)
        if job.first is None:
            self._begun.append(job)
        if job.request.output_length:
            job.produced += 1
            self.tally.output_tokens += 1
        if job.produced == job.request.output_length:
            self._end(job)
        else:
            self._rows.add(job)

    def _account(self, taker: str) -> None:
        """Pages that have been evicted since the last call went to ``taker``."""
        evicted = self.cache.stats().evicted
        self.tally.evicted[taker] += evicted - self._evicted
        self._evicted = evicted

    def _count(self, tokens: int) -> None:
        self.tally.computed_tokens += tokens
        self.load -= tokens

    def _end(self, job: Job) -> None:
        """A request is done: its pages go back, and others may come in."""
        self.cache.release(job.sequence)
        self._running.remove(job)
        self._ended.append(job)
        self._full = False
        self.load -= job.request.output_length > 0  # the last token is never computed
        self._tell()

    def _tell(self) -> None:
        if self._told is not None:
            self._told()

    def _preempt_newest(self) -> None:
        """Take the pages of the newest request; it is the first to come back."""
        job = self._running[-1]
        job.reached = job.sequence.computed
        if job in self._prefilling:
            self._prefilling.remove(job)
        else:
            self._rows.remove(job)
        self.cache.preempt(job.sequence)
        self._running.pop()
        self._paused.appendleft(job)
        self._full = True
