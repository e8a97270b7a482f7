"""What changes the scores of the next token before one is chosen: biases, penalties, bans.

transformers' own processors where it has them, in the order of its generate(), which with the same
parameters gives the same scores. Presence and frequency penalties are those of vLLM and OpenAI.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from transformers import (
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from octavo.checks import Ints
from octavo.engine.sampling.params import LogitsProcessor, SamplingParams
from octavo.errors import SamplingError


class Tokens(Protocol):
    """The tokens of one row.

    Attributes:
        prompt_token_ids: int32 ids it began with.
        output: ids generated since; the scores are of the one that comes next.
    """

    @property
    def prompt_token_ids(self) -> Ints:
        """Ids it began with."""
        ...

    @property
    def output(self) -> Sequence[int]:
        """Ids generated since."""
        ...


@dataclass(frozen=True)
class History:
    """Tokens of several rows as matrices, shorter rows filled from the left.

    Attributes:
        rows: whose.
        filler: an id that no token has: the vocabulary's size. transformers' processors pass it
            over: to penalties it is a column that is cut off again, and no bad word has it.
        device: where the scores are.
    """

    rows: Sequence[Tokens]
    filler: int
    device: torch.device

    @cached_property
    def tokens(self) -> torch.Tensor:
        """All tokens of each row, [rows, longest] int64."""
        return self._matrix([row.prompt_token_ids for row in self.rows])

    @cached_property
    def output(self) -> torch.Tensor:
        """Generated tokens of each row, [rows, longest] int64."""
        return self._matrix([row.prompt_token_ids[:0] for row in self.rows])

    @property
    def generated(self) -> list[int]:
        """How many tokens of each row are generated."""
        return [len(row.output) for row in self.rows]

    def _matrix(self, prompts: Sequence[Ints]) -> torch.Tensor:
        """What was generated, behind these."""
        pairs = [(ids, row.output) for ids, row in zip(prompts, self.rows, strict=True)]
        longest = max(len(ids) + len(output) for ids, output in pairs)
        matrix = np.full((len(pairs), longest), self.filler, np.int64)
        for line, (ids, output) in zip(matrix, pairs, strict=True):
            end = longest - len(output)
            line[end - len(ids) : end], line[end:] = ids, output
        return torch.from_numpy(matrix).to(self.device)


class Processor(Protocol):
    """Changes scores [rows, vocabulary] float32, and may do so in place."""

    def __call__(self, history: History, scores: torch.Tensor) -> torch.Tensor:
        """The new scores."""
        ...


class _Hosted:
    """A processor of transformers, or of the same form."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self._processor = processor

    def __call__(self, history: History, scores: torch.Tensor) -> torch.Tensor:
        found: Any = self._processor(history.tokens, scores)
        if getattr(found, "shape", None) != scores.shape:
            right = f"it must give scores of shape {tuple(scores.shape)}"
            raise SamplingError("logits_processors", found, right)
        return cast("torch.Tensor", found)


class _AnswerPenalty:
    """Presence and frequency penalties: what came in the answer is less likely to come again."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def __call__(self, history: History, scores: torch.Tensor) -> torch.Tensor:
        rows, vocabulary = scores.shape
        counts = scores.new_zeros(rows, vocabulary + 1)  # a column more for the filler
        counts.scatter_add_(1, history.output, torch.ones_like(history.output, dtype=scores.dtype))
        counts = counts[:, :vocabulary]
        return scores - self._frequency * counts - self._presence * (counts > 0)


class _Minimum:
    """No stop token before so many tokens."""

    def __init__(self, tokens: int, stops: Sequence[int]) -> None:
        self._tokens, self._stops = tokens, stops

    def __call__(self, history: History, scores: torch.Tensor) -> torch.Tensor:
        stops = [token for token in self._stops if token < scores.shape[-1]]
        for row, generated in enumerate(history.generated):
            if generated < self._tokens:
                scores[row, stops] = -torch.inf
        return scores


def processors_of(params: SamplingParams) -> list[Processor]:
    """The processors that a request's parameters ask for, in their order."""
    found: list[Processor] = []
    if params.logit_bias:
        bias = {(token,): value for token, value in params.logit_bias.items()}
        found.append(_Hosted(SequenceBiasLogitsProcessor(bias)))
    if params.repetition_penalty != 1:
        penalty = float(params.repetition_penalty)
        found.append(_Hosted(RepetitionPenaltyLogitsProcessor(penalty)))
    if params.presence_penalty or params.frequency_penalty:
        found.append(_AnswerPenalty(params.presence_penalty, params.frequency_penalty))
    if params.bad_words_ids:
        words = [list(ids) for ids in params.bad_words_ids]
        found.append(_Hosted(NoBadWordsLogitsProcessor(words)))
    if params.min_tokens and params.stop_token_ids:
        found.append(_Minimum(params.min_tokens, params.stop_token_ids))
    found.extend(_Hosted(processor) for processor in params.logits_processors)
    return found


def kind_of(params: SamplingParams) -> object:
    """What two requests have in common whose processors are the same; they may take each other's.

    Processors of a request's own may keep a state between calls: it shares them with no other.
    """
    if params.logits_processors:
        return object()
    return (
        tuple(params.logit_bias.items()),
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
        params.bad_words_ids,
        params.min_tokens and params.stop_token_ids,
        params.min_tokens,
    )
