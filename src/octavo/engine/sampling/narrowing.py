"""Which of all tokens may be sampled: temperature, top-n-sigma, top-k, top-p, min-p, typical-p.

Each of them but the last keeps the tokens above a threshold of the row, so that rows with different
parameters go through in one call. The tokens kept are those of transformers' warpers in the order
of its generate(), but for ties at the threshold, which all stay. To sort 49,152 scores, as its
top-p does, takes torch 4 ms on a CPU, and NumPy 0.15.
"""

from collections.abc import Sequence
from math import inf, log

import numpy as np
import torch
from transformers import TypicalLogitsWarper

from octavo.engine.sampling.params import SamplingParams

_TINY = torch.finfo(torch.float32).tiny


def narrow(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Scores over temperature, -inf where a token is not to be sampled.

    Args:
        scores: [rows, vocabulary] float32, in each row one that is finite; not changed.
        params: of each row; none greedy.

    Returns:
        [rows, vocabulary], the largest of each row 0.

    Cost: O(rows * vocabulary); top_k, top_p and typical_p sort it.
    """
    temperature = _column(scores, [divisor_of(each) for each in params])
    scores = scores - scores.amax(-1, keepdim=True)  # lest a small temperature overflows
    scores /= temperature
    _keep_near(scores, params)
    _keep_likely(scores, params)
    _keep_proportional(scores, params)
    for row, each in enumerate(params):
        if each.typical_p is not None and each.typical_p < 1:
            warper = TypicalLogitsWarper(float(each.typical_p))
            scores[row : row + 1] = warper(None, scores[row : row + 1])
    return scores


def divisor_of(params: SamplingParams) -> float:
    """What scores are divided by: the temperature, but no less than float32 divides by. O(1)."""
    return max(float(params.temperature), _TINY)


def narrows(params: SamplingParams) -> bool:
    """Whether it asks for more than a temperature. O(1)."""
    shares = (params.top_p, params.typical_p)
    if any(share is not None and share < 1 for share in shares) or params.min_p:
        return True
    return params.top_k is not None or params.top_n_sigma is not None


def select(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """These rows of a matrix, ascending: a copy, or itself where they are all."""
    if len(rows) == len(matrix):
        return matrix
    return matrix.index_select(0, torch.tensor(rows, dtype=torch.int64, device=matrix.device))


def _keep_near(scores: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """top_n_sigma: bar what is so many standard deviations below the largest."""
    rows = [row for row, each in enumerate(params) if each.top_n_sigma is not None]
    if not rows:
        return
    chosen = select(scores, rows)
    sigmas = _column(scores, [params[row].top_n_sigma or 0.0 for row in rows])
    possible = chosen.isfinite()
    count = possible.sum(-1, keepdim=True)
    mean = chosen.where(possible, 0.0).sum(-1, keepdim=True) / count
    spread = (chosen - mean).square_().where(possible, 0.0).sum(-1, keepdim=True) / count
    _bar_below(scores, rows, -sigmas * spread.sqrt())


def _keep_likely(scores: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """top_k, and top_p of what it leaves: bar what is below the last that they keep."""
    most = scores.shape[-1]
    rows = [row for row, each in enumerate(params) if each.top_k or each.top_p is not None]
    if not rows:
        return
    ordered = _ascending(select(scores, rows))
    places = [most - min(params[row].top_k or most, most) for row in rows]
    first = torch.tensor(places, device=scores.device)[:, None]
    shares = [params[row].top_p for row in rows]
    if any(share is not None for share in shares):
        if any(places):
            ordered.masked_fill_(ordered < ordered.gather(-1, first), -inf)
        left_out = _column(scores, [-1.0 if share is None else 1 - share for share in shares])
        barred = torch.searchsorted(ordered.softmax(-1).cumsum(-1), left_out, right=True)
        first = torch.maximum(first, barred).clamp(max=most - 1)
    _bar_below(scores, rows, ordered.gather(-1, first))


def _keep_proportional(scores: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """min_p: bar what is less than this times as probable as the likeliest, whose score is 0."""
    rows = [row for row, each in enumerate(params) if each.min_p]
    if rows:
        _bar_below(scores, rows, _column(scores, [log(params[row].min_p or 1.0) for row in rows]))


def _bar_below(scores: torch.Tensor, rows: list[int], thresholds: torch.Tensor) -> None:
    """Bar in these rows what is below the threshold of each, [len(rows), 1]."""
    chosen = select(scores, rows)
    chosen.masked_fill_(chosen < thresholds, -inf)
    if chosen is not scores:
        scores[rows] = chosen


def _ascending(scores: torch.Tensor) -> torch.Tensor:
    """Each row in ascending order."""
    if scores.device.type != "cpu":
        return scores.sort(-1).values
    return torch.from_numpy(np.sort(scores.numpy(), -1))  # by vector instructions, unlike torch


def _column(scores: torch.Tensor, values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]
