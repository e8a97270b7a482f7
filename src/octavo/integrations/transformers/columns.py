"""The columns of a batch, gathered from pages as transformers' own cache has them.

Keys and values are rows of one matrix over the arena, so that a batch is gathered in one copy,
[B, heads, L, dim] and contiguous. Padding reads the null page, which is zeros. Knows passes and
tensors; no models and no prompts.
"""

from math import gcd

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import uncopied
from octavo.integrations.transformers.passes import ModelPass

Index = NDArray[np.int64]


class ColumnReader:
    """One component of one layer that keeps tokens, read by column.

    A page need not begin at a multiple of ``dim`` elements, so a token is ``dim / unit`` rows.

    Args:
        view: [pages, heads, page_size, dim] of either order: heads and tokens may lie either way.
        group: what its pages belong to.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, view: torch.Tensor, group: str) -> None:
        pages, self._heads, self._size, self._dim = view.shape
        self._group = group
        self._page, self._head, self._token, _ = view.stride()
        self._unit = gcd(self._page, self._dim)
        rows = ((pages - 1) * self._page + self._heads * self._size * self._dim) // self._unit
        at = view.storage_offset()
        self._rows = view.as_strided((rows, self._unit), (self._unit, 1), at)

    @property
    def device(self) -> torch.device:
        """Where its columns are."""
        return self._rows.device

    def read(self, now: ModelPass, first: int) -> torch.Tensor:
        """The columns from ``first`` on, [B, heads, L - first, dim]. O(of what it returns)."""
        key = (self._group, self._page, self._heads, self._token, self._size, self._dim, first)
        if key not in now.indices:  # layers of one shape share it
            now.indices[key] = self._index(slots(now, self._group, self._size, first))
        shape = (len(now.owner), self._heads, now.real.shape[1] - first, self._dim)
        return self._rows.index_select(0, now.indices[key]).view(shape)

    def _index(self, slots: Index) -> torch.Tensor:
        """Rows of ``slots`` [n, m], in the order [n, heads, m]."""
        pages, offsets = np.divmod(slots, self._size)
        first = (pages * self._page + offsets * self._token) // self._unit
        heads = np.arange(self._heads) * (self._head // self._unit)
        rows = first[:, None, :, None] + heads[None, :, None, None]
        rows = rows + np.arange(self._dim // self._unit)
        return torch.from_numpy(rows.reshape(-1)).to(self._rows.device)


def slots(now: ModelPass, group: str, page_size: int, first: int) -> Index:
    """int64[B, L - first], the slot of each column from ``first`` on; 0 where it is padding."""
    if now.step is None:
        return np.zeros((len(now.owner), now.real.shape[1] - first), np.int64)
    table = now.step.group(group).table.astype(np.int64)
    real, positions = now.real[:, first:], now.positions[:, first:]
    real = real & (now.owner >= 0)[:, None]
    page, offset = np.divmod(np.where(real, positions, 0), page_size)
    pages = table[now.owner[:, None], page]
    return np.where(real & (pages > 0), pages * page_size + offset, 0)
