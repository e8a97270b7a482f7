"""Padded arrays: fresh ones, or a caller's buffers of which no entry keeps what it held."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Step
from octavo.errors import CapacityError, LengthError
from octavo.index.overlaps import check_apart
from octavo.index.steps import name_row

T = TypeVar("T")


class Field(NamedTuple):
    """One array to hand out.

    Attributes:
        values: what it holds at its beginning.
        shape: its least shape; of a fresh array the shape.
        pad: what every other entry holds.
        fresh: whether ``values`` was made for this emission and may be handed out itself.
        columns: of a table, the columns each row needs.
    """

    values: NDArray[Any]
    shape: tuple[int, ...]
    pad: int
    fresh: bool = False
    columns: NDArray[Any] | None = None


def deliver(
    kind: type[T],
    fields: Mapping[str, Field],
    out: T | None,
    numbers: Mapping[str, int],
    step: Step,
) -> T:
    """A ``kind`` of the arrays ``fields`` and of ``numbers``, in ``out``'s arrays where given.

    Raises:
        LengthError: ``out`` is none of ``kind``, or an array of it has another element type or
            other axes, is read-only or not contiguous, or shares memory with another of them or
            with the step; nothing was written.
        CapacityError: an array of ``out`` is too small; nothing was written.

    Cost: O(entries of the arrays).
    """
    if out is None:
        arrays = {name: _made(field) for name, field in fields.items()}
        return cast("Callable[..., T]", kind)(**arrays, **numbers)
    if not isinstance(out, kind):
        raise LengthError("out", out, None, None, f"a {kind.__name__} emitted before")
    targets = {name: _checked(name, f, getattr(out, name), step) for name, f in fields.items()}
    check_apart(targets, step)
    for name, field in fields.items():
        _fill(targets[name], field)
    return cast("Callable[..., T]", kind)(**targets, **numbers)


def _made(field: Field) -> NDArray[Any]:
    values = field.values
    if values.shape == field.shape:
        return values if field.fresh and values.flags.c_contiguous else values.copy()
    made = np.empty(field.shape, values.dtype)
    _fill(made, field)
    return made


def _checked(name: str, field: Field, target: Any, step: Step) -> NDArray[Any]:
    dtype, axes = field.values.dtype, len(field.shape)
    fits = isinstance(target, np.ndarray) and target.dtype == dtype and target.ndim == axes
    if not fits or not target.flags.writeable or not target.flags.c_contiguous:
        right = f"a writeable, contiguous {dtype} array of {axes} axes"
        raise LengthError(f"out.{name}", target, None, None, right)
    for axis, need in enumerate(field.shape):
        if target.shape[axis] < need:
            why = f"out is too small in axis {axis}"
            if axis and field.columns is not None:
                why += f", {name_row(step, int(field.columns.argmax()))} needs {need} columns"
            raise CapacityError(f"{name}.shape[{axis}]", need, target.shape[axis], why)
    return cast("NDArray[Any]", target)


def _fill(target: NDArray[Any], field: Field) -> None:
    values = field.values
    if target.shape == values.shape:
        target[...] = values
        return
    target[...] = field.pad
    target[tuple(slice(size) for size in values.shape)] = values
