"""What a request asks for: how its tokens are chosen, what is told of them, when it ends.

Plain values, checked one by one and against each other. Knows no model: what depends on its
vocabulary is checked where a request is submitted.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from sys import float_info
from typing import Any

from octavo.checks import check_flag, check_int, check_tokens, entries_of
from octavo.errors import LengthError, SamplingError, TokenError

LogitsProcessor = Callable[[Any, Any], Any]
"""As transformers has them: (token ids [1, n], scores [1, vocabulary]) -> scores."""

FORMS = ("json_schema", "regex", "grammar")
"""The parameters that say of what form an answer is; a request has one of them or none."""

MOST_SAMPLES = 1024
"""Most answers that are sampled of one prompt."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends.

    The scores of the next token are changed in the order of transformers' generate(): bias,
    penalties, bad words, minimum length, processors of one's own; then, where tokens are sampled,
    temperature, top_n_sigma, top_k, top_p, min_p and typical_p. Each sees what the one before left.

    Attributes:
        max_tokens: most tokens to generate; 0: none, the model is not run.
        temperature: 0: always the likeliest token; else what scores are divided by.
        top_p: sample from the likeliest tokens that together have this probability; None: all.
        top_k: sample from this many likeliest tokens; None: all.
        seed: same seed, same logits: same tokens, whatever else is in the batch; None: different
            ones each time.
        stop_token_ids: tokens that end the request; the one that does is its last token. Without
            any, as with the ``ignore_eos`` of other engines, it goes on to max_tokens.
        stop: texts that end it as soon as they appear in the text of the generated tokens.
        min_tokens: no stop token comes, and no stop text counts, before this many are generated. An
            answer of a form ends earlier all the same where nothing can follow.
        min_p: sample from tokens at least this times as probable as the likeliest; None: all.
        typical_p: sample from tokens of about expected surprise that together have this
            probability (locally typical sampling); None: all.
        top_n_sigma: sample from tokens whose score is at most this many standard deviations of all
            scores below the largest; None: all.
        repetition_penalty: what scores of tokens of prompt and answer are divided by, or where
            negative multiplied by: 1e-6 to 1e6.
        presence_penalty: subtracted from the scores of tokens of the answer.
        frequency_penalty: subtracted from them once per time they came.
        logit_bias: token id to what is added to its score; ``-inf``: never this token.
        bad_words_ids: lists of token ids that never come in full.
        logits_processors: further ones, called as ``processor(ids, scores)`` with all tokens so
            far [1, n] int64 and the scores [1, vocabulary] float32; they give the new scores. One
            that keeps a state between calls serves one request.
        json_schema: the answer is JSON of this schema, a mapping or JSON text, which is how it is
            held; ``{}`` for any JSON.
        regex: the answer as a whole matches this expression, in the syntax of Rust's regex.
        grammar: the answer is of this grammar, in the syntax of Lark as llguidance takes it.
        logprobs: log probabilities of each token chosen and of this many likeliest in its place,
            by the model, before any change named here; None: none are told.
        prompt_logprobs: the same of each token of the prompt but the first, which is computed whole
            for it, and whose logits take 4 bytes x vocabulary x tokens of a step.
        include_stop: whether the text of an answer ends with the stop text, not before it.
        n: answers to sample, at most 1,024; the prompt is computed once. They use ``seed``,
            ``seed + 1`` and on.

    Raises:
        SamplingError: a value is out of range, or two contradict each other.
        LengthError: a count is out of range. TokenError: an id is no token id.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()
    min_tokens: int = 0
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    bad_words_ids: Sequence[Sequence[int]] = ()
    logits_processors: Sequence[LogitsProcessor] = ()
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop: bool = False
    n: int = 1

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_numbers()
        held = {
            "stop_token_ids": _ids("stop_token_ids", self.stop_token_ids),
            "stop": _texts("stop", self.stop),
            "logit_bias": _biases(self.logit_bias),
            "bad_words_ids": _id_lists("bad_words_ids", self.bad_words_ids),
            "logits_processors": _processors(self.logits_processors),
            "json_schema": _schema(self.json_schema),
            "include_stop": check_flag("include_stop", self.include_stop),
        }
        for name, value in held.items():
            object.__setattr__(self, name, value)
        self._check_form()
        for token in self.stop_token_ids:
            if (token,) in self.bad_words_ids:
                why = f"it bans token {token}, which stop_token_ids waits for"
                raise SamplingError("bad_words_ids", self.bad_words_ids, why)

    def _check_counts(self) -> None:
        check_int("max_tokens", self.max_tokens, 0)
        check_int("min_tokens", self.min_tokens, 0)
        if check_int("n", self.n, 1, MOST_SAMPLES) > 1 and self.temperature == 0:
            raise SamplingError("n", self.n, "greedy answers are all the same; set a temperature")
        if self.min_tokens > self.max_tokens:
            why = f"max_tokens is {self.max_tokens}"
            raise LengthError("min_tokens", self.min_tokens, 0, self.max_tokens, why)
        for name, low in (("top_k", 1), ("logprobs", 0), ("prompt_logprobs", 0)):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), low)
        if self.prompt_logprobs is not None and not self.max_tokens:
            why = "prompt_logprobs is given, and without a token nothing is computed"
            raise LengthError("max_tokens", 0, 1, None, why)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)

    def _check_numbers(self) -> None:
        _check_number("temperature", self.temperature, 0, inf)
        for name in ("top_p", "min_p"):
            if getattr(self, name) is not None:
                _check_number(name, getattr(self, name), 0, 1)
        if self.typical_p is not None:
            _check_number("typical_p", self.typical_p, 0, 1, above=True)
        if self.top_n_sigma is not None:
            _check_number("top_n_sigma", self.top_n_sigma, 0, inf, above=True)
        _check_number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _check_number("presence_penalty", self.presence_penalty, -2, 2)
        _check_number("frequency_penalty", self.frequency_penalty, -2, 2)

    def _check_form(self) -> None:
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text):
                raise SamplingError(name, text, "it must be a text that is not empty, or None")
            if text is not None and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise SamplingError(name, text, "it has half of a surrogate pair, no text")
        asked = [name for name in FORMS if getattr(self, name) is not None]
        if len(asked) > 1:
            right = f"an answer has one form, and {asked[0]} is given"
            raise SamplingError(asked[1], getattr(self, asked[1]), right)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without chance."""
        return self.temperature == 0

    def each(self) -> "list[SamplingParams]":
        """The parameters of each of the ``n`` answers: these, with seeds of their own."""
        if self.seed is None:
            return [self] * self.n
        return [replace(self, seed=(self.seed + at) % 2**63) for at in range(self.n)]


def check_vocabulary(params: SamplingParams, vocabulary: int) -> None:
    """Check what parameters say of token ids against a model's.

    Args:
        params: of a request to it.
        vocabulary: how many tokens it has.

    Raises:
        SamplingError: a biased, banned or stop token is none of them, or all are banned.
        LengthError: more log probabilities are asked for than it has tokens.
    """
    right = f"the model's token ids are 0..{vocabulary - 1}"
    if any(token >= vocabulary for token in params.logit_bias):
        raise SamplingError("logit_bias", params.logit_bias, right)
    if any(token >= vocabulary for word in params.bad_words_ids for token in word):
        raise SamplingError("bad_words_ids", params.bad_words_ids, right)
    if any(token >= vocabulary for token in params.stop_token_ids):
        raise SamplingError("stop_token_ids", params.stop_token_ids, right)
    banned = {token for token, value in params.logit_bias.items() if value == -inf}
    banned |= {word[0] for word in params.bad_words_ids if len(word) == 1}
    if len(banned) == vocabulary:
        field = "bad_words_ids" if params.bad_words_ids else "logit_bias"
        raise SamplingError(field, getattr(params, field), "it bans every token of the model")
    check_int("logprobs", params.logprobs or 0, 0, vocabulary)
    check_int("prompt_logprobs", params.prompt_logprobs or 0, 0, vocabulary)


def _check_number(
    name: str, value: object, low: float, high: float, *, above: bool = False
) -> None:
    right = f"it must be a number {'above' if above else 'of at least'} {low}"
    right += "" if high == inf else f" and at most {high}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SamplingError(name, value, right)
    if not low <= value <= min(high, float_info.max) or (above and value == low):
        raise SamplingError(name, value, right)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    several = isinstance(given, Iterable) and not isinstance(given, str)
    texts = tuple(given) if several else (given,)
    if not all(isinstance(text, str) and text for text in texts):
        raise SamplingError(name, given, "each must be a text that is not empty")
    return texts


def _biases(given: Any) -> dict[int, float]:
    right = "it must map token ids to finite numbers or -inf"
    if not isinstance(given, Mapping):
        raise SamplingError("logit_bias", given, right)
    ids = _ids("logit_bias", list(given))
    values = list(given.values())
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    if not numbers or not all(value == -inf or abs(value) < 2.0**127 for value in values):
        raise SamplingError("logit_bias", given, right)
    return dict(zip(ids, map(float, values), strict=True))


def _ids(name: str, given: Any) -> tuple[int, ...]:
    """Token ids of some model, which alone says how many it has."""
    try:
        return tuple(check_tokens(given, name).tolist())
    except TokenError as error:
        if error.value is given:
            right = "it must be a list or array of token ids, ints of 0 or more"
            raise TokenError(0, given, name=name, right=right) from error
        if isinstance(error.value, int) and error.value > 0:
            raise
        right = "it must be a token id, an int of 0 or more"
        raise TokenError(error.index, error.value, where=name, right=right) from error


def _id_lists(name: str, given: Any) -> tuple[tuple[int, ...], ...]:
    def wrong() -> SamplingError:
        return SamplingError(name, given, "it must be a list of lists of token ids, none empty")

    try:
        lists = tuple(tuple(check_tokens(each).tolist()) for each in entries_of(given, wrong))
    except TokenError as error:
        raise wrong() from error
    if not all(lists):
        raise wrong()
    return lists


def _processors(given: Any) -> tuple[LogitsProcessor, ...]:
    def wrong() -> SamplingError:
        return SamplingError("logits_processors", given, "it must be a list of callables")

    found = tuple(entries_of(given, wrong))
    if not all(callable(each) for each in found):
        raise wrong()
    return found


def _schema(given: Any) -> str | None:
    if given is None:
        return None
    right = "it must be a JSON schema, a mapping or its text"
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        known = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SamplingError("json_schema", given, f"{right}: {error}") from error
    if not isinstance(known, dict):
        raise SamplingError("json_schema", given, right)
    return text
