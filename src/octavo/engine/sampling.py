"""From logits to a token: a request's parameters, and the sampler that follows them.

Greedy, or temperature, top-k and top-p (transformers' own processors, in the order of its
generate()) with one random generator per request: a seed gives the same tokens alone and beside
others.
Knows one request's logits and nothing of batches, text or pages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from octavo.checks import check_int, check_tokens
from octavo.errors import SamplingError, UnsupportedModel, uncopied


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are chosen and when it ends.

    Attributes:
        max_tokens: most tokens to generate; 0: none, the model is not run.
        temperature: 0: always the likeliest token; else what logits are divided by.
        top_p: sample from the likeliest tokens that together have this probability; None: all.
        top_k: sample from this many likeliest tokens; None: all.
        seed: same seed, same logits: same tokens; None: different each time.
        stop_token_ids: tokens that end the request; the one that does is its last token.
        stop: texts that end it as soon as they appear among the generated tokens' text.

    Raises:
        SamplingError: temperature, top_p or stop is out of range.
        LengthError: max_tokens, top_k or seed is out of range.
        TokenError: a stop token is no token id.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 0)
        _check_number("temperature", self.temperature, 0, float("inf"))
        if self.top_p is not None:
            _check_number("top_p", self.top_p, 0, 1)
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
        stops = tuple(check_tokens(self.stop_token_ids).tolist())
        several = isinstance(self.stop, Iterable) and not isinstance(self.stop, str)
        texts = tuple(self.stop) if several else (self.stop,)
        if not all(isinstance(text, str) and text for text in texts):
            raise SamplingError("stop", self.stop, "each must be a text that is not empty")
        object.__setattr__(self, "stop", texts)
        object.__setattr__(self, "stop_token_ids", stops)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without chance."""
        return self.temperature == 0


def _check_number(field: str, value: object, low: float, high: float) -> None:
    right = f"it must be a number of at least {low}" + ("" if high > 1 else f" and at most {high}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SamplingError(field, value, right)
    if not isfinite(value) or not low <= value <= high:
        raise SamplingError(field, value, right)


class Sampler:
    """Chooses one request's tokens; holds its random generator.

    Args:
        params: the request's.
        device: where the logits are.

    Attributes:
        greedy: whether the likeliest token is taken, without chance.
    """

    __reduce__ = uncopied("its random numbers are drawn once; make another from its parameters")

    def __init__(self, params: SamplingParams, device: torch.device | str = "cpu") -> None:
        self.greedy = params.greedy
        self._warpers: list[Any] = []
        if self.greedy:
            return
        self._generator = torch.Generator(device)
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)
        # below the smallest normal float32 a division by it is one by zero
        temperature = max(float(params.temperature), torch.finfo(torch.float32).tiny)
        self._warpers.append(TemperatureLogitsWarper(temperature))
        if params.top_k is not None:
            self._warpers.append(TopKLogitsWarper(params.top_k))
        if params.top_p is not None:
            self._warpers.append(TopPLogitsWarper(float(params.top_p)))

    def sample(self, logits: torch.Tensor) -> int:
        """The next token.

        Args:
            logits: [vocabulary], any float dtype; -inf: never this token.

        Raises:
            UnsupportedModel: a logit is NaN or inf, or all are -inf.

        Cost: O(vocabulary), sorted for top_p.
        """
        top = logits.amax()
        if not top.isfinite():
            raise UnsupportedModel("logits", f"the model gave {top.item()} as the largest of them")
        if self.greedy:
            return int(logits.argmax())
        scores = logits[None].float()
        scores = scores - scores.amax()  # so that no temperature, however small, overflows
        for warp in self._warpers:
            scores = warp(None, scores)
        chances = torch.softmax(scores, dim=-1)
        return int(torch.multinomial(chances, 1, generator=self._generator))


def sample_rows(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | Exception]:
    """The next token of each row of ``logits`` [rows, vocabulary] by its own sampler.

    Returns:
        One token per row, or what its sampler raised: a row that fails costs no other row.

    Cost: O(rows * vocabulary); greedy rows together are one call.
    """
    top, likeliest = logits.max(dim=-1)
    found: list[int | Exception] = likeliest.tolist()
    sound = top.isfinite().tolist()
    alone = [row for row, each in enumerate(samplers) if not (each.greedy and sound[row])]
    for row in alone:
        try:
            found[row] = samplers[row].sample(logits[row])
        except Exception as error:  # noqa: BLE001, whatever it is, it is this row's alone
            found[row] = error
    return found
