"""The few tokens that top_k, top_p and min_p leave of a row, without a sort of all others.

Where top_k is asked for they are its; else as many of the likeliest as suffice for most rows, and
it is told of which they do not.
"""

from collections.abc import Sequence
from math import inf, log
from typing import NamedTuple

import torch

from octavo.engine.sampling.narrowing import divisor_of, select
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
    return LENGTHS[0] if share_of(params) < 1 or params.min_p else None


def shortlist(scores: torch.Tensor, params: Sequence[SamplingParams], length: int) -> Shortlist:
    """The tokens that temperature, top_k, top_p and min_p leave, by their order of generate().

    Args:
        scores: [rows, vocabulary] float32, in each row one that is finite.
        params: of each row; none greedy.
        length: of the list, at least each top_k.

    Cost: O(rows * vocabulary), in one pass; four more of rows with top_p alone.
    """
    values, ids = largest(scores, min(length, scores.shape[-1]))
    temperature = _column(values, [divisor_of(each) for each in params])
    logs = (values - values[:, :1]) / temperature
    if any(each.top_k for each in params):
        most = _column(values, [each.top_k or inf for each in params])
        logs.masked_fill_(torch.arange(logs.shape[-1], device=logs.device) >= most, -inf)
    chances, shares = logs.exp(), [share_of(each) for each in params]
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
    """The largest ``count`` scores of each row, which has as many; of equal ones the first.

    They stand in those parts of a row whose largest scores come first: only these are looked at.

    Args:
        scores: [rows, vocabulary] float32.
        count: of scores.

    Cost: O(rows * vocabulary).
    """
    rows, size = scores.shape
    every = torch.arange(size, device=scores.device).expand(rows, -1)
    parts = size // _WIDTH
    if count >= parts // 2:
        return _first(scores, every, count)
    cut = parts * _WIDTH
    tops = scores[:, :cut].view(rows, parts, _WIDTH).amax(-1)
    near = _first(tops, every[:, :parts], count).ids[:, :, None]
    places = (near * _WIDTH + torch.arange(_WIDTH, device=scores.device)).flatten(1)
    places = torch.cat([places, every[:, cut:]], 1)
    return _first(scores.gather(1, places), places, count)


def _first(scores: torch.Tensor, ids: torch.Tensor, count: int) -> Largest:
    """The first ``count`` of scores and their ids: the larger ones, of equal ones the smaller id.

    In whole numbers: the bits of a float32 in the upper half, turned where it is negative, so that
    they are ordered as the scores are, and the id in the lower.
    """
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0: one zero, not two
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32
    at = (order - ids).topk(count).indices
    return Largest(scores.gather(1, at), ids.gather(1, at))


def share_of(params: SamplingParams) -> float:
    """What top_p keeps; 1: all. O(1)."""
    return 1.0 if params.top_p is None else float(params.top_p)


def _column(like: torch.Tensor, values: Sequence[float]) -> torch.Tensor:
    return like.new_tensor(values)[:, None]
