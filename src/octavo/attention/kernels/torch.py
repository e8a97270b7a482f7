"""Paged attention with PyTorch operators, the same function as the oracle's on any torch device.

Each tile of a step gathers its own pages, head by head, in one copy, and attends to exactly the
keys its context covers. Rows of one query and of similar, short contexts share a tile. Head-major
pages are gathered without a transposition and are the fast order on CPU. Does not know models; keys
must have been written before.

The fast kernels lose NaN that is seen and spread NaN that is not. What a tile was given is summed
up, and all sums are looked at once per layer: a tile whose sum is not finite is attended to again,
with care.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from octavo.attention import registry
from octavo.attention.kernels.page_source import PageSource
from octavo.attention.kernels.tiles import Tile, Tiles
from octavo.attention.tensors import TensorCall, TensorStep
from octavo.index.rows import StepRows

Weighed = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_SHORT = 96 * 2**10
"""Bytes of keys up to which a row shares a tile with others: a longer one takes so long on a CPU
that it gains nothing from company."""


class TorchStep(TensorStep):
    """A step prepared for the torch backend: its rows, cut into tiles on demand.

    Its ``run`` costs O(T * H * context * (k_dim + v_dim)); a window bounds the context. Beside the
    output it holds the keys and values of one row, or of up to 16 with at most 1.5 MiB of keys.
    Quantised caches become numbers tile by tile; they are torch.int8, torch.float8_e4m3fn, or
    torch.uint8 of two int4 elements.

    Attributes:
        tiles: pieces of work, shared by layers whose queries see the same keys.
    """

    backend = registry.backend("torch")
    in_place = False

    def _make(self) -> None:
        self.tiles = Tiles(self.rows, self.device)

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        return attend_tiles(self.tiles, call)


prepare = TorchStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = TorchStep.paged_attention


def attend_tiles(tiles: Tiles, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A layer's output, and its lse where that is wanted.

    Args:
        tiles: of the step.
        call: the layer's.

    Cost: as `TorchStep` says; on a GPU it is waited for once, to look for what is not finite.
    """
    query, sizes, given = call.arrays.query, call.sizes, call.parameters
    sources = _sources(call)
    plain = given.softcap is None and given.sink_logits is None and not call.lse
    out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_empty(sizes.tokens, sizes.heads, dtype=wide) if call.lse else None
    token = sizes.kv_heads * sizes.k_dim * query.dtype.itemsize
    work = tiles.of(given.seen, short=_SHORT // token)
    totals: list[torch.Tensor] = []
    for tile in work:
        part, (keys, values) = query[tile.tokens], _gathered(sources, tile, sizes.v_dim)
        totals.append(_total(part) + _total(keys))
        if sources[1] is not None:
            totals[-1] += _total(values)
        if plain and not tile.blind:
            out[tile.tokens] = _fused(part, keys, values, tile, call.scale)
        else:
            _put(out, lse, tile, _spelled_out(part, keys, values, tile, call, _weighed))
    if work and not bool(torch.stack(totals).isfinite().all()):
        for tile, total in zip(work, totals, strict=True):
            if not bool(total.isfinite()):
                part, (keys, values) = query[tile.tokens], _gathered(sources, tile, sizes.v_dim)
                found = _spelled_out(part, keys, values, tile, call, _weighed_with_care)
                _put(out, lse, tile, found)
    return out, lse


def attend_with_care(rows: StepRows, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a kernel would have found that keeps NaN and infinity apart; as `attend_tiles`."""
    return attend_tiles(Tiles(rows, call.arrays.query.device), call)


def _gathered(
    sources: tuple[PageSource, PageSource | None], tile: Tile, v_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tile's keys and values, [n, kv_heads, keys, dim]."""
    keys = sources[0].gather(tile)
    values = keys if sources[1] is None else sources[1].gather(tile)
    return keys, values[..., :v_dim]


def _total(numbers: torch.Tensor) -> torch.Tensor:
    """Their sum, not finite where one of them is not; as float32, in which few add up to inf."""
    wide = torch.float32 if numbers.dtype == torch.float16 else None  # of bf16 four times slower
    return numbers.detach().sum(dtype=wide).float()


def _put(
    out: torch.Tensor,
    lse: torch.Tensor | None,
    tile: Tile,
    found: tuple[torch.Tensor, torch.Tensor],
) -> None:
    out[tile.tokens] = found[0].to(out.dtype)
    if lse is not None:
        lse[tile.tokens] = found[1]


def _sources(call: TensorCall) -> tuple[PageSource, PageSource | None]:
    """The layer's keys and values, to be gathered; no values in latent attention."""
    (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
    layer = (given.order, query, given.kv_dtype)
    k = PageSource("key_cache", keys, sizes.k_dim, given.key_scale, *layer)
    if values is None:
        return k, None
    return k, PageSource("value_cache", values, sizes.v_dim, given.value_scale, *layer)


def _fused(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tile: Tile,
    scale: float,
) -> torch.Tensor:
    """One tile through torch's fused kernel, [queries, H, v_dim].

    Heads of a group are never expanded in memory: a lone query takes them as its query rows (up to
    4 times faster in bf16 on CPU than enable_gqa), several see the same keys with stride 0.
    """
    (count, heads, _), (rows, kv_heads) = query.shape, keys.shape[:2]
    groups = heads // kv_heads
    if tile.count == 1:
        lone = query.reshape(rows, kv_heads, groups, -1)
        found = scaled_dot_product_attention(lone, keys, values, tile.mask, scale=scale)
        return found.reshape(rows, heads, -1)
    found = scaled_dot_product_attention(
        query.reshape(count, kv_heads, groups, -1).permute(1, 2, 0, 3),
        keys[0, :, None].expand(-1, groups, -1, -1),
        values[0, :, None].expand(-1, groups, -1, -1),
        tile.mask,
        is_causal=tile.triangle,
        scale=scale,
    )
    return found.permute(2, 0, 1, 3).reshape(count, heads, -1)


def _spelled_out(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tile: Tile,
    call: TensorCall,
    weighed: Weighed,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tile in float32 or wider: weighted values [queries, H, v_dim] and lse [queries, H]."""
    (count, heads, _), (rows, kv_heads) = query.shape, keys.shape[:2]
    groups, each, given = heads // kv_heads, tile.count, call.parameters
    wide = torch.promote_types(query.dtype, torch.float32)
    found = query.to(wide).reshape(rows, each, kv_heads, groups, -1).permute(0, 2, 3, 1, 4)
    scores = found.flatten(2, 3) @ keys.to(wide).transpose(2, 3) * call.scale
    if given.softcap is not None:
        scores = torch.tanh(scores / given.softcap) * given.softcap
    scores = scores.view(rows, kv_heads, groups, each, tile.keys)
    seen = _mask(tile).unsqueeze(2)
    if tile.mask is not None or tile.triangle:
        scores = scores.masked_fill(~seen, float("-inf"))
    lse = _logsumexp(scores)
    total = lse
    if given.sink_logits is not None:
        sinks = given.sink_logits.to(wide).view(kv_heads, groups, 1)
        total = torch.logaddexp(lse, sinks)
    weights = torch.exp(scores - total.masked_fill(total.isneginf(), 0.0).unsqueeze(-1))
    seen = seen.expand(weights.shape).flatten(2, 3)
    out = weighed(weights.flatten(2, 3), values.to(wide), seen).view(*weights.shape[:-1], -1)
    out = out.permute(0, 3, 1, 2, 4).reshape(count, heads, -1)
    return out, lse.permute(0, 3, 1, 2).reshape(count, heads)


def _weighed(weights: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """weights [n, kv_heads, queries, keys] @ values [n, kv_heads, keys, v_dim]."""
    del seen
    return weights @ values


def _weighed_with_care(
    weights: torch.Tensor, values: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    """The same, where a value that is not finite counts for queries that see it alone.

    Args:
        weights: 0 where nothing is seen.
        values: anything.
        seen: bool, as ``weights``.

    Products with 0 and 1 say which queries see NaN, or weigh inf by what.
    """

    def met(queries: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return (queries.to(weights.dtype) @ kind.to(weights.dtype)) > 0

    heavy, inf = weights > 0, float("inf")
    out = weights @ values.nan_to_num(0.0, 0.0, 0.0)
    out = out.masked_fill(met(heavy, values == inf), inf)
    out = out - torch.zeros_like(out).masked_fill(met(heavy, values == -inf), inf)
    lost = met(seen, values.isnan()) | met(seen & ~heavy, values.isinf())
    return out.masked_fill(lost, float("nan"))


def _mask(tile: Tile) -> torch.Tensor:
    """A tile's mask with the triangle spelled out, bool[n or 1, 1, count, keys]."""
    if tile.mask is not None:
        return tile.mask
    shape = (1, 1, tile.count, tile.keys)
    every = torch.ones(shape, dtype=torch.bool, device=tile.pages.device)
    return every.tril() if tile.triangle else every


def _logsumexp(scores: torch.Tensor) -> torch.Tensor:
    """Over the last axis, -inf where it is empty; NaN of inf, unlike torch.logsumexp."""
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], float("-inf"))
    top = scores.detach().amax(-1, keepdim=True)
    peak = top.masked_fill(top.isneginf(), 0.0)
    return torch.exp(scores - peak).sum(-1).log() + peak.squeeze(-1)
