"""The arrays a format is emitted into: fresh ones, or a caller's, checked before any is written."""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Step
from octavo.errors import CapacityError, LengthError
from octavo.index.arguments import name_row

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
INT32 = np.dtype(np.int32)
BOOL = np.dtype(np.bool_)


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
        raise LengthError("out", out, None, None, f"a {kind.__name__} emitted before")
    found = {}
    for name, shape in shapes.items():
        found[name] = target = getattr(out, name)
        if type(target) is not np.ndarray or target.dtype is not INT32 or target.shape != shape:
            _check(name, target, shape, dtypes.get(name, INT32), step, widest)
        flags = target.flags
        if not (flags.writeable and flags.c_contiguous):
            _refuse_array(name, target, len(shape), target.dtype, step)
    check_apart(found, step)
    return found


def fill(target: NDArray[Any], values: NDArray[Any], pad: int = 0) -> None:
    """Write ``values`` to the beginning of an array along each axis, and ``pad`` elsewhere."""
    if target.shape != values.shape:
        target[...] = pad
    target[tuple(slice(size) for size in values.shape)] = values


def _check(
    name: str,
    target: Any,
    shape: Shape,
    dtype: np.dtype[Any],
    step: Step,
    widest: Callable[[], int],
) -> None:
    """Refuse an array that is none, of another type, or too small."""
    fits = isinstance(target, np.ndarray) and target.dtype == dtype and target.ndim == len(shape)
    if not fits:
        _refuse_array(name, target, len(shape), dtype, step)
    for axis, need in enumerate(shape):
        if target.shape[axis] < need:
            why = f"out is too small in axis {axis}"
            if axis and axis == len(shape) - 1:
                why += f", {name_row(step, widest())} needs {need} columns"
            raise CapacityError(f"{name}.shape[{axis}]", need, target.shape[axis], why)


def _refuse_array(name: str, target: Any, axes: int, dtype: np.dtype[Any], step: Step) -> None:
    """Say what is wrong with an array: it is the step's own, or of the wrong kind."""
    if isinstance(target, np.ndarray):
        _check_step({name: target}, step)
    right = f"a writeable, contiguous {dtype} array of {axes} axes"
    raise LengthError(f"out.{name}", target, None, None, right)


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
    for name, array in targets.items():
        for other, beside in _arrays(step).items():
            if np.may_share_memory(array, beside):
                _refuse(name, f"step.{other}")


def _refuse(name: str, other: str) -> None:
    raise LengthError(f"out.{name}", f"in the memory of {other}", None, None, "each has its own")
