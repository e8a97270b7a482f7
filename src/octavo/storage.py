"""The tensors of a plan on a device: one arena of exactly the planned bytes, and writes by slot.

Knows bytes and strides. Does not know which slots are in use, whose they are or what they mean.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import LengthError, PlanError
from octavo.layouts import TensorPlan
from octavo.planning import Plan
from octavo.spec import check_int


class LayerView(NamedTuple):
    """One layer's keys and values, strided views of the arena in the plan's order.

    Attributes:
        key: [pages, page_size, kv_heads, k_dim] token-major, [pages, kv_heads, page_size, k_dim]
            head-major.
        value: likewise with v_dim.
    """

    key: torch.Tensor
    value: torch.Tensor


class WriteIndex(NamedTuple):
    """Slots as pages and offsets on the device; made once a step by `Storage.index`.

    Attributes:
        pages: int64[m], page of each slot written.
        offsets: int64[m], its offset in the page.
        rows: int64[m], which rows of the new keys and values are written; None: all.
        tokens: rows of the new keys and values, those that are skipped included.
    """

    pages: torch.Tensor
    offsets: torch.Tensor
    rows: torch.Tensor | None
    tokens: int


def _zeros(count: int, device: torch.device) -> torch.Tensor:
    """uint8[count] of zeros; on a CPU the system provides them page by page on first use."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(count, np.uint8))
    return torch.zeros(count, dtype=torch.uint8, device=device)


