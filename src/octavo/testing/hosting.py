"""Host memory without memory: pages of a `ModelStore` copied out and back, which may fail."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo.cache.results import Ints
from octavo.cache.step import Step
from octavo.errors import uncopied
from octavo.scheduling.host import Filling
from octavo.testing.drawing import Chance
from octavo.testing.store import ModelStore


class MockHost(NamedTuple):
    """Host memory and rates, as `octavo.scheduling.host.Host`."""

    host_memory: int
    copy_rate: float
    prefill_rate: float


class MockCopier:
    """What copies pages of a store.

    Args:
        store: of the mock model.
        fails: what says when a copy fails; None: none does.
    """

    __reduce__ = uncopied("it copies pages of one store")

    def __init__(self, store: ModelStore, fails: Chance | None) -> None:
        self._store, self._fails = store, fails

    def save(self, pages: Mapping[str, Ints]) -> dict[str, list[list[Any]]]:
        """What the pages hold, by group."""
        self._may_fail()
        return {
            name: [self._store.page(name, page) for page in each.tolist()]
            for name, each in pages.items()
        }

    def fill(
        self, content: dict[str, list[list[Any]]], step: Step, pages: Mapping[str, Filling]
    ) -> None:
        """Run a step whose pages are copied, as a storage would."""
        for name, (source, target) in step.copies.items():
            self._store.copy(name, source.tolist(), target.tolist())
        for name, (places, targets) in pages.items():
            for place, page in zip(places.tolist(), targets.tolist(), strict=True):
                self._may_fail()
                self._store.put(name, page, content[name][place])
        for name, (source, target) in step.snapshots.items():
            self._store.copy(name, source.tolist(), target.tolist())

    def _may_fail(self) -> None:
        if self._fails is not None and not self._fails.integer(0, 20):
            raise MemoryError
