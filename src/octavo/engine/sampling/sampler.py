"""From logits to tokens: each request's sampler, and the choice for all rows of a step.

Rows with the same processors go through them together, and all that sample are narrowed together;
a row's token depends on its own logits, tokens and random numbers alone. Knows no pages, requests
or text.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any, NamedTuple, Protocol

import torch

from octavo.engine.sampling.grammars import Grammars, Matcher
from octavo.engine.sampling.logprobs import TokenLogprobs, logprobs_of
from octavo.engine.sampling.narrowing import narrow, select
from octavo.engine.sampling.params import SamplingParams, check_vocabulary
from octavo.engine.sampling.processors import History, Tokens, kind_of, processors_of
from octavo.errors import SamplingError, UnsupportedModel, uncopied

_BLOCK = 2**21  # scores worked on at once: what sampling takes of memory does not grow with rows


class Sampler:
    """Chooses one request's tokens; holds its random numbers.

    Args:
        params: the request's.
        device: where the logits are.
        matcher: of the form its answer is to have; None: any.

    Attributes:
        params: as given.
        matcher: as given.
        processors: what changes its scores, in order.
        kind: equal where processors are, so that one call serves both.
        generator: its random numbers.
        races: whether the token drawn is the first in a race of all, each with a random number of
            its own; else one number falls among their chances.
    """

    __reduce__ = uncopied("its random numbers are drawn once; make another from its parameters")

    def __init__(
        self,
        params: SamplingParams,
        device: torch.device | str = "cpu",
        matcher: Matcher | None = None,
    ) -> None:
        self.params, self.generator = params, torch.Generator(device)
        self.matcher = matcher
        self.races = params.seed is not None  # as generate() draws: the same numbers, its tokens
        self.processors, self.kind = processors_of(params), kind_of(params)
        if params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(params.seed)
        self._states = dict[int, torch.Tensor]()

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether its token is that of the largest logit, whatever it is."""
        return self.params.greedy and not self.processors and self.matcher is None

    def seek(self, token: int, certain: int) -> None:
        """Be where the random numbers of a token begin, also where they were drawn before.

        A step that is undone draws its tokens again: with the same numbers, they are the same.

        Args:
            token: how many come before it.
            certain: how many no step can draw again.

        Cost: O(tokens that are not certain).
        """
        if self.params.greedy:
            return
        states = {at: state for at, state in self._states.items() if at >= certain}
        if token in states:
            self.generator.set_state(states[token])
        else:
            states[token] = self.generator.get_state()
        self._states = states

    def ahead(self) -> "Sampler":
        """Another that draws the same random numbers next; this one stays where it is. O(1).

        From now on both draw by a race, so that from chances that are much alike they mostly draw
        the same token.
        """
        self.races = True
        other = Sampler(self.params, self.generator.device, self.matcher)
        other.races = True
        other.generator.set_state(self.generator.get_state())
        return other

    def draw(self, chances: torch.Tensor) -> torch.Tensor:
        """A token at random.

        Args:
            chances: [1, vocabulary], at least 0; they need not sum to 1.

        Returns:
            The token, [1, 1] int64.

        Cost: O(vocabulary); in a race as many random numbers, else one.
        """
        if self.races:
            return torch.multinomial(chances, 1, generator=self.generator)
        edges = chances.cumsum(-1)
        total = edges[:, -1:]
        point = torch.rand((1, 1), generator=self.generator, device=chances.device) * total
        # a product rounded up to the end would fall behind the last token that has a chance
        point = torch.minimum(point, total.nextafter(torch.zeros_like(total)))
        return torch.searchsorted(edges, point, right=True)


class Samplers:
    """Makes the samplers of a model's requests.

    Args:
        vocabulary: how many tokens the model has.
        device: where its logits are.
        tokenizer: the model's, for forms of answers; None: there is none.
    """

    __reduce__ = uncopied("it holds what was made of one tokenizer; make another")

    def __init__(self, vocabulary: int, device: torch.device | str, tokenizer: Any) -> None:
        self._vocabulary, self._device = vocabulary, device
        self._grammars = Grammars(tokenizer, vocabulary)

    def make(self, params: SamplingParams) -> Sampler:
        """A sampler for one request.

        Raises:
            SamplingError: a biased or banned token is none of the model's, or what
                `Grammars.matcher` says. LengthError: more log probabilities than tokens.
        """
        check_vocabulary(params, self._vocabulary)
        return Sampler(params, self._device, self._grammars.matcher(params))


