"""From logits to tokens: what a request may ask for, and how its tokens are chosen.

``params`` has what is asked for, ``processors`` what changes scores, ``grammars`` what form answers
have; ``shortlist`` and ``narrowing`` say which tokens may be sampled, of the likeliest or of all,
and ``draws`` takes one; ``choices`` chooses for all rows of a step, by ``by_row`` where there are
``kernels``, and ``logprobs`` tells how probable tokens were.
"""

from octavo.engine.sampling.choices import sample_rows
from octavo.engine.sampling.logprobs import TokenLogprobs, logprobs_of
from octavo.engine.sampling.params import SamplingParams
from octavo.engine.sampling.sampler import Choice, Frame, Row, Sampler, Samplers

__all__ = [
    "Choice",
    "Frame",
    "Row",
    "Sampler",
    "Samplers",
    "SamplingParams",
    "TokenLogprobs",
    "logprobs_of",
    "sample_rows",
]
