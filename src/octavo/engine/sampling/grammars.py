"""Answers held to a JSON schema, a regular expression or a grammar, by llguidance.

llguidance and not xgrammar: one wheel of 3 MB for every Python from 3.9 on that needs no other
package, where xgrammar has a wheel per Python version and brings pydantic, tvm-ffi and triton; and
it says of a schema that cannot be met that it cannot, before anything is generated.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.checks import not_installed
from octavo.engine.sampling.params import FORMS, SamplingParams
from octavo.errors import SamplingError, uncopied

_KEPT = 64  # grammars of an engine that are compiled once


class Matcher:
    """How far an answer has come in its grammar, and what may come next.

    Made by `Grammars.matcher`. What it is asked about may be shorter than before, or another answer
    from some token on, as where drafts are rejected: it goes back to where they part.
    """

    __reduce__ = uncopied("it follows one request; make another from its parameters")

    def __init__(self, matcher: Any, eos: int, params: SamplingParams) -> None:
        self._matcher, self._eos, self._params = matcher, eos, params
        self._taken: list[int] = []

    def bar(self, output: Sequence[int], scores: torch.Tensor) -> None:
        """Bar what may not follow ``output``: all, if it breaks the grammar.

        Args:
            output: the answer so far.
            scores: [vocabulary] float32; overwritten.

        Raises:
            SamplingError: the grammar has become too complex.

        Cost: O(vocabulary), and what llguidance needs: 5 to 100 us on most grammars.
        """
        barred = torch.from_numpy(~self._allowed(output, len(scores))).to(scores.device)
        scores.masked_fill_(barred, -torch.inf)

    def _allowed(self, output: Sequence[int], vocabulary: int) -> NDArray[np.bool_]:
        if not self._follow(output):
            return np.zeros(vocabulary, np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._require_sound()
        found = np.unpackbits(bits, count=vocabulary, bitorder="little").view(np.bool_)
        if self._matcher.is_accepting():
            found[[*self._params.stop_token_ids]] = True
        if len(output) < self._params.min_tokens:
            found[[*self._params.stop_token_ids]] = False
            found[self._eos : self._eos + 1] = False  # it may be none of the model's
        return found

    def allows(self, output: Sequence[int], token: int) -> bool:
        """Whether a token is known to be one that `bar` does not bar, without a look at all others.

        False where that is not known, as of tokens that end an answer.

        Args:
            output: the answer so far.
            token: which might follow.

        Cost: microseconds, where a mask of a regex takes half a millisecond.
        """
        ends = token == self._eos or token in self._params.stop_token_ids
        if ends or not self._follow(output):
            return False
        forced = self._matcher.compute_ff_tokens()  # its mask has the first of them alone
        if forced:
            return bool(token == forced[0])
        return bool(self._matcher.validate_tokens([token]) == 1)

    def ends(self, output: Sequence[int]) -> bool:
        """Whether nothing can follow ``output``.

        Raises:
            SamplingError: the grammar has become too complex.

        Cost: O(tokens since it was last asked).
        """
        followed = self._follow(output)
        self._require_sound()
        return not followed or bool(self._matcher.is_stopped())

    def _follow(self, output: Sequence[int]) -> bool:
        """Be where ``output`` ends, or where it breaks the grammar: whether it does not."""
        wanted, common = list(output), len(self._taken)
        while wanted[:common] != self._taken[:common]:
            common -= 1
        if common == len(self._taken) == len(wanted):
            return True
        self._matcher.rollback(len(self._taken) - common)
        more = wanted[common:]
        good = more[: self._matcher.validate_tokens(more)] if more else []
        self._matcher.consume_tokens(good)
        self._taken = [*wanted[:common], *good]
        return len(good) == len(more)

    def _require_sound(self) -> None:
        if self._matcher.is_error():
            raise _refused(self._params, self._matcher.get_error())


class Grammars:
    """Grammars over the tokens of one model.

    Args:
        tokenizer: of the model; one of transformers with a Rust backend.
        vocabulary: how many tokens the model has.
    """

    __reduce__ = uncopied("it holds what llguidance made of one tokenizer; make another")

    def __init__(self, tokenizer: Any, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._tokens: Any = None
        self._compiled = lru_cache(_KEPT)(self._compile)

    def matcher(self, params: SamplingParams) -> Matcher | None:
        """A matcher at the start of an answer; None where none is asked for.

        Raises:
            SamplingError: llguidance is not installed, there is no tokenizer it can read, or the
                schema, expression or grammar is none, or nothing can meet it.

        Cost: 1 s the first time, to read the tokenizer; then milliseconds per new grammar, and
        microseconds where it was asked for before.
        """
        field = _field(params)
        if field is None:
            return None
        self._read_tokenizer(field, params)
        matcher = self._compiled(field, getattr(params, field))
        why = matcher.get_error() or matcher.stop_reason()
        if why.startswith("NoExtension") and not matcher.is_accepting():
            raise _refused(params, "nothing that can be written with this vocabulary meets it")
        if matcher.is_error():
            raise _refused(params, why)
        return Matcher(matcher.deep_copy(), self._tokens.eos_token, params)

    def _read_tokenizer(self, field: str, params: SamplingParams) -> None:
        if self._tokens is not None:
            return
        value = getattr(params, field)
        if find_spec("llguidance") is None:
            right = f"it is not looked at, as {not_installed('llguidance', 'grammar')}"
            raise SamplingError(field, value, right)
        if self._tokenizer is None:
            raise SamplingError(field, value, "it needs Engine(tokenizer=...)")
        from llguidance.hf import from_tokenizer

        try:
            self._tokens = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary)
        except Exception as error:
            right = f"llguidance cannot read the tokenizer {self._tokenizer!r}: {error}"
            raise SamplingError(field, value, right) from error

    def _compile(self, field: str, text: str) -> Any:
        from llguidance import LLMatcher

        write = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "grammar": LLMatcher.grammar_from_lark,
        }[field]
        matcher = LLMatcher(self._tokens, write(text), log_level=0)
        matcher.compute_bitmask()  # finds out whether anything can begin
        forced = matcher.compute_ff_tokens()
        if forced:  # where a rule recurs without end, it fails at the first of them
            ahead = matcher.deep_copy()
            ahead.consume_token(forced[0])
            return ahead if ahead.is_error() else matcher
        return matcher


def _field(params: SamplingParams) -> str | None:
    return next((name for name in FORMS if getattr(params, name) is not None), None)


def _refused(params: SamplingParams, why: str) -> SamplingError:
    field = _field(params) or ""
    why = " ".join(why.partition("<state>")[0].split())  # llguidance writes several lines
    if "Too many items" in why:
        why = f"llguidance gives it up, as rules that recur without end: {why}"
    return SamplingError(field, getattr(params, field), why)