class Row(Tokens, Protocol):
    """What wants a token: a request, or one with tokens drafted behind its own.

    Attributes:
        sampler: how its token is chosen.
    """

    @property
    def sampler(self) -> Sampler:
        """How its token is chosen."""
        ...


class Choice(NamedTuple):
    """A token chosen.

    Attributes:
        token: its id.
        logprobs: how probable it was; None: the request does not ask.
    """

    token: int
    logprobs: TokenLogprobs | None = None


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
    plain = [at for at, row in enumerate(rows) if row.sampler.takes_the_likeliest]
    others = [at for at, row in enumerate(rows) if not row.sampler.takes_the_likeliest]
    tokens = dict[int, int | Exception]()
    if plain:
        tokens |= zip(plain, _likeliest(select(logits, plain)), strict=True)
    if others:
        chosen = _choose(select(logits, others), [rows[at] for at in others])
        tokens |= zip(others, chosen, strict=True)
    for at, top in enumerate(logits.amax(-1).tolist()):
        if not isfinite(top):
            why = f"the model gave {top} as the largest of them"
            tokens[at] = UnsupportedModel("logits", why)
    return [tokens[at] for at in range(len(rows))]


def _choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | Exception]:
    """Tokens of rows that have processors or a form, or sample."""
    scores, failed = process(logits, rows)
    tops = scores.amax(-1).tolist()
    greedy = [at for at, row in enumerate(rows) if row.sampler.params.greedy]
    sampled = [at for at, row in enumerate(rows) if not row.sampler.params.greedy]
    tokens = dict[int, int | Exception]()
    if greedy:
        tokens |= zip(greedy, _likeliest(select(scores, greedy)), strict=True)
    if sampled:
        drawn = _sample(select(scores, sampled), [rows[at].sampler for at in sampled])
        tokens |= zip(sampled, drawn, strict=True)
    for at, top in enumerate(tops):
        if not isfinite(top):
            right = f"the largest score that it leaves is {top}, and some token must be possible"
            tokens[at] = SamplingError("params", rows[at].sampler.params, right)
    tokens |= failed
    return [tokens[at] for at in range(len(rows))]


def _likeliest(scores: torch.Tensor) -> list[int]:
    found: list[int] = scores.max(dim=-1).indices.tolist()  # argmax takes longer
    return found


def _sample(scores: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | Exception]:
    chances = narrow(scores, [sampler.params for sampler in samplers]).softmax(-1)
    found: list[int | Exception] = []
    for at, sampler in enumerate(samplers):
        try:
            found.append(int(sampler.draw(chances[at : at + 1])))
        except Exception as error:  # noqa: BLE001, whatever it is, it is this row's alone
            found.append(error)
    return found


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
    scores, failed = logits.to(torch.float32, copy=True), dict[int, Exception]()
    alike = dict[object, list[int]]()
    for at, row in enumerate(rows):
        alike.setdefault(row.sampler.kind, []).append(at)
    for members in alike.values():
        part = select(scores, members)
        history = History([rows[at] for at in members], scores.shape[-1], scores.device)
        try:
            for processor in rows[members[0]].sampler.processors:
                part = processor(history, part)
        except Exception as error:  # noqa: BLE001, whatever it is, it is these rows' alone
            part = torch.full_like(part, -torch.inf)
            failed |= dict.fromkeys(members, error)
        if part is not scores:
            scores[members] = part
    for at, row in enumerate(rows):
        if row.sampler.matcher is not None:
            try:
                allowed = row.sampler.matcher.allowed(row.output, scores.shape[-1])
                scores[at].masked_fill_(~allowed.to(scores.device), -torch.inf)
            except Exception as error:  # noqa: BLE001, as above
                failed[at] = error
    return scores, failed


def _with_logprobs(
    logits: torch.Tensor, rows: Sequence[Row], tokens: Sequence[int | Exception]
) -> list[Choice | Exception]:
    found = [Choice(token) if isinstance(token, int) else token for token in tokens]
    asked = dict[int, Choice]()
    for at, choice in enumerate(found):
        if isinstance(choice, Choice) and rows[at].sampler.params.logprobs is not None:
            asked[at] = choice
    counts = [rows[at].sampler.params.logprobs or 0 for at in asked]
    told = logprobs_of(select(logits, list(asked)), [each.token for each in asked.values()], counts)
    for at, logprobs in zip(asked, told, strict=True):
        found[at] = Choice(logprobs.token, logprobs)
    return found
