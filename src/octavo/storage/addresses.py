"""Page ids and slots, checked and brought to the device. Knows numbers; no bytes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.arrays import NDArray
from octavo.checks import check_apart, check_int
from octavo.errors import LengthError, PlanError, UnknownGroup, uncopied
from octavo.planner.plan import GroupPlan, Plan
from octavo.storage.fields import WriteIndex

Ints = NDArray[np.integer[Any]]


class PageIndex(NamedTuple):
    """Pages on the device, checked; made once per step by `Storage.page_index`.

    Attributes:
        pages: int64 of any shape; of states [n, parts].
        group: what they belong to.
        refusal: why they cannot be written: the null page is among them, or a page stands twice;
            None: they can.
    """

    pages: torch.Tensor
    group: str
    refusal: LengthError | PlanError | None


class DeviceIndex:
    """What may be read and written of a plan's groups.

    Args:
        plan: a plan.
        device: where indices are wanted.
    """

    __reduce__ = uncopied("it belongs to one storage")

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._plan, self._device = plan, device
        forms = {name: group.lifetime.form for name, group in plan.groups.items()}
        self._default = next(
            (n for n, form in forms.items() if form == "tokens"), next(iter(forms))
        )

    def group(self, name: str | None) -> GroupPlan:
        """The group of that name; None: the first that keeps tokens. O(1).

        Raises:
            UnknownGroup: there is none.
        """
        name = self._default if name is None else name
        if not isinstance(name, str) or name not in self._plan.groups:
            raise UnknownGroup(name, list(self._plan.groups))
        return self._plan.groups[name]

    def slots(self, slots: Ints, group: str | None) -> WriteIndex:
        """See `Storage.index`."""
        _check_ints("slots", slots)
        check_int("axes of slots", slots.ndim, 1, 1)
        kept = np.flatnonzero(slots >= 0)
        used = slots if kept.size == slots.size else slots[kept]
        plan = self.group(group)
        size = plan.lifetime.units(self._plan.page_size)
        self._check_slots(slots, used, size, self._plan.ids(plan.name) * size - 1)
        check_apart("slot", used)
        pages, offsets = np.divmod(used.astype(np.int64), size)
        rows = None if kept.size == slots.size else self.tensor(kept)
        return WriteIndex(self.tensor(pages), self.tensor(offsets), rows, slots.size)

    def pages(self, pages: Ints, group: str | None) -> PageIndex:
        """See `Storage.page_index`."""
        _check_ints("pages", pages)
        name = self.group(group).name
        high = self._plan.ids(name) - 1
        least = int(pages.min()) if pages.size else 1
        if least < 0 or (pages.size and int(pages.max()) > high):
            wrong = pages[(pages < 0) | (pages > high)].flat[0]
            raise LengthError("page", int(wrong), 0, high, f"of group {name}")
        return PageIndex(self.tensor(pages.astype(np.int64)), name, _refusal(pages, name, high))

    def written(self, pages: Ints | PageIndex, group: str | None) -> PageIndex:
        """The same, of pages that are about to be written.

        Raises:
            LengthError: the null page is among them. PlanError: a page stands twice.
        """
        index = pages if isinstance(pages, PageIndex) else self.pages(pages, group)
        if index.refusal is not None:
            raise index.refusal
        return index

    def all_written(self, pages: Mapping[str, Ints]) -> list[PageIndex]:
        """The same of several groups, which in a packed plan have no parent in common.

        Raises:
            PlanError: pages of two groups lie in the same bytes.
        """
        indices = [self.written(each, group) for group, each in pages.items()]
        if self._plan.packed and len(indices) > 1:
            self._check_parents(pages)
        return indices

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """``array`` on the device."""
        return torch.from_numpy(array).to(self._device)

    @staticmethod
    def _check_slots(slots: NDArray[Any], used: NDArray[Any], low: int, high: int) -> None:
        if used.size and (int(used.min()) < low or int(used.max()) > high):
            wrong = used[(used < low) | (used > high)][0]
            raise LengthError("slot", int(wrong), low, high, "the null page is never written")
        if slots.size and int(slots.min()) < -1:
            raise LengthError("slot", int(slots.min()), -1, high, "-1 skips the write")

    def _check_parents(self, pages: Mapping[str, Ints]) -> None:
        """Refuse pages of different groups that are cut from the same parent."""
        owner: dict[int, str] = {}
        for group, each in pages.items():
            per_parent = self._plan.groups[group].pages_per_parent
            for parent in np.unique((each - 1) // per_parent).tolist():
                other = owner.setdefault(parent, group)
                if other != group:
                    right = f"they lie in the bytes of those of {other}"
                    raise PlanError(f"pages of {group}", each.tolist(), right)


def _refusal(pages: Ints, group: str, high: int) -> LengthError | PlanError | None:
    """What a write to these pages is refused with, if it is."""
    if pages.size and not pages.all():
        return LengthError("page", 0, 1, high, "the null page is never written")
    try:
        check_apart(f"page of {group}", pages)
    except PlanError as error:
        return error
    return None


def _check_ints(name: str, array: object) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        raise PlanError(name, array, "they must be a NumPy array of ints")
