"""How long a step takes: what it does, a model of time, and the model that fits measured steps."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.scheduling import WATERMARK, check_watermark

FASTEST = 1e300
"""Per second: a rate at which nothing takes time."""


class StepWork(NamedTuple):
    """What a step does.

    Attributes:
        prefill: tokens of rows that compute several: prompts, and what was preempted.
        decode: rows that compute one.
        prefill_context: positions that the former attend to, summed over their tokens.
        decode_context: positions that the latter attend to.
    """

    prefill: int = 0
    decode: int = 0
    prefill_context: int = 0
    decode_context: int = 0

    @classmethod
    def of(cls, step: Step) -> "StepWork":
        """The work of a step, each token attending to all up to its own. O(rows)."""
        counts, context = step.counts, step.context
        alone = counts == 1
        decode = int(np.count_nonzero(alone))
        # a row's tokens attend to context - count + 1 ... context positions
        whole = int(counts.astype(np.int64) @ (2 * context - counts + 1)) // 2
        decode_context = int(context[alone].sum(dtype=np.int64))
        prefill = step.input_ids.size - decode
        return cls(prefill, decode, whole - decode_context, decode_context)


@dataclass(frozen=True)
class TimeModel:
    """How long a step takes, and how much one may do.

    A step takes ``step_seconds`` and each kind of its work, as `StepWork` counts it, divided by its
    rate; copying pages to host memory and back takes their bytes divided by its rate. Nothing else
    takes time; requests come when the trace says.

    Attributes:
        step_seconds: of every step, whatever it does.
        prefill_rate: prompt tokens per second beyond that.
        decode_rate: tokens per second beyond that, of rows that decode.
        prefill_context_rate: positions per second beyond that, which prompt tokens attend to.
        decode_context_rate: the same of rows that decode.
        max_step_tokens: most tokens per step; long prompts are cut into such chunks.
        max_sequences: most requests that run at once.
        preemption, watermark: as of `octavo.scheduling.Scheduler`.
        host_memory: most bytes of host memory for pages that preempted requests lose; 0: all are
            computed again. By ``prefill_rate`` and ``copy_rate`` it is decided which is faster:
            `octavo.scheduling.host`.
        copy_rate: bytes copied to host memory or back per second.

    Raises:
        PlanError: a time or rate is out of range. LengthError: a count is.
    """

    step_seconds: float = 0.01
    prefill_rate: float = 20_000.0
    decode_rate: float = 10_000.0
    prefill_context_rate: float = FASTEST
    decode_context_rate: float = FASTEST
    max_step_tokens: int = 2048
    max_sequences: int = 256
    preemption: bool = True
    watermark: float = WATERMARK
    host_memory: int = 0
    copy_rate: float = 1e10

    def __post_init__(self) -> None:
        if not 0 <= self.step_seconds < float("inf"):
            raise PlanError("step_seconds", self.step_seconds, "it must be a number of at least 0")
        for name in (*RATES, "copy_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise PlanError(name, getattr(self, name), "it must be a number above 0")
        check_int("max_step_tokens", self.max_step_tokens, 1)
        check_int("max_sequences", self.max_sequences, 1, self.max_step_tokens)
        check_watermark(self.watermark)
        check_int("host_memory", self.host_memory, 0)

    def seconds(self, work: StepWork) -> float:
        """Seconds of a step that does so much."""
        return (
            self.step_seconds
            + work.prefill / self.prefill_rate
            + work.decode / self.decode_rate
            + work.prefill_context / self.prefill_context_rate
            + work.decode_context / self.decode_context_rate
        )

    def to_dict(self) -> dict[str, Any]:
        """The model with its formula, as docs/simulate.md names it."""
        return {
            "formula": "step_seconds + prefill_tokens / prefill_rate + decode_rows / decode_rate "
            "+ prefill_context / prefill_context_rate + decode_context / decode_context_rate "
            "+ copied_bytes / copy_rate",
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "watermark": self.watermark if self.preemption else None,
            "copy_rate": self.copy_rate if self.host_memory else None,
        }


RATES = tuple(f"{name}_rate" for name in StepWork._fields)


class MeasuredStep(NamedTuple):
    """A step of a real engine: what it did, and how long that took."""

    work: StepWork
    seconds: float


class Fit(NamedTuple):
    """A model of time, and how well it tells the steps it was made from.

    Attributes:
        model: the limits are those of the model that was given.
        steps: how many there were.
        mean_error, worst_error: shares of the measured seconds, over all steps.
    """

    model: TimeModel
    steps: int
    mean_error: float
    worst_error: float

    def to_dict(self) -> dict[str, Any]:
        """The model of time and its errors, as docs/simulate.md names them."""
        return {
            "time_model": self.model.to_dict(),
            **dict(zip(self._fields[1:], self[1:], strict=True)),
        }


def fit(steps: Sequence[MeasuredStep], limits: TimeModel) -> Fit:
    """The model of time that tells these steps best: its errors are least, as shares, squared.

    Args:
        steps: at least one of each kind of work, or its rate becomes `FASTEST`.
        limits: whose limits the model is to have.

    Raises:
        PlanError: there are no steps, or one took no time.

    Cost: O(steps).
    """
    if not steps or min(step.seconds for step in steps) <= 0:
        raise PlanError("steps", list(steps), "there must be some, each with seconds above 0")
    seconds = np.array([step.seconds for step in steps])
    rows = np.array([(1, *step.work) for step in steps], float) / seconds[:, None]
    costs = _least_squares(rows)
    rates = [1 / cost if cost * FASTEST > 1 else FASTEST for cost in costs.tolist()]
    model = replace(
        limits,
        step_seconds=float(costs[0]),
        prefill_rate=rates[1],
        decode_rate=rates[2],
        prefill_context_rate=rates[3],
        decode_context_rate=rates[4],
    )
    found = np.array([model.seconds(step.work) for step in steps])
    errors = np.abs(found / seconds - 1)
    return Fit(model, len(steps), float(errors.mean()), float(errors.max()))


def _least_squares(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs of at least 0 by which the rows come nearest to 1. O(2 ** columns x rows).

    The best of all choices of columns that need no cost below 0: of five there are few.
    """
    scale = np.maximum(rows.max(axis=0), 1e-300)
    best, least = np.zeros(rows.shape[1]), float("inf")
    for chosen in product((False, True), repeat=rows.shape[1]):
        used, costs = np.array(chosen), np.zeros(rows.shape[1])
        costs[used] = np.linalg.lstsq((rows / scale)[:, used], np.ones(len(rows)), rcond=None)[0]
        error = float(np.square(rows @ (costs / scale) - 1).sum())
        if costs.min() >= 0 and error < least:
            best, least = costs / scale, error
    return best
