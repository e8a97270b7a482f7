"""Paged attention by PyTorch's flex_attention, with a block mask made of the page table.

The pages a step's queries see are gathered once, each page once however many rows share it, into
one key axis; a block mask says which blocks of it each block of queries reads, and a function of
the page table which keys. The pool itself cannot be that axis: flex weighs masked values by 0, and
an unowned slot may hold NaN, so the copy has zeros there.

On CUDA it is compiled into one kernel. Elsewhere it runs as it is and holds all scores, float32
[H, T, keys of the step]: right, but for small steps.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention import flex_attention as flex

from octavo.attention.arguments import Options
from octavo.attention.calls import Asked, check_call, page_size_of, with_sinks
from octavo.attention.rows import Rows
from octavo.attention.signature import Attended, one_signature
from octavo.attention.tiles import Seen
from octavo.cache.step import Step
from octavo.errors import PlanError

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Element types flex takes; float64 only where it is not compiled."""

_BLOCK = 128  # queries and keys of a block, flex's own default

Modifier = Callable[..., torch.Tensor]


class Picture(NamedTuple):
    """What the queries of a step see, as flex takes it.

    Attributes:
        pages: int64[m], pages to gather, in the order rows first name them.
        stale: int64[s], slots of the gathered pages that are in no row's context.
        mask: blocks of queries by blocks of gathered keys.
    """

    pages: torch.Tensor
    stale: torch.Tensor
    mask: flex.BlockMask


