"""Keys and values of one layer: written by slot, gathered by page, quantised where planned so."""

from typing import NamedTuple

import torch

from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.planner.components import Order, Scales
from octavo.storage.fields import ComponentField, WriteIndex
from octavo.storage.quantisation import decode, encode, find_scales


class LayerView(NamedTuple):
    """One layer's keys and values, strided views of the arena in the plan's order.

    Scales and ``kv_dtype`` are as `paged_attention` takes them.

    Attributes:
        key: [pages, page_size, kv_heads, k_dim] token-major, [pages, kv_heads, page_size, k_dim]
            head-major; of int4 the last axis is half as long.
        value: likewise with v_dim.
        key_scale: fp32, one a token and head: like ``key`` without its last axis; or one number for
            all; None: there are no scales.
        value_scale: likewise.
        kv_dtype: None: the views hold numbers as they are; else how they are quantised.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | float | None = None
    value_scale: torch.Tensor | float | None = None
    kv_dtype: str | None = None


class _Half:
    """Keys, or values."""

    def __init__(
        self,
        name: str,
        field: ComponentField,
        scale: ComponentField | None,
        order: Order,
        scales: Scales,
    ) -> None:
        self.name, self._field, self._scale, self._scales = name, field, scale, scales
        self.number: float | None = None  # the scale of all, where there is just one
        self._dtype = field.plan.dtype
        self._quantised = self._dtype.bits <= 8
        view, last = field.view, field.plan.shape[-1]
        self._shape = (view.shape[2 if order == "token" else 1], last)
        self._heads_at = 2 if order == "token" else 1

    def scale_view(self) -> torch.Tensor | float | None:
        """As a LayerView has it."""
        if self._scale is None:
            return self.number
        if self._scales == "head":
            return self._scale.view
        sizes = self._field.view.shape[:-1]
        return self._scale.view.unsqueeze(self._heads_at).expand(sizes)

    def check(self, new: torch.Tensor, tokens: int) -> None:
        """Whether ``new`` is [tokens, kv_heads, dim] of a type that is stored here. O(1)."""
        dtype, device = self._field.view.dtype, self._field.view.device
        check_floats(self.name, new, None if self._quantised else dtype, device)
        shape = (tokens, *self._shape)
        if new.shape != shape:
            check_shape(self.name, new, shape, "slots, kv_heads, dim")

    def encoded(self, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``new`` as it is stored, and its scales.

        Raises:
            PlanError: NaN or infinite, where quantised; or the number that scales all is not set.
        """
        if not self._quantised:
            return new, None
        if self._scale is None:
            find_scales(self.name, new, self._dtype)
            return encode(new, self._dtype, self._one_scale()), None
        axes = 1 if self._scales == "head" else 2
        scales = find_scales(self.name, new, self._dtype, axes)
        return encode(new, self._dtype, scales.view(*scales.shape, *[1] * axes)), scales

    def put(self, index: WriteIndex, stored: torch.Tensor, scales: torch.Tensor | None) -> None:
        """Write what `encoded` made."""
        self._field.put(index, stored)
        if self._scale is not None and scales is not None:
            self._scale.put(index, scales)

    def take(self, pages: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Positions of these pages, [stop - start, kv_heads, dim]; fp32 where quantised."""
        stored = self._field.take(pages)[start:stop]
        if not self._quantised:
            return stored
        if self._scale is None:
            return decode(stored, self._dtype, self._one_scale())
        scales = self._scale.take(pages)[start:stop]
        return decode(stored, self._dtype, scales.view(stop - start, -1, 1))

    def _one_scale(self) -> float:
        if self.number is None and self._scales == "tensor":
            raise PlanError(f"{self.name}_scale", None, "Storage.set_scales must give it first")
        return 1.0 if self.number is None else self.number


class KeyValues:
    """Keys and values of one layer in one group.

    Args:
        fields: its fields by component.
        order: the plan's.
        scales: the plan's.
    """

    def __init__(self, fields: dict[str, ComponentField], order: Order, scales: Scales) -> None:
        halves = (
            _Half(name, fields[name], fields.get(f"{name}_scale"), order, scales)
            for name in ("key", "value")
        )
        self._key, self._value = halves
        self._views = fields["key"].view, fields["value"].view
        dtype = fields["key"].plan.dtype
        self._kv_dtype = dtype.name if dtype.bits <= 8 else None
        self.scales = scales

    @property
    def view(self) -> LayerView:
        """Views of the arena. O(1)."""
        scales = self._key.scale_view(), self._value.scale_view()
        return LayerView(*self._views, *scales, self._kv_dtype)

    def set_scales(self, key: float, value: float) -> None:
        """See `Storage.set_scales`."""
        self._key.number, self._value.number = key, value

    @property
    def given_scales(self) -> tuple[float, float] | None:
        """What `set_scales` was given."""
        if self._key.number is None or self._value.number is None:
            return None
        return self._key.number, self._value.number

    def write(self, key: torch.Tensor, value: torch.Tensor, index: WriteIndex) -> None:
        """See `Storage.write`."""
        self._key.check(key, index.tokens)
        self._value.check(value, index.tokens)
        keys = self._key.encoded(index.select(key))
        values = self._value.encoded(index.select(value))
        self._key.put(index, *keys)
        self._value.put(index, *values)

    def gather(
        self, pages: torch.Tensor, start: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Storage.gather`."""
        return self._key.take(pages, start, stop), self._value.take(pages, start, stop)


def check_floats(
    name: str, new: object, dtype: torch.dtype | None, device: torch.device
) -> torch.Tensor:
    """Whether ``new`` is a tensor of this type, or of any float type, on this device. O(1).

    Raises:
        PlanError: it is not.
    """
    if not isinstance(new, torch.Tensor):
        found = str(getattr(new, "dtype", type(new).__name__))
        raise PlanError(f"dtype of {name}", found, "a torch tensor is stored")
    if dtype is None and not (new.is_floating_point() and new.itemsize > 1):
        raise PlanError(f"dtype of {name}", str(new.dtype), "floats of 16 bits or more are stored")
    if dtype not in (None, new.dtype):
        raise PlanError(f"dtype of {name}", str(new.dtype), f"the plan's is {dtype}")
    if new.device != device:
        raise PlanError(f"device of {name}", str(new.device), f"the storage is on {device}")
    return new


def check_shape(name: str, new: torch.Tensor, shape: tuple[int, ...], why: str) -> None:
    """Whether ``new`` has this shape. O(axes).

    Raises:
        LengthError: the first axis that differs.
    """
    check_int(f"axes of {name}", new.ndim, len(shape), len(shape), why)
    for axis, (has, wanted) in enumerate(zip(new.shape, shape, strict=True)):
        check_int(f"axis {axis} of {name}", has, wanted, wanted, why)
