"""Slot mapping: positions of a sequence to places in its pages.

A slot is page * page_size + offset. Knows arrays; not pools, nodes or how sequences live.
"""

from collections.abc import Sequence as Items
from operator import index
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.checks import check_int, entries_of
from octavo.errors import CapacityError, LengthError

__all__ = ["slot_mapping"]

Ints = NDArray[np.int32]
_MAX_SLOT = 2**31 - 1
_INT32, _empty = np.dtype(np.int32), np.empty
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def slot_mapping(
    pages: Ints | Items[int], page_size: int, start: int, stop: int, out: Ints | None = None
) -> Ints:
    """Slots of positions ``start..stop-1`` of a sequence.

    The slot of position ``i`` is ``pages[i // page_size] * page_size + i % page_size``.

    Args:
        pages: physical pages of the sequence, in logical order.
        page_size: tokens per page.
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
    try:  # one position; whatever is not plain to see is checked below
        if (
            type(start) is int is type(stop) is type(page_size)
            and stop - start == 1
            and out is None
        ):
            page, kind = pages[start // page_size], type(pages)
            if kind is list:
                plain = type(page) is int and start >= 0 < page_size
            else:
                plain, page = kind is np.ndarray and start >= 0 < page_size, index(page)
            slot = page * page_size + start % page_size
            if plain and 0 <= slot <= _MAX_SLOT:
                alone: Ints = _empty(1, _INT32)
                alone[0] = slot
                return alone
    except Exception:  # noqa: BLE001, S110, whatever a stranger's object raises
        pass
    page_size = check_int("page_size", page_size, 1)
    start, stop = check_int("start", start, -_MAX_SLOT), check_int("stop", stop, -_MAX_SLOT)
    known = _as_pages(pages)
    held = len(known)
    if not 0 <= start <= stop <= held * page_size:
        low, high = (0, stop) if start > stop or start < 0 else (start, held * page_size)
        name, value = ("start", start) if start > stop or start < 0 else ("stop", stop)
        raise LengthError(name, value, low, high, f"{held} pages of {page_size}")
    count = stop - start
    if out is not None:
        _check_out(out, count)
    first, begin = divmod(start, page_size)
    touched = _page_numbers(known[first : -(-stop // page_size)], page_size)
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


def _as_pages(pages: Any) -> NDArray[Any] | list[Any]:
    """``pages`` as a plain array of integers of one axis, or a list. O(1) of both.

    Raises:
        LengthError: they are neither, nor can be made one.
    """
    if type(pages) is list:
        listed: list[Any] = pages
        return listed

    def wrong() -> LengthError:
        return LengthError("pages", pages, None, None, "it must be a list or array of pages")

    array: NDArray[Any] = pages
    if isinstance(pages, np.ma.MaskedArray):
        raise wrong()
    if type(pages) is not np.ndarray:
        if not hasattr(pages, "__array__"):
            return entries_of(pages, wrong)
        try:
            array = np.asarray(pages)  # of another library as well
        except Exception as error:
            raise wrong() from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise wrong()
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _page_numbers(pages: NDArray[Any] | list[Any], page_size: int) -> Ints:
    """``pages`` as int32, refused where a slot would be beyond it. O(pages)."""
    if not len(pages):
        return _empty(0, _INT32)
    if isinstance(pages, list):
        if set(map(type, pages)) != {int}:
            pages = [check_int("page", page, 0) for page in pages]
        low, top = min(pages), max(pages)
    else:
        low, top = _ends(pages)
    if low < 0:
        raise LengthError("pages", low, 0, None, "each is a physical page")
    last = (top + 1) * page_size - 1
    if last > _MAX_SLOT:
        raise CapacityError("slot", last, _MAX_SLOT, "beyond int32")
    return np.asarray(pages, _INT32)


def _ends(pages: NDArray[Any]) -> tuple[int, int]:
    """A lower bound of at least 0 or the smallest number, and the largest. O(n)."""
    # Read as unsigned, a negative number is larger than any other: mostly one pass is enough.
    top = int(np.maximum.reduce(pages.view(_UNSIGNED[pages.itemsize])))
    if top >> (8 * pages.itemsize - 1) and pages.dtype.kind == "i":
        return int(pages.min()), 0
    return 0, top


def _check_out(out: Ints, count: int) -> None:
    fits = isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1
    if not fits or not out.flags.writeable:
        raise LengthError("out", out, None, None, "it must be a writeable int32 array of one axis")
    if out.size < count:
        raise CapacityError("stop - start", count, out.size, "out is too small")
