"""The few tokens that top_k, top_p and min_p leave of a row, without a sort of all others.

Where top_k is asked for they are its; else as many of the likeliest as suffice for most rows, and
it is told of which they do not.
"""

from collections.abc import Sequence
from math import inf, log
from typing import NamedTuple

import torch

from octavo.engine.sampling.narrowing import select
from octavo.engine.sampling.params import SamplingParams

LENGTHS = (64, 512)
"""How many of the likeliest tokens to look at, one after the other, before all are."""
_WIDTH = 64  # scores of which the largest is found first


class Shortlist(NamedTuple):
    """Tokens to sample from.

    Attributes:
        ids: [rows, n] int64, the likeliest first.
        chances: [rows, n] float32, relative to the likeliest; 0: barred.
        whole: of each row, whether all others are barred.
    """

    ids: torch.Tensor
    chances: torch.Tensor
    whole: list[bool]


def list_length(params: SamplingParams) -> int | None:
    """How many of the likeliest tokens to look at first; None: at all."""
    if params.top_n_sigma is not None or (params.typical_p or 1) < 1:
        return None
    if params.top_k is not None:  # few lengths, so that rows of several share a call
        return next((length for length in LENGTHS if params.top_k <= length), None)
    return LENGTHS[0] if _share(params) < 1 or params.min_p else None


def shortlist(scores: torch.Tensor, params: Sequence[SamplingParams], length: int) -> Shortlist:
    """The tokens that temperature, top_k, top_p and min_p leave, by their order of generate().

    Args:
        scores: [rows, vocabulary] float32, in each row one that is finite.
        params: of each row; none greedy.
        length: of the list, at least each top_k.

    Cost: O(rows * vocabulary), in one pass; four more of rows with top_p alone.
    """
    values, ids = largest(scores, min(length, scores.shape[-1]))
    tiny = torch.finfo(torch.float32).tiny
    temperature = _column(values, [max(float(each.temperature), tiny) for each in params])
    logs = (values - values[:, :1]) / temperature
    if any(each.top_k for each in params):
        most = _column(values, [each.top_k or inf for each in params])
        logs.masked_fill_(torch.arange(logs.shape[-1], device=logs.device) >= most, -inf)
    chances, shares = logs.exp(), [_share(each) for each in params]
    if min(shares) < 1:
        mass = chances.sum(-1)
        rows = [row for row, each in enumerate(params) if shares[row] < 1 and not each.top_k]
        if rows:
            every = (select(scores, rows) - values[rows, :1]).div_(temperature[rows]).exp_()
            mass[rows] = every.sum(-1)
        before = chances.cumsum(-1).sub_(chances)
        before[:, 0] = -1.0  # the likeliest always stays
        chances.masked_fill_(before >= _column(values, shares) * mass[:, None], 0.0)
    if any(each.min_p for each in params):
        least = _column(values, [log(each.min_p) if each.min_p else -inf for each in params])
        chances.masked_fill_(logs < least, 0.0)
    cut = (chances[:, -1] == 0).tolist()
    complete = length >= scores.shape[-1]
    whole = [cut[row] or complete or bool(each.top_k) for row, each in enumerate(params)]
    return Shortlist(ids, chances, whole)


class Largest(NamedTuple):
    """The largest scores of rows, in descending order, [rows, count], and their places, int64."""

    values: torch.Tensor
    ids: torch.Tensor


def largest(scores: torch.Tensor, count: int) -> Largest:
    """The largest ``count`` scores of each row, which has as many; [rows, vocabulary].

    They stand in those parts of a row that have the largest maxima: only these are looked at.
    O(rows * vocabulary).
    """
    rows, size = scores.shape
    parts = size // _WIDTH
    if count >= parts // 2:
        return Largest(*scores.topk(count))
    cut = parts * _WIDTH
    blocks = scores[:, :cut].view(rows, parts, _WIDTH)
    near = blocks.amax(-1).topk(count, sorted=False).indices[:, :, None]
    found = blocks.gather(1, near.expand(-1, -1, _WIDTH)).flatten(1)
    places = (near * _WIDTH + torch.arange(_WIDTH, device=scores.device)).flatten(1)
    if cut < size:
        rest = torch.arange(cut, size, device=scores.device).expand(rows, -1)
        found, places = torch.cat([found, scores[:, cut:]], 1), torch.cat([places, rest], 1)
    values, at = found.topk(count)
    return Largest(values, places.gather(1, at))


def _share(params: SamplingParams) -> float:
    return 1.0 if params.top_p is None else float(params.top_p)


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return like.new_tensor(values)[:, None]
