"""The model of time.

A step that computes ``p`` prompt tokens and decodes ``d`` rows takes

    step_seconds + p / prefill_rate + d / decode_rate

seconds. Nothing else takes time; requests come when the trace says.
"""

from dataclasses import dataclass
from typing import Any

from octavo.checks import check_int
from octavo.errors import PlanError


@dataclass(frozen=True)
class TimeModel:
    """How long a step takes, and how much one may do.

    Attributes:
        step_seconds: of every step, whatever it does.
        prefill_rate: prompt tokens a second beyond that.
        decode_rate: tokens a second beyond that, of rows that decode.
        max_step_tokens: most tokens a step computes; long prompts are cut into such chunks.
        max_sequences: most requests that run at once.

    Raises:
        PlanError: a time or rate is out of range. LengthError: a count is.
    """

    step_seconds: float = 0.01
    prefill_rate: float = 20_000.0
    decode_rate: float = 10_000.0
    max_step_tokens: int = 2048
    max_sequences: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.step_seconds < float("inf"):
            raise PlanError("step_seconds", self.step_seconds, "it must be a number of at least 0")
        for name in ("prefill_rate", "decode_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise PlanError(name, getattr(self, name), "it must be a number above 0")
        check_int("max_step_tokens", self.max_step_tokens, 1)
        check_int("max_sequences", self.max_sequences, 1, self.max_step_tokens)

    def seconds(self, prefill: int, decode: int) -> float:
        """Seconds of a step with so many tokens of each kind."""
        return self.step_seconds + prefill / self.prefill_rate + decode / self.decode_rate

    def to_dict(self) -> dict[str, Any]:
        """The model with its formula, as docs/simulate.md names it."""
        return {
            "formula": "step_seconds + prefill_tokens / prefill_rate + decode_rows / decode_rate",
            "step_seconds": self.step_seconds,
            "prefill_rate": self.prefill_rate,
            "decode_rate": self.decode_rate,
            "max_step_tokens": self.max_step_tokens,
            "max_sequences": self.max_sequences,
        }
