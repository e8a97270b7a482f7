"""The arrays a format is emitted into: fresh ones, or a caller's, checked before any is written."""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError
from octavo.index.arguments import name_row

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)
_NO_ARRAY: NDArray[Any] = np.empty(0, object)
_NO_ARRAY.flags.writeable = False


def arrays_of(
    kind: type[Any],
    shapes: Mapping[str, Shape],
    out: Any,
    step: Step,
    dtypes: Mapping[str, np.dtype[Any]],
    widest: Callable[[], int],
) -> Arrays:
    """Arrays to fill: those of ``out``, or fresh ones whose numbers mean nothing yet.

    Args:
        kind: what ``out`` must be, unless it is None.
        shapes: by name, the shape of a fresh array, and the least one of a caller's.
        step: whose memory the arrays must not be in.
        dtypes: of those that are not int32.
        widest: gives the row that needs most columns of a table, for a message.

    Raises:
        LengthError: ``out`` is none of ``kind``, or an array of it has another element type or
            other axes, is read-only or not contiguous, or shares memory with another of them or
            with the step.
        CapacityError: an array of ``out`` is too small.

    Cost: O(arrays), but for the memory of fresh ones.
    """
    if out is None:
        return {name: np.empty(shape, dtypes.get(name, INT32)) for name, shape in shapes.items()}
    if not isinstance(out, kind):
        right = f"it must be a {kind.__name__} the function returned"
        raise LengthError("out", out, None, None, right)
    found = {}
    for name, shape in shapes.items():
        given, dtype = getattr(out, name), dtypes.get(name, INT32)
        found[name] = target = as_array(given)
        flags = target.flags
        if target.dtype != dtype or target.ndim != len(shape):
            _refuse_array(name, given, len(shape), dtype, step)
        if not (flags.writeable and flags.c_contiguous):
            _refuse_array(name, given, len(shape), dtype, step)
        if target.shape != shape:
            _check_size(name, target, shape, step, widest)
    check_apart(found, step)
    return found


def as_array(given: Any) -> NDArray[Any]:
    """The memory of an array, or of a torch tensor on the CPU, pinned or not, as NumPy's. O(1).

    A subclass of NumPy's is seen as the plain array it is; torch's empty tensors lie at 0.

    What has no such memory (another device, another library, a gradient to be recorded, a view of
    which NumPy would make a copy) is an empty array that nobody can write.
    """
    if isinstance(given, np.ndarray):
        return given if type(given) is np.ndarray else np.asarray(given)
    try:
        array = np.asarray(given)
        return array if array.ctypes.data == given.data_ptr() or not array.size else _NO_ARRAY
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return _NO_ARRAY


def fill(target: NDArray[Any], values: NDArray[Any], pad: int = 0) -> None:
    """Write ``values`` to the beginning of an array along each axis, and ``pad`` elsewhere."""
    if target.shape != values.shape:
        target[...] = pad
    target[tuple(slice(size) for size in values.shape)] = values


def _check_size(
    name: str, target: NDArray[Any], shape: Shape, step: Step, widest: Callable[[], int]
) -> None:
    """Refuse an array that is too small, or has other than a place for keys and one for values."""
    if name == "block_offsets":
        check_int(f"{name}.shape[1]", target.shape[1], 2, 2, "keys and values")
    for axis, need in enumerate(shape):
        if target.shape[axis] < need:
            why = f"out is too small in axis {axis}"
            if axis and axis == len(shape) - 1:
                why += f", {name_row(step, widest())} needs {need} columns"
            raise CapacityError(f"{name}.shape[{axis}]", need, target.shape[axis], why)


def _refuse_array(name: str, given: Any, axes: int, dtype: np.dtype[Any], step: Step) -> None:
    """Say what is wrong with an array: it is the step's own, or of the wrong kind."""
    said = given
    if isinstance(given, np.ndarray):
        _check_step({name: given}, step)
    elif hasattr(given, "device"):
        said = f"{type(given).__name__} of {given.dtype} on {given.device}"
        said += " that requires_grad" if getattr(given, "requires_grad", False) else ""
    right = f"it must be a contiguous {dtype} array or tensor on the CPU, writeable, of {axes} axes"
    raise LengthError(f"out.{name}", said, None, None, right)


def check_apart(targets: Arrays, step: Step) -> None:
    """Refuse contiguous arrays to write to that share memory with each other or with the step.

    Arrays that own their memory, or are views of one that does, are told apart by that; others by
    their first and last bytes.

    Cost: O(arrays), where several lie in one buffer O(arrays log arrays), and where another library
    lends the memory O(arrays squared).

    Raises:
        LengthError: it names both.
    """
    owners = _owners(targets.values())
    if owners is None or len(set(owners)) < len(owners):
        _check_each_other(targets)
    read = [step.array, step.ids] if step.core is not None else list(_arrays(step).values())
    others = _owners(read)
    if owners is None or others is None or not set(owners).isdisjoint(others):
        _check_step(targets, step)


def _owners(arrays: Iterable[NDArray[Any]]) -> list[int] | None:
    """Identities of the arrays that own the memory; None: NumPy does not know all of them."""
    owners = []
    for array in arrays:
        base = array.base
        if base is None:
            owners.append(id(array))
        elif type(base) is np.ndarray and base.base is None:
            owners.append(id(base))
        else:
            return None
    return owners


def _check_each_other(targets: Arrays) -> None:
    spans = sorted((a.ctypes.data, a.nbytes, name) for name, a in targets.items() if a.size)
    for (begin, size, name), (after, _, other) in pairwise(spans):
        if begin + size > after:
            _refuse(name, f"out.{other}")


def _arrays(step: Step) -> Arrays:
    """The arrays of a step by name. O(rows x columns)."""
    names = ("counts", "input_ids", "positions", "last", "query_start", "past", "context")
    found = {name: getattr(step, name) for name in (*names, "wants_token")}
    for group, view in step.groups.items():
        found |= {f"{group}.{name}": array for name, array in view._asdict().items()}
    return found


def _check_step(targets: Arrays, step: Step) -> None:
    """Refuse arrays that may lie in the memory of the step."""
    read = _arrays(step)
    for name, array in targets.items():
        for other, beside in read.items():
            if np.may_share_memory(array, beside):
                _refuse(name, f"step.{other}")


def _refuse(name: str, other: str) -> None:
    raise LengthError(f"out.{name}", f"in the memory of {other}", None, None, "each has its own")
