"""A layer's keys or values as torch stores them, gathered tile by tile as numbers.

Hides the order of pages, their strides, the element type and its scales. Reads the pages of a tile
and hands out the slots its queries may see and no others.
"""

from typing import Any

import torch

from octavo.attention.kernels.tiles import Tile
from octavo.errors import PlanError, uncopied


class PageSource:
    """One component of a layer.

    Args:
        name: what the tensor is called in errors.
        cache: [pages, page_size, kv_heads, dim] for ``order`` token, [pages, kv_heads, page_size,
            dim] for head, [pages, page_size, dim] for both where all heads share one row.
        dim: elements of a row.
        scale: what a stored element is multiplied by: a number, [kv_heads], [kv_heads, dim], or one
            a row, shaped like ``cache`` without its last axis; None: 1.
        order: ``token`` or ``head``.
        like: a tensor of the device and of the dtype to compute in.
        kv_dtype: int8, fp8 or int4; None: ``cache`` holds numbers of that dtype.

    Raises:
        PlanError: a scale that is not above 0.
    """

    __reduce__ = uncopied("it is a view of one layer")

    def __init__(
        self,
        name: str,
        cache: torch.Tensor,
        dim: int,
        scale: Any,
        order: str,
        like: torch.Tensor,
        kv_dtype: str | None,
    ) -> None:
        self._dtype, self._dim, self._kv_dtype = like.dtype, dim, kv_dtype
        self._wide = torch.promote_types(like.dtype, torch.float32)
        if kv_dtype == "fp8":
            cache = cache.view(torch.uint8)  # which torch can gather
        self._cache, self._token_major = _by_heads(cache, order), order == "token"
        self._factors: torch.Tensor | None = None  # one per row, gathered as the cache is
        factor = torch.as_tensor(1.0 if scale is None else scale).to(like.device, self._wide)
        if factor.ndim > 1 and factor.shape == cache.shape[:-1]:
            self._factors = _by_heads(factor[..., None], order)
        else:
            self._factor = _checked(name, factor)

    def gather(self, tile: Tile) -> torch.Tensor:
        """The rows a tile's queries see, [n, kv_heads, keys, dim]. O(n * kv_heads * keys * dim)."""
        rows = self._stored(tile)
        if tile.beyond is not None:
            rows[:, :, -tile.beyond.shape[2] :].masked_fill_(tile.beyond, 0)
        return rows

    def _stored(self, tile: Tile) -> torch.Tensor:
        rows = _gather(self._cache, tile, token_major=self._token_major)
        if self._kv_dtype is None:
            return rows
        if self._factors is None:
            factor = self._factor
        else:
            factor = _gather(self._factors, tile, token_major=self._token_major)
        return (self._numbers(rows) * factor).to(self._dtype)

    def _numbers(self, rows: torch.Tensor) -> torch.Tensor:
        """Stored elements as numbers, unscaled, float32 or wider."""
        if self._kv_dtype == "fp8":
            return rows.view(torch.float8_e4m3fn).to(self._wide)
        if self._kv_dtype == "int4":
            halves = torch.stack((rows & 15, rows >> 4), dim=-1).flatten(-2)
            return halves[..., : self._dim].to(self._wide) - 8
        return rows.to(self._wide)


def _checked(name: str, factor: torch.Tensor) -> torch.Tensor:
    """A scale for all, a head or a channel each, as [kv_heads or 1, 1, dim or 1]."""
    if not bool((torch.isfinite(factor) & (factor > 0)).all()):
        raise PlanError(f"scale of {name}", factor, "each must be a finite number above 0")
    heads, *channels = factor.shape or (1,)
    return factor.reshape(heads, 1, *(channels or (1,)))


def _by_heads(cache: torch.Tensor, order: str) -> torch.Tensor:
    """``cache`` as [pages, kv_heads, page_size, dim], a view."""
    if cache.ndim == 3:
        return cache[:, None]
    return cache.transpose(1, 2) if order == "token" else cache


def _gather(cache: torch.Tensor, tile: Tile, *, token_major: bool) -> torch.Tensor:
    """A tile's rows of [pages, kv_heads, page_size, dim], as [n, kv_heads, keys, dim]."""
    used = slice(tile.skip, tile.skip + tile.keys)
    count, (kv_heads, page_size, dim) = len(tile.pages), cache.shape[1:]
    if token_major:
        pages = cache.transpose(1, 2).index_select(0, tile.pages.flatten())
        tokens = pages.view(count, -1, kv_heads, dim)
        return tokens[:, used].transpose(1, 2).contiguous()
    row = page_size * dim
    page_rows, ragged = divmod(cache.stride(0), row)
    if ragged or cache.stride()[1:] != (row, dim, 1):
        pages = cache.index_select(0, tile.pages.flatten())
        heads = pages.view(count, -1, kv_heads, page_size, dim).transpose(1, 2)
        return heads.reshape(count, kv_heads, -1, dim)[:, :, used]
    rows = (cache.shape[0] - 1) * page_rows + kv_heads
    heads = cache.as_strided((rows, row), (row, 1)).index_select(0, tile.rows(kv_heads, page_rows))
    return heads.view(count, kv_heads, -1, dim)[:, :, used]
