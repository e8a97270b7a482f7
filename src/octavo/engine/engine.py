"""The engine: requests in, tokens out, on a transformers model over octavo's pages.

Composes the cache, the scheduler, the runner and the samplers. Knows tokens; text only to look for
stop texts with a tokenizer it may be given. One thread at a time runs it, its caller's or its own;
what others ask waits in its inbox.
"""

import atexit
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from octavo.cache.cache import Cache
from octavo.cache.policies import Policy
from octavo.checks import Tokens, check_flag, check_int
from octavo.engine.adapters import unwrapped
from octavo.engine.core import EngineCore
from octavo.engine.host import HostMemory, Rates
from octavo.engine.limits import (
    check_deadline,
    check_limit,
    check_prompt,
    check_prompts,
    one_per_prompt,
)
from octavo.engine.linears import Quantisation
from octavo.engine.loop import Claim, Loop, guard_of, release_alone
from octavo.engine.progress import wait_for_all
from octavo.engine.request import Completion, OnToken, Request
from octavo.engine.sampling import SamplingParams
from octavo.engine.speculation import Draft, PromptLookup
from octavo.engine.texts import stops_of
from octavo.engine.totals import EngineStats
from octavo.errors import (
    LoopDied,
    PlanError,
    SamplingError,
    StepError,
    UnsupportedModel,
    uncopied,
)
from octavo.planner.request import Plan
from octavo.scheduling import WATERMARK
from octavo.storage import Storage

T = TypeVar("T")