class FlexStep(Rows):
    """A step prepared for the flex backend; build it once a step and pass it to every layer.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.
        device: where the keys and values are.

    Raises:
        LengthError, UnknownGroup: see Rows.

    Cost: O(rows * width).
    """

    def __init__(
        self,
        step: Step,
        *,
        page_size: int,
        group: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(step, page_size=page_size, group=group)
        self.device = torch.device(device)
        self._pictures: dict[Seen, Picture] = {}

    def picture(self, seen: Seen) -> Picture:
        """What a layer's queries see; O(blocks of queries * pages) once a step, then O(1)."""
        found = self._pictures.get(seen)
        if found is None:
            found = self._pictures[seen] = self._draw(seen)
        return found

    def _draw(self, seen: Seen) -> Picture:
        rows, columns, begins = self._seen_pages(seen)
        pages, where = _in_order(self.table[rows, columns])
        held = np.zeros(max(1, pages.size), np.int64)  # tokens of each page in some context
        np.maximum.at(held, where, np.minimum(self.page_size, self.context[rows] - begins))
        if not pages.size:
            pages = np.zeros(1, np.int64)  # an axis of no keys is none; all of this one is stale
        places = np.full((self.start.size, pages.size), -1, np.int64)
        places[rows, where] = begins  # position of the first token of a row's page
        stale = np.flatnonzero(np.arange(self.page_size) >= held[:, None])
        mask = self._mask(places, seen)
        return Picture(self._on_device(pages), self._on_device(stale), mask)

    def _seen_pages(self, seen: Seen) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Rows and columns of pages that queries see, and the position each begins at."""
        rows, columns = np.nonzero(self.table)
        begins = self.base[rows] + columns * self.page_size
        if seen.window is not None:
            near = begins + self.page_size > self.past[rows] - seen.window + 1
            kept = near | (begins < seen.sink_tokens)
            rows, columns, begins = rows[kept], columns[kept], begins[kept]
        return rows, columns, begins

    def _mask(self, places: NDArray[np.int64], seen: Seen) -> flex.BlockMask:
        """The block mask of keys at ``places``, [rows, pages] positions or -1."""
        blocks = self._blocks(places, seen)
        counts = blocks.sum(axis=1).astype(np.int32)
        order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
        return flex.BlockMask.from_kv_blocks(
            self._on_device(counts)[None, None],
            self._on_device(order)[None, None],
            BLOCK_SIZE=_BLOCK,
            mask_mod=self._rule(places, seen),
            seq_lengths=(self.tokens, places.shape[1] * self.page_size),
            compute_q_blocks=False,  # they serve a backward pass
        )

    def _blocks(self, places: NDArray[np.int64], seen: Seen) -> NDArray[np.bool_]:
        """bool[blocks of queries, blocks of keys]: whether a query may see a key of it."""
        size, slots = self.page_size, places.shape[1] * self.page_size
        found = np.zeros((-(-self.tokens // _BLOCK), -(-slots // _BLOCK)), np.bool_)
        first = np.arange(places.shape[1]) * size // _BLOCK
        last = (np.arange(1, places.shape[1] + 1) * size - 1) // _BLOCK
        for row in np.flatnonzero(self.count).tolist():
            start, stop = int(self.start[row]), int(self.start[row] + self.count[row])
            for block in range(start // _BLOCK, -(-stop // _BLOCK)):
                low = int(self.past[row]) + max(start, block * _BLOCK) - start
                high = int(self.past[row]) + min(stop, (block + 1) * _BLOCK) - start - 1
                pages = np.flatnonzero(_may_see(places[row], size, low, high, seen))
                for shift in range(-(-size // _BLOCK) + 1):
                    found[block, np.minimum(first[pages] + shift, last[pages])] = True
        return found

    def _rule(self, places: NDArray[np.int64], seen: Seen) -> Modifier:
        """Whether query q sees gathered key k, as flex asks it."""
        rows = np.repeat(np.arange(self.start.size), self.count)
        positions = np.arange(self.tokens) - self.start[rows] + self.past[rows]
        row_of, position_of = self._on_device(rows), self._on_device(positions)
        place_of, context_of = self._on_device(places), self._on_device(self.context)
        size, window, sinks = self.page_size, seen.window, seen.sink_tokens

        def sees(_batch: Any, _head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            row, position = row_of[q], position_of[q]
            begin = place_of[row, k // size]
            at = begin + k % size
            seen_here = (begin >= 0) & (at < context_of[row])
            if seen.causal:
                seen_here = seen_here & (at <= position)
            if window is not None:
                seen_here = seen_here & ((at > position - window) | (at < sinks))
            return seen_here

        return sees

    def _on_device(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


prepare = FlexStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


def _may_see(
    begins: NDArray[np.int64], size: int, low: int, high: int, seen: Seen
) -> NDArray[np.bool_]:
    """Whether queries at positions low..high may see a page; -1: there is none."""
    may: NDArray[np.bool_] = begins >= 0
    if seen.causal:
        may &= begins <= high
    if seen.window is not None:
        may &= (begins + size > low - seen.window + 1) | (begins < seen.sink_tokens)
    return may


def _in_order(pages: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct pages as they first appear, so that a row's keys share blocks; each one's place."""
    distinct, first, where = np.unique(pages, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return distinct[order].astype(np.int64), rank[where].reshape(-1)


@one_signature
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Step | FlexStep,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> torch.Tensor | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    The definition and the options are those of `octavo.attention.oracle.paged_attention`.

    Args:
        query: [T, H, k_dim] of one of ``DTYPES``.
        key_cache: one layer's keys in ``order``, or latent rows; of the query's dtype and device.
        value_cache: likewise with v_dim; None: latent attention.
        step: the step, or a FlexStep made of it once for all layers (which has its ``group``).
        return_lse: whether to return ``Attended`` and not ``out`` alone.
        options: as the oracle's; no ``kv_dtype``.

    Returns:
        [T, H, v_dim] in the query's dtype, or Attended.

    Raises:
        PlanError: no such order, a number that is not finite, a dtype, device or stride it does not
            take, or a ``group`` beside a FlexStep.
        LengthError: sizes that do not fit each other or the FlexStep, or a page table that lacks
            pages of a context or names one that does not exist.
        UnsupportedModel: a ``kv_dtype``.
        UnknownGroup: no such group.

    Cost: a copy of the pages in either order, and O(H * (k_dim + v_dim)) for every key of a block
    that is read; not compiled, for every query and gathered key.
    """
    asked = Asked(**options)
    if isinstance(step, Step):
        size = page_size_of(key_cache, asked, latent=value_cache is None)
        step = FlexStep(step, page_size=size, group=asked.group, device=query.device)
    elif asked.group is not None:
        raise PlanError("group", asked.group, "a FlexStep is made for its group; give it there")
    sizes = check_call("flex", query, key_cache, value_cache, step, asked, dtypes=DTYPES)
    out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
    lse = query.new_empty(
        sizes.tokens, sizes.heads, dtype=torch.promote_types(query.dtype, torch.float32)
    )
    if sizes.tokens:
        sums = return_lse or asked.sink_logits is not None
        picture = step.picture(Seen(asked.causal, asked.window, asked.sink_tokens))
        keys = _gathered(key_cache, picture, asked.order)
        values = keys[..., : sizes.v_dim]
        if value_cache is not None:
            values = _gathered(value_cache, picture, asked.order)
        found, aux = _kernel(query.device.type)(
            *(query.transpose(0, 1)[None], keys[None], values[None]),
            score_mod=_capped(sizes.softcap),
            block_mask=picture.mask,
            scale=sizes.scale,
            enable_gqa=True,
            return_aux=flex.AuxRequest(lse=sums),
        )
        out = found[0].transpose(0, 1).contiguous()
        lse = aux.lse[0].transpose(0, 1).contiguous() if sums else lse
    out = with_sinks(out, lse, asked.sink_logits)
    return Attended(out, lse) if return_lse else out


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
