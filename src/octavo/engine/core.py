"""The loop's body: what runs each step, from the scheduler to the tokens told.

The one place that touches scheduler, cache, storage and model. Knows no threads: whoever calls it
is the only one.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import compress, count
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from octavo.cache.cache import Cache
from octavo.cache.policies import Policy
from octavo.cache.prompt import Prompt
from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.codebooks import Codebooks
from octavo.engine.conditions import Condition, Conditions, runner_of, vocabulary_of
from octavo.engine.host import HostCopier, HostMemory, Rates
from octavo.engine.linears import Quantisation
from octavo.engine.loop import Inbox
from octavo.engine.request import FinishReason, Request
from octavo.engine.runner import draft_counts
from octavo.engine.sampling import Samplers, SamplingParams
from octavo.engine.scoring import note_scores, own_salt, with_scores
from octavo.engine.speculation import (
    Draft,
    Found,
    PromptLookup,
    Speculation,
    accepted,
    rollback_for,
    sample_accepted,
)
from octavo.engine.totals import EngineStats
from octavo.errors import OctavoError, OutOfPages, PlanError, UnsupportedModel, uncopied
from octavo.planner.request import Plan
from octavo.scheduling import HostPages, Scheduler, Turn

T = TypeVar("T")


class EngineCore:
    """Cache, scheduler, runner and samplers of one engine, and the requests that are not done.

    Args:
        model, plan, max_sequences, prefix, policy, snapshots, snapshot_bytes, max_step_tokens,
            preemption, watermark, host, erase, speculation, quantise, tokenizer: as of
            `octavo.engine.Engine`.

    Attributes:
        cache: pages and prefixes.
        inbox: calls to be made before the next step.
        runner: the model over the tensors.
        conditions: what requests run with beside their tokens.
        codebooks: makes frames of first codes, where the model answers in frames.
        vocabulary: how many tokens it has.
        samplers: makes those of requests.
        rates: of copying and computing, and the host memory; None: there is none.
        scheduler: requests that wait and run.
        releases: called one by one they give the models back as they were, twice if need be; they
            know neither requests nor their engine.
        arriving: requests that were submitted and are not taken in yet.
        torn: whether an interrupt has left something half done; `whole` mends it.
        stats: totals.
    """

    __reduce__ = uncopied("it has a model and the pages of its cache; make another engine")

    def __init__(
        self,
        model: Any,
        plan: Plan,
        *,
        max_sequences: int,
        prefix: bool,
        policy: str | Policy,
        snapshots: Literal["branch", "grid"],
        snapshot_bytes: int | None,
        max_step_tokens: int,
        preemption: bool,
        watermark: float,
        host: HostMemory | None,
        erase: bool,
        speculation: PromptLookup | Draft | None,
        quantise: Quantisation | None,
        tokenizer: Any,
    ) -> None:
        if erase and host is not None:
            raise PlanError("host", host, "with erase, no copies of pages are kept")
        self.cache = Cache(
            plan,
            max_sequences=max_sequences,
            policy=policy,
            prefix=prefix,
            snapshots=snapshots,
            snapshot_bytes=snapshot_bytes,
            erase=erase,
            rollback=rollback_for(speculation, plan),
        )
        self._erases = erase
        self._schedule = partial(
            Scheduler[Request],
            self.cache,
            max_step_tokens,
            preemption=preemption,
            watermark=watermark,
        )
        self.inbox = Inbox()
        self.runner = runner_of(model, plan, quantise)
        try:
            self.rates = None if host is None else Rates(host, self.runner.storage)
            self.scheduler = self._new_scheduler()
            self._speculation = Speculation(speculation, model, self.runner.storage)
            self.conditions = Conditions(model, self.runner)
            self.codebooks = Codebooks(model, self.conditions.frames, tokenizer)
        except Exception:
            self.runner.close()
            raise
        self.releases = self.runner.close, self._speculation.close, self.conditions.close
        self.vocabulary = vocabulary_of(model)
        self.samplers = Samplers(self.codebooks.size or self.vocabulary, tokenizer)
        self.stats, self.torn = EngineStats(), False
        self.arriving: set[Request] = set()
        self._untold: deque[tuple[Request, int]] = deque()  # and how many tokens are told

    def _new_scheduler(self) -> Scheduler[Request]:
        """A scheduler of no requests."""
        if self.rates is None:
            return self._schedule()
        copier = HostCopier(self.runner.storage)
        return self._schedule(host=HostPages(self.cache, self.rates, copier))

    def whole(self, call: Callable[[], T]) -> T:
        """Make a call that changes pages, after mending what an interrupt has left half done."""
        if self.torn:
            self._recover()
        self.torn = True
        done = call()
        self.torn = False
        return done

    # -- one step ------------------------------------------------------------------------------

    def step(self, *, outlasts: bool = False) -> BaseException | None:
        """Schedule, run the model, sample, commit, tell.

        Args:
            outlasts: whether a model that raises ends those requests for whom it does; else it
                raises here, and everything is as it was before.

        Returns:
            The first error of a request, when all others have their tokens.
        """
        late = self._tell()  # what an interrupt has left
        self.inbox.read()
        for request in self.scheduler.expire(time.monotonic()):
            self.end(request, "deadline")
        turn = self._next_turn()
        if turn is None:
            return late
        if turn.admitted:
            self.runner.look()
        for request in turn.admitted:
            request.note_cached()
            self._count(prompt_tokens=request.prompt_tokens, cached_tokens=request.cached_tokens)
        began = time.perf_counter()
        try:
            wanting, found = self._compute(turn)
        except Exception as error:
            if self.torn or not outlasts:
                raise
            self._find_whom(turn, error)
            return late
        if self.rates is not None:
            self.rates.note(turn.step.input_ids.size, time.perf_counter() - began)
        self._book(turn.step, wanting, found)
        late = self._tell() or late
        self.inbox.read()
        return late

    def _find_whom(self, turn: Turn[Request], error: Exception) -> None:
        """End the requests of a turn for whom the model raises; the others have their tokens.

        Half of the turn is tried, and the other half, down to one request. Cost: for each such
        request two forward passes per halving; where it raises for all, two per request.
        """
        if len(turn.requests) == 1:
            self.end(turn.requests[0], "cancelled", error)
            return
        middle = len(turn.requests) // 2
        for half in (turn.requests[:middle], turn.requests[middle:]):
            try:
                part = self.scheduler.part(turn, half)
            except OutOfPages:
                continue  # forks of the first half took the room: the next turn has all others
            if part is None:
                continue
            try:
                wanting, found = self._compute(part)
            except Exception as again:
                if self.torn:
                    raise
                self._find_whom(part, again)
            else:
                self._book(part.step, wanting, found)
                self._tell()

    def serve(self) -> None:
        """A step of a loop that nobody watches: errors are left to the requests' handles."""
        self.step(outlasts=True)

    def _next_turn(self) -> Turn[Request] | None:
        before = self.scheduler.restored_tokens
        try:
            return self.scheduler.schedule(self._speculation.wanted(self.scheduler.running))
        except OctavoError:
            self.torn = False  # it has changed nothing
            raise
        finally:
            self._count(restored_tokens=self.scheduler.restored_tokens - before)

    def _compute(self, turn: Turn[Request]) -> tuple[list[Request], Found]:
        """Run one step to its commit, and fork the samples of prompts that are computed.

        Returns:
            The requests that want a token, and for each its tokens or what its sampler raised.
        """
        step, self.torn = turn.step, True  # until it is committed or aborted
        storage = self.runner.storage
        try:
            if self._erases:
                storage.zero(step.fresh)
            if step.copies:
                storage.apply(step.copies)
            drafts = self._speculation.write(step, turn.requests)
            scored = with_scores(step, turn.requests)
            conditions = [each.condition for each in turn.requests]
            with (
                self.conditions.applied(scored, conditions),
                self.codebooks.placed(scored, turn.requests),
            ):
                logits = self.runner.forward(scored, draft_counts(step))
            if step.snapshots:
                storage.apply(step.snapshots)
            logits, broken = note_scores(scored, step, turn.requests, logits)
            wants = step.wants_token.tolist()
            rows = list(compress(turn.requests, wants))
            logits, drafts, wanting = _with_forks(logits, drafts, rows)
            found = self.codebooks.finish(sample_accepted(logits, drafts, wanting), wanting)
            failed = [  # forks come last
                at
                for at, choices in zip(compress(count(), wants), found, strict=False)
                if isinstance(choices, UnsupportedModel)
            ]
            for at in (*broken, *failed):  # nobody is to find its keys and values
                self.cache.preempt(step.sequences[at])
            tokens, kept = accepted(step, found[: len(rows)])
            self.cache.commit(step, tokens, kept=kept)
            self._count(**self._speculation.note(step, wanting, drafts, found))
        except BaseException:
            self._abort(step)
            raise
        wanting, found = self._fork(wanting, found, len(rows))
        more = [each for at in broken for each in turn.requests[at].samples if not each.done]
        why = "the model gave none that are numbers behind a chunk of the prompt"
        errors = [UnsupportedModel("logits", why) for _ in more]
        return [*wanting, *more], [*found, *errors]

    def _fork(self, wanting: list[Request], found: Found, rows: int) -> tuple[list[Request], Found]:
        """Let samples go on from their prompt: those of ``wanting`` that have no row of the step.

        One that has no room waits, computes it again when it has, and draws its first token anew.
        """
        left = list(range(rows))
        for at in range(rows, len(wanting)):
            sample, choices = wanting[at], found[at]
            first = sample.samples[0]
            fails = isinstance(found[wanting.index(first)], Exception)
            token = choices[0].token if isinstance(choices, list) else 0
            if not fails and self.scheduler.fork(first, sample, token):
                sample.note_cached()
                left.append(at)
                continue
            if fails:  # it ends, and nothing forks off it
                self._queue(sample, self.scheduler)
        return [wanting[at] for at in left], [found[at] for at in left]

    def _abort(self, step: Step) -> None:
        try:
            self.cache.abort(step)
            self.torn = any(each.preempted for each in step.sequences)
        except OctavoError:
            return  # interrupted after the commit had closed the step, or in its middle

    def _book(self, step: Step, wanting: list[Request], found: Found) -> None:
        """Give each request its tokens, before any listener is called."""
        known = [len(request.output) for request in wanting]
        self._untold.extend(zip(wanting, known, strict=True))
        for request, choices in zip(wanting, found, strict=True):
            reason = None
            if isinstance(choices, list):
                reason = self._alone(request, partial(request.take, choices))
            else:
                request.error = choices
            if request.error is not None or reason is not None:
                self._finish(request, "cancelled" if request.error is not None else reason)
        tokens = sum(len(request.output) for request in wanting) - sum(known)
        self._count(steps=1, computed_tokens=step.input_ids.size, generated_tokens=tokens)
        self._erase()

    def _tell(self) -> BaseException | None:
        """Call each ``on_token`` with what is new, and wake who waits.

        A listener that raises costs its own request and no other's token. Ctrl-C in one ends no
        request, and is raised here when all others have heard.

        Returns:
            The first error of a request, its own or its listener's.
        """
        first: BaseException | None = None
        interrupt: KeyboardInterrupt | None = None
        while self._untold:
            request, told = self._untold[0]
            if request.on_token and request.error is None and told < len(request.output):
                self._untold[0] = request, told + 1  # before the call: nothing is told twice
                self.torn = False  # a listener changes no pages
                try:
                    request.on_token(request, request.output[told])
                except KeyboardInterrupt as error:
                    interrupt = interrupt or error
                except BaseException as error:  # noqa: BLE001, lest others do not hear theirs
                    request.error = error
                self.torn = True
                continue
            if request.error is not None and request.done:
                request.finish("cancelled")  # whose last token nobody could take
            elif request.error is not None:
                self._finish(request, "cancelled")
                self._erase()
            first = first or request.error
            request.notify()
            self._untold.popleft()
        if interrupt is not None:
            self.torn = False
            raise interrupt
        return first

    @staticmethod
    def _alone(request: Request, call: Callable[[], T]) -> T | None:
        """Call what concerns one request; what it raises becomes the request's error."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001, whatever a tokenizer raises
            request.error = error
            return None

    # -- beginning and ending ------------------------------------------------------------------

    def condition_of(
        self,
        ids: Ints,
        params: SamplingParams,
        adapter: str | None,
        inputs: Mapping[str, Any] | None,
    ) -> Condition:
        """What a request runs with, checked; nothing is run, and any thread may ask.

        Raises:
            IdentityError, UnsupportedModel: see `Conditions.read`. SamplingError: see
                `Codebooks.check`.
        """
        self.codebooks.check(params)
        found = self.conditions.read(ids, adapter, inputs)
        return found._replace(salt=own_salt(params) or found.salt)

    def take_in(self, request: Request) -> None:
        """Queue what was submitted."""
        if request not in self.arriving:
            return  # `forget` has ended it
        if request.done:  # no tokens were wanted
            self._count(finished=len(request.samples))
            self.arriving.discard(request)
            return
        try:
            self.conditions.prepare(request.condition)
            self._queue(request, self.scheduler)
        except Exception as error:  # noqa: BLE001, whatever an encoder raises
            self.end(request, "cancelled", error)
        self.arriving.discard(request)  # last: what dies in here leaves nobody waiting

    @staticmethod
    def _queue(request: Request, scheduler: Scheduler[Request]) -> None:
        scheduler.add(request, priority=request.priority, deadline=request.deadline)

    def end(
        self, request: Request, reason: FinishReason, error: BaseException | None = None
    ) -> None:
        """End a request that is not done, and all samples with the first of them."""
        for each in request.samples if request is request.samples[0] else (request,):
            if not each.done:
                self._finish(each, reason, error)
        self._erase()

    def _finish(self, request: Request, reason: Any, error: BaseException | None = None) -> None:
        request.finish(reason, error)
        self._count(finished=1)
        if request in self.scheduler:  # else it waits for another to fork off
            self.scheduler.remove(request)

    def unfinished(self) -> list[Request]:
        """All that run or wait, those that came first before others, each with its samples."""
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        found = dict.fromkeys(each for request in queued for each in request.samples)
        return [request for request in found if not request.done]

    def cancel_all(self) -> None:
        """End every request, when listeners have heard what an interrupt has left."""
        self._tell()
        self.inbox.read()
        for request in self.unfinished():
            self.end(request, "cancelled")

    def forget(self, error: BaseException | None = None) -> None:
        """Begin with no pages, and end all requests."""
        self._untold.clear()
        left = self.unfinished()
        self.cache.reset(force=True)
        self.scheduler = self._new_scheduler()
        for request in left:
            request.sequence = None
            self._finish(request, "cancelled", error)
        for request in list(self.arriving):
            if not request.done:
                self.arriving.discard(request)
                self.end(request, "cancelled", error)
        self.inbox.read()
        for request in self.unfinished():
            self.end(request, "cancelled", error)
        self._erase()

    def _recover(self) -> None:
        """After an interrupt, begin with no pages; requests go on with the tokens they have."""
        left = self.unfinished()
        self.cache.reset(force=True)
        scheduler = self._new_scheduler()
        for request in left:
            first, request.sequence = request.samples[0], None
            reason = self._alone(request, request.replay)
            if request.error is not None or reason is not None:
                request.finish(reason or "cancelled")
                self._count(finished=1)
            elif request.output:  # as one that was preempted
                ids = np.append(request.prompt.tokens, np.array(request.output, np.int32))
                known = Prompt(ids, request.prompt.extra)
                request.sequence = self.cache.admit(known, limit=request.limit)
                self.cache.preempt(request.sequence)
                self._queue(request, scheduler)
            elif request is first or first.done or first.output:
                self._queue(request, scheduler)
        self._erase()
        self.scheduler = scheduler  # last: an interrupt in here loses nobody

    def _erase(self) -> None:
        """Fill with zeros what nobody needs any more."""
        if self._erases:
            self.runner.storage.zero(self.cache.vacated())

    def _count(self, **more: int) -> None:
        if not more:
            return
        old = self.stats
        self.stats = old._replace(**{name: getattr(old, name) + n for name, n in more.items()})


def _with_forks(
    logits: torch.Tensor, drafts: list[list[int]], rows: list[Request]
) -> tuple[torch.Tensor, list[list[int]], list[Request]]:
    """What is sampled: the rows of a step, and behind them the samples that fork off one each.

    A row that others fork off has no drafts. O(rows + samples).
    """
    more = [(at, sample) for at, row in enumerate(rows) for sample in row.forks]
    if not more:
        return logits, drafts, rows
    starts = np.cumsum([0, *(1 + len(each) for each in drafts)])
    first = logits[[int(starts[at]) for at, _ in more]]
    samples = [sample for _, sample in more]
    return torch.cat([logits, first]), [*drafts, *([] for _ in more)], [*rows, *samples]
