"""Verification: the tokens a request's own sampler chooses, as far as they are those guessed.

A guess is accepted where it is the token that is sampled at its place, so the tokens are those of
sampling one by one, whatever was guessed. Knows logits and requests; no pages.
"""

from collections.abc import Sequence as Items
from itertools import accumulate
from operator import gt
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.request import Request
from octavo.engine.runner import draft_counts
from octavo.engine.sampling import Choice, Row, Sampler, sample_rows
from octavo.errors import SamplingError

Found = list[list[Choice] | Exception]
"""Of each row that wants tokens: those chosen for it, at least one; or what its sampler raised."""


class DraftedRow(NamedTuple):
    """A request as far as its guesses have been accepted.

    Attributes:
        prompt_token_ids: of the request.
        output: tokens generated, the accepted guesses of this step included.
        sampler: of the request.
    """

    prompt_token_ids: Ints
    output: Items[int]
    sampler: Sampler


def sample_accepted(
    logits: torch.Tensor, drafts: Items[Items[int]], requests: Items[Request]
) -> Found:
    """The next tokens of some requests: each up to the first that is not what was guessed.

    Args:
        logits: [k, vocabulary]: of each request, those after its last token, and after each guess.
        drafts: the guesses of each.
        requests: who samples; a stop token, or what completes its form, ends its row.

    Returns:
        Choices of each request, guesses that were accepted and one more; or what went wrong there.

    Cost: one `sample_rows` for each guess accepted.
    """
    places = list(accumulate((1 + len(each) for each in drafts), initial=0))
    found: list[Any] = [[] for _ in requests]
    rows = list(range(len(requests)))
    while rows:
        chosen = logits if len(rows) == len(logits) else logits[[places[row] for row in rows]]
        choices = sample_rows(chosen, [_row(requests[row], found[row]) for row in rows])
        accepting = []
        for row, choice in zip(rows, choices, strict=True):
            if isinstance(choice, Exception):
                found[row] = choice
                continue
            guesses, at = drafts[row], len(found[row])
            found[row].append(choice)
            right = at < len(guesses) and choice.token == guesses[at]
            if right and not _ends(_row(requests[row], found[row])):
                places[row] += 1
                accepting.append(row)
        rows = accepting
    return found


def _ends(row: Row) -> bool:
    """Whether nothing follows a row's last token. O(new tokens)."""
    matcher, output = row.sampler.matcher, row.output
    if output[-1] in row.sampler.params.stop_token_ids:
        return True
    try:
        return matcher is not None and matcher.ends(output)
    except SamplingError:  # `Request.take` meets it again, and it costs no other row
        return True


def _row(request: Request, choices: list[Choice]) -> Row:
    if not choices:
        return request
    output = [*request.output, *(each.token for each in choices)]
    return DraftedRow(request.prompt_token_ids, output, request.sampler)


def accepted(step: Step, found: Found) -> tuple[Any, Any]:
    """What `Cache.commit` is told of a step: tokens, and positions kept where some were guessed.

    Where a sampler raised, the row learns nothing. O(rows + tokens).
    """
    rows = [choices if isinstance(choices, list) else [] for choices in found]
    flat = [choice.token for choices in rows for choice in choices]
    guessed = any(map(gt, step.context.tolist(), step.known.tolist()))
    if not guessed and all(rows):
        return flat, None
    counts = np.zeros(len(step.counts), np.int32)
    counts[step.wants_token] = [len(choices) for choices in rows]
    kept = step.counts - draft_counts(step) + np.maximum(counts - 1, 0)
    return (np.array(flat, np.int32), counts), kept
