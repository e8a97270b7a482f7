"""The engine: requests in, tokens out, on a transformers model over octavo's pages.

Composes the cache, the scheduler, the runner and the samplers. Knows tokens; text only to look for
stop texts with a tokenizer it may be given. An engine and its model belong to one thread at a time:
nothing here takes a lock.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from functools import partial
from itertools import compress
from types import TracebackType
from typing import Any, NamedTuple, Self

from octavo.cache.cache import Cache
from octavo.cache.policies import Policy
from octavo.cache.prompt import Prompt
from octavo.cache.step import Step
from octavo.checks import Ints, Tokens, check_tokens
from octavo.engine.adapters import unwrapped
from octavo.engine.conditions import Conditions
from octavo.engine.request import Completion, OnToken, Request
from octavo.engine.runner import Runner
from octavo.engine.sampling import Samplers, SamplingParams
from octavo.engine.speculation import (
    Found,
    PromptLookup,
    Speculation,
    accepted,
    count_accepted,
    sample_accepted,
)
from octavo.engine.texts import stops_of
from octavo.errors import (
    CapacityError,
    LengthError,
    OctavoError,
    PlanError,
    SamplingError,
    StepError,
    TokenError,
    UnsupportedModel,
    uncopied,
)
from octavo.planner.request import Plan
from octavo.scheduling import WATERMARK, Scheduler, Turn
from octavo.storage import Storage


class EngineStats(NamedTuple):
    """Totals of an engine.

    Attributes:
        steps: forward passes.
        computed_tokens: positions they computed.
        prompt_tokens: tokens of the prompts that were started.
        cached_tokens: those of them found in the prefix cache.
        generated_tokens: tokens sampled.
        drafted_tokens: tokens guessed and verified, of which
        accepted_tokens: were what was sampled.
        finished: requests that are done.
    """

    steps: int = 0
    computed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0


class Engine:
    """Continuous batching of one model over one plan.

    The model's attention is octavo's until `close`; an engine is its own context manager. Not
    thread-safe: all calls come from one thread, or one at a time.

    Args:
        model: a transformers causal language model, loaded; or a peft model of one.
        plan: from `octavo.plan` for this model and its dtype; order ``head`` is fast on CPU.
        max_sequences: requests that run at once.
        prefix: whether computed prompts are kept for later ones that begin alike.
        policy: which of them are given up first, as of `octavo.Cache`.
        max_step_tokens: most tokens a forward pass computes; long prompts are cut into such chunks.
        preemption: whether a request is admitted as soon as there is room for its prompt, and the
            newest computed again where pages run out; else when all can reach their limits.
        watermark: with preemption, the share of the pool that must be left when a request is
            admitted beside others.
        erase: whether pages are filled with zeros when all have let go of them, and before a step
            writes to them for the first time. Prefixes that are kept stay until they are evicted.
        speculation: how several tokens per step are guessed, to be verified in one forward pass;
            None: one by one.
        tokenizer: for the text of answers and stop texts, anything with ``decode(ids)``; for JSON
            schemas, expressions and grammars, a tokenizer of transformers with a Rust backend.

    Attributes:
        cache: pages and prefixes.
        storage: the tensors.

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
        max_step_tokens: int = 2048,
        preemption: bool = True,
        watermark: float = WATERMARK,
        erase: bool = False,
        speculation: PromptLookup | None = None,
        tokenizer: Any = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PlanError("plan", plan, "it must come from octavo.plan")
        if tokenizer is not None and not callable(getattr(tokenizer, "decode", None)):
            raise UnsupportedModel("tokenizer", f"{tokenizer!r} has no decode(ids)")
        self.cache = Cache(
            plan, max_sequences=max_sequences, policy=policy, prefix=prefix, erase=erase
        )
        self._erases = erase
        self._schedule = partial(
            Scheduler[Request],
            self.cache,
            max_step_tokens,
            preemption=preemption,
            watermark=watermark,
        )
        self._scheduler = self._schedule()
        self._speculation = Speculation(speculation, plan)
        model = unwrapped(model)
        self._runner = Runner(model, plan)
        self._conditions = Conditions(model, self._runner.close)
        self._tokenizer = tokenizer
        self._vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self._samplers = Samplers(self._vocabulary, self.storage.device, tokenizer)
        self._stats = EngineStats()
        self._closed = False

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
    def storage(self) -> Storage:
        """Where keys and values live."""
        return self._runner.storage

    @property
    def stats(self) -> EngineStats:
        """Totals so far. O(1)."""
        stats = self.cache.stats()
        return self._stats._replace(
            prompt_tokens=stats.prompt_tokens, cached_tokens=stats.cached_tokens
        )

    def submit(
        self,
        tokens: Tokens,
        params: SamplingParams | None = None,
        *,
        adapter: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        on_token: OnToken | None = None,
    ) -> Request:
        """Queue a prompt; nothing is run but what encodes its media.

        A request ends at the latest where the model's context does.

        Args:
            tokens: the prompt's token ids.
            params: how to sample and when to end; None: the defaults, greedy.
            adapter: name of a LoRA adapter loaded into the model; None: the model without any.
            inputs: what the model's processor returned for a prompt with pictures or other media,
                tensors of one row; they are kept until the request is done.
            on_token: called as ``on_token(request, token)`` after the step that made the token.

        Returns:
            The request; with max_tokens 0 it is done at once.

        Raises:
            LengthError: an empty prompt. TokenError: no token id of this model.
            IdentityError: no adapter of that name is loaded, or ``inputs`` do not fit the prompt.
            UnsupportedModel: the adapter is no plain LoRA or is merged, or the model has no media.
            CapacityError: the prompt leaves no room in the model's context, or the request is
                longer than the plan's max_length.
            NeverFits: it needs more pages than the pool has.
            SamplingError: stop texts without a tokenizer, a bias or ban of no token of this model,
                a form of answers that nothing meets or that `octavo[grammar]` is missing for, or
                ``params`` or ``on_token`` is neither.
            StepError: the engine is closed.

        Cost: O(len(tokens)), and the encoders of media.
        """
        self._require_open()
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise SamplingError("params", params, "it must be SamplingParams or None")
        if on_token is not None and not callable(on_token):
            raise SamplingError("on_token", on_token, "it must be callable or None")
        ids = self._check_prompt(tokens)
        condition = self._conditions.read(ids, adapter, inputs)
        prompt = Prompt(ids, condition.extra)
        limit = self._check_limit(len(prompt), params.max_tokens)
        sampler = self._samplers.make(params)
        request = Request(
            prompt,
            params,
            condition=condition,
            limit=limit,
            sampler=sampler,
            stops=stops_of(params, self._tokenizer),
            tokenizer=self._tokenizer,
            on_token=on_token,
        )
        if params.max_tokens == 0:
            request.finish_reason = "length"
            self._count(finished=1)
        else:
            self._conditions.prepare(condition)
            self._scheduler.add(request)
        return request

    def cancel(self, request: Request) -> None:
        """End a request that waits or runs; its pages go back. A finished one is left as it is.

        Raises:
            StepError: it is not a request of this engine.

        Cost: O(pages), or O(waiting).
        """
        if not isinstance(request, Request):
            raise StepError(f"cancel takes a Request, not {request!r}")
        if not request.done and request not in self._scheduler:
            raise StepError(f"{request!r} was submitted to another engine")
        if not request.done:
            self._finish(request, "cancelled")
            self._erase()

    def step(self) -> bool:
        """One forward pass for everything that runs, after admitting what fits.

        When the model raises, everything is as it was before. What concerns one request alone (its
        sampler, a tokenizer looking for its stop texts, its ``on_token``) cancels that request, is
        kept as its ``error``, and is raised once all others have their token: step on to go on.

        Returns:
            Whether work remains.

        Raises:
            OutOfPages: pages are held by sequences that are not the engine's.
            UnsupportedModel: a request's logits are NaN or infinite.
            StepError: the engine is closed.
            Exception: whatever the model, the tokenizer or ``on_token`` raises.

        Cost: O(tokens of the step x model) and attention over the contexts, never the pool.
        """
        self._require_open()
        turn = self._scheduler.schedule(self._speculation.guess(self._scheduler.running))
        if turn is not None:
            for request in turn.admitted:
                request.note_cached()
            wanting, found = self._compute(turn)
            told = [len(request.output) for request in wanting]
            self._book(turn.step, wanting, found)
            self._erase()
            self._call_listeners(wanting, told)
            self._raise_first(wanting)
        return bool(self._scheduler)

    def run(self) -> None:
        """Step until no work remains. Raises what `step` does."""
        while self.step():
            pass

    def generate(
        self,
        prompts: Iterable[Tokens],
        params: SamplingParams | Items[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Run prompts as one continuous batch.

        Args:
            prompts: token ids of each.
            params: for all, or one per prompt.

        Returns:
            One completion per prompt, in their order.

        Raises:
            Exception: what `submit` and `step` raise; no prompt is left behind in the engine.
        """
        self._require_open()
        if not isinstance(prompts, Iterable):
            raise TokenError(0, prompts)
        items = list(prompts)
        each = list(params) if isinstance(params, Items) else [params] * len(items)
        if len(each) != len(items):
            raise LengthError("len(params)", len(each), len(items), len(items), "one per prompt")
        requests: list[Request] = []
        try:
            for tokens, wanted in zip(items, each, strict=True):
                requests.append(self.submit(tokens, wanted))
            while not all(request.done for request in requests):
                self.step()
        finally:
            self._cancel_all(requests)
        return [request.completion() for request in requests]

    def close(self) -> None:
        """Cancel everything and give the model its own attention back. May be called twice.

        A closed engine takes no more work; its requests, cache and stats can still be read.
        """
        self._cancel_all([*self._scheduler.waiting, *self._scheduler.running])
        self._runner.close()
        self._conditions.close()
        self._closed = True

    def reset(self) -> None:
        """Cancel everything and forget every page: the way back after an interrupt.

        Whatever a KeyboardInterrupt or MemoryError has left half done, the engine is then empty and
        takes requests again. Its model, storage and totals stay.

        Raises:
            StepError: the engine is closed.

        Cost: O(tokens of all requests).
        """
        self._require_open()
        left = {*self._scheduler.waiting, *self._scheduler.running}
        self.cache.reset(force=True)
        self._scheduler = self._schedule()
        for request in left:
            request.sequence = None
            if not request.done:
                request.finish_reason = "cancelled"
                self._count(finished=1)
        self._erase()

    def _cancel_all(self, requests: Iterable[Request]) -> None:
        """Cancel these, or all where an interrupt has left something half done."""
        try:
            for request in requests:
                self.cancel(request)
        except (OctavoError, ValueError):
            self.reset()

    def _require_open(self) -> None:
        if self._closed:
            raise StepError("the engine is closed; make another one")

    def _check_prompt(self, tokens: Tokens) -> Ints:
        """A copy of the prompt as int32."""
        ids = check_tokens(tokens).copy()
        if not ids.size:
            raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
        if int(ids.max()) >= self._vocabulary:
            index = int((ids >= self._vocabulary).argmax())
            raise TokenError(index, int(ids[index]), self._vocabulary - 1)
        return ids

    def _check_limit(self, prompt: int, max_tokens: int) -> int:
        """Most tokens of a request: what it asks for, within the model's context."""
        spec, wanted = self.cache.plan.spec, prompt + max_tokens
        limit = wanted
        if spec is not None and spec.max_length is not None:
            limit = min(wanted, spec.max_length)
        if limit <= prompt and max_tokens:
            why = "the model's context must hold the prompt and one token"
            raise CapacityError("len(tokens)", prompt, limit - 1, why)
        return limit

    def _compute(self, turn: Turn[Request]) -> tuple[list[Request], Found]:
        """Run one step to its commit.

        Returns:
            The requests that want a token, and for each its tokens or what its sampler raised.
        """
        step = turn.step
        try:
            if self._erases:
                self.storage.zero(step.fresh)
            drafts = self._speculation.write(step, turn.requests)
            with self._conditions.applied(step, [each.condition for each in turn.requests]):
                logits = self._runner.forward(step)
            wanting = list(compress(turn.requests, step.wants_token.tolist()))
            found = sample_accepted(logits, drafts, wanting)
            tokens, kept = accepted(step, found)
            self.cache.commit(step, tokens, kept=kept)
            self._count(**count_accepted(wanting, drafts, found))
        except BaseException:
            self._abort(step)
            raise
        return wanting, found

    def _abort(self, step: Step) -> None:
        try:
            self.cache.abort(step)
        except OctavoError:
            return  # interrupted after the commit had closed the step, or in its middle: see reset

    def _book(self, step: Step, wanting: list[Request], found: Found) -> None:
        """Everything that follows from a committed step, before any listener is called.

        What cannot fail is done for all requests before what can is tried for any.
        """
        generated = 0
        for request, choices in zip(wanting, found, strict=True):
            if isinstance(choices, list):
                generated += request.take(choices)
            else:
                request.error = choices
        self._count(steps=1, computed_tokens=step.input_ids.size, generated_tokens=generated)
        for request in [r for r in wanting if r.error is None]:
            self._alone(request, request.look_for_end)
        for request in [r for r in wanting if r.error is not None or r.finish_reason is not None]:
            self._finish(request, "cancelled" if request.error else request.finish_reason)

    def _finish(self, request: Request, reason: Any) -> None:
        request.finish_reason = reason
        self._scheduler.remove(request)
        self._count(finished=1)

    def _erase(self) -> None:
        """Fill with zeros what nobody needs any more."""
        if self._erases:
            self.storage.zero(self.cache.vacated())

    def _call_listeners(self, wanting: list[Request], told: list[int]) -> None:
        """Call each ``on_token``; one that raises costs its own request and no other's token.

        Args:
            told: how many of its tokens each request's listener has heard of.
        """
        for request, first in zip(wanting, told, strict=True):
            if request.on_token is None or request.error is not None:
                continue
            for token in request.output[first:]:
                self._alone(request, partial(request.on_token, request, token))
                if request.error is not None:
                    self.cancel(request)
                    break

    @staticmethod
    def _alone(request: Request, call: Callable[[], object]) -> None:
        """Call what concerns one request; what it raises becomes the request's error."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001, step raises it when all have their token
            request.error = error

    @staticmethod
    def _raise_first(wanting: list[Request]) -> None:
        error = next((r.error for r in wanting if r.error is not None), None)
        if error is not None:
            raise error

    def _count(self, **more: int) -> None:
        old = self._stats
        self._stats = old._replace(**{name: getattr(old, name) + n for name, n in more.items()})
