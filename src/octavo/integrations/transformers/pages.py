"""A plan's tensors as the drop-in reads and writes them: columns of a batch, and states.

Keys and values are rows of one matrix over the arena, so that a batch is gathered in one copy,
[B, heads, L, dim] and contiguous as transformers' own cache has it. Padding reads the null page,
which is zeros. Knows passes and tensors; no models and no prompts.
"""

from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.integrations.transformers.rows import Pass
from octavo.storage import Storage

Index = NDArray[np.int64]


class Component:
    """One component of one layer that keeps tokens, as rows of equal elements.

    A page need not begin at a multiple of ``dim`` elements, so a token is ``dim / unit`` rows.

    Args:
        view: [pages, heads, page_size, dim], or [pages, page_size, dim] for one head.
        group: whose pages they are.

    Attributes:
        tensor: the view.
        group: as given.
        heads, dim: of a token.
    """

    def __init__(self, view: torch.Tensor, group: str) -> None:
        shape = tuple(view.shape if view.ndim == 4 else view[:, None].shape)
        pages, size = shape[0], shape[2]
        self.heads, self.dim = shape[1], shape[3]
        self.tensor, self.group, self._page = view, group, view.stride(0)
        self._unit = gcd(self._page, self.dim)
        self._head = size * self.dim
        rows = ((pages - 1) * self._page + self.heads * self._head) // self._unit
        at = view.storage_offset()
        self._rows = view.as_strided((rows, self._unit), (self._unit, 1), at)
        self._key = (group, self._page, self.heads, size, self.dim)

    def write(self, now: Pass, new: torch.Tensor) -> None:
        """Put the tokens of a pass in their slots. O(T heads dim).

        Args:
            new: [B, heads, q, dim], padding included.
        """
        if now.step is None:
            return
        index = now.work.get(("write", self._key))
        if index is None:
            slots = now.step.group(self.group).slots.astype(np.int64)
            index = now.work["write", self._key] = self._index(slots[:, None])
        taken = now.work.get("taken")
        if taken is None:
            taken = now.work["taken"] = torch.from_numpy(now.taken).to(new.device)
        tokens = new.detach().transpose(1, 2).reshape(-1, self.heads, self.dim)
        tokens = tokens.index_select(0, taken)
        self._rows.index_copy_(0, index, tokens.reshape(-1, self._unit))

    def read(self, now: Pass, first: int) -> torch.Tensor:
        """The columns from ``first`` on, [B, heads, L - first, dim]. O(of what it returns)."""
        index = now.work.get(("read", self._key, first))
        if index is None:
            slots = columns(now, self.group, first)
            index = now.work["read", self._key, first] = self._index(slots)
        shape = (len(now.owner), self.heads, now.real.shape[1] - first, self.dim)
        return self._rows.index_select(0, index).view(shape)

    def _index(self, slots: Index) -> torch.Tensor:
        """Rows of ``slots`` [n, m], in the order [n, heads, m]."""
        size = self._head // self.dim
        pages, offsets = np.divmod(slots, size)
        first = (pages * self._page + offsets * self.dim) // self._unit
        heads = np.arange(self.heads) * (self._head // self._unit)
        rows = first[:, None, :, None] + heads[None, :, None, None]
        rows = rows + np.arange(self.dim // self._unit)
        return torch.from_numpy(rows.reshape(-1)).to(self._rows.device)


def columns(now: Pass, group: str, first: int) -> Index:
    """int64[B, L - first], the slot of each column from ``first`` on; 0 where it is padding."""
    if now.step is None:
        return np.zeros((len(now.owner), now.real.shape[1] - first), np.int64)
    table = now.step.group(group).table.astype(np.int64)
    real, positions = now.real[:, first:], now.positions[:, first:]
    real = real & (now.owner >= 0)[:, None]
    size = now.page_size
    page, offset = np.divmod(np.where(real, positions, 0), size)
    pages = table[now.owner[:, None], page]
    return np.where(real & (pages > 0), pages * size + offset, 0)


class StateTensors(NamedTuple):
    """The tensors of one layer's states; None where the layer has none.

    Attributes:
        group: whose pages they are.
        recurrent: [states, ...]. conv: [states, channels, kernel - 1].
        part: which page of a state they are in.
    """

    group: str
    recurrent: torch.Tensor | None
    conv: torch.Tensor | None
    part: int


class Pages:
    """All tensors of a storage by layer.

    Args:
        storage: of a head-major plan.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.tokens: dict[int, dict[str, Component]] = {}
        self.states: dict[int, StateTensors] = {}
        found: dict[tuple[int, str], dict[str, Any]] = {}
        for tensor in storage.plan.tensors:
            view = storage.tensor(tensor.layer, tensor.component, tensor.group)
            if tensor.component in ("recurrent", "conv"):
                state = found.setdefault((tensor.layer, tensor.group), {"part": tensor.part})
                state[tensor.component] = view
            else:
                layer = self.tokens.setdefault(tensor.layer, {})
                layer[tensor.component] = Component(view, tensor.group)
        for (at, group), state in found.items():
            tensors = state.get("recurrent"), state.get("conv")
            self.states[at] = StateTensors(group, *tensors, state["part"])
