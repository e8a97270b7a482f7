"""Log probabilities of tokens as the model gave them, before any sampling parameter."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

_BLOCK = 2**21  # log probabilities at once: they take no memory that grows with a prompt


class TokenLogprobs(NamedTuple):
    """How probable a token was, by the model.

    Attributes:
        token: its id.
        logprob: the natural logarithm of its probability.
        top: the likeliest tokens in its place and their log probabilities, the likeliest first.
    """

    token: int
    logprob: float
    top: dict[int, float]


def logprobs_of(
    logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    """What the model thought of each token.

    Args:
        logits: [rows, vocabulary] of the model.
        tokens: one per row, in its place.
        counts: how many of the likeliest are told, per row; all, where there are no more.

    Cost: O(rows * vocabulary).
    """
    most, found = max(1, _BLOCK // logits.shape[-1]), list[TokenLogprobs]()
    for start in range(0, len(tokens), most):
        block = slice(start, start + most)
        found += _logprobs_of_block(logits[block], tokens[block], counts[block])
    return found


def _logprobs_of_block(
    logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]
) -> list[TokenLogprobs]:
    logs = logits.float().log_softmax(-1)
    own = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None])[:, 0].tolist()
    top = logs.topk(min(max(counts), logs.shape[-1]))
    values, ids = top.values.tolist(), top.indices.tolist()
    return [
        TokenLogprobs(
            token, own[row], dict(zip(ids[row][:count], values[row][:count], strict=True))
        )
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]
