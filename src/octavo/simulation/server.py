"""One replica under a model of time: octavo's own scheduler on the real cache, and a clock.

The scheduler is the engine's, so that requests are admitted, batched and preempted as there; what a
forward pass would take, the model of time says; what it would sample, the trace.
"""

import time
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from octavo.cache.cache import Cache
from octavo.cache.step import Step
from octavo.errors import uncopied
from octavo.scheduling import HostPages, Scheduler, Turn
from octavo.simulation.report import Run
from octavo.simulation.requests import AnswerTokens, Job, Trace
from octavo.simulation.routers import find_router
from octavo.simulation.settings import Progress, Setting
from octavo.simulation.tally import Tally, Timeline
from octavo.simulation.times import StepWork, TimeModel

_SPAN = 2.0**-7  # seconds: a span of the timeline of a short run


class Server:
    """A cache, its scheduler, and a clock.

    Args:
        cache: the real one; where there is host memory, its plan knows bytes.
        model: how long steps take.
        answers: of all requests.
        on_end: called when a request has ended.

    Attributes:
        cache: the real one.
        now: seconds; the end of the last step.
        tally: what happened.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(
        self, cache: Cache, model: TimeModel, answers: AnswerTokens, on_end: Callable[[], None]
    ) -> None:
        self.cache, self.now = cache, 0.0
        self.tally = Tally(timeline=Timeline(_SPAN))
        self._model, self._answers, self._on_end = model, answers, on_end
        self._host = HostPages[Job](cache, model) if model.host_memory else None
        self._scheduler = Scheduler[Job](
            cache,
            model.max_step_tokens,
            preemption=model.preemption,
            watermark=model.watermark,
            host=self._host,
        )
        self._owed = 0  # tokens to compute if no request were preempted, those done included

    @property
    def load(self) -> int:
        """Tokens of prompts and answers that have not been computed."""
        again = self._scheduler.recomputed_tokens
        return self._owed + again - self.tally.computed_tokens

    @property
    def _copied(self) -> int:
        """Bytes copied to host memory and back."""
        return 0 if self._host is None else self._host.copied_bytes

    def add(self, job: Job) -> None:
        """Queue a request that has arrived. O(1)."""
        self._scheduler.add(job)
        self._owed += job.limit - (job.request.output_length > 0)  # the last is never computed

    def run_until(self, moment: float) -> None:
        """Make steps until the clock is at ``moment`` or past it, or nothing is left to do."""
        while self.now < moment and self._scheduler:
            self._step()
        if self.now < moment < float("inf"):
            self.now = moment
            self.tally.timeline.add(moment, self.cache.stats(), 0, 0)

    def close(self) -> None:
        """Take over what the scheduler and the cache have counted."""
        self.tally.recomputed_tokens = self._scheduler.recomputed_tokens
        self.tally.restored_tokens = self._scheduler.restored_tokens
        self.tally.note(self.cache.stats())

    def _step(self) -> None:
        before = self._copied
        turn = self._scheduler.schedule()
        assert turn is not None  # something waits or runs
        copying = (self._copied - before) / self._model.copy_rate
        self.now += copying
        self.tally.busy += copying
        self._note_admission(turn)
        numbers = np.array([job.request.number for job in turn.requests])
        following = self._answers.following(numbers, turn.step.context)
        self.cache.commit(turn.step, following)
        self._count(turn.step)
        begun = turn.step.context == self._answers.inputs[numbers]
        for row in begun.nonzero()[0].tolist():
            if turn.requests[row].first is None:
                turn.requests[row].first = self.now
        done = turn.step.context + turn.step.wants_token >= self._answers.limits[numbers]
        for row in done.nonzero()[0].tolist():
            self._end(turn.requests[row])

    def _note_admission(self, turn: Turn[Job]) -> None:
        """Who came in at the begin of this step, and who found no room. O(admitted)."""
        for job in turn.admitted:
            assert job.sequence is not None
            job.admit(self.now)
            size, cached = job.request.input_length, job.sequence.cached
            self._owed -= cached
            self.tally.admitted(size, cached, self.cache.plan.page_size)
        if self._scheduler.full:
            first = self._scheduler.waiting[0]
            new = first.sequence is None and not first.waited
            first.waited = first.waited or new
            self.tally.waits += new

    def _count(self, step: Step) -> None:
        """Let the time of a step pass, and count what it did."""
        tally = self.tally
        seconds = self._model.seconds(StepWork.of(step))
        self.now += seconds
        tally.busy += seconds
        tally.computed_tokens += step.input_ids.size
        tally.output_tokens += int(np.count_nonzero(step.wants_token))
        stats, scheduler = self.cache.stats(), self._scheduler
        tally.note(stats)
        tally.timeline.add(self.now, stats, len(scheduler.running), len(scheduler.waiting))
        evicted = stats.evicted - sum(tally.evicted.values())
        if evicted:
            self._blame(step, evicted)

    def _blame(self, step: Step, evicted: int) -> None:
        """Divide evicted pages among decoding rows and others by the pages they have taken."""
        size = self.cache.plan.page_size
        pages = -(-step.context // size) + -step.past // size
        decoded = evicted * int(pages[step.counts == 1].sum()) // max(1, int(pages.sum()))
        self.tally.evicted["decode"] += decoded
        self.tally.evicted["prefill"] += evicted - decoded

    def _end(self, job: Job) -> None:
        """A request is done: its pages go back, and others may come in."""
        job.finished = self.now
        self._scheduler.remove(job)
        self._on_end()


def serve(
    trace: Trace, setting: Setting, model: TimeModel, progress: Progress | None = None
) -> Run:
    """Run a trace under a model of time, answers included.

    Args:
        trace: requests with their arrivals.
        setting: what to run it on.
        model: how long steps take.
        progress: called whenever a request has ended or is refused.

    Raises:
        PlanError: the plan cannot make a cache, or knows no bytes for host memory.

    Cost: about 0.1 ms per step and 10 us more per chunk of 128 pages.
    """
    began = time.perf_counter()
    answers, router = AnswerTokens(trace.requests), find_router(setting.router)
    lengths = [request.length for request in trace.requests]
    done = count(1)

    def end() -> None:
        if progress is not None:
            progress(next(done), len(trace.requests))

    caches = [setting.cache(lengths, model.max_sequences) for _ in range(setting.replicas)]
    servers = [Server(cache, model, answers, end) for cache in caches]
    jobs, away, page_size = list[Job](), Tally(), setting.plan.page_size
    for request in trace.requests:
        for server in servers:
            server.run_until(request.arrival)
        if request.length > setting.longest:
            too_long = setting.too_long(request.length)
            away.refuse(request.input_length, page_size, too_long=too_long)
            end()
        else:
            jobs.append(job := Job(request))
            servers[router.choose(servers, request.input_length, request.prompt)].add(job)
    _finish(servers)
    spent = time.perf_counter() - began
    tallies = [server.tally for server in servers]
    return Run(setting, tallies, away, jobs, trace.tells_contents, spent)


def _finish(servers: Sequence[Server]) -> None:
    """Run until nothing is left to do."""
    for server in servers:
        server.run_until(float("inf"))
        server.close()
