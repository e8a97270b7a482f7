"""The row a latent cache keeps of a token, and where its elements lie."""

from dataclasses import dataclass
from typing import overload

import numpy as np

from octavo.arrays import NDArray
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, PlanError

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LatentGeometry:
    """One cached row [latent | rope] a token, read as key whole and as value by its beginning.

    Attributes:
        latent: channels of the whole row, the rotary ones included (the op's head_size).
        rotary: channels that are rotated; 0: none.
        v_head_size: leading channels that are the value.
        rotary_offset: first rotated channel.
        page_size: tokens per page.
        heads: rows per token; latent attention has one.
    """

    latent: int
    rotary: int
    v_head_size: int
    rotary_offset: int
    page_size: int
    heads: int = 1

    def validate(self) -> "LatentGeometry":
        """Itself, if a latent kernel can take it. O(1).

        Raises:
            LengthError: a size is no int or outside its range.
            PlanError: a size breaks a rule of division, or the rotary channels end behind the row.
        """
        check_int("latent", self.latent, 1)
        check_int("rotary", self.rotary, 0)
        check_int("rotary_offset", self.rotary_offset, 0)
        check_int("v_head_size", self.v_head_size, 1, self.latent)
        check_int("heads", self.heads, 1, 1, "a latent row serves all heads")
        self._check_divisions()
        return self

    def _check_divisions(self) -> None:
        page = check_int("page_size", self.page_size, 16)
        if page & (page - 1):
            raise PlanError("page_size", page, "a power of two")
        if self.latent % 8:
            raise PlanError("latent", self.latent, "a multiple of 8")
        if self.rotary % 16:
            raise PlanError("rotary", self.rotary, "0 or a multiple of 16")
        if self.rotary_offset % 8:
            raise PlanError("rotary_offset", self.rotary_offset, "a multiple of 8")
        if self.rotary_offset + self.rotary > self.latent:
            right = f"with {self.rotary} rotary channels it must end within {self.latent}"
            raise PlanError("rotary_offset", self.rotary_offset, right)

    @overload
    def element(self, slot: int, channel: int = ..., head: int = ...) -> int: ...

    @overload
    def element(self, slot: Int64s, channel: int = ..., head: int = ...) -> Int64s: ...

    def element(self, slot: int | Int64s, channel: int = 0, head: int = 0) -> int | Int64s:
        """Offset of an element: ((page * page_size + offset) * heads + head) * latent + channel.

        Args:
            slot: page * page_size + offset, an int or an int64 array of any shape.

        Returns:
            int, or int64 of that shape: offsets pass int32 long before slots do.

        Raises:
            LengthError: channel or head outside the row, or a slot that is negative or no int.

        Cost: O(slots).
        """
        check_int("channel", channel, 0, self.latent - 1)
        check_int("head", head, 0, self.heads - 1)
        wide = _wide(slot)
        if np.min(wide, initial=0) < 0:
            raise LengthError("slot", int(np.min(wide)), 0, None, "skipped writes have no element")
        return (wide * self.heads + head) * self.latent + channel


def _wide(slot: object) -> int | Int64s:
    """Slots in 64 bits; others than ints are refused, never rounded."""
    if isinstance(slot, np.ndarray):
        if slot.dtype.kind not in "iu":
            raise LengthError("slot", f"of dtype {slot.dtype}", 0, None, "an array of ints")
        return slot.astype(np.int64)
    return check_int("slot", slot, -(2**63))


def max_addressable_pages(stride: int, dtype: str = "int32") -> int:
    """Pages whose first elements a kernel reaches that multiplies page and stride in ``dtype``.

    Args:
        stride: elements from one page to the next.
        dtype: int32, uint32 or int64.

    Returns:
        The first page id that is beyond it.

    Raises:
        LengthError: the stride is below 1.
        PlanError: no such ``dtype``.

    Cost: O(1).
    """
    reach = {"int32": 2**31, "uint32": 2**32, "int64": 2**63}
    if not isinstance(dtype, str) or dtype not in reach:
        raise PlanError("dtype", dtype, f"one of {', '.join(reach)}")
    return -(-reach[dtype] // check_int("stride", stride, 1))


def check_offsets(pages: int, stride: int, dtype: str = "int32") -> None:
    """Whether every element of ``pages`` pages can be addressed in ``dtype``. O(1).

    Raises:
        CapacityError: their elements are more than it counts.
    """
    elements = check_int("pages", pages, 0) * check_int("stride", stride, 1)
    limit = max_addressable_pages(1, dtype) - 1
    if elements > limit:
        raise CapacityError("elements", elements, limit, f"offsets beyond {dtype}")
