"""What one replica has done: counts that grow while it serves, and its pages over time."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from octavo.cache.results import Stats

_SPANS = 256


def share(part: float, whole: float) -> float:
    """``part / whole`` to six decimals; 0 of nothing."""
    return round(part / whole, 6) if whole else 0.0


class Sample(NamedTuple):
    """The pool over a span of time; ``live + evictable + free`` are all its usable pages.

    Attributes:
        at: where the span begins: seconds, or requests of a serial replay.
        live: pages held. evictable: published pages nobody holds. free: the rest.
        running: requests with pages. waiting: requests without.
    """

    at: float
    live: float
    evictable: float
    free: float
    running: float
    waiting: float


class Timeline:
    """Means over spans, which are joined in pairs whenever there would be more than 256.

    Args:
        width: of a span at first.
    """

    def __init__(self, width: float) -> None:
        self._width, self._now = width, 0.0
        self._sums = [[0.0] * 5 for _ in range(_SPANS)]

    def add(self, until: float, stats: Stats, running: int, waiting: int) -> None:
        """From where the last call ended until now things were so. O(spans covered)."""
        while until > self._width * _SPANS:
            self._join()
        state = (stats.live, stats.evictable, stats.free, running, waiting)
        while self._now < until:
            at = min(int(self._now / self._width), _SPANS - 1)
            end = until if at == _SPANS - 1 else min(until, (at + 1) * self._width)
            long = end - self._now
            self._sums[at] = [x + long * y for x, y in zip(self._sums[at], state, strict=True)]
            self._now = max(end, math.nextafter(self._now, math.inf))

    def samples(self) -> list[Sample]:
        """The means, in order of time. O(spans)."""
        used = int(np.ceil(self._now / self._width))
        starts = np.arange(used) * self._width
        lengths = np.minimum(self._now - starts, self._width)
        means = np.round(np.array(self._sums[:used]).reshape(-1, 5) / lengths[:, None], 3)
        rows = zip(starts.tolist(), means.tolist(), strict=True)
        return [Sample(round(at, 6), *row) for at, row in rows]

    def _join(self) -> None:
        pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
        joined = [[x + y for x, y in zip(*pair, strict=True)] for pair in pairs]
        self._sums = joined + [[0.0] * 5 for _ in joined]
        self._width *= 2


@dataclass
class Tally:
    """Counts of one replica.

    Attributes:
        served: requests that were admitted. refused: those that were not, for good.
        too_long: those of them longer than the longest sequence the setting allows.
        refused_tokens, refused_pages: tokens and full pages of the prompts refused.
        prompt_tokens, prompt_pages: tokens and full pages of all prompts served.
        cached_tokens, cached_pages: those of them found in the cache at the first admission.
        computed_tokens: positions computed. recomputed_tokens: those computed before.
        restored_tokens: positions of preempted requests that were copied back from host memory.
        output_tokens: tokens of answers.
        evicted: published pages given up, by what took them: ``prefill`` or ``decode``.
        preemptions: times a request lost its pages.
        waits: requests for which there was no room when it was their turn.
        peak_live: most pages held at once; those kept for reuse do not count.
        peak_kept, end_kept: pages kept for reuse that nobody held: most ever, and at the end.
        busy: seconds in steps.
        timeline: use of the pages over seconds, or over requests.
    """

    served: int = 0
    refused: int = 0
    too_long: int = 0
    refused_tokens: int = 0
    refused_pages: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_pages: int = 0
    cached_pages: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    restored_tokens: int = 0
    output_tokens: int = 0
    evicted: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})
    preemptions: int = 0
    waits: int = 0
    peak_live: int = 0
    peak_kept: int = 0
    end_kept: int = 0
    busy: float = 0.0
    timeline: Timeline = field(default_factory=lambda: Timeline(1.0))

    def admitted(self, size: int, cached: int, page_size: int) -> None:
        """A request came in: ``cached`` of its ``size`` tokens were found."""
        self.served += 1
        self.prompt_tokens += size
        self.cached_tokens += cached
        self.prompt_pages += size // page_size
        self.cached_pages += cached // page_size

    def refuse(self, size: int, page_size: int, *, too_long: bool = False) -> None:
        """A request with a prompt of ``size`` tokens is refused for good."""
        self.refused += 1
        self.too_long += too_long
        self.refused_tokens += size
        self.refused_pages += size // page_size

    def note(self, stats: Stats) -> None:
        """Take over what the cache has counted itself. O(1)."""
        self.preemptions, self.peak_live = stats.preemptions, stats.peak_live
        self.end_kept = stats.evictable
        self.peak_kept = max(self.peak_kept, stats.evictable)

    def to_dict(self) -> dict[str, Any]:
        """The counts, as docs/simulate.md names them; no samples."""
        all_tokens = self.prompt_tokens + self.refused_tokens
        all_pages = self.prompt_pages + self.refused_pages
        return {
            "requests": self.served,
            "refused": self.refused,
            "refused_too_long": self.too_long,
            "refused_never_fit": self.refused - self.too_long,
            "all_prompt_tokens": all_tokens,
            "hit_rate_all_tokens": share(self.cached_tokens, all_tokens),
            "all_prompt_pages": all_pages,
            "hit_rate_all_pages": share(self.cached_pages, all_pages),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_rate_tokens": share(self.cached_tokens, self.prompt_tokens),
            "prompt_pages": self.prompt_pages,
            "cached_pages": self.cached_pages,
            "hit_rate_pages": share(self.cached_pages, self.prompt_pages),
            "computed_tokens": self.computed_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "restored_tokens": self.restored_tokens,
            "output_tokens": self.output_tokens,
            "evictions": dict(self.evicted),
            "preemptions": self.preemptions,
            "admission_waits": self.waits,
            "peak_pages": self.peak_live,
            "kept_pages_peak": self.peak_kept,
            "kept_pages_end": self.end_kept,
        }


_SUMMED = [name for name, kind in Tally.__annotations__.items() if kind is int]


def total(tallies: list[Tally]) -> Tally:
    """All replicas as one, without samples."""
    whole = Tally(**{name: sum(getattr(each, name) for each in tallies) for name in _SUMMED})
    for each in tallies:
        whole.busy += each.busy
        for reason, pages in each.evicted.items():
            whole.evicted[reason] += pages
    return whole
