"""The element types of quantised caches as NumPy bytes: numbers to stored elements and back.

- ``int8``: int8, -128..127.
- ``fp8``: e4m3fn, one sign bit, four of exponent (bias 7), three of mantissa, no infinities, at
  most 448 ("FP8 Formats for Deep Learning", 2022); uint8, or an array whose dtype is float8_e4m3fn.
- ``int4``: -8..7, two a uint8, each stored as itself plus 8: element 2i in the lower half of byte
  i, element 2i + 1 in the upper. So does ONNX Runtime keep int4 caches; ONNX packs INT4 tensors in
  two's complement instead. Of an odd number the last byte's upper half is 8, a zero.

Numbers are rounded to the nearest stored one, ties to even, and those beyond the range become its
ends. Knows nothing of scales.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import PlanError

_STORED = {"int8": "int8", "fp8": "uint8", "int4": "uint8"}


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
