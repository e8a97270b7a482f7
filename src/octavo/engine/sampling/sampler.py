"""From logits to tokens: each request's sampler, and the choice for all rows of a step.

What rows ask for is done for all of them together; a row's token depends on its own logits, tokens
and random numbers alone. Knows no pages, requests or text.
"""

from collections.abc import Sequence
from math import isfinite
from secrets import randbits
from typing import Any, NamedTuple, Protocol

import torch

from octavo.engine.sampling.draws import draw, keys_of, race
from octavo.engine.sampling.grammars import Grammars, Matcher
from octavo.engine.sampling.logprobs import TokenLogprobs, logprobs_of
from octavo.engine.sampling.narrowing import narrow, select
from octavo.engine.sampling.params import SamplingParams, check_vocabulary
from octavo.engine.sampling.processors import Tokens, change, changes_of, process_own
from octavo.engine.sampling.shortlist import LENGTHS, largest, list_length, shortlist
from octavo.errors import SamplingError, UnsupportedModel, uncopied

_BLOCK = 2**20  # scores worked on at once: what sampling takes of memory does not grow with rows


class Sampler:
    """Chooses one request's tokens.

    Args:
        params: the request's.
        matcher: of the form its answer is to have; None: any.

    Attributes:
        params: as given.
        matcher: as given.
        changes: the parameters that change the model's scores before a token is chosen.
        seed: of its random numbers: the request's, or one that no other has.
    """

    __reduce__ = uncopied("its random numbers are its own; make another from its parameters")

    def __init__(self, params: SamplingParams, matcher: Matcher | None = None) -> None:
        self.params, self.matcher, self.changes = params, matcher, changes_of(params)
        self.seed = randbits(63) if params.seed is None else params.seed

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether its token is that of the largest logit, whatever it is."""
        return not self.changes and self.params.greedy


class Samplers:
    """Makes the samplers of a model's requests.

    Args:
        vocabulary: how many tokens the model has.
        tokenizer: the model's, for forms of answers; None: there is none.
    """

    __reduce__ = uncopied("it holds what was made of one tokenizer; make another")

    def __init__(self, vocabulary: int, tokenizer: Any) -> None:
        self._vocabulary = vocabulary
        self._grammars = Grammars(tokenizer, vocabulary)

    def make(self, params: SamplingParams) -> Sampler:
        """A sampler for one request.

        Raises:
            SamplingError: a biased or banned token is none of the model's, or what
                `Grammars.matcher` says. LengthError: more log probabilities than tokens.
        """
        check_vocabulary(params, self._vocabulary)
        return Sampler(params, self._grammars.matcher(params))


class Row(Tokens, Protocol):
    """What wants a token: a request, or one with tokens drafted behind its own.

    Attributes:
        sampler: how its token is chosen.
    """

    @property
    def sampler(self) -> Sampler:
        """How its token is chosen."""
        ...


class Frame(NamedTuple):
    """A token of a model over codebooks.

    Attributes:
        codes: one of each codebook, in their order.
        last: whether it ends what is said.
    """

    codes: tuple[int, ...]
    last: bool


class Choice(NamedTuple):
    """A token chosen.

    Attributes:
        token: its id.
        logprobs: how probable it was; None: the request does not ask.
        frame: what it stands for; None: a token is its id.
    """

    token: int
    logprobs: TokenLogprobs | None = None
    frame: Frame | None = None


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
    found: list[Choice | Exception] = []
    for start in range(0, len(rows), most):
        block, members = logits[start : start + most], rows[start : start + most]
        found += _with_logprobs(block, members, _sample_block(block, members))
    return found


def _sample_block(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | Exception]:
    likeliest, tops = _likeliest(logits)
    found: list[int | Exception] = [*likeliest]
    others = []
    for at, (row, top) in enumerate(zip(rows, tops, strict=True)):
        if not isfinite(top):
            why = f"the model gave {top} as the largest of them"
            found[at] = UnsupportedModel("logits", why)
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
                found[at] = failed.get(at) or _barred(rows[at].sampler, top)
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


def _barred(sampler: Sampler, top: float) -> SamplingError:
    """That the parameters of a request leave no token possible."""
    values = [getattr(sampler.params, name) for name in sampler.changes]
    right = f"the largest score left is {top}, and some token must be possible"
    return SamplingError(
        " and ".join(sampler.changes), values[0] if len(values) == 1 else values, right
    )


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
    found = dict[int, int]()
    params = [row.sampler.params for row in rows]
    positions = [len(row.output) for row in rows]
    keys = keys_of([row.sampler.seed for row in rows], positions, scores.device)
    first = [list_length(each) for each in params]
    left = list[int]()  # rows whose list was too short so far
    for length in (*LENGTHS, None):
        members = sorted(left + [at for at, most in enumerate(first) if most == length])
        if not members:
            continue
        chosen, asked = select(scores, members), [params[at] for at in members]
        if length is None:
            tokens, left = _sample_all(narrow(chosen, asked).exp_(), keys[members]), []
        else:
            short = shortlist(chosen, asked, length)
            rest = short.chances.new_zeros(len(members))
            tokens = race(short.ids, short.chances, rest, keys[members])
            left = [at for at, whole in zip(members, short.whole, strict=True) if not whole]
        found |= zip(members, tokens, strict=True)
    return [found[at] for at in range(len(rows))]


def _sample_all(chances: torch.Tensor, keys: torch.Tensor) -> list[int]:
    """Tokens of rows of which all chances are known, [rows, vocabulary]; overwritten."""
    likely = largest(chances, min(LENGTHS[0], chances.shape[-1]))
    chances.scatter_(1, likely.ids, 0.0)
    tokens = race(likely.ids, likely.values, chances.sum(-1), keys)
    rest = [row for row, token in enumerate(tokens) if token < 0]
    if rest:
        for row, place in zip(rest, draw(select(chances, rest), keys[rest]).tolist(), strict=True):
            tokens[row] = place
    return tokens


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
