"""Pages of preempted requests in host memory: the copies, and the rates that say whether they pay.

`octavo.scheduling.host` decides by the rates; here they are given, or measured: copying when the
engine is made, computing as it runs. On a GPU the memory is page-locked; on a CPU it lies beside
the pool, so that memory is given for time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from octavo.cache.results import Ints
from octavo.cache.step import Step
from octavo.errors import PlanError, uncopied
from octavo.planner.budget import parse_memory
from octavo.scheduling.host import Filling, check_rate
from octavo.storage import HostMirror, Storage

_PAGES, _TIMES = 64, 3  # how many pages of a group are copied to measure it, and how often


class HostCopier:
    """Copies pages of a storage to mirrors of their own, and back.

    Args:
        storage: whose.
    """

    __reduce__ = uncopied("it copies pages of one storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def save(self, pages: Mapping[str, Ints]) -> HostMirror:
        """A mirror of just these pages. O(bytes)."""
        held = {name: each for name, each in pages.items() if each.size}
        mirror = HostMirror(self._storage, {name: each.size for name, each in held.items()})
        for name, each in held.items():
            mirror.offload(name, each, np.arange(each.size))
        return mirror

    def fill(self, content: HostMirror, step: Step, pages: Mapping[str, Filling]) -> None:
        """Run a step whose pages come from a mirror. O(bytes)."""
        self._storage.apply(step.copies)
        for name, each in pages.items():
            content.restore(name, each.places, each.pages)
        self._storage.apply(step.snapshots)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory for pages that preempted requests of an engine lose.

    Attributes:
        size: most bytes of pages in it, or a text such as "1GiB".
        copy_rate: bytes copied per second, either way; None: as measured when the engine is made.
        prefill_rate: tokens computed per second; None: the most that a step came to so far.

    Raises:
        PlanError: it is no memory, or no rate above 0.
    """

    size: int | str
    copy_rate: float | None = None
    prefill_rate: float | None = None

    def __post_init__(self) -> None:
        parse_memory(self.size, "size")
        for name in ("copy_rate", "prefill_rate"):
            if getattr(self, name) is not None:
                check_rate(name, getattr(self, name))


class Rates:
    """An engine's host memory, and what the estimate goes by: given, or measured.

    Args:
        given: by the user.
        storage: whose pages are copied.

    Attributes:
        host_memory, copy_rate, prefill_rate: as of `octavo.scheduling.host.Host`.

    Raises:
        PlanError: ``given`` is no HostMemory.
    """

    __reduce__ = uncopied("it measures one engine")

    def __init__(self, given: HostMemory, storage: Storage) -> None:
        if not isinstance(given, HostMemory):
            raise PlanError("host", given, "it must be a HostMemory or None")
        self.host_memory = parse_memory(given.size, "size")
        self.copy_rate = given.copy_rate or measured_copy_rate(storage)
        self._measures = given.prefill_rate is None
        self.prefill_rate = given.prefill_rate or 1e-9  # nothing is preempted before a step

    def note(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens in so many seconds. O(1)."""
        if self._measures and seconds > 0:
            self.prefill_rate = max(self.prefill_rate, tokens / seconds)


def measured_copy_rate(storage: Storage) -> float:
    """Bytes per second that are copied out of a storage and back, where nobody uses it. O(bytes).

    The best of a few rounds over some pages of each group, whose content stays.
    """
    plan, copier, best = storage.plan, HostCopier(storage), float("inf")
    pages = {
        name: np.arange(1, min(plan.ids(name), 1 + _PAGES), dtype=np.int32) for name in plan.groups
    }
    size = sum(each.size * plan.groups[name].page_bytes for name, each in pages.items())
    for _ in range(_TIMES):
        began = perf_counter()
        mirror = copier.save(pages)
        for name, each in pages.items():
            mirror.restore(name, np.arange(each.size), each)
        if storage.device.type == "cuda":
            torch.cuda.synchronize(storage.device)
        best = min(best, perf_counter() - began)
    return 2 * size / best
