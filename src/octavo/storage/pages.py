"""Whole pages of a group, whatever is in them: copied, zeroed, read and written as bytes."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from octavo.cache.views import Copies
from octavo.checks import check_mapping
from octavo.errors import LengthError, PlanError, quote, uncopied
from octavo.planner.plan import Plan
from octavo.storage.addresses import DeviceIndex, Ints, PageIndex
from octavo.storage.copies import move_pages, put_pages, take_pages
from octavo.storage.fields import as_units, bytes_of


class Span(NamedTuple):
    """Bytes of every page that lie side by side.

    Attributes:
        stride: bytes from a page to the next.
        offset: those of page 0 in the arena.
        size: how many of a page.
    """

    stride: int
    offset: int
    size: int


class PageBytes:
    """The pages of a plan's groups as bytes.

    Of a group the components that lie side by side, or in the same bytes (parts of a state), are
    moved as one span.

    Args:
        plan: a plan.
        addresses: what may be written.
        arena: its bytes.
    """

    __reduce__ = uncopied("it is a view of one storage")

    def __init__(self, plan: Plan, addresses: DeviceIndex, arena: torch.Tensor) -> None:
        self._addresses = addresses
        self._spans = {
            name: [
                bytes_of(arena, span.offset, span.stride, span.size, plan.ids(name))
                for span in spans(plan, name)
            ]
            for name in plan.groups
        }

    def size(self, group: str) -> int:
        """Bytes of one page that are moved. O(spans)."""
        return sum(span.shape[1] * span.itemsize for span in self._spans[group])

    def apply(self, copies: Mapping[str, Copies], fresh: Mapping[str, Ints]) -> None:
        """See `Storage.apply`."""
        addresses = self._addresses
        copies, fresh = check_mapping("copies", copies), check_mapping("fresh", fresh)
        for name, each in copies.items():
            if not isinstance(each, Copies):
                right = "it must be Copies, of which page to which"
                raise PlanError(f"copies[{quote(name)}]", each, right)
        targets = addresses.all_written({group: each.target for group, each in copies.items()})
        checked = {
            index.group: self._checked(each, index)
            for index, each in zip(targets, copies.values(), strict=True)
        }
        move_pages(checked, self._spans, {n: self._cleared(n, each) for n, each in fresh.items()})

    def zero(self, pages: Mapping[str, Ints]) -> None:
        """See `Storage.zero`."""
        self.apply({}, check_mapping("pages", pages))

    def read(self, index: PageIndex) -> torch.Tensor:
        """See `Storage.read_pages`."""
        return torch.cat([part.view(torch.uint8) for part in self._take(index)], 1)

    def write(self, index: PageIndex, content: torch.Tensor) -> None:
        """See `Storage.write_pages`."""
        sizes = [span.shape[1] * span.itemsize for span in self._spans[index.group]]
        self._put(index, list(torch.split(content, sizes, 1)))

    def _checked(self, copies: Copies, target: PageIndex) -> Copies:
        """The same pages as int64 tensors on the device."""
        if copies.source.shape != copies.target.shape:
            right = "as many as sources"
            raise LengthError("targets", copies.target.size, copies.source.size, None, right)
        source = self._addresses.pages(copies.source, target.group)
        return Copies(source.pages, target.pages)  # type: ignore[arg-type]

    def _cleared(self, group: str, pages: Ints) -> torch.Tensor:
        """The same of pages to be zeroed, where none is lost that stands twice."""
        once = np.unique(pages) if isinstance(pages, np.ndarray) else pages
        return self._addresses.written(once, group).pages

    def _take(self, index: PageIndex) -> list[torch.Tensor]:
        pages = index.pages.flatten()
        return [take_pages(span, pages) for span in self._spans[index.group]]

    def _put(self, index: PageIndex, content: list[torch.Tensor]) -> None:
        pages = index.pages.flatten()
        for span, rows in zip(self._spans[index.group], content, strict=True):
            put_pages(span, pages, as_units(rows, span.dtype))


def spans(plan: Plan, group: str) -> list[Span]:
    """What a group's pages are made of; what touches or overlaps at one stride is one span.

    Cost: O(tensors log tensors).
    """
    held = sorted(
        Span(t.page_stride, t.offset, t.page_bytes) for t in plan.tensors if t.group == group
    )
    found = held[:1]
    for span in held[1:]:
        last = found[-1]
        end = last.offset + last.size
        if span.stride == last.stride and span.offset <= end:
            size = max(end, span.offset + span.size) - last.offset
            found[-1] = last._replace(size=size)
        else:
            found.append(span)
    return found


def check_content(content: object, pages: int, size: int, device: torch.device) -> torch.Tensor:
    """Whether ``content`` is uint8[pages, size] on this device. O(1).

    Raises:
        PlanError, LengthError: it is not.
    """
    if not isinstance(content, torch.Tensor) or content.dtype != torch.uint8:
        found = str(getattr(content, "dtype", type(content).__name__))
        raise PlanError("dtype of content", found, "pages are bytes: torch.uint8")
    if content.device != device:
        raise PlanError("device of content", str(content.device), f"the storage is on {device}")
    if content.shape != (pages, size):
        shape, right = tuple(content.shape), f"it must be ({pages}, {size})"
        raise LengthError("shape of content", shape, None, None, right)
    return content
