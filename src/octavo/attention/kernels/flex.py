"""Paged attention by PyTorch's flex_attention, with a block mask made of the page table.

The pages a step's queries see are gathered once, each page once however many rows share it, into
one key axis behind the null page; the block mask of `octavo.index.flex` over that axis says which
blocks of it each block of queries reads, and a function of the page table which keys. The pool
itself cannot be that axis: flex weighs masked values by 0, and an unowned slot may hold NaN, so the
copy has zeros there. A pool without NaN can: `block_mask` takes what `octavo.index.flex` emits.
Where something in the copy is not finite, each row is attended to by itself, as the torch backend
does, and on a GPU waited for: flex would spread it to rows that do not see it.

On CUDA it is compiled into one kernel. Elsewhere it runs as it is and holds all scores, float32
[H, T, keys of the step]: right, but for small steps.
"""

from collections.abc import Callable
from functools import cache
from math import lcm
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention import flex_attention as flex

from octavo.arrays import NDArray
from octavo.attention import registry
from octavo.attention.kernels.torch import attend_with_care
from octavo.attention.parameters import Seen
from octavo.attention.tensors import TensorCall, TensorStep, with_sinks
from octavo.index import Flex
from octavo.index.flex import Blocks, Reading, list_blocks
from octavo.index.rows import StepRows

_BLOCK = 128  # queries of a block, and what its keys are a multiple of: flex's own default
_FAR = 2**31 - 1

Modifier = Callable[..., torch.Tensor]


class Picture(NamedTuple):
    """What the queries of a step see, as flex takes it.

    Attributes:
        pages: int64[m], pages to gather: the null page, and the others as rows first name them.
        stale: int64[s], slots of the gathered pages that are in no row's context.
        mask: blocks of queries by blocks of gathered keys.
    """

    pages: torch.Tensor
    stale: torch.Tensor
    mask: flex.BlockMask


class FlexStep(TensorStep):
    """A step prepared for the flex backend, in float64 only where flex is not compiled.

    Its ``run`` costs a copy of the pages in either order, and O(H * (k_dim + v_dim)) for every key
    of a block that is read; not compiled, for every query and gathered key.
    """

    backend = registry.backend("flex")
    in_place = False

    def _make(self) -> None:
        self._pictures: dict[Seen, Picture] = {}

    def picture(self, seen: Seen) -> Picture:
        """What a layer's queries see; O(rows * width + blocks listed) once per step, then O(1)."""
        found = self._pictures.get(seen)
        if found is None:
            pages, table, stale = _compact(self.rows, seen)
            reading = _reading(self.rows, seen, table, len(pages))
            blocks = list_blocks(reading, _BLOCK, lcm(_BLOCK, self.page_size))
            found = self._pictures[seen] = Picture(
                torch.from_numpy(pages).to(self.device),
                torch.from_numpy(stale).to(self.device),
                block_mask(blocks, self.device),
            )
        return found

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
        out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
        wide = torch.promote_types(query.dtype, torch.float32)
        lse = query.new_empty(sizes.tokens, sizes.heads, dtype=wide)
        if not sizes.tokens:
            return out, lse
        sums = call.lse or given.sink_logits is not None
        picture = self.picture(given.seen)
        k = _gathered(keys, picture, given.order)
        v = k[..., : sizes.v_dim]
        if values is not None:
            v = _gathered(values, picture, given.order)
        if not bool((query.sum() + k.sum() + v.sum()).isfinite()):
            return attend_with_care(self.rows, call)
        found, aux = _kernel(query.device.type)(
            *(query.transpose(0, 1)[None], k[None], v[None]),
            score_mod=_capped(given.softcap),
            block_mask=picture.mask,
            scale=call.scale,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=sums),
        )
        out = found[0].transpose(0, 1).contiguous()
        lse = aux.lse[0].transpose(0, 1).contiguous() if sums else lse
        return with_sinks(out, lse, given.sink_logits), lse


prepare = FlexStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = FlexStep.paged_attention


