"""The next token of one row on a CPU, by the C kernels: what `choices` does for all rows at once.

A row is read once or twice while it is in the processor's cache, and not copied: what biases and
penalties change of it is put back. Where the likeliest token is wanted and a form is asked for,
that token alone is looked at, and the mask of all others only where it may not come.
"""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf, log
from typing import Any

import numpy as np
import torch

from octavo.engine.sampling.kernels import kernel
from octavo.engine.sampling.logprobs import logprobs_of_row
from octavo.engine.sampling.narrowing import divisor_of, narrow, narrows
from octavo.engine.sampling.processors import banned, process_own
from octavo.engine.sampling.sampler import Choice, Row, barred, no_numbers
from octavo.engine.sampling.shortlist import LENGTHS, list_length, share_of

_SHORT = -1  # of sampling.c: the list is too short


def choose(scores: torch.Tensor, row: Row) -> Choice | Exception:
    """The next token of a row, or what went wrong; see `sample_rows`.

    Args:
        scores: [vocabulary] float32, of which the kernels read; as before when it returns.
        row: whose they are.

    Cost: O(vocabulary), and what `narrow` says where the likeliest tokens do not suffice.
    """
    sampler = row.sampler
    try:
        token = _changed_token(scores, row) if sampler.changes else _token(scores, row)
    except Exception as error:  # noqa: BLE001, whatever it is, it is this row's alone
        return error
    if token < 0:
        return no_numbers(_top(scores))
    if sampler.params.logprobs is None:
        return Choice(token)
    return Choice(token, logprobs_of_row(scores, token, sampler.params.logprobs))


def _changed_token(scores: torch.Tensor, row: Row) -> int:
    """The token of a row whose scores are changed first; negative: the model's are no numbers.

    Raises:
        SamplingError: no token is left; and whatever a processor of the request's own raises.
    """
    if _likeliest(scores) < 0:
        return -1
    params, matcher = row.sampler.params, row.sampler.matcher
    with _changed(scores, row):
        if matcher is not None and params.greedy and not params.logits_processors:
            token = _likeliest(scores)
            if token >= 0 and matcher.allows(row.output, token):
                return token
        left = scores
        if params.logits_processors or matcher is not None:
            left = scores.clone()
        if params.logits_processors:
            left.copy_(process_own(params, row, left[None])[0])
        if matcher is not None:
            matcher.bar(row.output, left)
        token = _token(left, row)
        if token < 0:
            raise barred(row.sampler, _top(left))
    return token


@contextmanager
def _changed(scores: torch.Tensor, row: Row) -> Iterator[None]:
    """Within it a row has its biases, penalties and bans. O(tokens + biases + bans)."""
    params = row.sampler.params
    prompt = np.ascontiguousarray(row.prompt_token_ids, np.int32)
    output, bans = array("i", row.output), array("i", banned(params, row))
    biased, bias = array("i", params.logit_bias), array("f", params.logit_bias.values())
    room = len(biased) + len(prompt) + 3 * len(output) + len(bans)
    kept = np.empty((2, room), np.int32)  # where scores were changed, and what they were
    start, places = scores.data_ptr(), kept.ctypes.data
    old = places + kept.strides[0]
    count = kernel("octavo_change")(
        *(start, len(scores), prompt.ctypes.data, len(prompt), _at(output), len(output)),
        *(_at(biased), _at(bias), len(biased), _at(bans), len(bans)),
        *(params.repetition_penalty, params.presence_penalty, params.frequency_penalty),
        *(places, old),
    )
    try:
        yield
    finally:
        kernel("octavo_restore")(start, places, old, count)


def _token(scores: torch.Tensor, row: Row) -> int:
    """The token of a row as its scores are; negative: the largest is not finite."""
    params = row.sampler.params
    if params.greedy:
        return _likeliest(scores)
    chance, first = (row.sampler.seed, len(row.output)), list_length(params)
    kept = (params.top_k or 0, share_of(params), log(params.min_p) if params.min_p else -inf)
    for length in LENGTHS:
        if first is not None and first <= length:
            listed = (scores.data_ptr(), len(scores), length, divisor_of(params))
            token: int = kernel("octavo_draw_likely")(*listed, *kept, *chance)
            if token != _SHORT:
                return token
    if narrows(params):
        scores = scores.masked_fill(narrow(scores[None], [params])[0] == -inf, -inf)
    whole = (scores.data_ptr(), len(scores), LENGTHS[0], divisor_of(params))
    found: int = kernel("octavo_draw_all")(*whole, *chance)
    return found


def _likeliest(scores: torch.Tensor) -> int:
    found: int = kernel("octavo_likeliest")(scores.data_ptr(), len(scores))
    return found


def _top(scores: torch.Tensor) -> float:
    """The largest score; of those with NaN that."""
    return float(scores.max())


def _at(values: "array[Any]") -> int:
    return values.buffer_info()[0]
