"""What callers pass as arrays, made plain NumPy arrays of real numbers or refused by name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import PlanError

_BEYOND_NUMPY = ("bfloat16", "float8_e4m3fn")


def as_reals(name: str, value: Any, *, finite: bool = False) -> NDArray[Any]:
    """``value`` as an array: itself if it is one, a view of or a copy of what else holds numbers.

    Args:
        name: what the array is called in an error.
        value: an array, a number, nested lists of them, or an array of another library on the CPU.
        finite: whether NaN and infinities are refused.

    Raises:
        PlanError: no array of integers or floats, a masked one, or not finite.

    Cost: O(1) for arrays; O(elements) for lists, and to look for what is not finite.
    """
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        raise PlanError(name, type(value).__name__, "it must be an array of numbers") from None
    if isinstance(value, np.ma.MaskedArray) or not is_real(array):
        said = f"{type(value).__name__} of {array.dtype.name}"
        raise PlanError(name, said, "it must be a plain array of integers or floats")
    if finite and not np.isfinite(array).all():
        at = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
        raise PlanError(f"{name}{list(at) or ''}", float(array[at]), "it must be finite")
    return array


def is_real(array: NDArray[Any]) -> bool:
    """Whether the elements are integers or floats, those of machine learning among them. O(1)."""
    return array.dtype.kind in "fiu" or array.dtype.name in _BEYOND_NUMPY
