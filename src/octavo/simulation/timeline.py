"""How a pool's pages were used over time, as means over at most 256 equal spans."""

from typing import NamedTuple

import numpy as np

from octavo.cache.cache import Cache

_SPANS = 256


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
        self._sums = np.zeros((_SPANS, 5))

    def add(self, until: float, cache: Cache, running: int, waiting: int) -> int:
        """From where the last call ended things were as they are now; returns the pages kept.

        O(1) and O(spans covered).
        """
        while until > self._width * _SPANS:
            self._join()
        stats = cache.stats()
        state = np.array((stats.live, stats.evictable, stats.free, running, waiting), float)
        while self._now < until:
            at = min(int(self._now / self._width), _SPANS - 1)
            end = until if at == _SPANS - 1 else min(until, (at + 1) * self._width)
            self._sums[at] += (end - self._now) * state
            self._now = max(end, np.nextafter(self._now, np.inf))
        return stats.evictable

    def samples(self) -> list[Sample]:
        """The means, in order of time. O(spans)."""
        used = int(np.ceil(self._now / self._width))
        starts = np.arange(used) * self._width
        lengths = np.minimum(self._now - starts, self._width)
        means = np.round(self._sums[:used] / lengths[:, None], 3)
        rows = zip(starts.tolist(), means.tolist(), strict=True)
        return [Sample(round(at, 6), *row) for at, row in rows]

    def _join(self) -> None:
        self._sums = np.vstack((self._sums[::2] + self._sums[1::2], np.zeros((_SPANS // 2, 5))))
        self._width *= 2
