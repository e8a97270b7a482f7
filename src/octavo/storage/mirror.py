"""Pages in host memory: copied out, so that the device's may be taken, and back in."""

from collections.abc import Mapping

import numpy as np
import torch

from octavo.arrays import NDArray
from octavo.checks import as_reals, check_apart, check_int, check_mapping
from octavo.errors import LengthError, PlanError, StepError, UnknownGroup, uncopied
from octavo.storage.addresses import Ints, PageIndex
from octavo.storage.store import Storage


class HostMirror:
    """Places in host memory for pages of a storage; the caller says what goes where.

    Args:
        storage: what is mirrored.
        places: by group name, how many pages it can hold.

    Attributes:
        storage: as given.
        pinned: whether the memory is page-locked: where there is CUDA.

    Raises:
        UnknownGroup: the plan has no such group. LengthError: a count below 1.
    """

    __reduce__ = uncopied("it is one place for pages of one storage; make another")

    def __init__(self, storage: Storage, places: Mapping[str, int]) -> None:
        if not isinstance(storage, Storage):
            raise PlanError("storage", storage, "it must be a Storage")
        self.storage, self.pinned = storage, torch.cuda.is_available()
        places = check_mapping("places", places)
        sizes = {group: storage.page_bytes(group) for group in places}
        counts = {group: check_int("places", count, 1) for group, count in places.items()}
        self._memory = {
            group: torch.zeros(count, sizes[group], dtype=torch.uint8, pin_memory=self.pinned)
            for group, count in counts.items()
        }
        self._used = {group: np.zeros(count, np.bool_) for group, count in counts.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return sum(memory.nbytes for memory in self._memory.values())

    def offload(self, group: str, pages: Ints, places: Ints) -> None:
        """Copy ``pages`` of the storage to ``places`` here.

        On a GPU the copies are queued on the current stream: a `restore` behind them needs no wait,
        whoever reads the host's memory otherwise does.

        Args:
            group: name.
            pages: int[k], ids in the storage.
            places: int[k], places here, each once.

        Raises:
            UnknownGroup, PlanError, LengthError: no such group, pages or places, or a place twice.
                Nothing has been copied then.

        Cost: O(bytes).
        """
        index = self._pages(group, pages)
        targets = self._places(group, places, len(index.pages))
        check_apart(f"place of {group}", targets)
        content = self.storage.read_pages(group, index)
        for place, page in zip(targets.tolist(), content, strict=True):
            self._memory[group][place].copy_(page, non_blocking=True)
        self._used[group][targets] = True

    def restore(self, group: str, places: Ints, pages: Ints) -> None:
        """Copy ``places`` of the mirror to ``pages`` of the storage.

        Args:
            group: name.
            places: int[k], places here.
            pages: int[k], ids in the storage, each once; not the null page.

        Raises:
            StepError: nothing was ever put in one of the places.
            UnknownGroup, PlanError, LengthError: no such group, pages or places, or a page twice.
                Nothing has been copied then.

        Cost: O(bytes).
        """
        sources = self._places(group, places, len(self._pages(group, pages).pages))
        for place in sources[~self._used[group][sources]]:
            raise StepError(f"place {place} of group {group} holds no page")
        memory = self._memory[group]
        content = torch.empty(
            len(sources), memory.shape[1], dtype=torch.uint8, device=self.storage.device
        )
        for row, place in zip(content, sources.tolist(), strict=True):
            row.copy_(memory[place], non_blocking=True)
        self.storage.write_pages(group, pages, content)

    def _pages(self, group: str, pages: Ints) -> PageIndex:
        if not isinstance(group, str) or group not in self._memory:
            raise UnknownGroup(group, list(self._memory))
        index = self.storage.page_index(pages, group)
        check_int("axes of pages", index.pages.ndim, 1, 1)
        return index

    def _places(self, group: str, places: Ints, count: int) -> NDArray[np.int64]:
        found = as_reals("places", places)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise PlanError("places", places, "they must be one axis of ints")
        check_int("number of places", len(found), count, count, "as many as pages")
        high = len(self._memory[group]) - 1
        for place in found[(found < 0) | (found > high)]:
            raise LengthError("place", int(place), 0, high, f"of group {group}")
        return found.astype(np.int64)
