"""What ``octavo generate`` tells of its answers: the JSON object, and a line of figures."""

from dataclasses import dataclass, field
from typing import Any

from octavo.checkpoints.text import Detokenizer
from octavo.planner.figures import amount, counted


@dataclass
class Answer:
    """One prompt on its way to an answer.

    Attributes:
        tokens: the prompt in tokens.
        detokenizer: turns the answer's tokens into text.
        request: the engine's handle.
        output: the answer's tokens that have been turned into text.
        text: their text.
    """

    tokens: list[int]
    detokenizer: Detokenizer
    request: Any = None
    output: list[int] = field(default_factory=list)
    text: str = ""

    def update(self) -> str:
        """Take in the tokens that have come since; returns the text they add."""
        new = list(self.request.output[len(self.output) :])
        added = "".join(map(self.detokenizer.push, new))
        added += self.detokenizer.finish() if self.request.done else ""
        self.output += new
        self.text += added
        return added


def figures(engine: Any, answers: list[Answer], rate: float) -> dict[str, Any]:
    """The object ``--json`` prints; ``rate`` in tokens per second."""
    plan = engine.cache.plan
    return {
        "outputs": [_output(answer) for answer in answers],
        "tokens_per_second": rate,
        "pages": {
            "total": plan.usable_pages,
            "peak_used": engine.cache.stats().peak_live,
            "page_size": plan.page_size,
        },
        "plan": {"page_bytes": plan.page_bytes, "bytes_per_token": plan.bytes_per_token},
    }


def _output(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "token_ids": answer.output,
        "prompt_tokens": len(answer.tokens),
        "cached_tokens": answer.request.cached_tokens,
        "finish_reason": answer.request.finish_reason,
    }


def summary(engine: Any, answers: list[Answer], rate: float) -> str:
    """The same in one line for people."""
    plan, peak = engine.cache.plan, engine.cache.stats().peak_live
    prompt = sum(len(answer.tokens) for answer in answers)
    cached = sum(answer.request.cached_tokens for answer in answers)
    generated = sum(len(answer.output) for answer in answers)
    return (
        f"[prompt {counted(prompt, 'token')}, {cached:,} of them cached; generated {generated:,}, "
        f"{rate:.1f} tokens/s; pages used {peak:,} of {plan.usable_pages:,}, "
        f"at peak {amount(peak * plan.page_bytes)} of cache]"
    )
