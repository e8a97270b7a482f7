"""What a layer keeps of each token: keys and values, latent rows, an indexer's keys.

Written by slot, gathered by page, quantised where planned so. Knows one layer in one group.
"""

from typing import NamedTuple

import torch

from octavo.errors import PlanError, uncopied
from octavo.planner.components import LATENT_TILE, Order, Scales
from octavo.storage.fields import ComponentField, WriteIndex
from octavo.storage.numbers import (
    check_floats,
    check_shape,
    decode,
    decode_tiles,
    encode,
    encode_tiles,
    find_scales,
)

Parts = list[tuple[ComponentField, torch.Tensor]]


class LayerView(NamedTuple):
    """One layer's keys and values, strided views of the arena in the plan's order.

    Scales and ``kv_dtype`` are as `paged_attention` takes them.

    Attributes:
        key: [pages, page_size, kv_heads, k_dim] token-major, [pages, kv_heads, page_size, k_dim]
            head-major; of int4 the last axis is half as long.
        value: likewise with v_dim.
        key_scale: fp32, one per token and head: ``key`` without its last axis; or one number for
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

    Attributes:
        tensors: its keys and its values over all pages, views of the arena.
    """

    __reduce__ = uncopied("it is a view of one storage")

    def __init__(self, fields: dict[str, ComponentField], order: Order, scales: Scales) -> None:
        halves = (
            _Half(name, fields[name], fields.get(f"{name}_scale"), order, scales)
            for name in ("key", "value")
        )
        self._key, self._value = halves
        self.tensors = fields["key"].view, fields["value"].view
        dtype = fields["key"].plan.dtype
        self._kv_dtype = dtype.name if dtype.bits <= 8 else None
        self.scales = scales

    @property
    def view(self) -> LayerView:
        """Views of the arena. O(1)."""
        scales = self._key.scale_view(), self._value.scale_view()
        return LayerView(*self.tensors, *scales, self._kv_dtype)

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


class LatentRows:
    """One row per token: a latent with its position part, or an indexer's key.

    In 8 bits each `octavo.planner.components.LATENT_TILE` elements have a scale; the position part
    is kept in bf16.

    Args:
        name: ``latent`` or ``indexer``.
        fields: the layer's fields by component.
    """

    __reduce__ = uncopied("it is a view of one storage")

    def __init__(self, name: str, fields: dict[str, ComponentField]) -> None:
        self._name, self._field = name, fields[name]
        self._scale = fields.get(f"{name}_scale")
        self._rope = fields.get("rope") if name == "latent" else None
        self._dtype, self.group = self._field.plan.dtype, self._field.plan.group
        self._own = self._field.view.shape[-1]
        self.width = self._own + (0 if self._rope is None else self._rope.view.shape[-1])

    def check(self, new: torch.Tensor, tokens: int) -> None:
        """Whether ``new`` is [tokens, width] of a type that is stored here. O(1)."""
        view = self._field.view
        check_floats(self._name, new, view.dtype if self._scale is None else None, view.device)
        check_shape(self._name, new, (tokens, self.width), "slots, width")

    def write(self, new: torch.Tensor, index: WriteIndex) -> None:
        """See `Storage.write_latent`."""
        self.check(new, index.tokens)
        for field, rows in self._encoded(index.select(new)):
            field.put(index, rows)

    def _encoded(self, new: torch.Tensor) -> Parts:
        if self._scale is None:
            return [(self._field, new)]
        own = new[:, : self._own]
        stored, scales = encode_tiles(self._name, own, self._dtype, LATENT_TILE)
        found = [(self._field, stored), (self._scale, scales)]
        if self._rope is not None:
            found.append((self._rope, new[:, self._own :].to(self._rope.view.dtype)))
        return found

    def gather(self, pages: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """See `Storage.gather_latent`."""
        stored = self._field.take(pages)[start:stop]
        if self._scale is None:
            return stored
        scales = self._scale.take(pages)[start:stop]
        found = decode_tiles(stored, self._dtype, scales, LATENT_TILE)
        if self._rope is None:
            return found
        return torch.cat((found, self._rope.take(pages)[start:stop].float()), -1)
