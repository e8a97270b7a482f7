"""Fields: one component of one layer over all pages, as a typed view of the arena.

Knows strides and how rows are put and taken fastest. Does not know what the numbers mean.
"""

import mmap
from typing import NamedTuple

import numpy as np
import torch

from octavo.errors import uncopied
from octavo.planner.components import Order
from octavo.planner.layouts import TensorPlan

_UNITS = (torch.int32, torch.int16, torch.uint8)


class WriteIndex(NamedTuple):
    """Slots as pages and offsets on the device; made once per step by `Storage.index`.

    Attributes:
        pages: int64[m], page of each slot written.
        offsets: int64[m], its offset in the page.
        rows: int64[m], which rows of the new keys and values are written; None: all.
        tokens: rows of the new keys and values, those that are skipped included.
    """

    pages: torch.Tensor
    offsets: torch.Tensor
    rows: torch.Tensor | None
    tokens: int

    def select(self, new: torch.Tensor) -> torch.Tensor:
        """The rows of ``new`` that are written."""
        return new if self.rows is None else new[self.rows]


def zeros(count: int, device: torch.device) -> torch.Tensor:
    """uint8[count] of zeros; on a CPU the system provides them page by page on first use.

    Not by NumPy, which asks Linux for pages of 2 MiB: every layer's first token would take some.

    Raises:
        MemoryError: the system has not so much.
    """
    if device.type != "cpu":
        return torch.zeros(count, dtype=torch.uint8, device=device)
    if not hasattr(mmap, "MAP_PRIVATE") or not count:
        return torch.from_numpy(np.zeros(count, np.uint8))
    try:
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"no {count:,} bytes for keys and values: {error}") from error
    return torch.frombuffer(memory, dtype=torch.uint8)


def view_of(arena: torch.Tensor, tensor: TensorPlan) -> torch.Tensor:
    """The view of ``arena`` that ``tensor`` plans; two 4-bit elements share a byte. O(1)."""
    dtype: torch.dtype = getattr(torch, tensor.dtype.torch_name)
    *inner, last = tensor.shape[1:]
    inner.append(last * tensor.dtype.bits // (8 * dtype.itemsize))
    strides = [1]
    for size in inner[:0:-1]:
        strides.insert(0, strides[0] * size)
    page = tensor.page_stride // dtype.itemsize
    shape, begin = (tensor.shape[0], *inner), tensor.offset // dtype.itemsize
    return arena.view(dtype).as_strided(shape, (page, *strides), begin)


def widest_unit(*sizes: int) -> torch.dtype:
    """The largest integer type of up to 32 bits that divides all these numbers of bytes. O(1)."""
    return next(unit for unit in _UNITS if all(size % unit.itemsize == 0 for size in sizes))


def bytes_of(arena: torch.Tensor, offset: int, stride: int, size: int, pages: int) -> torch.Tensor:
    """``size`` bytes of every page, as [pages, units] of the widest integers. O(1)."""
    found = arena.as_strided((pages, size), (stride, 1), offset)
    return found.view(widest_unit(size, stride, offset))


def as_units(rows: torch.Tensor, unit: torch.dtype) -> torch.Tensor:
    """``rows`` as integers of type ``unit``; what lies unaligned is copied."""
    rows = rows.detach()
    if unit == rows.dtype:
        return rows
    rows = rows.contiguous()
    if rows.storage_offset() * rows.itemsize % unit.itemsize:
        rows = rows.clone()
    return rows.view(unit)


class ComponentField:
    """One component of one layer over all pages.

    Rows of small elements are moved as integers of up to 32 bits: torch indexes elements one by
    one, so that fewer are faster, and has no such kernels for some 8-bit types.

    Attributes:
        view: as `Storage.tensor` gives it.
        plan: where it lies, and its element type.
    """

    __reduce__ = uncopied("it is a view of one storage")

    __slots__ = ("_pages", "_rows", "_unit", "plan", "view")

    def __init__(self, arena: torch.Tensor, plan: TensorPlan, order: Order) -> None:
        self.view, self.plan = view_of(arena, plan), plan
        heads = plan.component.startswith(("key", "value")) and self.view.ndim > 2
        by_head = order == "head" and heads
        self._unit = self.view.dtype
        if self._unit.itemsize < 4:
            last = self.view.shape[-1] * self.view.itemsize
            self._unit = widest_unit(last, plan.page_stride, plan.offset)
        raw = self.view.view(self._unit)
        self._rows = raw.transpose(1, 2) if by_head else raw
        self._pages = bytes_of(arena, plan.offset, plan.page_stride, plan.page_bytes, len(raw))

    def put(self, index: WriteIndex, rows: torch.Tensor) -> None:
        """Write rows in the field's element type, [m, *row shape], to their slots. O(m)."""
        self._rows.index_put_((index.pages, index.offsets), as_units(rows, self._unit))

    def take(self, pages: torch.Tensor) -> torch.Tensor:
        """Rows of whole pages, [len(pages) * page_size, *row shape], one after another.

        Selects pages and not slots: about ten times faster.
        """
        found = self._rows.index_select(0, pages).flatten(0, 1)
        return found if self._unit == self.view.dtype else self._typed(found)

    def put_pages(self, pages: torch.Tensor, content: torch.Tensor) -> None:
        """Write whole pages (states) [m, *page shape]. O(bytes)."""
        rows = content.flatten(1)
        self._pages.index_put_((pages,), as_units(rows, self._pages.dtype))

    def take_pages(self, pages: torch.Tensor) -> torch.Tensor:
        """Whole pages (states) [m, *page shape], copied. O(bytes)."""
        found = self._pages.index_select(0, pages).view(self.view.dtype)
        return found.view(len(pages), *self.view.shape[1:])

    def _typed(self, units: torch.Tensor) -> torch.Tensor:
        return (units if units.stride(-1) == 1 else units.contiguous()).view(self.view.dtype)
