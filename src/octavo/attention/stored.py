"""Keys and values as they are stored, in numbers or in the few bits of a quantised cache.

`StoredPages` reads and writes a layer's rows by page and offset: it hides the order of pages, the
element type and its scales, and touches the slots it is given and no others. `encode` and `decode`
turn numbers into stored elements and back, without scales:

- ``int8``: int8, -128..127.
- ``fp8``: e4m3fn, one sign bit, four of exponent (bias 7), three of mantissa, no infinities, at
  most 448 ("FP8 Formats for Deep Learning", 2022); uint8, or an array whose dtype is float8_e4m3fn.
- ``int4``: -8..7, two a uint8, each stored as itself plus 8: element 2i in the lower half of byte
  i, element 2i + 1 in the upper. So does ONNX Runtime keep int4 caches; ONNX packs INT4 tensors in
  two's complement instead. Of an odd number the last byte's upper half is 8, a zero.

Numbers are rounded to the nearest stored one, ties to even, and those beyond the range become its
ends.
"""

from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.checks import as_reals, check_positive
from octavo.errors import LengthError, PlanError, uncopied

Floats = NDArray[np.floating[Any]]

_STORED = {"int8": "int8", "fp8": "uint8", "int4": "uint8"}


class StoredPages:
    """One component of a layer: n pages of ``page_size`` tokens with ``kv_heads`` rows of ``dim``.

    Args:
        name: what the array is called in errors.
        cache: [n, page_size, kv_heads, dim] for ``order`` token, [n, kv_heads, page_size, dim] for
            head, [n, page_size, dim] for both where all heads share one row; of int4 the last axis
            is ceil(dim / 2).
        order: ``token`` or ``head``.
        dim: elements of a row.
        kv_dtype: int8, fp8 or int4; None: the array holds numbers.
        scale: what a stored element is multiplied by: a number, [kv_heads], [kv_heads, dim], or one
            a row, shaped like ``cache`` without its last axis; None: 1.

    Raises:
        PlanError: an array of anything but real numbers, or not of the dtype of ``kv_dtype``, or a
            scale that is not above 0.
    """

    __reduce__ = uncopied("it is a view of one layer")

    def __init__(
        self,
        name: str,
        cache: NDArray[Any],
        order: str,
        dim: int,
        kv_dtype: str | None = None,
        scale: Any = None,
    ) -> None:
        self._name, self._dim, self._kv_dtype = name, dim, kv_dtype
        cache = as_reals(name, cache)
        if kv_dtype is not None:
            cache = as_bytes(name, cache, kv_dtype)
        factors = as_reals(f"scale of {name}", 1.0 if scale is None else scale)
        self._each = factors.ndim > 1 and factors.shape == cache.shape[:-1]
        if not self._each and not (np.isfinite(factors) & (factors > 0)).all():
            raise PlanError(f"scale of {name}", scale, "each must be a finite number above 0")
        if cache.ndim == 3:
            cache, factors = cache[:, :, None], factors[:, :, None] if self._each else factors
        elif order == "head":
            cache, factors = cache.swapaxes(1, 2), factors.swapaxes(1, 2) if self._each else factors
        self._cache, self._factors = cache, factors

    def read(self, page: NDArray[Any], offset: NDArray[Any], dtype: Any = np.float64) -> Floats:
        """The rows of some slots as numbers, ``dtype``[slots, kv_heads, dim].

        Args:
            page, offset: int[slots], pages below n and offsets below ``page_size``.
            dtype: float64 or float32.

        Raises:
            LengthError: a page that does not exist.

        Cost: O(slots * kv_heads * dim).
        """
        self._check(page)
        numbers: Floats = self._cache[page, offset]
        if self._kv_dtype is not None:
            numbers = decode(numbers, self._kv_dtype, self._dim)
            with np.errstate(invalid="ignore"):  # a row's scale is data, and may be anything
                numbers = numbers * self._factors_of(page, offset)
        return numbers.astype(dtype)

    def write(self, page: NDArray[Any], offset: NDArray[Any], numbers: Floats) -> None:
        """Store ``numbers`` [slots, kv_heads, dim] in some slots, rounded to the element type.

        Raises:
            LengthError: a page that does not exist; nothing is written.
            PlanError: NaN or infinite numbers, where quantised; or the scale of one of these rows
                is not above 0. Nothing is written.

        Cost: O(slots * kv_heads * dim).
        """
        self._check(page)
        self.check_finite(numbers)
        if self._kv_dtype is None:
            self._cache[page, offset] = numbers.astype(self._cache.dtype)
            return
        factors = self._factors_of(page, offset)
        if self._each:
            self._check_factors(page, offset, factors)
        inverse = 1 / factors.astype(numbers.dtype)
        self._cache[page, offset] = encode(numbers * inverse, self._kv_dtype)

    def check_finite(self, numbers: Floats) -> None:
        """Refuse what a quantised cache cannot store. O(numbers).

        Raises:
            PlanError: NaN or infinite numbers for a quantised cache.
        """
        if self._kv_dtype is not None and not np.isfinite(numbers).all():
            right = f"{self._kv_dtype} stores finite numbers alone"
            raise PlanError(f"numbers for {self._name}", "NaN or infinite", right)

    def _check(self, page: NDArray[Any]) -> None:
        last = len(self._cache) - 1
        beyond = page[(page < 0) | (page > last)]
        if beyond.size:
            why = f"{self._name} has {last + 1} pages"
            raise LengthError("page", int(beyond[0]), 0, last, why)

    def _factors_of(self, page: NDArray[Any], offset: NDArray[Any]) -> Floats:
        """Scales that broadcast over [slots, kv_heads, dim]."""
        if not self._each:
            return self._factors[:, None] if self._factors.ndim == 1 else self._factors
        factors: Floats = self._factors[page, offset][:, :, None]
        return factors

    def _check_factors(self, page: NDArray[Any], offset: NDArray[Any], factors: Floats) -> None:
        """Refuse rows whose scale nothing can be divided by."""
        for at, number in enumerate(factors.min(axis=(1, 2), initial=np.inf)):
            check_positive(f"scale of {self._name} at page {page[at]}, offset {offset[at]}", number)


