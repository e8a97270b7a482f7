"""Speculation: tokens that are guessed, and verified several at a time in one forward pass.

Every position of a step is sampled by its request's own sampler from the model's own logits; a
guess is accepted where it is the token that was sampled. So each request gets the tokens it gets
without speculation, sampled ones with the same seed too, and only the number of steps is another.

``lookup`` guesses from a request's own text, ``drafts`` with a draft model; ``worth`` says how many
guesses pay, ``speculation`` puts them into steps, ``verification`` samples and accepts.
"""

from octavo.engine.speculation.drafts import Draft
from octavo.engine.speculation.lookup import PromptLookup
from octavo.engine.speculation.speculation import Speculation, rollback_for
from octavo.engine.speculation.verification import Found, accepted, sample_accepted

__all__ = [
    "Draft",
    "Found",
    "PromptLookup",
    "Speculation",
    "accepted",
    "rollback_for",
    "sample_accepted",
]
