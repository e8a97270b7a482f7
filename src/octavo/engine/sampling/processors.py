"""What changes the scores of the next token before one is chosen: biases, penalties, bans.

In the order of transformers' generate(), which with the same parameters gives the same scores;
presence and frequency penalties are those of vLLM and OpenAI. All of them but a request's own
processors change a few scores of a row: those of all rows are looked up and written at once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from octavo.checks import Ints
from octavo.engine.sampling.params import FORMS, SamplingParams
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


Asked = Sequence[tuple[int, SamplingParams, Tokens]]
"""Rows of scores: which one, what its request asks for, and its tokens."""


def changes_of(params: SamplingParams) -> tuple[str, ...]:
    """The parameters of a request that change scores, in the order of the fields. O(1)."""
    given = {
        "repetition_penalty": params.repetition_penalty != 1,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "logit_bias": params.logit_bias,
        "bad_words_ids": params.bad_words_ids,
        "min_tokens": params.min_tokens and params.stop_token_ids,
        "logits_processors": params.logits_processors,
    }
    given |= {form: getattr(params, form) is not None for form in FORMS}
    return tuple(name for name, asked in given.items() if asked)


def change(scores: torch.Tensor, asked: Asked) -> None:
    """Apply biases, penalties, bad words and least lengths, in place.

    Args:
        scores: [rows, vocabulary] float32, contiguous.
        asked: the rows that may ask for some.

    Cost: O(tokens) of rows with penalties, O(biases), O(bad words).
    """
    _add_biases(scores, asked)
    _penalise_repetition(scores, asked)
    _penalise_answers(scores, asked)
    bans = [(row, banned(params, tokens)) for row, params, tokens in asked]
    _rewrite(scores, bans, lambda _, old: torch.full_like(old, -torch.inf))


def process_own(params: SamplingParams, tokens: Tokens, scores: torch.Tensor) -> torch.Tensor:
    """The scores that a request's own processors make of its row, [1, vocabulary] float32.

    Raises:
        SamplingError: one gives another shape; and whatever they raise.
    """
    ids = torch.from_numpy(_all_ids(tokens)).to(scores.device)[None]
    for processor in params.logits_processors:
        found: Any = processor(ids, scores)
        if not isinstance(found, torch.Tensor) or found.shape != scores.shape:
            right = f"it must give a tensor of scores of shape {tuple(scores.shape)}"
            raise SamplingError("logits_processors", found, right)
        scores = found
    return scores


def _add_biases(scores: torch.Tensor, asked: Asked) -> None:
    biases = [params.logit_bias for _, params, _ in asked if params.logit_bias]
    values = [value for bias in biases for value in bias.values()]
    ids = [(row, [*params.logit_bias]) for row, params, _ in asked]
    _rewrite(scores, ids, lambda _, old: old + old.new_tensor(values))


def _penalise_repetition(scores: torch.Tensor, asked: Asked) -> None:
    ids = [(row, _all_ids(t)) for row, params, t in asked if params.repetition_penalty != 1]
    of_row = {row: params.repetition_penalty for row, params, _ in asked}

    def weaken(rows: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        penalty = old.new_tensor([of_row[row] for row, _ in ids])[rows]
        return torch.where(old < 0, old * penalty, old / penalty)

    _rewrite(scores, ids, weaken)


def _penalise_answers(scores: torch.Tensor, asked: Asked) -> None:
    ids, less = [], []
    for row, params, tokens in asked:
        if params.presence_penalty or params.frequency_penalty:
            came, counts = np.unique(np.array(tokens.output, np.int64), return_counts=True)
            ids.append((row, came))
            less.append(params.presence_penalty + params.frequency_penalty * counts)
    _rewrite(scores, ids, lambda _, old: old - old.new_tensor(np.concatenate(less)))


def banned(params: SamplingParams, tokens: Tokens) -> list[int]:
    """Tokens that would complete a bad word, or end an answer too early. O(bad words)."""
    found = list[int]()
    if params.bad_words_ids:
        most = max(map(len, params.bad_words_ids))
        known = (*tokens.prompt_token_ids[-most:].tolist(), *tokens.output[-most:])
        words = params.bad_words_ids
        found += [word[-1] for word in words if known[len(known) + 1 - len(word) :] == word[:-1]]
    if len(tokens.output) < params.min_tokens:
        found += params.stop_token_ids
    return found


def _all_ids(tokens: Tokens) -> Any:
    return np.append(tokens.prompt_token_ids, np.array(tokens.output, np.int64)).astype(np.int64)


def _rewrite(
    scores: torch.Tensor,
    places: Sequence[tuple[int, Any]],
    new: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Change some scores of some rows.

    Args:
        scores: [rows, vocabulary], contiguous.
        places: rows, and token ids of each; those that have no score are passed over, as some
            models read more tokens than they write.
        new: called with which of ``places`` each is of, int64[all], and the scores, [all].
    """
    counts = [len(ids) for _, ids in places]
    if not sum(counts):
        return
    starts = np.array([row for row, _ in places], np.int64) * scores.shape[-1]
    ids = np.concatenate([np.asarray(ids, np.int64) for _, ids in places])
    inside = torch.from_numpy(ids < scores.shape[-1]).to(scores.device)
    ids = np.minimum(ids, scores.shape[-1] - 1) + np.repeat(starts, counts)
    at = torch.from_numpy(ids).to(scores.device)
    which = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(scores.device)
    flat = scores.view(-1)
    flat[at[inside]] = new(which, flat[at])[inside]
