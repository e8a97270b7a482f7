"""Speculation: tokens that are guessed, and verified several at a time in one forward pass.

Every position of a step is sampled by its request's own sampler from the model's own logits; a
guess is accepted where it is the token that was sampled. So each request gets the tokens it gets
without speculation, sampled ones with the same seed too, and only the number of steps is another.
Guesses that were not accepted are cut by `Cache.commit`. Knows tokens; no text and no pages.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import Ints, check_int
from octavo.engine.request import Request
from octavo.engine.runner import draft_counts
from octavo.engine.sampling import Choice, Sampler, sample_rows
from octavo.errors import SamplingError, UnsupportedModel, uncopied
from octavo.model.spec import State
from octavo.planner.request import Plan

Found = list[list[Choice] | Exception]
"""Of each row that wants tokens: those chosen for it, at least one; or what its sampler raised."""


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guesses that a request goes on as its own text did where it said the same before.

    For texts that repeat what they have read: summaries, edits of code, answers out of documents.

    Attributes:
        max_tokens: most guesses per step.
        min_match: last tokens that must have stood there before.

    Raises:
        LengthError: one is below 1.
    """

    max_tokens: int = 8
    min_match: int = 3

    def __post_init__(self) -> None:
        check_int("max_tokens", self.max_tokens, 1)
        check_int("min_match", self.min_match, 1)


class NGrams:
    """One request's tokens, and where each run of a few of them stood last.

    Args:
        size: tokens of a run.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # run -> where it ended, but for the last

    def extend(self, tokens: Iterable[int]) -> None:
        """Read on. O(tokens)."""
        for token in tokens:
            if len(self._tokens) >= self._size:
                self._ends[self._run()] = len(self._tokens)
            self._tokens.append(token)

    def __len__(self) -> int:
        return len(self._tokens)

    def guess(self, count: int) -> list[int]:
        """What followed the last run when it stood there before, at most ``count``. O(count).

        Where that comes to the end of the text it goes on with the guesses: a text that repeats
        itself.
        """
        end = self._ends.get(self._run())
        if end is None:
            return []
        found = self._tokens[end : end + count]
        while len(found) < count:
            found += found[: count - len(found)]
        return found

    def _run(self) -> tuple[int, ...]:
        return tuple(self._tokens[-self._size :])


class Speculation:
    """The guesses of one engine.

    Args:
        way: how tokens are guessed; None: not at all.
        plan: the engine's.

    Raises:
        SamplingError: ``way`` is none of these.
        UnsupportedModel: the model keeps states.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, way: PromptLookup | None, plan: Plan) -> None:
        if way is not None and not isinstance(way, PromptLookup):
            raise SamplingError("speculation", way, "it must be a PromptLookup or None")
        spec = plan.spec
        if way and spec and any(isinstance(kind, State) for _, kind in spec.kinds()):
            why = "its layers keep states, out of which rejected guesses cannot be taken"
            raise UnsupportedModel(spec.name, f"{why}; run it without speculation")
        self._way = way
        self._ngrams: WeakKeyDictionary[Request, NGrams] = WeakKeyDictionary()
        self._guesses: dict[Request, list[int]] = {}

    def guess(self, running: Mapping[Request, Sequence]) -> dict[Request, int]:
        """How many guesses there are for each request that has one token left to compute.

        Cost: O(running + guesses), and O(prompt) for each that is new.
        """
        self._guesses = {}
        if self._way is None:
            return {}
        for request, sequence in running.items():
            if sequence.length - sequence.computed == 1 and not request.forks:
                found = self._ngrams_of(request).guess(self._way.max_tokens)
                if found:
                    self._guesses[request] = found
        return {request: len(found) for request, found in self._guesses.items()}

    def write(self, step: Step, requests: Items[Request]) -> list[list[int]]:
        """Put as many guesses as a step has room for into its ``input_ids``.

        Returns:
            Those of each row that wants a token.
        """
        counts = draft_counts(step)
        drafts = [
            self._guesses[requests[row]][:count] if (count := int(counts[row])) else []
            for row in step.sample.tolist()
        ]
        step.input_ids[step.unknown.at] = [token for each in drafts for token in each]
        return drafts

    def _ngrams_of(self, request: Request) -> NGrams:
        """What a request has said so far."""
        assert self._way is not None
        found = self._ngrams.get(request)
        if found is None:
            found = self._ngrams[request] = NGrams(self._way.min_match)
            found.extend(request.prompt_token_ids.tolist())
        found.extend(request.output[len(found) - request.prompt_tokens :])
        return found


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
    counts = np.array([len(each) for each in drafts], np.int64) + 1
    places = (counts.cumsum() - counts).tolist()
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


def _ends(row: DraftedRow) -> bool:
    """Whether nothing follows a row's last token. O(new tokens)."""
    matcher, output = row.sampler.matcher, row.output
    if output[-1] in row.sampler.params.stop_token_ids:
        return True
    try:
        return matcher is not None and matcher.ends(output)
    except SamplingError:  # `Request.take` meets it again, and it costs no other row
        return True


def _row(request: Request, choices: list[Choice]) -> DraftedRow:
    output = [*request.output, *(each.token for each in choices)] if choices else request.output
    return DraftedRow(request.prompt_token_ids, output, request.sampler)


def accepted(step: Step, found: Found) -> tuple[Any, Any]:
    """What `Cache.commit` is told of a step: (flat ids, how many of each row), positions kept.

    Where a sampler raised, the row learns nothing.
    """
    rows = [choices if isinstance(choices, list) else [] for choices in found]
    counts = np.zeros(len(step.counts), np.int32)
    counts[step.sample] = [len(choices) for choices in rows]
    kept = step.counts - draft_counts(step) + np.maximum(counts - 1, 0)
    flat = np.fromiter((choice.token for choices in rows for choice in choices), np.int32)
    return (flat, counts), kept


def count_accepted(
    requests: Items[Request], drafts: Items[Items[int]], found: Found
) -> dict[str, int]:
    """Note at each request how many guesses were verified, and accepted; returns both totals."""
    total = {"drafted_tokens": 0, "accepted_tokens": 0}
    for request, guesses, choices in zip(requests, drafts, found, strict=True):
        right = len(choices) - 1 if isinstance(choices, list) else 0
        request.drafted_tokens += len(guesses)
        request.accepted_tokens += right
        total["drafted_tokens"] += len(guesses)
        total["accepted_tokens"] += right
    return total
