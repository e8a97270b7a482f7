"""Log probabilities of tokens as the model gave them, before any sampling parameter."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from octavo.engine.sampling.kernels import kernel, reads
from octavo.engine.sampling.shortlist import largest

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
        tokens: one per row, in its place; -inf is told of one that has no logit.
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
    scores, size = logits.float(), logits.shape[-1]
    if reads(scores) and kernel("octavo_logprobs") is not None:
        return [logprobs_of_row(*each) for each in zip(scores, tokens, counts, strict=True)]
    top = largest(scores, min(max(1, *counts), size))
    chances = (scores - top.values[:, :1]).exp_()
    norm = top.values[:, :1] + chances.sum(-1, keepdim=True).log_()
    places = torch.tensor(tokens, device=scores.device)[:, None]
    known = scores.gather(-1, places.clamp(max=size - 1)).masked_fill_(places >= size, -torch.inf)
    own = (known - norm)[:, 0].tolist()
    values, ids = (top.values - norm).tolist(), top.ids.tolist()
    return [
        TokenLogprobs(
            token, own[row], dict(zip(ids[row][:count], values[row][:count], strict=True))
        )
        for row, (token, count) in enumerate(zip(tokens, counts, strict=True))
    ]


def logprobs_of_row(scores: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """What the model thought of one token, by the kernel, which reads the scores. O(vocabulary)."""
    size = len(scores)
    most = min(max(1, count), size)
    work = np.empty((4, most), np.int64)  # ids, values, and two rows of what the kernel needs
    ids, values = work[0], work[1].view(np.float64)
    places = [work.ctypes.data + row * work.strides[0] for row in range(3)]
    own = kernel("octavo_logprobs")(scores.data_ptr(), size, token, most, *places)
    top = dict(zip(ids[:count].tolist(), values[:count].tolist(), strict=True))
    return TokenLogprobs(token, own, top)
