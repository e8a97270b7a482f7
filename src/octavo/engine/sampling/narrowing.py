"""Which tokens may be sampled at all: temperature, top-n-sigma, top-k, top-p, min-p, typical-p.

Each of them but the last keeps the tokens above a threshold of the row, so that rows with different
parameters go through in one call. The tokens kept are those of transformers' warpers in the order
of its generate(), but for ties at the threshold, which all stay; its top-p sorts the vocabulary,
which takes 20 ms a row of 49,152 tokens on a CPU, more than the model's step for one.
"""

from collections.abc import Callable, Sequence
from math import inf, log

import torch
from transformers import TypicalLogitsWarper

from octavo.engine.sampling.params import SamplingParams

_FIRST = 64  # tokens that mostly hold top_p; more are looked at where they do not


def narrow(scores: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Scores over temperature, -inf where a token is not to be sampled.

    Args:
        scores: [rows, vocabulary] float32, in each row one that is finite; overwritten.
        params: of each row; none greedy.

    Returns:
        [rows, vocabulary], the largest of each row 0.

    Cost: O(rows * vocabulary); top_k and top_p sort only as many tokens as they keep, typical_p
    all.
    """
    # below the smallest normal float32 a division by it is one by zero
    tiny = torch.finfo(torch.float32).tiny
    temperature = _column(scores, [max(float(each.temperature), tiny) for each in params])
    scores -= scores.amax(-1, keepdim=True)  # so that no temperature, however small, overflows
    scores /= temperature
    for wanted, threshold in (
        ([each.top_n_sigma for each in params], _sigma_threshold),
        ([each.top_k for each in params], _top_k_threshold),
        ([each.top_p for each in params], _top_p_threshold),
        ([each.min_p for each in params], _min_p_threshold),
    ):
        _keep_above(scores, wanted, threshold)
    for row, each in enumerate(params):
        if each.typical_p is not None and each.typical_p < 1:
            warper = TypicalLogitsWarper(float(each.typical_p))
            scores[row : row + 1] = warper(None, scores[row : row + 1])
    return scores


def select(matrix: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """These rows of a matrix, ascending: a copy, or itself where they are all."""
    if len(rows) == len(matrix):
        return matrix
    return matrix.index_select(0, torch.tensor(rows, dtype=torch.int64, device=matrix.device))


Threshold = Callable[[torch.Tensor, list[float]], torch.Tensor]
"""The lowest score that stays, of each row: [rows, vocabulary], the parameters -> [rows, 1]."""


def _keep_above(scores: torch.Tensor, wanted: Sequence[float | None], threshold: Threshold) -> None:
    """Bar what is below the threshold in the rows that have the parameter."""
    rows = [row for row, value in enumerate(wanted) if value is not None]
    if not rows:
        return
    chosen = select(scores, rows)
    values = [float(value) for value in wanted if value is not None]
    chosen.masked_fill_(chosen < threshold(chosen, values), -inf)
    if chosen is not scores:
        scores[rows] = chosen


def _sigma_threshold(scores: torch.Tensor, sigmas: list[float]) -> torch.Tensor:
    possible = scores.isfinite()
    count = possible.sum(-1, keepdim=True)
    mean = scores.where(possible, 0.0).sum(-1, keepdim=True) / count
    spread = (scores - mean).square_().where(possible, 0.0).sum(-1, keepdim=True) / count
    return scores.amax(-1, keepdim=True) - _column(scores, sigmas) * spread.sqrt()


def _top_k_threshold(scores: torch.Tensor, counts: list[float]) -> torch.Tensor:
    most = scores.shape[-1]
    places = [min(int(count), most) - 1 for count in counts]
    top = scores.topk(max(places) + 1).values
    return top.gather(-1, torch.tensor(places, device=scores.device)[:, None])


def _top_p_threshold(scores: torch.Tensor, shares: list[float]) -> torch.Tensor:
    """The last token that those before it, more probable, do not make up the share without."""
    share, most = _column(scores, shares), scores.shape[-1]
    chances, count = scores.softmax(-1), min(_FIRST, most)
    while True:
        top, places = chances.topk(count)
        inside = top.cumsum(-1) - top < share
        if count == most or not inside[:, -1].any():
            break
        count = min(count * 16, most)
    last = inside.sum(-1, keepdim=True).clamp(min=1) - 1
    return scores.gather(-1, places.gather(-1, last))


def _min_p_threshold(scores: torch.Tensor, shares: list[float]) -> torch.Tensor:
    logs = [log(share) if share else -inf for share in shares]
    return scores.amax(-1, keepdim=True) + _column(scores, logs)


def _column(scores: torch.Tensor, values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]
