"""The guesses of one engine: how many each request is given, and which, step by step."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import compress
from time import perf_counter
from typing import Any, Protocol

from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.engine.frames import takes_frames
from octavo.engine.request import Request
from octavo.engine.runner import draft_counts
from octavo.engine.speculation.drafts import Draft, Drafter
from octavo.engine.speculation.lookup import Lookup, PromptLookup
from octavo.engine.speculation.verification import Found
from octavo.engine.speculation.worth import Worth
from octavo.errors import SamplingError, UnsupportedModel, uncopied
from octavo.planner.request import Plan
from octavo.storage import Storage


def rollback_for(way: PromptLookup | Draft | None, plan: Plan) -> int:
    """How many positions a cache must be able to take back where layers keep states.

    A sequence then holds a state for each of them, and one more. O(layers).
    """
    stateful = any(group.lifetime.form == "state" for group in plan.groups.values())
    return way.max_tokens if stateful and isinstance(way, PromptLookup | Draft) else 0


class Guesser(Protocol):
    """What guesses tokens.

    Attributes:
        max_tokens: most guesses per request and step.
    """

    max_tokens: int

    def count(self, request: Request, most: int) -> int:
        """How many guesses there are for a request's next tokens, at most ``most``."""
        ...

    def guess(self, step: Step, requests: Items[Request], counts: Items[int]) -> list[list[int]]:
        """So many guesses for each row of an open step, as many as `count` has said or fewer."""
        ...

    def close(self) -> None:
        """Leave everything as it was found. May be called twice."""
        ...


def _guesser(way: PromptLookup | Draft | None, model: Any, storage: Storage) -> Guesser | None:
    if way is None:
        return None
    if takes_frames(model):
        why = "a guess would be a frame, all codes of which would have to be right"
        raise UnsupportedModel("speculation", why)
    if isinstance(way, PromptLookup):
        return Lookup(way)
    if isinstance(way, Draft):
        return Drafter(way, model, storage)
    raise SamplingError("speculation", way, "it must be a PromptLookup, a Draft or None")


class Speculation:
    """Guesses for an engine's steps, as many as pay.

    In every step: `wanted`, then `write` before the forward pass, `note` behind the commit.

    Args:
        way: how tokens are guessed; None: not at all.
        model, storage: the engine's.

    Raises:
        SamplingError: ``way`` is none of these. PlanError, UnsupportedModel: as `Drafter`.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, way: PromptLookup | Draft | None, model: Any, storage: Storage) -> None:
        self._guesser = _guesser(way, model, storage)
        self._worth = Worth()
        self._began = self._drafted = 0.0

    def wanted(self, running: Mapping[Request, Sequence]) -> dict[Request, int]:
        """How many guesses to make room for, by request that has one token left to compute.

        Cost: O(running), and what the guesser needs.
        """
        if self._guesser is None:
            return {}
        found = {}
        for request, sequence in running.items():
            if sequence.length - sequence.computed == 1 and not request.forks:
                most = self._worth.count(request, self._guesser.max_tokens)
                if most and (count := self._guesser.count(request, most)):
                    found[request] = count
        return found

    def write(self, step: Step, requests: Items[Request]) -> list[list[int]]:
        """Put as many guesses as a step has room for into its ``input_ids``.

        Args:
            step: open, before its forward pass.
            requests: by row.

        Returns:
            The guesses of each row that wants a token.
        """
        if self._guesser is None:
            return [[] for wants in step.wants_token.tolist() if wants]
        self._began = perf_counter()
        drafts = self._guesser.guess(step, requests, draft_counts(step).tolist())
        step.input_ids[step.unknown.at] = [token for each in drafts for token in each]
        self._drafted = perf_counter()
        return list(compress(drafts, step.wants_token.tolist()))

    def note(
        self, step: Step, requests: Items[Request], drafts: Items[Items[int]], found: Found
    ) -> dict[str, int]:
        """Count what a step's guesses came to, for each request and for what is worth a guess.

        Args:
            step: committed, before anything else is done.
            requests: that want a token.
            drafts: what `write` returned.
            found: what was sampled.

        Returns:
            How many guesses were verified, and accepted.
        """
        if self._guesser is None:
            return {}
        verified = accepted = gained = 0
        for request, guesses, choices in zip(requests, drafts, found, strict=True):
            tokens = len(choices) if isinstance(choices, list) else 1
            gained += tokens
            if guesses:
                self._worth.note(request, len(guesses), tokens - 1)
                request.drafted_tokens += len(guesses)
                request.accepted_tokens += tokens - 1
                verified += len(guesses)
                accepted += tokens - 1
        if len(step.input_ids) == len(step.counts) + verified:  # no prompts beside them
            drafting, seconds = self._drafted - self._began, perf_counter() - self._drafted
            self._worth.costs.note(len(step.input_ids), seconds, gained, verified, drafting)
        return {"drafted_tokens": verified, "accepted_tokens": accepted}

    def close(self) -> None:
        """Give back what it has taken. May be called twice."""
        if self._guesser is not None:
            self._guesser.close()
