"""The next token of each row of a step: all rows together by torch, or on a CPU one by one.

A row's token depends on its own logits, tokens and random numbers alone. Both ways use the same
random numbers and take equal scores in the same order, so they come to the same token, but where
two chances are so near that the rounding of a sum decides.
"""

from collections.abc import Sequence
from math import inf, isfinite

import torch

from octavo.engine.sampling.by_row import choose
from octavo.engine.sampling.draws import draw, keys_of, race
from octavo.engine.sampling.kernels import kernel, reads
from octavo.engine.sampling.logprobs import logprobs_of
from octavo.engine.sampling.narrowing import narrow, narrows, select
from octavo.engine.sampling.processors import change, process_own
from octavo.engine.sampling.sampler import Choice, Row, barred, no_numbers
from octavo.engine.sampling.shortlist import LENGTHS, largest, list_length, shortlist

_BLOCK = 2**20  # scores worked on at once: what sampling takes of memory does not grow with rows


def sample_rows(logits: torch.Tensor, rows: Sequence[Row]) -> list[Choice | Exception]:
    """The next token of each row.

    Args:
        logits: [rows, vocabulary] of the model, any float dtype; -inf: never this token.
        rows: whose they are.

    Returns:
        One choice per row, or what went wrong there: a row that fails costs no other row.
        UnsupportedModel: a logit is NaN or inf, or all are -inf; SamplingError: the parameters
        bar every token; and whatever a processor of the request's own raises.

    Cost: O(rows * vocabulary), and what `narrow` says of rows that sample.
    """
    most = max(1, _BLOCK // logits.shape[-1])
    if len(rows) > most:
        blocks = [slice(start, start + most) for start in range(0, len(rows), most)]
        return [each for block in blocks for each in sample_rows(logits[block], rows[block])]
    scores = logits.float()
    if reads(scores) and kernel("octavo_likeliest") is not None:
        return list(map(choose, scores.unbind(), rows))
    return _with_logprobs(logits, rows, _sample_block(logits, rows))


def _sample_block(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | Exception]:
    likeliest, tops = _likeliest(logits)
    found: list[int | Exception] = [*likeliest]
    others = []
    for at, (row, top) in enumerate(zip(rows, tops, strict=True)):
        if not isfinite(top):
            found[at] = no_numbers(top)
        elif not row.sampler.takes_the_likeliest:
            others.append(at)
    if others:
        chosen = _choose(select(logits, others), [rows[at] for at in others])
        for at, choice in zip(others, chosen, strict=True):
            found[at] = choice
    return found


def _choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | Exception]:
    """Tokens of rows that have processors or a form, or sample."""
    scores, found = logits.float(), list[int | Exception]([0] * len(rows))
    if any(row.sampler.changes for row in rows):
        scores, failed = process(logits, rows)
        likeliest, tops = _likeliest(scores)
        found = [*likeliest]
        for at, top in enumerate(tops):
            if not isfinite(top):
                found[at] = failed.get(at) or barred(rows[at].sampler, top)
    sampled = [
        at
        for at, (row, token) in enumerate(zip(rows, found, strict=True))
        if not row.sampler.params.greedy and not isinstance(token, Exception)
    ]
    if sampled:
        drawn = _sample(select(scores, sampled), [rows[at] for at in sampled])
        for at, token in zip(sampled, drawn, strict=True):
            found[at] = token
    return found


def _likeliest(scores: torch.Tensor) -> tuple[list[int], list[float]]:
    """The likeliest token of each row and its score; of a row with NaN that."""
    if scores.device.type == "cpu":  # NumPy takes a tenth of torch's time, but knows no bfloat16
        known = (scores.float() if scores.dtype == torch.bfloat16 else scores).numpy()
        tokens = known.argmax(-1)
        return tokens.tolist(), known[range(len(known)), tokens].tolist()
    found = scores.max(-1)
    return found.indices.tolist(), found.values.tolist()


