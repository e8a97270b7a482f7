"""From logits to tokens: what a request may ask for, and how its tokens are chosen.

``params`` has what is asked for, ``processors`` what changes scores, ``narrowing`` which tokens may
be sampled, ``sampler`` chooses for all rows of a step, ``logprobs`` tells how probable tokens were.
"""

from octavo.engine.sampling.logprobs import TokenLogprobs
from octavo.engine.sampling.params import SamplingParams, check_vocabulary
from octavo.engine.sampling.sampler import Choice, Row, Sampler, sample_rows

__all__ = [
    "Choice",
    "Row",
    "Sampler",
    "SamplingParams",
    "TokenLogprobs",
    "check_vocabulary",
    "sample_rows",
]
