"""A request: its prompt, its parameters, what came of it so far, and how to wait for more.

Knows no model and no pages; of the engine that it may be asked to let time pass, and to cancel.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol

from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.checkpoints.text import UNFINISHED, decode
from octavo.checks import Ints, check_number
from octavo.engine.conditions import Condition
from octavo.engine.sampling import Choice, Frame, Sampler, SamplingParams, TokenLogprobs
from octavo.engine.texts import StopTexts, stops_of
from octavo.errors import StepError, uncopied

FinishReason = Literal["stop", "length", "cancelled", "deadline"]
OnToken = Callable[["Request", int], Any]


class Completion(NamedTuple):
    """What came of a prompt.

    Attributes:
        token_ids: the generated tokens, a stop token included.
        finish_reason: ``stop``: a stop token or text or a last frame came, or the answer has the
            form asked for and nothing can follow; ``length``: max_tokens or the model's context is
            reached; ``cancelled``; ``deadline``: it was not done in time.
        prompt_tokens: tokens of the prompt.
        cached_tokens: those of them whose KV was found in the prefix cache.
        logprobs: of each generated token, where the request asks for them; else None.
        prompt_logprobs: of each token of the prompt, where the request asks for them, of the first
            None; else None.
        text: the answer in text, before its stop token or text (``include_stop``: with the text);
            None: the engine has no tokenizer.
        frames: of each generated token its codes, where the model answers in frames; else empty.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    text: str | None = None
    frames: Items[Frame] = ()


class Owner(Protocol):
    """What a request asks of its engine."""

    @property
    def serving(self) -> bool:
        """Whether a thread of its own runs the engine."""
        ...

    def advance(self, request: "Request") -> bool:
        """Make a step where no thread runs the engine; whether it did."""
        ...

    def cancel(self, request: "Request") -> None:
        """End the request."""
        ...


