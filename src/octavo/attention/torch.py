"""Paged attention with PyTorch operators, the same function as the oracle's on any torch device.

Each tile of a step gathers its own pages, head by head, in one copy, and attends to exactly the
keys its context covers. Rows of one query and of similar, short contexts share a tile. Head-major
pages are gathered without a transposition and are the fast order on CPU. Does not know models; keys
must have been written before.
"""

from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from octavo.attention.arguments import check_arguments, check_order
from octavo.attention.gathering import Source
from octavo.attention.signature import Attended, one_signature
from octavo.attention.tiles import Seen, Tile, TorchStep
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.errors import PlanError

prepare = TorchStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


_SHORT = 96 * 2**10
"""Bytes of keys up to which a row shares a tile with others: a longer one takes so long on a CPU
that it gains nothing from company."""


class _Rule(NamedTuple):
    """How scores become weights."""

    scale: float
    softcap: float | None
    sink_logits: torch.Tensor | None  # [H]
    lse: bool


@one_signature
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Step | TorchStep,
    *,
    group: str | None = None,
    order: str = "token",
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    sink_logits: Any = None,
    v_dim: int | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
    kv_dtype: str | None = None,
    return_lse: bool = False,
) -> torch.Tensor | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    The definition and the arguments are those of `octavo.attention.oracle.paged_attention`.

    Args:
        query: [T, H, k_dim].
        key_cache: one layer's keys in ``order``, or latent rows; on the query's device, and of its
            dtype or that of ``kv_dtype``; may be strided.
        value_cache: likewise with v_dim; None: latent attention.
        step: the step, or a TorchStep made of it once for all layers (which has its ``group``).
        group: whose page table; None: the first token group.
        order: ``head`` (fast on CPU) or ``token``.
        scale: factor of the scores; None: 1 / sqrt(k_dim).
        causal: whether a query sees only its own and earlier positions.
        softcap: bound of the scores.
        window: keys a query sees; None: all.
        sink_tokens: first positions seen beside the window.
        sink_logits: [H], in the denominator only.
        v_dim: elements of a value, for latent attention.
        key_scale: of a quantised cache, what stored keys are multiplied by.
        value_scale: likewise for values.
        kv_dtype: int8 (torch.int8), fp8 (torch.float8_e4m3fn) or int4 (torch.uint8, two to a byte);
            None: the caches hold numbers. A tile is turned into numbers when its turn comes.
        return_lse: whether to return ``Attended`` and not ``out`` alone.

    Returns:
        [T, H, v_dim] in the query's dtype, or Attended.

    Raises:
        PlanError: no such order, a scale or softcap that is no finite number, a dtype or device
            that differs, or a ``group`` beside a TorchStep.
        LengthError: sizes that do not fit each other or the TorchStep, or a page table that lacks
            pages of a context or names one that does not exist.
        UnknownGroup: no such group.

    Cost: O(T * H * context * (k_dim + v_dim)); a window bounds the context. Beside the output it
    holds the keys and values of one row, or of up to 16 with at most 1.5 MiB of keys.
    """
    page_size = key_cache.shape[check_order(key_cache, order, latent=value_cache is None)]
    if isinstance(step, Step):
        step = TorchStep(step, page_size=page_size, group=group, device=query.device)
    elif group is not None:
        raise PlanError("group", group, "a TorchStep is made for its group; give it there")
    check_int("page_size of key_cache", page_size, step.page_size, step.page_size, "the step's")
    sizes = check_arguments(
        query,
        key_cache,
        value_cache,
        tokens=step.tokens,
        order=order,
        scale=scale,
        window=window,
        sink_tokens=sink_tokens,
        sink_logits=sink_logits,
        softcap=softcap,
        v_dim=v_dim,
        kv_dtype=kv_dtype,
        key_scale=key_scale,
        value_scale=value_scale,
        causal=causal,
        return_lse=return_lse,
        dtype="float64" if query.dtype == torch.float64 else "float32",
    )
    if not query.dtype.is_floating_point:
        raise PlanError("dtype of query", str(query.dtype), "it must be a floating-point type")
    key_source = Source("key_cache", key_cache, order, query, sizes.k_dim, kv_dtype, key_scale)
    value_source = None
    if value_cache is not None:
        value_source = Source(
            "value_cache", value_cache, order, query, sizes.v_dim, kv_dtype, value_scale
        )
    step.require(key_cache.shape[0])
    factor = sizes.scale
    rule = _Rule(factor, sizes.softcap, sink_logits, return_lse)
    plain = softcap is None and sink_logits is None and not return_lse
    out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
    wide = torch.promote_types(query.dtype, torch.float32)
    lse = query.new_empty(sizes.tokens, sizes.heads, dtype=wide) if return_lse else None
    token = sizes.kv_heads * sizes.k_dim * query.dtype.itemsize
    seen = Seen(causal, sizes.window, sizes.sink_tokens)
    for tile in step.tiles(seen, short=_SHORT // token):
        part, found = query[tile.tokens], tile.tokens
        keys = key_source.gather(tile)
        values = keys if value_source is None else value_source.gather(tile)
        values = values[..., : sizes.v_dim]
        if plain and not tile.blind:
            out[found] = _fused(part, keys, values, tile, factor)
            continue
        weighted, sums = _spelled_out(part, keys, values, tile, rule)
        out[found] = weighted.to(out.dtype)
        if lse is not None:
            lse[found] = sums
    return out if lse is None else Attended(out, lse)


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
    rule: _Rule,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tile in float32 or wider: weighted values [queries, H, v_dim] and lse [queries, H]."""
    (count, heads, _), (rows, kv_heads) = query.shape, keys.shape[:2]
    groups, each = heads // kv_heads, tile.count
    wide = torch.promote_types(query.dtype, torch.float32)
    found = query.to(wide).reshape(rows, each, kv_heads, groups, -1).permute(0, 2, 3, 1, 4)
    scores = found.flatten(2, 3) @ keys.to(wide).transpose(2, 3) * rule.scale
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores.view(rows, kv_heads, groups, each, tile.keys)
    if tile.mask is not None or tile.triangle:
        scores = scores.masked_fill(~_mask(tile).unsqueeze(2), float("-inf"))
    lse = _logsumexp(scores)
    total = lse
    if rule.sink_logits is not None:
        sinks = rule.sink_logits.to(wide).view(kv_heads, groups, 1)
        total = torch.logaddexp(lse, sinks)
    weights = torch.exp(scores - total.masked_fill(total.isneginf(), 0.0).unsqueeze(-1))
    out = (weights.flatten(2, 3) @ values.to(wide)).view(*weights.shape[:-1], -1)
    out = out.permute(0, 3, 1, 2, 4).reshape(count, heads, -1)
    return out, lse.permute(0, 3, 1, 2).reshape(count, heads)


def _mask(tile: Tile) -> torch.Tensor:
    """A tile's mask with the triangle spelled out, bool[n, 1, count, keys]."""
    if tile.mask is not None:
        return tile.mask
    shape = (1, 1, tile.count, tile.keys)
    return torch.ones(shape, dtype=torch.bool, device=tile.pages.device).tril()


def _logsumexp(scores: torch.Tensor) -> torch.Tensor:
    """torch.logsumexp over the last axis, -inf where it is empty."""
    if scores.shape[-1] == 0:
        return scores.new_full(scores.shape[:-1], float("-inf"))
    return torch.logsumexp(scores, dim=-1)
