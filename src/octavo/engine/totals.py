"""What an engine has done so far, in numbers."""

from typing import NamedTuple


class EngineStats(NamedTuple):
    """Totals of an engine.

    Attributes:
        steps: forward passes.
        computed_tokens: positions they computed.
        prompt_tokens: tokens of the prompts that were started.
        cached_tokens: those of them found in the prefix cache.
        generated_tokens: tokens sampled.
        drafted_tokens: tokens guessed and verified, of which
        accepted_tokens: were what was sampled.
        finished: requests that are done.
        restored_tokens: positions of preempted requests that were copied back and not computed.
    """

    steps: int = 0
    computed_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    restored_tokens: int = 0