class Request:
    """One prompt on its way through an engine, and the handle on it. Made by `Engine.submit`.

    Iterating yields the tokens as they come, from the first one, to each that iterates::

        for token in request:
            ...
        async for token in request:
            ...  # needs Engine.start()
        request.result(timeout=60)
        await request

    Without a thread that runs the engine, ``for`` and `result` step it themselves. An error that
    ended the request is raised by each of them, once the tokens before it are out. Any thread may
    read a request and wait for it. To stop reading does not end it; `cancel` does.

    Attributes:
        prompt_token_ids: int32 ids of the prompt.
        condition: what it runs with beside its tokens: an adapter, media, a source.
        priority: higher ones go first.
        deadline: of `time.monotonic`, when it ends if it is not done; None: never.
        params: how its tokens are chosen, and when it ends.
        limit: most tokens, prompt and generated ones together.
        output: tokens generated so far, a stop token included.
        logprobs: of each of them, where ``params`` asks for them; else empty.
        frames: of each of them its codes, where the model answers in frames, whose ids are those of
            this engine alone; else empty.
        scores: of the prompt's tokens, of the first None, as far as they are computed, where
            ``params`` asks for them; else None. The first of several samples has them.
        finish_reason: None while it runs; see Completion.
        stop_reason: the stop token or text that ended it; None: none did, or the form of the
            answer is complete.
        error: what ended it: raised while its token was computed, chosen or passed on; or None.
        cached_tokens: tokens of the prompt found in the prefix cache; 0 while it waits.
        drafted_tokens: tokens guessed for it and verified, of which
        accepted_tokens: were what was sampled.
        samples: all requests of this prompt, ``params.n`` of them, this one among them. They share
            what is computed of the prompt, and each goes its own way from the first token on. The
            first is the one that was submitted: cancelling it ends them all.
        sequence: its handle in the cache, None before it first ran and when it is done.
    """

    __reduce__ = uncopied(
        "it is a handle on one request of its engine; submit the prompt once more"
    )

    def __init__(
        self,
        prompt_token_ids: Ints,
        params: SamplingParams,
        *,
        condition: Condition,
        priority: int,
        deadline: float | None,
        limit: int,
        sampler: Sampler,
        stops: StopTexts | None,
        tokenizer: Any,
        on_token: OnToken | None,
        owner: Owner,
    ) -> None:
        self.prompt_token_ids, self.params, self.limit = prompt_token_ids, params, limit
        self.condition, self.priority, self.deadline = condition, priority, deadline
        self.output: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.frames: list[Frame] = []
        self.scores: list[TokenLogprobs | None] | None = None
        if params.prompt_logprobs is not None:
            self.scores = [None]
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: BaseException | None = None
        self.cached_tokens = self.drafted_tokens = self.accepted_tokens = 0
        self.samples: tuple[Request, ...] = (self,)
        self.sequence: Sequence | None = None
        self.sampler, self.on_token, self.owner = sampler, on_token, owner
        self.stops, self.tokenizer = stops, tokenizer
        self._waiters: deque[Callable[[], object]] = deque()  # each is called once, on news

    def __repr__(self) -> str:
        runs = self.sequence is not None and not self.sequence.preempted
        state = self.finish_reason or ("runs" if runs else "waits")
        return f"<Request of {self.prompt_tokens} tokens: {len(self.output)} generated, {state}>"

    # -- for its holder ------------------------------------------------------------------------

    @cached_property
    def prompt(self) -> Prompt:
        """The prompt's ids, and what their pages depend on beside them, once that is encoded."""
        return self.condition.prompt(self.prompt_token_ids)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.prompt_token_ids.size

    @property
    def done(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None

    def cancel(self) -> None:
        """End it where it waits or runs: see `Engine.cancel`."""
        self.owner.cancel(self)

    def result(self, timeout: float | None = None) -> Completion:
        """Wait until it is done.

        Args:
            timeout: most seconds to wait, looked at between steps; None: for ever.

        Returns:
            What came of it; of a cancelled one the tokens so far.

        Raises:
            TimeoutError: it is not done in time; it goes on.
            PlanError: ``timeout`` is no number.
            StepError: the thread that ran the engine was stopped meanwhile, or without one the
                engine cannot be stepped here. The request stays as it is.
            Exception: `error`, where it ended with one.
        """
        end = None if timeout is None else time.monotonic() + check_number("timeout", timeout)
        while not self.done:
            self.wait(len(self.output), end)
        return self._completed()

    def __iter__(self) -> Iterator[int]:
        """Its tokens, each as soon as it is there; raises as `result`."""
        at = 0
        while self._awaits(at) or at < len(self.output):
            if at == len(self.output):
                self.wait(at)
                continue
            yield self.output[at]
            at += 1
        self._completed()

    async def __aiter__(self) -> AsyncIterator[int]:
        """Its tokens, each as soon as it is there; raises as `result`."""
        at = 0
        while self._awaits(at) or at < len(self.output):
            if at == len(self.output):
                await self._wait_async(at)
                continue
            yield self.output[at]
            at += 1
        self._completed()

    def __await__(self) -> Generator[Any, None, Completion]:
        """What came of it, when it is done; raises as `result`."""
        return self._await().__await__()

    async def _await(self) -> Completion:
        while not self.done:
            await self._wait_async(len(self.output))
        return self._completed()

    @property
    def text(self) -> str | None:
        """The answer in text, before its stop token or text; None: the engine has no tokenizer.

        While it runs, what is certain by now: no unfinished character, and nothing that may turn
        out to begin a stop text. O(tokens).
        """
        if self.tokenizer is None:
            return None
        if self.stops is not None:
            return self.stops.text(done=self.done)
        stopped = isinstance(self.stop_reason, int)
        found = decode(self.tokenizer, self.output[:-1] if stopped else self.output)
        return found if self.done else found.rstrip(UNFINISHED)

    def completion(self) -> Completion:
        """What came of it so far; a request that still runs counts as cancelled."""
        reason = self.finish_reason or "cancelled"
        logprobs = None if self.params.logprobs is None else list(self.logprobs)
        scores = self.samples[0].scores
        return Completion(
            list(self.output),
            reason,
            self.prompt_tokens,
            self.cached_tokens,
            logprobs,
            None if scores is None else list(scores),
            self.text,
            list(self.frames),
        )

    # -- waiting -------------------------------------------------------------------------------

    def _completed(self) -> Completion:
        if self.error is not None:
            raise self.error
        return self.completion()

    def _awaits(self, count: int) -> bool:
        """Whether it has no more than ``count`` tokens, and more may come."""
        return not self.done and len(self.output) <= count

    def wait(self, count: int, end: float | None = None) -> None:
        """Let time pass until there may be news: a step, or where a thread runs the engine a wait.

        Args:
            count: tokens that are known already.
            end: of `time.monotonic`.

        Raises:
            TimeoutError: it is past ``end``. StepError: see `result`.
        """
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError(f"{self!r} is not done in time; cancel it, or go on waiting")
        if self.owner.advance(self):
            return
        event = threading.Event()
        waiter = event.set
        self._waiters.append(waiter)  # before looking again: what comes later is heard
        try:
            if self._awaits(count) and self.owner.serving:
                event.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        finally:
            self._forget(waiter)
        if self._awaits(count) and not self.owner.serving:
            raise StepError("the thread that ran the engine was stopped; start() it, or step on")

    async def _wait_async(self, count: int) -> None:
        came = asyncio.Event()
        waiter = partial(_wake, asyncio.get_running_loop(), came)
        self._waiters.append(waiter)
        try:
            if not self.owner.serving:
                raise StepError("no thread runs the engine: start() it, for an event loop cannot")
            if self._awaits(count):
                await came.wait()
        finally:
            self._forget(waiter)

    def _forget(self, waiter: Callable[[], object]) -> None:
        with suppress(ValueError):  # it was called
            self._waiters.remove(waiter)

    # -- for its engine ------------------------------------------------------------------------

    @property
    def forks(self) -> "list[Request]":
        """The samples that wait to go on from its prompt: until it has a token. O(samples)."""
        if self.output or self is not self.samples[0]:
            return []
        return [sample for sample in self.samples[1:] if not sample.done]

    def note_cached(self) -> None:
        """It has just been admitted. O(1)."""
        assert self.sequence is not None
        self.cached_tokens = self.sequence.cached

    def take(self, choices: Iterable[Choice]) -> FinishReason | None:
        """Add generated tokens up to one that ends it; returns why that does, or None.

        Whoever reads meanwhile sees each when it is added: none is taken back. Raises whatever the
        tokenizer does, and where a grammar has become too complex. O(tokens x longest stop text).
        """
        for choice in choices:
            if choice.logprobs is not None:
                self.logprobs.append(choice.logprobs)
            if choice.frame is not None:
                self.frames.append(choice.frame)
            self.output.append(choice.token)
            reason = self._ending()
            if reason is not None:
                return reason
        return None

    def replay(self) -> FinishReason | None:
        """Look anew at all its tokens, as after an interrupt; returns as `take`."""
        del self.logprobs[len(self.output) :], self.frames[len(self.output) :]
        self.stops = stops = stops_of(self.params, self.tokenizer)
        if stops is not None:
            for token in self.output[:-1]:
                stops.push(token)
        return self._ending() if self.output else None

    def _ending(self) -> FinishReason | None:
        """Why its last token, which nobody has looked at yet, ends it."""
        token = self.output[-1]
        if token in self.params.stop_token_ids:
            self.stop_reason = token
            return "stop"
        text = None if self.stops is None else self.stops.push(token)
        if text is not None:
            self.stop_reason = text
            return "stop"
        if self.frames and self.frames[-1].last:
            return "stop"
        if self.sampler.matcher is not None and self.sampler.matcher.ends(self.output):
            return "stop"
        return "length" if self.prompt_tokens + len(self.output) >= self.limit else None

    def finish(self, reason: FinishReason, error: BaseException | None = None) -> None:
        """No more tokens will come. O(1)."""
        self.error = error or self.error
        self.finish_reason = reason  # last: who sees that it is done sees all of it
        self.notify()

    def notify(self) -> None:
        """Wake all that wait for news. O(those)."""
        while self._waiters:
            with suppress(IndexError):  # another took the last
                self._waiters.popleft()()


def _wake(loop: asyncio.AbstractEventLoop, came: asyncio.Event) -> None:
    """Tell an event loop that there is news; one that is closed has nobody left who waits."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(came.set)