class Engine:
    """Continuous batching of one model over one plan.

    Its caller steps it (`step`, `run`, `generate`, waiting for a request), or after `start` a
    thread of its own does. `submit` and `cancel` may come from any thread.

    The model's attention is octavo's until `close`, or until the engine is collected; an engine is
    its own context manager. Engines of one model take turns.

    Args:
        model: a transformers causal language model, loaded; or a peft model of one.
        plan: from `octavo.plan` for this model and its dtype; order ``head`` is fast on CPU.
        max_sequences: requests that run at once.
        prefix: whether computed prompts are kept for later ones that begin alike.
        policy: which of them are given up first, as of `octavo.Cache`.
        snapshots: where states are kept for them, ``branch`` or ``grid``, as of `octavo.Cache`.
        snapshot_bytes: most bytes of such states; None: as many as fit.
        max_step_tokens: most tokens a forward pass computes; long prompts are cut into such chunks.
        preemption: whether a request is admitted as soon as there is room for its prompt, and the
            newest computed again where pages run out; else when all can reach their limits.
        watermark: with preemption, the share of the pool that must be left when a request is
            admitted beside others.
        host: host memory for pages that preempted requests lose, to be copied back where that takes
            less time than computing (`octavo.scheduling.host`); None: all are computed again.
        erase: whether pages are filled with zeros when all have let go of them, and before a step
            writes to them for the first time. Prefixes that are kept stay until they are evicted.
        speculation: how several tokens per step are guessed, to be verified in one forward pass;
            None: one by one.
        quantise: ``int4`` or ``int8``: on a CPU linear layers compute with weights rounded to so
            many bits, in memory beside the model's own; see `octavo.engine.linears`.
        tokenizer: for the text of answers and stop texts, anything with ``decode(ids)``; for JSON
            schemas, expressions and grammars, a tokenizer of transformers with a Rust backend.

    Raises:
        UnknownArchitecture, UnsupportedModel: octavo cannot run this model.
        PlanError: the plan is for another model or dtype, or an option is out of range.
        LengthError: a count is.
    """

    __reduce__ = uncopied("it has a model and the pages of its cache; make another")

    def __init__(
        self,
        model: Any,
        plan: Plan,
        *,
        max_sequences: int = 256,
        prefix: bool = True,
        policy: str | Policy = "lru",
        snapshots: Literal["branch", "grid"] = "branch",
        snapshot_bytes: int | None = None,
        max_step_tokens: int = 2048,
        preemption: bool = True,
        watermark: float = WATERMARK,
        host: HostMemory | None = None,
        erase: bool = False,
        speculation: PromptLookup | Draft | None = None,
        quantise: Quantisation | None = None,
        tokenizer: Any = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PlanError("plan", plan, "it must come from octavo.plan")
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise UnsupportedModel("tokenizer", f"{tokenizer!r} has no decode(ids)")
        model = unwrapped(model)
        self._core = EngineCore(
            model,
            plan,
            max_sequences=max_sequences,
            prefix=prefix,
            policy=policy,
            snapshots=snapshots,
            snapshot_bytes=snapshot_bytes,
            max_step_tokens=max_step_tokens,
            preemption=preemption,
            watermark=watermark,
            host=host,
            erase=erase,
            speculation=speculation,
            quantise=quantise,
            tokenizer=tokenizer,
        )
        self._tokenizer = tokenizer
        self._guard = guard_of(model)
        self._loop: Loop | None = None
        self._death: LoopDied | None = None  # of the thread that ran it last
        self._closed, self._process = False, os.getpid()
        self._lost = weakref.finalize(self, release_alone, self._guard, self._core.releases)
        self._lost.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def cache(self) -> Cache:
        """Pages and prefixes."""
        return self._core.cache

    @property
    def storage(self) -> Storage:
        """The tensors, where keys and values live."""
        found: Storage = self._core.runner.storage
        return found

    @property
    def rates(self) -> Rates | None:
        """Its host memory, and the rates by which it copies or computes. O(1)."""
        return self._core.rates

    @property
    def by_rows(self) -> str | None:
        """Why a step takes several forward passes, one per sequence or so; None: one for all."""
        return self._core.runner.by_rows

    @property
    def stats(self) -> EngineStats:
        """Totals so far; any thread may ask. O(1)."""
        return self._core.stats

    @property
    def serving(self) -> bool:
        """Whether a thread of its own runs it, since `start`. O(1)."""
        return self._loop is not None and os.getpid() == self._process

    def submit(
        self,
        tokens: Tokens,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        priority: int = 0,
        deadline: float | None = None,
        on_token: OnToken | None = None,
    ) -> Request:
        """Queue a prompt; nothing is run but what encodes its inputs. Any thread may call it.

        While a thread runs the engine, it never waits: what is found wrong later, in inputs or by
        the scheduler, is raised by the handle.

        A request ends at the latest where the model's context does.

        Args:
            tokens: the prompt's token ids.
            params: how to sample and when to end; None: the defaults, greedy.
            adapter: name of a LoRA adapter loaded into the model; None: the model without any.
            inputs: what the model's processor returned for a prompt with pictures or other media,
                or for the source of an encoder-decoder, whose ``tokens`` its decoder begins with;
                or codes of recordings. Tensors of one row, kept with the request.
            priority: higher ones go first, but for requests that came long before them: see
                `octavo.scheduling.order`.
            deadline: seconds from now; what is not done by then ends before the next step, with
                the tokens so far. None: none.
            on_token: called as ``on_token(request, token)`` after the step that made the token, in
                the thread that made the step; of several samples with each as its ``request``.

        Returns:
            The handle on it; with max_tokens 0 it is done at once.

        Raises:
            LengthError: an empty prompt, or the priority is no int of 32 bits.
            PlanError: the deadline is no number, or below 0. TokenError: no token id of this model.
            IdentityError: no adapter of that name is loaded, or ``inputs`` do not fit the prompt.
            UnsupportedModel: the adapter is no plain LoRA or is merged, or the model has no media.
            CapacityError: the prompt leaves no room in the model's context, or the request is
                longer than the plan's max_length.
            NeverFits: it needs more pages than the pool has.
            SamplingError: stop texts without a tokenizer, a bias or ban of no token of this model,
                a form of answers that nothing meets or that `octavo[grammar]` is missing for, what
                means nothing for frames, or ``params`` or ``on_token`` is neither.
            StepError: the engine is closed, or belongs to the process this one was forked from.
            LoopDied: the thread that ran it died, and neither `reset` nor `start` came since.

        Cost: O(len(tokens)), and the encoders of ``inputs``.
        """
        self._require_open()
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise SamplingError("params", params, "it must be SamplingParams or None")
        if on_token is not None and not callable(on_token):
            raise SamplingError("on_token", on_token, "it must be callable or None")
        check_int("priority", priority, -(2**31) + 1, 2**31 - 1)
        due = None if deadline is None else time.monotonic() + check_deadline(deadline)
        ids = check_prompt(tokens, self._core.vocabulary)
        condition = self._core.condition_of(ids, params, adapter, inputs)
        limit = check_limit(self.cache, ids.size, params.max_tokens)
        samples = tuple(
            Request(
                ids,
                each,
                condition=condition,
                priority=priority,
                deadline=due,
                limit=limit,
                sampler=self._core.samplers.make(each),
                stops=stops_of(params, self._tokenizer),
                tokenizer=self._tokenizer,
                on_token=on_token,
                owner=self,
            )
            for each in params.each()
        )
        for request in samples:
            request.samples = samples
            if params.max_tokens == 0:
                request.finish("length")
        self._core.arriving.add(samples[0])
        self._leave(partial(self._core.take_in, samples[0]))
        if samples[0].error is not None:
            raise samples[0].error
        return samples[0]

    def cancel(self, request: Request) -> None:
        """End a request that waits or runs, and all samples with the first of them.

        Its pages go back. A finished one is left as it is. Any thread may call it; while a thread
        runs the engine, or a step is under way, the request ends before the next step.

        Raises:
            StepError: it is not a request of this engine.

        Cost: O(pages), or O(waiting).
        """
        if not isinstance(request, Request):
            raise StepError(f"cancel takes a Request, not {request!r}")
        if request.owner is not self:
            raise StepError(f"{request!r} was submitted to another engine")
        self._leave(partial(self._core.end, request, "cancelled"))

    def step(self) -> bool:
        """One forward pass for everything that runs, after admitting what fits.

        When the model raises, everything is as it was before. What concerns one request alone (its
        sampler, a tokenizer looking for its stop texts, its ``on_token``) cancels that request, is
        kept as its ``error``, and is raised once all others have their token: step on to go on.

        Ctrl-C ends no request; who has not heard a token by then does at the next step, or when the
        engine is closed, but for the listener that was being called: nothing is told twice. Where
        it comes amid scheduling or booking, that step begins to compute all pages anew.

        Returns:
            Whether work remains.

        Raises:
            OutOfPages: pages are held by sequences that are not the engine's.
            UnsupportedModel: a request's logits are NaN or infinite.
            StepError: the engine is closed, a thread of its own runs it, or another is in a step of
                it or of its model.
            Exception: whatever the model, the tokenizer or ``on_token`` raises.

        Cost: O(tokens of the step x model) and attention over the contexts, never the pool.
        """
        self._require_open()
        error = self._drive(self._core.step)
        if error is not None:
            raise error
        return bool(self._core.scheduler)

    def run(self) -> None:
        """Step until no work remains. Raises what `step` does."""
        while self.step():
            pass

    def generate(
        self,
        prompts: Iterable[Tokens],
        params: SamplingParams | Items[SamplingParams] | None = None,
        *,
        adapter: str | Items[str | None] | None = None,
        inputs: Mapping[str, Any] | Items[Mapping[str, Any] | None] | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Run prompts as one continuous batch.

        Args:
            prompts: token ids of each.
            params, adapter, inputs: as of `submit`; for all, or a list of one per prompt.
            progress: whether a bar on stderr shows how many are done.

        Returns:
            One completion per prompt and sample, in their order: ``n`` of the first prompt first.

        Raises:
            Exception: what `submit` raises, and the first error found of a request. No prompt is
                left behind in the engine, Ctrl-C or not.
        """
        self._require_open()
        items = check_prompts(prompts)
        given = {"params": params, "adapter": adapter, "inputs": inputs}
        each = zip(*(one_per_prompt(k, v, len(items)) for k, v in given.items()), strict=True)
        requests: list[Request] = []
        try:
            for tokens, one in zip(items, each, strict=True):
                asked = self.submit(tokens, one[0], adapter=one[1], inputs=one[2])
                requests.extend(asked.samples)
            wait_for_all(requests, progress=check_flag("progress", progress))
        finally:
            for request in requests:
                if not request.done:
                    self.cancel(request)
        return [request.completion() for request in requests]

    def start(self) -> Self:
        """Let a thread of its own step the engine, until `stop` or `close`.

        Any thread and any event loop may then submit, cancel and wait; none but the new one touches
        cache and model. A model that raises ends the requests for whom it does, each with that
        error, and the others go on. Where the thread itself dies, every request ends with LoopDied.

        The thread ends with the interpreter, after the step under way.

        Returns:
            The engine.

        Raises:
            StepError: it runs already, a step is under way, or another engine runs the model.
        """
        self._death = None
        self._require_open()
        self._guard.take(Claim(self, loops=True))
        self._loop = loop = Loop(self._core.inbox, self._serve, self._stopped)
        try:
            loop.start()
        except BaseException:
            self._loop = self._guard.holder = None
            raise
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """End the thread that `start` made, after the step under way; nothing where none runs.

        Requests stay where they are, until the next `start` or `step`; who waits gets StepError.
        """
        loop = self._loop
        if loop is not None and self.serving:
            loop.stop()
        atexit.unregister(self.stop)

    def close(self) -> None:
        """Stop, cancel everything and give the model its own attention back. May be called twice.

        A closed engine takes no more work; its requests, cache and stats can still be read.

        Raises:
            StepError: a step is under way: the caller is an ``on_token``, or another thread steps.
        """
        if (loop := self._loop) is not None and loop.is_here():
            raise StepError("a step is under way: on_token may submit, cancel and stop()")
        closed, self._closed = self._closed, True  # nobody steps from now on
        if os.getpid() != self._process:
            return  # what a fork has copied is not in use
        try:
            self.stop()
            held = self._guard.holder
            if held is not None and held.engine is not self:
                self._core.whole(self._core.cancel_all)  # of its own pages; another has the model
            else:
                self._drive(self._core.cancel_all)
                release_alone(self._guard, self._core.releases)
                self._lost.detach()
        except StepError:
            self._closed = closed
            raise

    def reset(self) -> None:
        """Cancel everything and forget every page.

        Whatever was left half done, it then takes requests. Model, storage and totals stay.

        Raises:
            StepError: the engine is closed, or at work: see `step`.

        Cost: O(tokens of all requests).
        """
        self._death, self._core.torn = None, False
        self._require_open()
        self._drive(self._core.forget)

    def advance(self, request: Request) -> bool:
        """Make a step for one that waits for ``request``, where no thread runs the engine.

        Errors of other requests are left to their handles.

        Returns:
            Whether it did; else there is nothing to do but wait.

        Raises:
            StepError: what `step` raises it for, or the caller is the thread that runs the engine,
                or the request is in no queue any more.
            Exception: whatever the model raises.
        """
        if self._loop is not None and self.serving:
            if self._loop.is_here():
                raise StepError("on_token cannot wait: the thread that calls it makes the steps")
            return False
        self._require_open()
        self._drive(self._core.step)
        if not self._core.scheduler and not request.done:
            raise StepError(f"{request!r} was lost to an interrupt; submit its prompt again")
        return True

    # -- who runs it ---------------------------------------------------------------------------

    def _drive(self, call: Callable[[], T]) -> T:
        """Make a call as the only one that runs the engine and its model.

        Raises:
            StepError: somebody else does.
        """
        guard, claim = self._guard, Claim(self)
        try:
            guard.take(claim)
            return self._core.whole(call)
        finally:
            if guard.holder is claim:
                guard.holder = None

    def _leave(self, call: Callable[[], object]) -> None:
        """Have a call made by whoever runs the engine: now, where nobody does."""
        self._core.inbox.put(call)
        if self._guard.holder is None:
            with suppress(StepError):  # another came first, and makes it
                self._drive(self._core.inbox.read)

    def _serve(self) -> bool:
        """A step of the thread that runs the engine."""
        self._core.whole(self._core.serve)
        return bool(self._core.scheduler)

    def _stopped(self, error: BaseException | None) -> None:
        """The last deed of the thread that ran the engine."""
        try:
            if error is not None:
                self._death = LoopDied(error)
                self._death.__cause__ = error
                self._core.forget(self._death)
                self._core.torn = False
            elif self._closed:
                self._core.whole(self._core.cancel_all)
        finally:
            self._loop = self._guard.holder = None
            for request in self._core.unfinished():
                request.notify()

    # -- checks --------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise StepError("the engine is closed; make another one")
        if os.getpid() != self._process:
            raise StepError(f"the engine belongs to process {self._process}; make another one")
        if self._death is not None:
            raise self._death