class Storage:
    """Keys and values of every page of a plan, zeroed.

    Args:
        plan: from `octavo.plan`.
        device: a torch device.

    Attributes:
        plan: as given.
        device: as a torch.device.
        arena: uint8[plan.arena_bytes], all there is.

    Raises:
        PlanError: the plan has page numbers only and no bytes.
    """

    def __init__(self, plan: Plan, device: torch.device | str = "cpu") -> None:
        if not isinstance(plan, Plan) or plan.dtype is None or not plan.tensors:
            raise PlanError("plan", plan, "it must come from octavo.plan, which knows bytes")
        self.plan = plan
        self.device = torch.device(device)
        self.arena = _zeros(plan.arena_bytes, self.device)
        self._dtype: torch.dtype = getattr(torch, plan.dtype.torch_name)
        self._views = {
            (t.layer, t.group, t.component): self._view(t) for t in plan.tensors if not t.draft
        }
        self._drafts = {
            (t.layer, t.group, t.component): self._view(t) for t in plan.tensors if t.draft
        }
        self._layers = {
            layer: LayerView(view, self._views[layer, group, "value"])
            for (layer, group, component), view in self._views.items()
            if component == "key" and group != "cross"
        }

    @property
    def nbytes(self) -> int:
        """Bytes allocated: the planned ones."""
        return self.arena.nbytes

    @property
    def dtype(self) -> torch.dtype:
        """Element type of keys and values."""
        return self._dtype

    def layer(self, layer: int) -> LayerView:
        """Views of one layer's keys and values; writing to them writes to the arena. O(1).

        Raises:
            LengthError: the plan has no such layer.
        """
        check_int("layer", layer, 0, max(self._layers, default=0), "of the plan")
        if layer not in self._layers:
            raise LengthError("layer", layer, None, None, "it keeps no keys and values in the plan")
        return self._layers[layer]

    def tensor(
        self, layer: int, component: str, group: str | None = None, *, draft: bool = False
    ) -> torch.Tensor:
        """The view of one component of a layer over all pages, as `TensorPlan` has it. O(layers).

        Args:
            group: for a layer that is in several groups; None: the first that has it.
            draft: whether a layer of the draft model is meant.

        Raises:
            LengthError: there is none.
        """
        for (at, owner, name), view in (self._drafts if draft else self._views).items():
            if (at, name) == (layer, component) and group in (None, owner):
                return view
        raise LengthError("layer", layer, None, None, f"it has no {component} in the plan")

    def index(self, slots: NDArray[np.integer[Any]], group: str | None = None) -> WriteIndex:
        """``slots`` ready for `write`: one a new token, -1 where nothing is written.

        Args:
            group: whose slots they are; None: the first token group's.

        Raises:
            PlanError: no array of integers.
            LengthError: a slot of the null page, or beyond the pages; or several axes.

        Cost: O(len(slots)).
        """
        if not isinstance(slots, np.ndarray) or slots.dtype.kind not in "iu":
            raise PlanError("slots", slots, "they must be a NumPy array of ints, one a token")
        check_int("axes of slots", slots.ndim, 1, 1)
        size = self.plan.page_size
        kept = np.flatnonzero(slots >= 0)
        used = slots if kept.size == slots.size else slots[kept]
        self._check(slots, used, group)
        pages, offsets = np.divmod(used.astype(np.int64), size)
        rows = None if kept.size == slots.size else self._tensor(kept)
        return WriteIndex(self._tensor(pages), self._tensor(offsets), rows, slots.size)

    def write(
        self,
        layer: int,
        key: torch.Tensor,
        value: torch.Tensor,
        slots: WriteIndex | NDArray[np.integer[Any]],
    ) -> None:
        """Put new keys and values of one layer in their slots.

        Args:
            layer: index in the model.
            key: [T, kv_heads, k_dim] in the plan's dtype.
            value: [T, kv_heads, v_dim].
            slots: int[T], -1: skip; or a WriteIndex made of them once for all layers.

        Raises:
            LengthError: no such layer, a slot out of range, or keys or values of another shape.
            PlanError: keys or values of another dtype. Nothing has been written then.

        Cost: O(T * kv_heads * (k_dim + v_dim)), whatever the size of the pool.
        """
        view = self.layer(layer)
        index = slots if isinstance(slots, WriteIndex) else self.index(slots)
        self._check_new("key", key, view.key, index.tokens)
        self._check_new("value", value, view.value, index.tokens)
        if index.rows is not None:
            key, value = key[index.rows], value[index.rows]
        if self.plan.order == "token":
            view.key[index.pages, index.offsets] = key
            view.value[index.pages, index.offsets] = value
        else:
            view.key[index.pages, :, index.offsets] = key
            view.value[index.pages, :, index.offsets] = value

    def _view(self, tensor: TensorPlan) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, tensor.dtype.torch_name)
        *inner, last = tensor.shape[1:]
        inner.append(last * tensor.dtype.bits // (8 * dtype.itemsize))
        strides = [1]
        for size in inner[:0:-1]:
            strides.insert(0, strides[0] * size)
        page = tensor.page_stride // dtype.itemsize
        shape = (tensor.shape[0], *inner)
        return self.arena.view(dtype).as_strided(
            shape, (page, *strides), tensor.offset // dtype.itemsize
        )

    def _check_new(self, name: str, new: torch.Tensor, view: torch.Tensor, tokens: int) -> None:
        """Whether ``new`` is [tokens, kv_heads, dim] as the layer's ``view`` stores it. O(1)."""
        if not isinstance(new, torch.Tensor) or new.dtype != self._dtype:
            found = getattr(new, "dtype", type(new).__name__)
            raise PlanError(f"dtype of {name}", str(found), f"the plan's is {self._dtype}")
        heads = view.shape[2 if self.plan.order == "token" else 1]
        shape = (tokens, heads, view.shape[3])
        check_int(f"axes of {name}", new.ndim, 3, 3, "[T, kv_heads, dim]")
        for axis, (has, wanted) in enumerate(zip(new.shape, shape, strict=True)):
            check_int(f"axis {axis} of {name}", has, wanted, wanted, "slots, kv_heads, dim")

    def _check(self, slots: NDArray[Any], used: NDArray[Any], group: str | None) -> None:
        name = next(iter(self.plan.groups)) if group is None else group
        low, high = self.plan.page_size, self.plan.ids(name) * self.plan.page_size - 1
        if used.size and (int(used.min()) < low or int(used.max()) > high):
            wrong = used[(used < low) | (used > high)][0]
            raise LengthError("slot", int(wrong), low, high, "the null page is never written")
        if slots.size and int(slots.min()) < -1:
            raise LengthError("slot", int(slots.min()), -1, high, "-1 skips the write")

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)
