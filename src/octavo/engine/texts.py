"""The text of an answer as it grows, and where a stop text ends it.

Knows a tokenizer and tokens, no requests and no model.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.checkpoints.text import Detokenizer
from octavo.engine.sampling import SamplingParams
from octavo.errors import SamplingError, uncopied


class StopTexts:
    """Looks for texts in an answer as its tokens come.

    A text is found wherever in its tokens it begins and ends, with the token that completes it; if
    that one ends within a character, with the next that does not. A control token's own text, as
    ``<|im_end|>``, is found with that token, though answers show no control tokens.

    Args:
        texts: what to look for; none of them empty.
        tokenizer: with ``decode``.
        minimum: tokens that an answer has before a text counts.
        include: whether the answer's text ends with the stop text, not before it.
    """

    __reduce__ = uncopied("it follows one answer; make another for another answer")

    def __init__(
        self, texts: Sequence[str], tokenizer: Any, *, minimum: int = 0, include: bool = False
    ) -> None:
        self._texts, self._minimum, self._include = texts, minimum, include
        self._controls = dict(_controls(texts, tokenizer))
        self._pieces, self._tokens = Detokenizer(tokenizer), 0
        self._text = ""
        self._end: int | None = None  # of the text, where a stop text was found

    def push(self, token: int) -> str | None:
        """Add a token; the text it completed, or None. O(longest text).

        Raises whatever the tokenizer does.
        """
        self._tokens += 1
        searched = len(self._text)
        self._text += self._pieces.push(token)
        if self._tokens < self._minimum:
            return None
        if token in self._controls:
            self._end = len(self._text)
            return self._controls[token]
        return self._find(searched)

    def text(self, *, done: bool) -> str:
        """The answer's text, so far as it is certain to stay: what may begin a stop text is not.

        Args:
            done: whether no token follows; then all of it is certain.
        """
        if done and self._end is None:
            searched = len(self._text)
            self._text += self._pieces.finish()
            self._find(searched)
        if done or self._end is not None:
            return self._text[: self._end]
        return self._text[: len(self._text) - max(map(self._begun, self._texts))]

    def _find(self, searched: int) -> str | None:
        """The first stop text that ends behind ``searched``."""
        starts = {
            text: self._text.find(text, max(0, searched - len(text) + 1)) for text in self._texts
        }
        found = [(start, text) for text, start in starts.items() if start >= 0]
        if not found:
            return None
        start, text = min(found, key=lambda each: each[0])
        self._end = start + (len(text) if self._include else 0)
        return text

    def _begun(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop text."""
        sizes = range(min(len(text) - 1, len(self._text)), 0, -1)
        return next((size for size in sizes if self._text.endswith(text[:size])), 0)


def stops_of(params: SamplingParams, tokenizer: Any) -> StopTexts | None:
    """What looks for a request's stop texts; None where it has none.

    Raises:
        SamplingError: there is no tokenizer to look with.
    """
    if not params.stop:
        return None
    if tokenizer is None:
        raise SamplingError("stop", params.stop, "stop texts need Engine(tokenizer=...)")
    return StopTexts(
        tuple(params.stop), tokenizer, minimum=params.min_tokens, include=params.include_stop
    )


def _controls(texts: Sequence[str], tokenizer: Any) -> Iterable[tuple[int, str]]:
    """Ids of control tokens that are stop texts by themselves."""
    for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if added.special and str(added) in texts:
            yield token, str(added)
