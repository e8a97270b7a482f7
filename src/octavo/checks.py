"""Arguments checked: each is returned as the type it must have, or refused by name and value.

Knows numbers, names, token ids and arrays of numbers; nothing of models, pages or tensors.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from math import inf, isfinite
from numbers import Real
from typing import Any, SupportsIndex, TypeGuard

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LengthError, PlanError, TokenError

Ints = NDArray[np.int32]
Tokens = Items[int] | NDArray[np.integer[Any]]
MAX_TOKEN = 2**31 - 1
"""Largest token id."""

_RANGES = {"float64": (0.0, inf), "float32": (2.0**-149, (2 - 2.0**-23) * 2.0**127)}
"""Smallest and largest number beside 0 that a type holds."""
_BEYOND_NUMPY = ("bfloat16", "float8_e4m3fn")


def has_entries(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether ``list(value)`` gives its entries; arrays and tensors of no axis have none. O(1)."""
    if isinstance(value, memoryview):  # which lists no more than one axis
        return value.ndim == 1
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def check_int(name: str, value: object, low: int, high: int | None = None, why: str = "") -> int:
    """``value`` as an int in ``low..high``; bools and floats are refused. O(1).

    Raises:
        LengthError: not an int, or outside the range.
    """
    if type(value) is int:
        number = value
    elif isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise LengthError(name, value, low, high, why)
    else:
        try:
            number = value.__index__()
        except TypeError:  # an array
            raise LengthError(name, value, low, high, why) from None
    if number < low or (high is not None and number > high):
        raise LengthError(name, number, low, high, why)
    return number


def check_number(name: str, value: object, dtype: str = "float64") -> float:
    """``value`` as a float; what is no finite number is refused. O(1).

    Args:
        name: what the number is called in an error.
        value: any real number of Python or NumPy, but no bool.
        dtype: float64 or float32, in which it must neither overflow nor become 0.

    Raises:
        PlanError: it is none, or ``dtype`` cannot hold it.
    """
    return _finite(name, value, dtype, "it must be a finite number")


def check_positive(name: str, value: object, dtype: str = "float64") -> float:
    """``value`` as a float; what is no finite number above 0 is refused. O(1).

    Raises:
        PlanError: it is none, or ``dtype`` cannot hold it.
    """
    right = "it must be a finite number above 0"
    number = _finite(name, value, dtype, right)
    if number <= 0:
        raise PlanError(name, value, right)
    return number


def _finite(name: str, value: object, dtype: str, right: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise PlanError(name, value, right)
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise PlanError(name, value, right)
    smallest, largest = _RANGES[dtype]
    if number and not smallest <= abs(number) <= largest:
        raise PlanError(name, value, f"it must be a number that {dtype} holds")
    return number


def check_flag(name: str, value: object) -> bool:
    """``value`` as a bool, of Python or NumPy. O(1).

    Raises:
        PlanError: it is none.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise PlanError(name, value, "it must be True or False")
    return bool(value)


def check_choice(name: str, value: object, known: Collection[str]) -> str:
    """``value``, which must be one of the names ``known``. O(known).

    Raises:
        PlanError: it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise PlanError(name, value, f"one of {', '.join(known)}")
    return value


def check_apart(name: str, numbers: NDArray[np.integer[Any]]) -> None:
    """Refuse places of which one stands twice: of two things put there one would be lost.

    Raises:
        PlanError: the second of two equal numbers; it names the first.

    Cost: O(n log n).
    """
    ordered = np.sort(numbers, axis=None)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        first, second = np.argwhere(numbers == twice[0])[:2].tolist()
        right = f"it stands at {first} too, and one of the two would be lost"
        raise PlanError(f"{name} at {second}", int(twice[0]), right)


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


def check_tokens(tokens: Tokens) -> Ints:
    """``tokens`` as int32, copied unless they are an int32 array already. O(len(tokens)).

    Raises:
        TokenError: an entry is no int in 0..2**31-1; it names the first one.
    """
    array = tokens if isinstance(tokens, np.ndarray) else _from_items(tokens)
    if array.shape == (0,):
        return np.empty(0, np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _first_bad(array.tolist())
    if array.dtype == np.int32:
        if np.count_nonzero(array < 0):
            raise _first_bad(array.tolist())
        return np.asarray(array, np.int32)
    if array.size and (int(array.min()) < 0 or int(array.max()) > MAX_TOKEN):
        raise _first_bad(array.tolist())
    return array.astype(np.int32)


def _from_items(tokens: Items[int]) -> NDArray[Any]:
    if isinstance(tokens, (str, bytes)) or not has_entries(tokens):
        raise TokenError(0, tokens)
    items = list(tokens)
    if set(map(type, items)) - {int}:
        items = [_plain(index, item) for index, item in enumerate(items)]
    try:
        return np.array(items, np.int64)
    except OverflowError:
        raise _first_bad(items) from None


def _plain(index: int, item: Any) -> int:
    if isinstance(item, (bool, np.bool_)) or not hasattr(item, "__index__"):
        raise TokenError(index, item)
    try:
        return int(item.__index__())
    except TypeError:
        raise TokenError(index, item) from None


def _first_bad(items: Any) -> TokenError:
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        if type(item) is not int or not 0 <= item <= MAX_TOKEN:
            return TokenError(index, item)
    return TokenError(0, items)
