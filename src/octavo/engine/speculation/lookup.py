"""Guesses from a request's own text: what followed its last tokens when they stood there before."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.engine.request import Request
from octavo.errors import uncopied


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """Guesses that a request goes on as its own text did where it said the same before.

    For texts that repeat what they have read: summaries, edits of code, answers out of documents.
    It costs no pages and next to no time.

    Attributes:
        max_tokens: most guesses per request and step.
        min_match: last tokens that must have stood there before.

    Raises:
        LengthError: one is below 1.
    """

    max_tokens: int = 10
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


class Lookup:
    """Guesses by `PromptLookup` for the requests of one engine.

    Args:
        way: how.

    Attributes:
        max_tokens: most guesses per request and step.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, way: PromptLookup) -> None:
        self.max_tokens, self._size = way.max_tokens, way.min_match
        self._read: WeakKeyDictionary[Request, NGrams] = WeakKeyDictionary()

    def count(self, request: Request, most: int) -> int:
        """How many guesses there are, at most ``most``. O(new tokens), at first O(prompt)."""
        found = self._read.get(request)
        if found is None:
            found = self._read[request] = NGrams(self._size)
            found.extend(request.prompt_token_ids.tolist())
        found.extend(request.output[len(found) - request.prompt_tokens :])
        return len(found.guess(most))

    def guess(
        self,
        step: Step,  # noqa: ARG002  # other ways of guessing run it
        requests: Items[Request],
        counts: Items[int],
    ) -> list[list[int]]:
        """So many guesses for each row of a step, of which `count` has said more. O(guesses)."""
        return [
            self._read[request].guess(count) if count else []
            for request, count in zip(requests, counts, strict=True)
        ]

    def close(self) -> None:
        """Nothing: it has taken nothing."""
