"""A request's sampler, what it is asked with, and what comes of it.

Knows no pages, requests or text.
"""

from secrets import randbits
from typing import Any, NamedTuple, Protocol

from octavo.engine.sampling.grammars import Grammars, Matcher
from octavo.engine.sampling.kernels import kernel
from octavo.engine.sampling.logprobs import TokenLogprobs
from octavo.engine.sampling.params import SamplingParams, check_vocabulary
from octavo.engine.sampling.processors import Tokens, changes_of
from octavo.errors import SamplingError, UnsupportedModel, uncopied


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
        kernel("octavo_likeliest")  # compiled now, lest the first answer waits for it
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


def no_numbers(top: float) -> UnsupportedModel:
    """That the largest of a model's logits is none to choose by. O(1)."""
    return UnsupportedModel("logits", f"the model gave {top} as the largest of them")


def barred(sampler: Sampler, top: float) -> SamplingError:
    """That the parameters of a request leave no token possible. O(1)."""
    values = [getattr(sampler.params, name) for name in sampler.changes]
    right = f"the largest score left is {top}, and some token must be possible"
    return SamplingError(
        " and ".join(sampler.changes), values[0] if len(values) == 1 else values, right
    )