def _sample(scores: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Tokens of rows that sample; only what suffices is looked at: the likeliest, or all."""
    first = [list_length(row.sampler.params) for row in rows]
    found = dict[int, int]()
    left = list[int]()  # rows whose list was too short so far
    for length in (*LENGTHS, None):
        members = sorted(left + [at for at, most in enumerate(first) if most == length])
        if not members:
            continue
        chosen, asked = select(scores, members), [rows[at] for at in members]
        tokens = _of_all(chosen, asked) if length is None else _of_likely(chosen, asked, length)
        left = [at for at, token in zip(members, tokens, strict=True) if token < 0]
        found |= zip(members, tokens, strict=True)
    return [found[at] for at in range(len(rows))]


def _of_likely(scores: torch.Tensor, rows: Sequence[Row], length: int) -> list[int]:
    """Tokens of the so many likeliest; -1: they do not suffice."""
    ids, chances, whole = shortlist(scores, [row.sampler.params for row in rows], length)
    tokens = race(ids, chances, chances.new_zeros(len(rows)), _keys(scores, rows))
    return [token if whole[at] else -1 for at, token in enumerate(tokens)]


def _of_all(scores: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """Tokens of all that may be sampled."""
    params, keys = [row.sampler.params for row in rows], _keys(scores, rows)
    chances = narrow(scores, params).exp_()
    left = scores.masked_fill(chances == 0, -inf) if any(map(narrows, params)) else scores
    ids = largest(left, min(LENGTHS[0], left.shape[-1])).ids
    likely = chances.gather(1, ids)
    chances.scatter_(1, ids, 0.0)
    tokens = race(ids, likely, chances.sum(-1), keys)
    rest = [row for row, token in enumerate(tokens) if token < 0]
    if rest:
        for row, place in zip(rest, draw(select(chances, rest), keys[rest]).tolist(), strict=True):
            tokens[row] = place
    return tokens


def _keys(scores: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    positions = [len(row.output) for row in rows]
    return keys_of([row.sampler.seed for row in rows], positions, scores.device)


def process(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, dict[int, Exception]]:
    """The scores that each row's processors leave.

    Args:
        logits: [rows, vocabulary]; not changed.
        rows: whose they are.

    Returns:
        Scores [rows, vocabulary] float32, and by row what its processors raised; its scores are
        -inf then.

    Cost: O(rows * vocabulary), and O(tokens) of rows with penalties or processors of their own.
    """
    scores, failed = logits.to(torch.float32, copy=True).contiguous(), dict[int, Exception]()
    changing = [(at, row) for at, row in enumerate(rows) if row.sampler.changes]
    change(scores, [(at, row.sampler.params, row) for at, row in changing])
    for at, row in changing:
        params, matcher = row.sampler.params, row.sampler.matcher
        try:
            if params.logits_processors:
                scores[at] = process_own(params, row, scores[at : at + 1])[0]
            if matcher is not None:
                matcher.bar(row.output, scores[at])
        except Exception as error:  # noqa: BLE001, whatever it is, it is this row's alone
            scores[at], failed[at] = -torch.inf, error
    return scores, failed


def _with_logprobs(
    logits: torch.Tensor, rows: Sequence[Row], tokens: Sequence[int | Exception]
) -> list[Choice | Exception]:
    found = [Choice(token) if isinstance(token, int) else token for token in tokens]
    asked = dict[int, Choice]()
    for at, choice in enumerate(found):
        if isinstance(choice, Choice) and rows[at].sampler.params.logprobs is not None:
            asked[at] = choice
    if not asked:
        return found
    counts = [rows[at].sampler.params.logprobs or 0 for at in asked]
    told = logprobs_of(select(logits, list(asked)), [each.token for each in asked.values()], counts)
    for at, logprobs in zip(asked, told, strict=True):
        found[at] = Choice(logprobs.token, logprobs)
    return found
