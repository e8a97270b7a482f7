"""How a pool's pages were used over time: so many samples, whatever the run's length."""

from typing import NamedTuple

from octavo.cache import Cache

_MOST = 256


class Sample(NamedTuple):
    """The pool at one moment; ``live + evictable + free`` are all its usable pages.

    Attributes:
        at: seconds, or requests done in a serial replay.
        live: pages held. evictable: published pages nobody holds. free: the rest.
        running: requests with pages. waiting: requests without.
    """

    at: float
    live: int
    evictable: int
    free: int
    running: int
    waiting: int


class Timeline:
    """Samples at every n-th call, where n doubles whenever there are 256.

    Attributes:
        samples: in order of time.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._calls, self._every = 0, 1

    def add(self, at: float, cache: Cache, running: int, waiting: int) -> None:
        """Note how things are, if it is this call's turn. O(1), amortised."""
        self._calls += 1
        if (self._calls - 1) % self._every:
            return
        stats = cache.stats()
        row = Sample(round(at, 6), stats.live, stats.evictable, stats.free, running, waiting)
        self.samples.append(row)
        if len(self.samples) == _MOST:
            self.samples, self._every = self.samples[::2], 2 * self._every
