"""The layers of one model in a storage: which fields each has, and how tokens and states get there.

Knows kinds of components. Knows no whole pages, no files and no sequences.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from octavo.arrays import NDArray
from octavo.checks import check_choice, check_int, check_positive
from octavo.errors import LengthError, PlanError, uncopied
from octavo.planner.layouts import TensorPlan
from octavo.planner.plan import Plan
from octavo.storage.addresses import DeviceIndex, Ints, PageIndex
from octavo.storage.fields import ComponentField, WriteIndex
from octavo.storage.keyvalues import KeyValues, LatentRows, LayerView
from octavo.storage.numbers import check_floats, check_shape

Slots = WriteIndex | Ints


class LayerStore:
    """The layers of one model: views, writes by slot and gathers by page.

    Made by `Storage`: one of the model, and `Storage.draft` of its draft model.

    Attributes:
        plan: as `Storage` was given it; of a draft model with its layers.
        dtype: element type of keys and values.
        device: where the arena is.
        addresses: checks page ids and slots, and brings them to the device.
        fields: by (layer, group, component), the views that are moved as they are.
        own: by layer, its keys and values as `layer` has them, as they are stored.
    """

    __reduce__ = uncopied(
        "it is the memory of one cache's pages; save_prefix and save_pages write them to files"
    )

    def __init__(
        self,
        plan: Plan,
        tensors: Iterable[TensorPlan],
        addresses: DeviceIndex,
        arena: torch.Tensor,
    ) -> None:
        self.plan, self.device, self.addresses = plan, arena.device, addresses
        self.fields = {
            (t.layer, t.group, t.component): ComponentField(arena, t, plan.order) for t in tensors
        }
        by_layer: dict[tuple[int, str], dict[str, ComponentField]] = {}
        for (layer, group, component), field in self.fields.items():
            by_layer.setdefault((layer, group), {})[component] = field
        assert plan.elements is not None
        self.dtype: torch.dtype = getattr(torch, plan.elements.kv.torch_name)
        self._keyvalues = {
            place: KeyValues(fields, plan.order, plan.elements.scales)
            for place, fields in by_layer.items()
            if "key" in fields
        }
        self._rows: dict[tuple[str, int], LatentRows] = {
            (name, layer): LatentRows(name, fields)
            for (layer, _), fields in by_layer.items()
            for name in ("latent", "indexer")
            if name in fields
        }
        self._own = {layer: group for layer, group in self._keyvalues if group != "cross"}
        self.own = {place[0]: self._keyvalues[place].tensors for place in self._own.items()}
        self._last = max((layer for layer, _ in self._keyvalues), default=0)

    # -- looking -------------------------------------------------------------------------------

    def layer(self, layer: int, group: str | None = None) -> LayerView:
        """Views of one layer's keys and values; writing to them writes to the arena. O(1).

        Args:
            layer: index in the model.
            group: ``cross`` for what a layer keeps of another input; None: its own keys and values.

        Raises:
            LengthError: the plan has no such layer.
        """
        return self._attention(layer, group).view

    def tensor(self, layer: int, component: str, group: str | None = None) -> torch.Tensor:
        """The view of one component of a layer over all pages, as `TensorPlan` has it. O(layers).

        Args:
            layer: index in the model.
            component: key, value, latent, rope, indexer, recurrent, conv, or a ``_scale`` of them.
            group: for a layer that is in several groups; None: the first that has it.

        Raises:
            LengthError: there is none.
        """
        return self._field(layer, component, group).view

    # -- addresses -----------------------------------------------------------------------------

    def index(self, slots: NDArray[np.integer[Any]], group: str | None = None) -> WriteIndex:
        """``slots`` ready for `write`: one per new token, -1 where nothing is written.

        Args:
            slots: int[T], as in a step's group; where rows stand for several tokens, one per row:
                the slot of any of its tokens divided by how many they are.
            group: what the slots belong to; None: the first token group.

        Raises:
            PlanError: no array of integers, or a slot that two tokens are written to.
            LengthError: a slot of the null page, or beyond the pages; or several axes.
            UnknownGroup: no such group.

        Cost: O(len(slots)), and to sort them: once per step, and then no layer looks again.
        """
        return self.addresses.slots(slots, group)

    def page_index(self, pages: NDArray[np.integer[Any]], group: str | None = None) -> PageIndex:
        """``pages`` ready for reading and writing, made once per step for all layers.

        Args:
            pages: page ids; of states [n, parts] as in a step's StateView.
            group: what the pages belong to; None: the first token group.

        Raises:
            PlanError: no array of integers. LengthError: beyond the group's pages.
            UnknownGroup: no such group.

        Pages of which one is the null page, or stands twice, can be read and not written: verbs
        that write refuse them.

        Cost: O(len(pages)), and to sort them.
        """
        return self.addresses.pages(pages, group)

    # -- keys and values -----------------------------------------------------------------------

    def write(
        self,
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
        slots: Slots,
        group: str | None = None,
    ) -> None:
        """Put new keys and values of one layer in their slots.

        Where the plan quantises, each row gets scales of its own, so that what was written before
        stays as it is, byte for byte.

        Args:
            layer: index in the model.
            key: [T, kv_heads, k_dim] in the plan's dtype; where that is quantised, any floats.
            value: [T, kv_heads, v_dim].
            slots: int[T], -1: skip; or a WriteIndex made of them once for all layers.
            group: ``cross`` for the keys and values of another input; None: the layer's own.

        Raises:
            LengthError: no such layer, a slot out of range, or keys or values of another shape.
            PlanError: keys or values of another dtype or device, quantised ones that are NaN or
                infinite, or a slot that two tokens are written to. Nothing has been written then.

        Cost: O(T * kv_heads * (k_dim + v_dim)), whatever the size of the pool, and `index` where
        slots are given as they are.
        """
        place = self._place(layer, group)
        index = slots if isinstance(slots, WriteIndex) else self.index(slots, place[1])
        self._keyvalues[place].write(key, value, index)

    def gather(
        self,
        layer: int,
        pages: Ints | PageIndex,
        start: int = 0,
        stop: int | None = None,
        group: str | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the positions ``start..stop-1`` of a row of pages, as dense copies.

        Args:
            layer: index in the model.
            pages: int[k], a sequence's row of the page table, or any pages; the null page reads as
                zeros.
            start: first position, counted from the first of ``pages``.
            stop: position behind the last; None: to the end of ``pages``.
            group: as in `write`.

        Returns:
            [stop - start, kv_heads, k_dim] and [stop - start, kv_heads, v_dim], in the plan's dtype
            or, where that is quantised, fp32.

        Raises:
            LengthError: no such layer, pages out of range, or positions beyond them.

        Cost: O(pages from ``start`` to ``stop``).
        """
        place = self._place(layer, group)
        return self._keyvalues[place].gather(*self._span(pages, start, stop, place[1]))

    def set_scales(self, layer: int, key: float, value: float, group: str | None = None) -> None:
        """Give the one scale of a layer's keys and of its values, for plans of ``scales="tensor"``.

        Raises:
            PlanError: another kind of plan, a scale that is no finite number above 0, or scales
                were given before: what is written would be read with others.
            LengthError: no such layer.
        """
        keyvalues = self._attention(layer, group)
        if keyvalues.scales != "tensor":
            right = "only a plan of scales='tensor' has scales that are given"
            raise PlanError("scales", keyvalues.scales, right)
        if keyvalues.given_scales is not None:
            raise PlanError("scales", (key, value), "this layer has its scales already")
        keyvalues.set_scales(check_positive("key_scale", key), check_positive("value_scale", value))

    def given_scales(self) -> list[tuple[int, str, float, float]]:
        """(layer, group, of keys, of values) of what `set_scales` was given. O(layers)."""
        return [
            (*place, *given)
            for place, each in self._keyvalues.items()
            if (given := each.given_scales)
        ]

    # -- latents -------------------------------------------------------------------------------

    def write_latent(self, layer: int, latent: torch.Tensor, slots: Slots) -> None:
        """Put latent rows of one layer in their slots.

        Args:
            layer: index in the model.
            latent: [T, rank + rope] in the plan's dtype; where that is quantised, any floats.
            slots: as in `write`.

        Raises and costs as `write`.
        """
        self._write_rows("latent", layer, latent, slots)

    def write_indexer(self, layer: int, key: torch.Tensor, slots: Slots) -> None:
        """Put the keys of a layer's indexer, [T, indexer] of any floats, in their slots.

        Raises and costs as `write`.
        """
        self._write_rows("indexer", layer, key, slots)

    def gather_latent(
        self, layer: int, pages: Ints | PageIndex, start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Latent rows [stop - start, rank + rope] of positions, as `gather` does it."""
        return self._gather_rows("latent", layer, pages, start, stop)

    def gather_indexer(
        self, layer: int, pages: Ints | PageIndex, start: int = 0, stop: int | None = None
    ) -> torch.Tensor:
        """Keys of a layer's indexer, fp32 [stop - start, indexer], as `gather` does it."""
        return self._gather_rows("indexer", layer, pages, start, stop)

    # -- states --------------------------------------------------------------------------------

    def write_states(
        self, layer: int, component: str, states: torch.Tensor, pages: Ints | PageIndex
    ) -> None:
        """Put one tensor of the states of n rows in their pages.

        Args:
            layer: index in the model.
            component: ``recurrent`` or ``conv``.
            states: [n, *shape] in the plan's dtype for it.
            pages: int[n, parts], such as ``table[:, 0]`` of a step's StateView, for the rows that
                ran.

        Raises:
            LengthError: no such layer or component, pages out of range, or another shape.
            PlanError: another dtype or device, or a page twice. Nothing has been written then.

        Cost: O(bytes of the states).
        """
        field = self._field(layer, component, None)
        index = self.addresses.written(pages, field.plan.group)
        column = self._column(field, index)
        check_floats(component, states, field.view.dtype, self.device)
        shape = (len(column), *field.view.shape[1:])
        check_shape(component, states, shape, "rows, then the tensor's own")
        field.put_pages(column, states)

    def read_states(
        self,
        layer: int,
        component: str,
        pages: Ints | PageIndex,
        has_state: NDArray[np.bool_] | None = None,
    ) -> torch.Tensor:
        """One tensor of the states of n rows, [n, *shape], copied.

        Args:
            layer: index in the model.
            component: ``recurrent`` or ``conv``.
            pages: int[n, parts], such as ``source`` of a step's StateView.
            has_state: bool[n]: rows without one start from zeros; None: all have one.

        Raises:
            LengthError: no such layer or component, or pages out of range.

        Cost: O(bytes of the states).
        """
        field = self._field(layer, component, None)
        index = self._pages(pages, field.plan.group)
        found = field.take_pages(self._column(field, index))
        if has_state is not None and not has_state.all():
            found[self.addresses.tensor(~has_state)] = 0
        return found

    # ------------------------------------------------------------------------------------------

    def _field(self, layer: int, component: str, group: str | None) -> ComponentField:
        layer = check_int("layer", layer, 0)
        check_choice("component", component, sorted({name for _, _, name in self.fields}))
        wanted = None if group is None else self.addresses.group(group).name
        for (at, owner, name), field in self.fields.items():
            if (at, name) == (layer, component) and wanted in (None, owner):
                return field
        where = "" if wanted is None else f"group {wanted} of "
        raise LengthError("layer", layer, None, None, f"it has no {component} in {where}the plan")

    def _place(self, layer: int, group: str | None) -> tuple[int, str]:
        layer = check_int("layer", layer, 0, self._last, "of the plan")
        own = self._own.get(layer, "") if group is None else self.addresses.group(group).name
        if (layer, own) not in self._keyvalues:
            where = "the plan" if group is None else f"group {own} of the plan"
            right = f"it keeps no keys and values in {where}"
            raise LengthError("layer", layer, None, None, right)
        return layer, own

    def _attention(self, layer: int, group: str | None) -> KeyValues:
        return self._keyvalues[self._place(layer, group)]

    def _latent(self, name: str, layer: int) -> LatentRows:
        if (name, layer) not in self._rows:
            raise LengthError("layer", layer, None, None, f"it has no {name} in the plan")
        return self._rows[name, layer]

    def _write_rows(self, name: str, layer: int, new: torch.Tensor, slots: Slots) -> None:
        rows = self._latent(name, layer)
        rows.write(new, slots if isinstance(slots, WriteIndex) else self.index(slots, rows.group))

    def _gather_rows(
        self, name: str, layer: int, pages: Ints | PageIndex, start: int, stop: int | None
    ) -> torch.Tensor:
        rows = self._latent(name, layer)
        return rows.gather(*self._span(pages, start, stop, rows.group))

    def _pages(self, pages: Ints | PageIndex, group: str) -> PageIndex:
        return pages if isinstance(pages, PageIndex) else self.page_index(pages, group)

    def _span(
        self, pages: Ints | PageIndex, start: int, stop: int | None, group: str
    ) -> tuple[torch.Tensor, int, int]:
        """The pages that hold these positions, and the positions counted from their first."""
        held = self._pages(pages, group).pages
        check_int("axes of pages", held.ndim, 1, 1)
        size = self.plan.groups[group].lifetime.units(self.plan.page_size)
        most = len(held) * size
        stop = most if stop is None else check_int("stop", stop, 0, most, "what the pages hold")
        first = check_int("start", start, 0, stop) // size
        return held[first : -(-stop // size)], start - first * size, stop - first * size

    @staticmethod
    def _column(field: ComponentField, index: PageIndex) -> torch.Tensor:
        """The pages that hold this layer's part of the states."""
        check_int("axes of pages", index.pages.ndim, 2, 2, "[n, parts]")
        return index.pages[:, field.plan.part]
