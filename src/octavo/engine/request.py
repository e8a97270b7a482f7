"""A request: its prompt, its parameters, what came of it so far. Knows no model and no pages."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.checkpoints.text import UNFINISHED, decode
from octavo.checks import Ints
from octavo.engine.conditions import Condition
from octavo.engine.sampling import Choice, Sampler, SamplingParams, TokenLogprobs
from octavo.engine.texts import StopTexts
from octavo.errors import uncopied

FinishReason = Literal["stop", "length", "cancelled"]
OnToken = Callable[["Request", int], Any]


class Completion(NamedTuple):
    """What came of a prompt.

    Attributes:
        token_ids: the generated tokens, a stop token included.
        finish_reason: ``stop``: a stop token or text came, or the answer has the form asked for
            and nothing can follow; ``length``: max_tokens or the model's context is reached;
            ``cancelled``.
        prompt_tokens: tokens of the prompt.
        cached_tokens: those of them whose KV was found in the prefix cache.
        logprobs: of each generated token, where the request asks for them; else None.
        text: the answer in text, before its stop token or text (``include_stop``: with the text);
            None: the engine has no tokenizer.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprobs] | None = None
    text: str | None = None


class Request:
    """One prompt on its way through an engine. Made by `Engine.submit`; read-only to its holder.

    Attributes:
        prompt: token ids, and what their pages depend on beside them.
        condition: what it runs with beside its tokens: an adapter, media.
        params: how its tokens are chosen, and when it ends.
        limit: most tokens, prompt and generated ones together.
        output: tokens generated so far, a stop token included.
        logprobs: of each of them, where ``params`` asks for them; else empty.
        finish_reason: None while it runs; see Completion.
        stop_reason: the stop token or text that ended it; None: none did, or the form of the
            answer is complete.
        error: what cancelled it, raised while its token was chosen or passed on; or None.
        cached_tokens: tokens of the prompt found in the prefix cache; 0 while it waits.
        drafted_tokens: tokens guessed for it and verified, of which
        accepted_tokens: were what was sampled.
        sequence: its handle in the cache, None before it first ran and when it is done.
    """

    __reduce__ = uncopied(
        "it is a handle on one request of its engine; submit the prompt once more"
    )

    def __init__(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        condition: Condition,
        limit: int,
        sampler: Sampler,
        stops: StopTexts | None,
        tokenizer: Any,
        on_token: OnToken | None,
    ) -> None:
        self.prompt, self.params, self.limit = prompt, params, limit
        self.condition = condition
        self.output: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: BaseException | None = None
        self.cached_tokens = self.drafted_tokens = self.accepted_tokens = 0
        self.sequence: Sequence | None = None
        self.sampler, self.on_token = sampler, on_token
        self.stops, self.tokenizer = stops, tokenizer
        self._searched = 0  # tokens of the output after which it might have ended

    def __repr__(self) -> str:
        runs = self.sequence is not None and not self.sequence.preempted
        state = self.finish_reason or ("runs" if runs else "waits")
        return f"<Request of {self.prompt_tokens} tokens: {len(self.output)} generated, {state}>"

    @property
    def prompt_token_ids(self) -> Ints:
        """The prompt's ids, int32; read-only."""
        return self.prompt.tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt)

    def note_cached(self) -> None:
        """It has just been admitted. O(1)."""
        assert self.sequence is not None
        self.cached_tokens = self.sequence.cached

    @property
    def done(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None

    def take(self, choices: list[Choice]) -> int:
        """Add generated tokens up to one that ends the request: a stop token, or the limit's.

        Cannot fail. O(tokens).

        Returns:
            How many were added.
        """
        for taken, choice in enumerate(choices, 1):
            self.output.append(choice.token)
            if choice.logprobs is not None:
                self.logprobs.append(choice.logprobs)
            if choice.token in self.params.stop_token_ids:
                self.stop_reason, self.finish_reason = choice.token, "stop"
            elif self.prompt_tokens + len(self.output) >= self.limit:
                self.finish_reason = "length"
            if self.done:
                return taken
        return len(choices)

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

    def look_for_end(self) -> None:
        """End it where a token it has taken completed a stop text or its form; undo later ones.

        A stop token ends it before these do. O(new tokens x longest stop text).

        Raises whatever the tokenizer does, and where a grammar has become too complex.
        """
        matcher = self.sampler.matcher
        if self.stops is None and matcher is None:
            return
        for end in range(self._searched + 1, len(self.output) + 1):
            if end == len(self.output) and self.finish_reason == "stop":
                return
            self._searched = end
            text = None if self.stops is None else self.stops.push(self.output[end - 1])
            if text is not None or (matcher is not None and matcher.ends(self.output[:end])):
                del self.output[end:], self.logprobs[end:]
                self.stop_reason, self.finish_reason = text, "stop"
                return

    def completion(self) -> Completion:
        """What came of it so far; a request that still runs counts as cancelled."""
        reason = self.finish_reason or "cancelled"
        logprobs = None if self.params.logprobs is None else list(self.logprobs)
        return Completion(
            list(self.output), reason, self.prompt_tokens, self.cached_tokens, logprobs, self.text
        )
