"""Whether a caller's arrays have memory of their own."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Step
from octavo.errors import LengthError

Arrays = dict[str, NDArray[Any]]


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
    read: list[NDArray[Any]] = [step.counts, step.input_ids, step.positions, step.query_start]
    read += [step.past, step.context, step.last, step.wants_token]
    for view in step.groups.values():
        read.extend(view)
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


def _check_step(targets: Arrays, step: Step) -> None:
    read = {name: getattr(step, name) for name in ("counts", "input_ids", "positions", "last")}
    read |= {
        name: getattr(step, name) for name in ("query_start", "past", "context", "wants_token")
    }
    for group, view in step.groups.items():
        read |= {f"{group}.{name}": array for name, array in view._asdict().items()}
    for name, array in targets.items():
        for other, beside in read.items():
            if np.may_share_memory(array, beside):
                _refuse(name, f"step.{other}")


def _refuse(name: str, other: str) -> None:
    raise LengthError(f"out.{name}", f"in the memory of {other}", None, None, "each has its own")
