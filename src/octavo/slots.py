"""Slot mapping: positions of a sequence to places in its pages.

A slot is page * page_size + offset. Knows arrays; not pools, nodes or how sequences live.
"""

from collections.abc import Sequence as Items
from operator import index

import numpy as np
from numpy.typing import NDArray

from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError

Ints = NDArray[np.int32]
_MAX_SLOT = 2**31 - 1
_INT32, _empty = np.dtype(np.int32), np.empty


def slot_mapping(
    pages: Ints | Items[int], page_size: int, start: int, stop: int, out: Ints | None = None
) -> Ints:
    """Slots of positions ``start..stop-1`` of a sequence.

    The slot of position ``i`` is ``pages[i // page_size] * page_size + i % page_size``.

    Args:
        pages: physical pages of the sequence, in logical order.
        page_size: tokens a page holds.
        start: first position.
        stop: position behind the last one.
        out: int32 array of at least ``stop - start``, written and returned cut to size.

    Returns:
        int32[stop - start].

    Raises:
        LengthError: page size below 1, or an interval that is reversed or beyond the pages.
        CapacityError: ``out`` is too small, or a slot is beyond int32; nothing was written.

    Cost: O(stop - start), one vectorised pass over the pages touched.
    """
    try:
        if out is None and stop - start == 1 and start >= 0 and page_size > 0:
            slot = index(pages[start // page_size]) * page_size + start % page_size
            if 0 <= slot <= _MAX_SLOT:
                alone: Ints = _empty(1, _INT32)
                alone[0] = slot
                return alone
    except (TypeError, ValueError, IndexError):  # checked one by one below
        pass
    try:
        held = len(pages)
    except TypeError:
        right = "a list or array of physical pages"
        raise LengthError("pages", pages, None, None, right) from None
    page_size = check_int("page_size", page_size, 1)
    start, stop = check_int("start", start, -_MAX_SLOT), check_int("stop", stop, -_MAX_SLOT)
    if not 0 <= start <= stop <= held * page_size:
        low, high = (0, stop) if start > stop or start < 0 else (start, held * page_size)
        name, value = ("start", start) if start > stop or start < 0 else ("stop", stop)
        raise LengthError(name, value, low, high, f"{held} pages of {page_size}")
    count = stop - start
    if out is not None:
        _check_out(out, count)
    first, begin = divmod(start, page_size)
    touched = _page_numbers(pages[first : -(-stop // page_size)], page_size)
    bases = (touched * np.int32(page_size)).repeat(page_size)[begin : begin + count]
    target = bases if out is None else out[:count]
    np.add(bases, _offsets(page_size, begin + count)[begin:], out=target)
    return target


_OFFSETS: dict[int, Ints] = {}


def _offsets(page_size: int, count: int) -> Ints:
    """``i % page_size`` for i in 0..count-1; remembered, as modulo is what costs. O(count) once."""
    known = _OFFSETS.get(page_size)
    if known is None or known.size < count:
        known = _OFFSETS[page_size] = np.arange(2 * count, dtype=np.int32) % np.int32(page_size)
    return known[:count]


def _page_numbers(pages: Ints | Items[int], page_size: int) -> Ints:
    """``pages`` as int32, refused where a slot would be beyond it."""
    wide = np.asarray(pages)
    if wide.ndim == 1 and not wide.dtype.isnative:
        wide = wide.astype(wide.dtype.newbyteorder("="))
    if not wide.size:
        return wide.astype(np.int32)
    if wide.dtype.kind not in "iu" or wide.ndim != 1:
        raise LengthError("pages", wide.tolist(), 0, None, "each is a physical page")
    # Read as unsigned, a negative page is larger than any other.
    top = int(np.maximum.reduce(wide.view(f"u{wide.itemsize}")))
    last = (top + 1) * page_size - 1
    if last > _MAX_SLOT:
        if int(wide.min()) < 0:
            raise LengthError("pages", int(wide.min()), 0, None, "each is a physical page")
        raise CapacityError("slot", last, _MAX_SLOT, "beyond int32")
    return wide.astype(np.int32, copy=False)


def _check_out(out: Ints, count: int) -> None:
    fits = isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1
    if not fits or not out.flags.writeable:
        raise LengthError("out", out, None, None, "a writeable int32 array of one axis")
    if out.size < count:
        raise CapacityError("stop - start", count, out.size, "out is too small")