def _compact(
    rows: StepRows, seen: Seen
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Pages to gather, the table with their places for numbers, and slots of no row's context.

    The table has a column for every page from position 0, with 0 where a row sees none.
    """
    size = rows.page_size
    row, column = np.nonzero(rows.table)
    begins = rows.base[row] + column * size
    if seen.window is not None:
        near = begins + size > rows.past[row] - min(seen.window, _FAR) + 1
        kept = near | (begins < seen.sink_tokens)
        row, column, begins = row[kept], column[kept], begins[kept]
    pages, place = _in_order(rows.table[row, column])
    width = max(1, -(-int(rows.context.max(initial=0)) // size))
    table = np.zeros((rows.start.size, width), np.int32)
    table[row, begins // size] = place
    held = np.zeros(pages.size, np.int64)  # tokens of each page in some context
    np.maximum.at(held, place, np.minimum(size, rows.context[row] - begins))
    return pages, table, np.flatnonzero(np.arange(size) >= held[:, None])


def _in_order(pages: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The null page and the others as they first appear, so that a row's share blocks; places."""
    distinct, first, which = np.unique(pages, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(1, order.size + 1)
    return np.append(0, distinct[order]).astype(np.int64), rank[which].reshape(-1)


def _reading(rows: StepRows, seen: Seen, table: NDArray[np.int32], pages: int) -> Reading:
    """What the queries read of ``pages`` gathered ones."""
    row = np.repeat(np.arange(rows.start.size), rows.count)
    positions = np.arange(rows.tokens) - rows.start[row] + rows.past[row]
    first = rows.base[row]
    if seen.window is not None:
        first = np.maximum(first, positions - min(seen.window, _FAR) + 1)
    return Reading(
        counts=rows.count,
        first=first,
        last=positions if seen.causal else rows.context[row] - 1,
        table=table,
        page=rows.page_size,
        pages=pages,
        sinks=min(seen.sink_tokens, _FAR),
    )


def block_mask(arrays: Flex | Blocks, device: torch.device | str = "cpu") -> flex.BlockMask:
    """The block mask of queries [1, H, T, dim] and pages of keys [1, kv_heads, slots, dim].

    flex weighs keys it masks by 0, so every slot must be finite. It has no lists of query
    blocks by key block, which only a backward pass reads.
    O(what the arrays hold): each is copied to ``device``.
    """
    fields = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    lists = {name: torch.tensor(getattr(arrays, name), device=device) for name in fields}
    return flex.BlockMask.from_kv_blocks(
        **lists,
        BLOCK_SIZE=(arrays.query_block, arrays.kv_block),
        mask_mod=mask_mod(arrays, device),
        seq_lengths=(arrays.token_rows.size, arrays.kv_len),
        compute_q_blocks=False,
    )


def mask_mod(arrays: Flex | Blocks, device: torch.device | str = "cpu") -> Modifier:
    """Whether query token q sees slot k of the pages, as flex_attention asks it.

    A row holds a page if the page stands in the one column of the row's table it can stand in.
    """
    names = ("block_table", "columns", "token_rows", "first_keys", "last_keys")
    table, columns, rows, first, last = (
        torch.tensor(getattr(arrays, name), device=device) for name in names
    )
    table[table == 0] = -1  # the null page is nobody's
    size, sinks = arrays.page, arrays.sink_tokens

    def sees(_batch: Any, _head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        page = k // size
        column = columns[page]
        position = column * size + k % size
        near = position >= first[q]
        seen = near | (position < sinks) if sinks else near
        return (table[rows[q], column] == page) & seen & (position <= last[q])

    return sees


def _gathered(cache: torch.Tensor, picture: Picture, order: str) -> torch.Tensor:
    """The keys or values of the pages, [kv_heads, keys, dim], zeros where no row's context is."""
    if cache.ndim == 3:
        cache, order = cache[:, None], "head"
    heads_first = (1, 0, 2, 3) if order == "head" else (2, 0, 1, 3)
    found = cache.permute(heads_first).index_select(1, picture.pages).flatten(1, 2)
    return found.index_fill_(1, picture.stale, 0.0)


def _capped(softcap: float | None) -> Modifier | None:
    """The bound of scores as flex takes it."""
    if softcap is None:
        return None

    def capped(score: torch.Tensor, *_place: Any) -> torch.Tensor:
        return torch.tanh(score / softcap) * softcap

    return capped


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """flex_attention, compiled for CUDA.

    A C++ compiler could do the same for a CPU, in tens of seconds for each new kind of layer; the
    cpu backend is for that.
    """
    return torch.compile(flex.flex_attention) if device == "cuda" else _untraced


def _untraced(*arguments: Any, **options: Any) -> Any:
    """flex_attention without the trace it makes of itself where it is not compiled.

    A trace takes seconds for each new shape and gains nothing there; flex warns of it besides.
    """
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        return flex.flex_attention(*arguments, **options)
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
