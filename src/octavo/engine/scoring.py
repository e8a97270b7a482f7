"""How probable the tokens of prompts were, told as the steps that compute them come.

A prompt's tokens are to its log probabilities what drafts are to verification: the model's logits
are wanted at each of them. Such a prompt is computed whole, whatever the cache has of it.
"""

from collections.abc import Sequence as Items
from itertools import count
from math import isfinite

import torch

from octavo.cache.identity import Salt
from octavo.cache.step import Step
from octavo.engine.request import Request
from octavo.engine.runner import draft_counts
from octavo.engine.sampling import SamplingParams, logprobs_of

_numbers = count()


def own_salt(params: SamplingParams) -> Salt | None:
    """What keeps a prompt that is scored from sharing pages; None: it is not scored."""
    return None if params.prompt_logprobs is None else Salt(f"scored prompt {next(_numbers)}")


def with_scores(step: Step, requests: Items[Request]) -> Step:
    """The step with more logits wanted than are sampled from; itself where none are.

    The tokens of prompts that are to be scored are as drafts. Of a chunk of a prompt that is not
    the last the logits behind it are looked at, which tell whether what it computed are numbers.

    Cost: O(rows), and O(tokens) where there are some.
    """
    rows = [row for row, past in enumerate(step.past.tolist()) if _scores(requests[row], past)]
    wants = step.counts > 0
    if not rows and wants.tolist() == step.wants_token.tolist():
        return step
    known = step.known.copy()
    known[rows] = step.past[rows] + 1
    return step.replace(known=known, wants_token=wants)


def note_scores(
    scored: Step, step: Step, requests: Items[Request], logits: torch.Tensor
) -> tuple[torch.Tensor, list[int]]:
    """Tell requests how probable the tokens of their prompts are.

    What a request has been told before, in a step that was aborted or lost again, stays.

    Args:
        scored: what `with_scores` made of ``step``.
        step: whose tokens are to be sampled.
        requests: by row.
        logits: [k, vocabulary] of ``scored``.

    Returns:
        Those of ``step``, and its rows that want no token and whose logits are no numbers.

    Cost: O(tokens of prompts x vocabulary).
    """
    if scored is step:
        return logits, []
    rows, start, sampled, broken = scored.sample.tolist(), 0, [logits[:0]], []
    counts, wanted = 1 + draft_counts(scored), draft_counts(step) + step.wants_token
    for row in rows:
        mine = logits[start : start + int(counts[row])]
        past, start = int(step.past[row]), start + int(counts[row])
        if not wanted[row] and not isfinite(mine[-1].max()):
            broken.append(row)
        elif _scores(requests[row], past):
            _tell(requests[row], past, mine)
        sampled.append(mine[len(mine) - int(wanted[row]) :])
    return torch.cat(sampled), broken


def _scores(request: Request, past: int) -> bool:
    """Whether a request that has computed ``past`` tokens is to be told of those that follow."""
    if request.scores is None or request is not request.samples[0]:  # samples share their prompt
        return False
    return past < request.prompt_tokens - 1


def _tell(request: Request, past: int, logits: torch.Tensor) -> None:
    """Add what the logits of the positions from ``past`` on say of the tokens that follow them."""
    scores, most = request.scores, request.params.prompt_logprobs
    assert scores is not None
    assert most is not None
    told = len(scores)
    tokens = request.prompt_token_ids[told : past + len(logits) + 1].tolist()
    first = told - past - 1
    scores += logprobs_of(logits[first : first + len(tokens)], tokens, [most] * len(tokens))
