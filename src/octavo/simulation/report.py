"""What a run found out: counts, rates, times and occupancy, as values with stable names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from octavo.simulation.pools import TooSmall
from octavo.simulation.requests import Job, Trace
from octavo.simulation.settings import Setting
from octavo.simulation.tally import Tally, share, total
from octavo.simulation.times import TimeModel

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Run:
    """One trace on one setting.

    Attributes:
        setting: what it ran on.
        tallies: counts of each replica.
        turned_away: counts of requests that went to no replica: they can never fit.
        jobs: every request that was queued, with its times; empty of a serial replay.
        tells_contents: whether the trace says which prompts begin alike; without that no hit can be
            seen, and what hits is None in dicts.
        seconds: the simulation took; in no dict, it differs from run to run.
    """

    setting: Setting
    tallies: Sequence[Tally] = field(repr=False)
    turned_away: Tally = field(default_factory=Tally, repr=False)
    jobs: Sequence[Job] = field(default=(), repr=False)
    tells_contents: bool = True
    seconds: float = 0.0

    @property
    def whole(self) -> Tally:
        """All replicas as one."""
        return total([*self.tallies, self.turned_away])

    @property
    def balance(self) -> float:
        """Tokens computed by the busiest replica over those of the average one; 1 is even."""
        done = [tally.computed_tokens for tally in self.tallies]
        return share(max(done) * len(done), sum(done)) or 1.0

    @property
    def duration(self) -> float:
        """Seconds until the last answer; 0 of a serial replay."""
        return max((job.finished or 0.0 for job in self.jobs), default=0.0)

    def latency(self) -> dict[str, dict[str, float]]:
        """Seconds waited, to the first token, between tokens, and in all; empty when serial."""
        if not self.jobs:
            return {}
        done = [job for job in self.jobs if job.finished is not None]
        return {
            "queueing": _spread([_since(job, job.admitted) for job in done]),
            "time_to_first_token": _spread([_since(job, job.first) for job in done]),
            "time_per_output_token": _spread(_paces(done)),
            "total": _spread([_since(job, job.finished) for job in done]),
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the time it took, as docs/simulate.md names it."""
        whole, seconds = self.whole, self.duration
        return {
            **self.setting.to_dict(),
            **self._seen(whole.to_dict()),
            "seconds": round(seconds, 6),
            "output_tokens_per_second": share(whole.output_tokens, seconds),
            "busy_share": share(whole.busy, seconds * len(self.tallies)),
            "latency": self.latency(),
            "balance": self.balance,
            "per_replica": [self._seen(_replica(tally)) for tally in self.tallies],
        }

    def _seen(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Counts, without hits where the trace cannot show any."""
        if self.tells_contents:
            return counts
        unknown = ("hit_rate", "cached")
        return {name: None if name.startswith(unknown) else n for name, n in counts.items()}


def _replica(tally: Tally) -> dict[str, Any]:
    samples = [sample._asdict() for sample in tally.timeline.samples()]
    counts = {key: n for key, n in tally.to_dict().items() if not key.startswith("refused")}
    return {**counts, "busy_seconds": round(tally.busy, 6), "occupancy": samples}


def _since(job: Job, moment: float | None) -> float:
    assert moment is not None
    return moment - job.request.arrival


def _paces(done: Sequence[Job]) -> list[float]:
    """Seconds a token after the first one."""
    return [
        (job.finished - job.first) / (job.request.output_length - 1)
        for job in done
        if job.finished is not None and job.first is not None and job.request.output_length > 1
    ]


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, percentiles and maximum; zeros of nothing."""
    found = np.array(values or [0.0])
    cuts = np.percentile(found, PERCENTILES)
    rows = {f"p{p}": float(cut) for p, cut in zip(PERCENTILES, cuts, strict=True)}
    spread = {"mean": float(found.mean()), **rows, "max": float(found.max())}
    return {name: round(value, 6) for name, value in spread.items()}


class Outcome(NamedTuple):
    """All runs of a sweep, or the one there is, and what they came from.

    Attributes:
        trace: what was replayed.
        runs: at least one.
        sweep: what differs between them, or None.
        model: the model of time; None: serial.
        skipped: values of the sweep that were too small to run.
        missing: how many of its settings an interrupt has left out.
    """

    trace: Trace
    runs: Sequence[Run]
    sweep: str | None = None
    model: TimeModel | None = None
    skipped: Sequence[TooSmall] = ()
    missing: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The object ``octavo simulate --json`` prints."""
        return as_dict(*self)


def as_dict(
    trace: Trace,
    runs: Sequence[Run],
    sweep: str | None,
    model: TimeModel | None,
    skipped: Sequence[TooSmall] = (),
    missing: int = 0,
) -> dict[str, Any]:
    """The object ``octavo simulate --json`` prints; equal for equal arguments."""
    return {
        "trace": trace.to_dict(),
        "mode": "serial" if model is None else "timing",
        "time_model": None if model is None else model.to_dict(),
        "sweep": sweep,
        "runs": [run.to_dict() for run in runs],
        "too_small": [{"label": each.label, "why": each.why} for each in skipped],
        "missing": missing,
    }