def as_bytes(name: str, cache: NDArray[Any], kv_dtype: str) -> NDArray[Any]:
    """``cache`` as a view of its stored elements. O(1).

    Args:
        name: what the array is called in an error.
        cache: any shape.
        kv_dtype: int8, fp8 or int4.

    Raises:
        PlanError: an array of another dtype.
    """
    if kv_dtype == "fp8" and cache.dtype.name == "float8_e4m3fn":
        return cache.view(np.uint8)
    if cache.dtype.name != _STORED[kv_dtype]:
        right = f"{kv_dtype} elements are stored as {_STORED[kv_dtype]}"
        raise PlanError(f"dtype of {name}", cache.dtype.name, right)
    return cache


def decode(stored: NDArray[Any], kv_dtype: str, dim: int) -> NDArray[np.float64]:
    """The numbers that elements stand for.

    Args:
        stored: [..., dim] bytes, or [..., ceil(dim / 2)] of int4.
        kv_dtype: int8, fp8 or int4.
        dim: elements of a row.

    Returns:
        float64[..., dim]; exact.

    Cost: O(elements).
    """
    if kv_dtype == "int8":
        return stored.astype(np.float64)
    if kv_dtype == "fp8":
        decoded: NDArray[np.float64] = _FP8[stored]
        return decoded
    numbers = np.empty((*stored.shape[:-1], dim))
    numbers[..., 0::2], numbers[..., 1::2] = stored & 15, (stored >> 4)[..., : dim // 2]
    return numbers - 8


def encode(numbers: NDArray[Any], kv_dtype: str) -> NDArray[Any]:
    """The stored elements nearest to ``numbers``; the inverse of `decode`.

    Args:
        numbers: floats [..., dim]; for int8 and int4 finite.
        kv_dtype: int8, fp8 or int4.

    Returns:
        int8[..., dim], or uint8[..., dim] of fp8 and uint8[..., ceil(dim / 2)] of int4.

    Cost: O(elements).
    """
    if kv_dtype == "fp8":
        return _encode_fp8(numbers)
    low, high = (-128, 127) if kv_dtype == "int8" else (-8, 7)
    whole: NDArray[Any] = np.clip(np.rint(numbers), low, high).astype(np.int8)
    if kv_dtype == "int8":
        return whole
    halves = np.full((*whole.shape[:-1], whole.shape[-1] + whole.shape[-1] % 2), 8, np.uint8)
    halves[..., : whole.shape[-1]] = whole + 8
    packed: NDArray[Any] = halves[..., 0::2] | halves[..., 1::2] << 4
    return packed


def _fp8_numbers() -> NDArray[np.float64]:
    """What each of the 256 bytes stands for."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    size[byte & 127 == 127] = np.nan
    return np.where(byte < 128, size, -size)


_FP8 = _fp8_numbers()
_FP8_BETWEEN = (_FP8[:126] + _FP8[1:127]) / 2  # numbers above entry i are nearer to byte i + 1


def _encode_fp8(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    size = np.abs(numbers)
    down = np.searchsorted(_FP8_BETWEEN, size, side="left")
    up = np.searchsorted(_FP8_BETWEEN, size, side="right")
    nearest = np.where(down % 2 == 0, down, up)  # they differ in the middle of two bytes alone
    nearest = np.where(np.isnan(size), 127, nearest)
    encoded: NDArray[np.uint8] = (nearest + 128 * np.signbit(numbers)).astype(np.uint8)
    return encoded
