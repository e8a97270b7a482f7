"""Arguments checked: each is returned as the type it must have, or refused by name and value.

Knows numbers, names, token ids, arrays of numbers and the names of packages that may be missing;
nothing of models, pages or tensors.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from math import inf, isfinite
from numbers import Real
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeGuard

import numpy as np

from octavo.arrays import NDArray
from octavo.errors import LengthError, OctavoError, PlanError, TokenError

if TYPE_CHECKING:
    from pathlib import Path

Ints = NDArray[np.int32]
Tokens = Items[int] | NDArray[np.integer[Any]]
MAX_TOKEN = 2**31 - 1
"""Largest token id."""

_RANGES = {"float64": (0.0, inf), "float32": (2.0**-149, (2 - 2.0**-23) * 2.0**127)}
"""Smallest and largest number beside 0 that a type holds."""
_BEYOND_NUMPY = ("bfloat16", "float8_e4m3fn")


def not_installed(package: str, extra: str) -> str:
    """That a package is missing, and how it comes: with a release of octavo, and in a checkout."""
    return (
        f"{package} is not installed; it comes with pip install 'octavo[{extra}]', in a checkout "
        f"of octavo with pip install '.[{extra}]'"
    )


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that stands a second time; None: each stands once. O(names)."""
    seen = set[str]()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def has_entries(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether ``list(value)`` gives its entries in their order. O(1).

    Arrays and tensors of no axis have none, sets no order, dicts are more than their keys, and the
    characters of a text are never meant.
    """
    if isinstance(value, memoryview):  # which lists no more than one axis
        return value.ndim == 1
    if isinstance(value, (str, bytes, bytearray, set, frozenset, Mapping)):
        return False
    return isinstance(value, Iterable) and getattr(value, "ndim", 1) != 0


def entries_of(value: object, error: Callable[[], OctavoError]) -> list[Any]:
    """The entries of a list, array or other iterable. O(n).

    Args:
        error: makes what is raised where it has none, or fails to list them.
    """
    if not has_entries(value):
        raise error()
    try:
        return list(value)
    except Exception as failure:
        raise error() from failure


def check_int(name: str, value: object, low: int, high: int | None = None, why: str = "") -> int:
    """``value`` as an int in ``low..high``; bools and floats are refused. O(1).

    Raises:
        LengthError: not an int, or outside the range.
    """
    number = value if type(value) is int else _as_int(value)
    if number is None:
        raise LengthError(name, value, low, high, why)
    if number < low or (high is not None and number > high):
        raise LengthError(name, number, low, high, why)
    return number


def _as_int(value: Any) -> int | None:
    """A number that is no plain int as one; None: it is no whole number. O(1)."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    if getattr(value, "ndim", 0) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None  # a tensor of one element, or a bool of NumPy or torch
    try:
        return int.__index__(index(value))
    except Exception:  # noqa: BLE001, an array's TypeError, and whatever a stranger's object raises
        return None


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
    except Exception:  # noqa: BLE001, an int's OverflowError, and whatever a stranger's number raises
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
        raise PlanError(name, value, f"it must be one of {', '.join(known)}")
    return value


def check_path(name: str, value: Any) -> "Path":
    """``value`` as a path. O(1).

    Raises:
        PlanError: it is none of text, or has a null character in it.
    """
    from pathlib import Path  # here: numbers and names need none, and the import is slow

    try:
        path = Path(value)
    except TypeError:
        path = None
    if path is None or "\0" in str(path):
        raise PlanError(name, value, "it must be a path, as text or as a pathlib.Path")
    return path


def check_mapping(name: str, value: object) -> Mapping[Any, Any]:
    """``value`` as a dict of what it maps; what is no mapping is refused. O(entries).

    Raises:
        PlanError: it is none, or fails to say what it maps.
    """
    right = "it must be a dict or another mapping, from the names of groups"
    if not isinstance(value, Mapping):
        raise PlanError(name, value, right)
    try:
        return dict(value)
    except Exception as error:
        raise PlanError(name, value, right) from error


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
    except Exception:  # noqa: BLE001, lists of unequal length, and whatever a stranger's array raises
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


def check_tokens(tokens: Tokens, where: str = "") -> Ints:
    """``tokens`` as int32, copied unless they are an int32 array already. O(len(tokens)).

    Args:
        tokens: a list or array, of any library on the CPU; no iterator, which a call that is
            refused would have used up.
        where: whose they are, for the message.

    Raises:
        TokenError: no list or array, or an entry is no int in 0..2**31-1; it names the first one.
    """
    array = tokens if type(tokens) is np.ndarray else _token_array(tokens, where)
    if array.shape == (0,):
        return np.empty(0, np.int32)
    if array.ndim == 0 or not len(array):
        raise TokenError(0, tokens, name="tokens", where=where)
    if array.dtype.kind == "O" and array.ndim == 1:
        array = _token_array(array.tolist(), where)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _first_bad(array.tolist(), where)
    if array.dtype == np.int32:
        if np.count_nonzero(array < 0):
            raise _first_bad(array.tolist(), where)
        return np.asarray(array, np.int32)
    if int(array.min()) < 0 or int(array.max()) > MAX_TOKEN:
        raise _first_bad(array.tolist(), where)
    return array.astype(np.int32)


def _token_array(tokens: Any, where: str) -> NDArray[Any]:
    """Tokens that are no plain array as one."""

    def wrong() -> TokenError:
        return TokenError(0, tokens, name="tokens", where=where)

    if isinstance(tokens, (Iterator, np.ma.MaskedArray)):
        raise wrong()
    if hasattr(tokens, "__array__"):
        try:
            return np.asarray(tokens)
        except Exception as error:
            raise wrong() from error
    items = entries_of(tokens, wrong)
    if set(map(type, items)) - {int}:
        items = [_as_token(index, item, where) for index, item in enumerate(items)]
    try:
        return np.array(items, np.int64)
    except OverflowError:
        raise _first_bad(items, where) from None


def _as_token(index: int, item: Any, where: str) -> int:
    number = _as_int(item)
    if number is None:
        raise TokenError(index, item, where=where)
    return number


def _first_bad(items: list[Any], where: str) -> TokenError:
    """The error of the first of ``items``, of which one is no token id."""
    ids = (type(item) is int and 0 <= item <= MAX_TOKEN for item in items)
    index = list(ids).index(False)
    return TokenError(index, items[index], where=where)
