"""Paged attention by a Triton kernel that reads pages where they lie; for GPUs.

One kernel serves decode and prefill. A program takes a tile of a row's queries, all heads of one
key/value head together, so that keys are read once per group and never expanded, and runs over the
keys the tile sees. Where there are fewer tiles than the device has room for, a tile's keys are
divided among several programs, and a second kernel merges what they found.

With ``TRITON_INTERPRET=1`` in the environment before Triton is imported, the same kernels run on a
CPU, slowly: that is how they are tested without a GPU.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from octavo.attention import registry
from octavo.attention.parameters import Seen
from octavo.attention.tensors import TensorCall, TensorStep, strides
from octavo.index.rows import StepRows

_FAR = 2**30
"""Positions are below it; a larger window sees no more, and sums with it stay in 32 bits."""

_MOST_PARTS = 32
_LEAST_BLOCKS = 4  # of keys that are worth a program of their own


def why_not() -> str | None:
    """Why it does not run here, or None: it does."""
    if triton.knobs.runtime.interpret or torch.cuda.is_available():
        return None
    return "there is no CUDA device (TRITON_INTERPRET=1 runs it on a CPU, to test it)"


class TritonStep(TensorStep):
    """A step prepared for the triton backend.

    How a tile's keys are divided depends on the other rows of the step: results are equal to
    rounding, not to the bit.

    Its ``run`` costs O(T * H * context * (k_dim + v_dim)); a window bounds the context. Beside the
    output it holds float32[parts, T, H, v_dim] where keys are divided.

    Attributes:
        lengths: int32[4, n] on the device: start, count, past and base of each row.
        pages: int32[n, width] on the device.

    Cost: O(rows * width), and two copies to the device.
    """

    backend = registry.backend("triton")
    has_backward = False

    def _make(self) -> None:
        rows = self.rows
        lengths = np.stack([rows.start, rows.count, rows.past, rows.base]).astype(np.int32)
        self.lengths = torch.from_numpy(lengths).to(self.device)
        self.pages = torch.from_numpy(rows.table).to(self.device)
        self._tiles: dict[tuple[int, int], torch.Tensor] = {}

    def tiles(self, heads: int, size: int) -> torch.Tensor:
        """Pieces of work: int32[tiles, 2], a row and the first of its (query, head) pairs.

        Args:
            heads: query heads of one key/value head.
            size: pairs a tile holds.

        Cost: O(tiles) the first time in a step, O(1) after.
        """
        found = self._tiles.get((heads, size))
        if found is None:
            each = -(-self.rows.count * heads // size)
            rows = np.repeat(np.arange(each.size), each)
            firsts = (np.arange(rows.size) - np.repeat(np.cumsum(each) - each, each)) * size
            tiles = np.stack([rows, firsts], axis=1).astype(np.int32)
            found = self._tiles[heads, size] = torch.from_numpy(tiles).to(self.device)
        return found

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor]:
        (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
        values = keys if values is None else values
        if triton.knobs.runtime.interpret and query.dtype == torch.bfloat16:
            self._refuse("bfloat16", "Triton's interpreter multiplies its bits as integers")
        group = sizes.heads // sizes.kv_heads
        blocks = _Blocks.of(sizes.k_dim, sizes.v_dim, int(self.rows.count.max(initial=1)) * group)
        tiles = self.tiles(group, blocks.pairs)
        longest = _longest(self.rows, given.seen, blocks.keys)
        parts = _parts(len(tiles) * sizes.kv_heads, longest, query.device)
        sinks = None
        if given.sink_logits is not None:
            sinks = given.sink_logits.to(torch.float32).contiguous()
        out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
        lse = torch.empty(sizes.tokens, sizes.heads, device=query.device)
        found, sums = out, lse
        if parts > 1:
            found = torch.empty((parts, *out.shape), device=query.device)
            sums = torch.empty((parts, *lse.shape), device=query.device)
        _attend[(len(tiles), sizes.kv_heads, parts)](
            *(found, sums, query, keys, values, None if parts > 1 else sinks),
            *(tiles, self.lengths, self.pages, self.pages.shape[1], len(self.rows.start)),
            *query.stride()[:2],
            *strides(keys, given.order),
            *strides(values, given.order),
            *(sizes.tokens, sizes.heads, group, sizes.page_size),
            *(sizes.k_dim, sizes.v_dim, call.scale, given.softcap or 0.0),
            *(min(given.window or _FAR, _FAR), min(given.sink_tokens, _FAR)),
            causal=given.causal,
            capped=given.softcap is not None,
            **blocks._asdict(),
            num_stages=2,
        )
        if parts > 1:
            _merge[(sizes.tokens * sizes.heads,)](
                *(out, lse, found, sums, sinks, sizes.tokens * sizes.heads, sizes.heads, parts),
                v_dim=sizes.v_dim,
                values=blocks.values,
                most=_MOST_PARTS,
            )
        return out, lse


prepare = TritonStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = TritonStep.paged_attention


class _Blocks(NamedTuple):
    """How much a program holds at a time: powers of two of at least 16, as products demand."""

    pairs: int  # (query, head) pairs of a tile
    keys: int
    channels: int  # of a key, rounded up
    values: int  # channels of a value, rounded up

    @classmethod
    def of(cls, k_dim: int, v_dim: int, longest: int) -> "_Blocks":
        """Blocks that fit a device's shared memory, and no larger than the ``longest`` row."""
        channels = max(16, triton.next_power_of_2(k_dim))
        room = 64 if channels <= 128 else 32 if channels <= 256 else 16
        pairs = min(room, max(16, triton.next_power_of_2(longest)))
        return cls(pairs, room, channels, max(16, triton.next_power_of_2(v_dim)))


def _longest(rows: StepRows, seen: Seen, size: int) -> int:
    """Blocks of ``size`` keys in the longest run a program may have."""
    keys = int((rows.context - rows.base).max(initial=0))
    if seen.window is not None:
        keys = min(keys, seen.window + seen.sink_tokens + int(rows.count.max(initial=0)))
    return -(-keys // size)


def _parts(programs: int, blocks: int, device: torch.device) -> int:
    """Parts a tile's keys are divided into, so that programs fill the device twice."""
    wanted = 2 * _processors(device) // max(1, programs)
    return max(1, min(wanted, blocks // _LEAST_BLOCKS, _MOST_PARTS))


def _processors(device: torch.device) -> int:
    """Programs that a device runs at the same time, at least."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit  # type: ignore[untyped-decorator]
def _attend(
    out: Any,  # [parts, T, H, v_dim]
    lse: Any,  # [parts, T, H]
    query: Any,  # [T, H, k_dim]
    key_cache: Any,
    value_cache: Any,
    sinks: Any,  # [H] or None
    tiles: Any,  # [tiles, 2]
    lengths: Any,  # [4, n]
    table: Any,  # [n, width]
    width: Any,
    rows: Any,
    query_token: Any,  # strides, in elements
    query_head: Any,
    key_page: Any,
    key_head: Any,
    key_token: Any,
    value_page: Any,
    value_head: Any,
    value_token: Any,
    tokens: Any,
    heads: Any,
    group: Any,  # query heads of a key/value head
    page_size: Any,
    k_dim: Any,
    v_dim: Any,
    scale: Any,
    softcap: Any,
    window: Any,
    sink_tokens: Any,
    causal: tl.constexpr,
    capped: tl.constexpr,
    pairs: tl.constexpr,
    keys: tl.constexpr,
    channels: tl.constexpr,
    values: tl.constexpr,
) -> None:
    """One tile, one key/value head, one part of the keys."""
    kv_head, part, parts = tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    row = tl.load(tiles + 2 * tl.program_id(0))
    first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    start, count = tl.load(lengths + row), tl.load(lengths + rows + row)
    past, base = tl.load(lengths + 2 * rows + row), tl.load(lengths + 3 * rows + row)

    pair = first + tl.arange(0, pairs)
    token, head = pair // group, kv_head * group + pair % group
    there, position, place = token < count, past + token, (start + token).to(tl.int64)
    channel, value = tl.arange(0, channels), tl.arange(0, values)
    q = tl.load(
        query + (place * query_token + head * query_head)[:, None] + channel[None, :],
        mask=there[:, None] & (channel < k_dim)[None, :],
        other=0.0,
    )

    # The keys that the tile sees: sinks from base to far, then from near to stop.
    near = tl.maximum(base, past + first // group - window + 1)
    last = tl.minimum(count - 1, (first + pairs - 1) // group)
    stop = past + last + 1 if causal else past + count
    far = tl.minimum(sink_tokens, near)
    far_blocks = (tl.maximum(far - base, 0) + keys - 1) // keys
    blocks = far_blocks + (tl.maximum(stop - near, 0) + keys - 1) // keys
    each = (blocks + parts - 1) // parts

    peak, total = tl.full([pairs], float("-inf"), tl.float32), tl.full([pairs], 0.0, tl.float32)
    sums = tl.full([pairs, values], 0.0, tl.float32)
    for block in range(part * each, tl.minimum(blocks, (part + 1) * each)):
        is_far = block < far_blocks
        begin = tl.where(is_far, base + block * keys, near + (block - far_blocks) * keys)
        at = begin + tl.arange(0, keys)
        live = at < tl.where(is_far, far, stop)
        page = tl.load(table + row * width + (at - base) // page_size, mask=live, other=0)
        page, offset = page.to(tl.int64), (at - base) % page_size
        k = tl.load(  # what no query may see is never loaded: it may be NaN
            key_cache
            + (page * key_page + kv_head * key_head + offset * key_token)[None, :]
            + channel[:, None],
            mask=live[None, :] & (channel < k_dim)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if capped:  # tanh(x) = 1 - 2 / (exp(2x) + 1)
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
        seen = live[None, :] & (
            (at[None, :] > position[:, None] - window) | (at < sink_tokens)[None, :]
        )
        if causal:
            seen = seen & (at[None, :] <= position[:, None])
        scores = tl.where(seen, scores, float("-inf"))

        higher = tl.maximum(peak, tl.max(scores, 1))
        against = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - against[:, None])
        kept = tl.exp(peak - against)
        v = tl.load(
            value_cache
            + (page * value_page + kv_head * value_head + offset * value_token)[:, None]
            + value[None, :],
            mask=live[:, None] & (value < v_dim)[None, :],
            other=0.0,
        )
        sums = sums * kept[:, None] + _weighed(weights, v, seen)
        total = total * kept + tl.sum(weights, 1)
        peak = higher

    sink = tl.full([pairs], float("-inf"), tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + head, mask=there, other=float("-inf"))
    share = _share(total, peak, sink)
    result = (part * tokens + place) * heads + head
    tl.store(
        out + result[:, None] * v_dim + value[None, :],
        (sums * share[:, None]).to(out.dtype.element_ty),
        mask=there[:, None] & (value < v_dim)[None, :],
    )
    tl.store(lse + result, _log(total) + peak, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _weighed(weights: Any, v: Any, seen: Any) -> Any:
    """The product of weights and values, of which what is not finite counts for who sees it.

    A product with 0 would spread it to all pairs. Products with 0 and 1 say, in the blocks that
    have any, which pairs see NaN, or weigh inf by what.
    """
    odd = (v - v) != 0
    finite = tl.where(odd, 0.0, v).to(v.dtype)
    product = tl.dot(weights.to(v.dtype), finite, input_precision="ieee")
    if tl.max(tl.max(odd.to(tl.int32), 1), 0) > 0:
        inf, heavy = float("inf"), (weights > 0).to(tl.float32)
        rises, falls = (v == inf).to(tl.float32), (v == -inf).to(tl.float32)
        nan, unweighed = odd.to(tl.float32) - rises - falls, (seen & (weights == 0)).to(tl.float32)
        lost = tl.dot(seen.to(tl.float32), nan, input_precision="ieee")
        lost += tl.dot(unweighed, rises + falls, input_precision="ieee")
        up = tl.dot(heavy, rises, input_precision="ieee") > 0
        down = tl.dot(heavy, falls, input_precision="ieee") > 0
        product = tl.where(up, inf, product)
        product = tl.where(down, product - inf, product)
        product = tl.where(lost > 0, float("nan"), product)
    return product


@triton.jit  # type: ignore[untyped-decorator]
def _merge(
    out: Any,  # [T, H, v_dim]
    lse: Any,  # [T, H]
    found: Any,  # [parts, T, H, v_dim]
    sums: Any,  # [parts, T, H]
    sinks: Any,  # [H] or None
    places: Any,  # T * H
    heads: Any,
    parts: Any,
    v_dim: Any,
    values: tl.constexpr,
    most: tl.constexpr,
) -> None:
    """One query and head: its parts, each with the weight of its lse."""
    place = tl.program_id(0).to(tl.int64)
    part, value = tl.arange(0, most), tl.arange(0, values)
    each = tl.load(sums + part * places + place, mask=part < parts, other=float("-inf"))
    vectors = tl.load(
        found + ((part * places + place) * v_dim)[:, None] + value[None, :],
        mask=(part < parts)[:, None] & (value < v_dim)[None, :],
        other=0.0,
    )
    peak = tl.max(each, 0)
    weights = tl.exp(each - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights, 0)
    sink = float("-inf")
    if sinks is not None:
        sink = tl.load(sinks + place % heads)
    merged = tl.sum(weights[:, None] * vectors, 0) * _share(total, peak, sink)
    tl.store(out + place * v_dim + value, merged.to(out.dtype.element_ty), mask=value < v_dim)
    tl.store(lse + place, _log(total) + peak)


@triton.jit  # type: ignore[untyped-decorator]
def _share(total: Any, peak: Any, sink: Any) -> Any:
    """What sums of exp(score - peak) * value are multiplied by; 0 where nothing is seen.

    ``total`` is the sum of exp(score - peak); a sink logit joins the denominator.
    """
    top = tl.maximum(peak, sink)
    top = tl.where(top == float("-inf"), 0.0, top)
    kept = tl.exp(peak - top)
    whole = total * kept + tl.exp(sink - top)
    return kept / tl.where(whole == 0.0, 1.0, whole)


@triton.jit  # type: ignore[untyped-decorator]
def _log(total: Any) -> Any:
    """log(total), -inf at 0."""
    return tl.where(total == 0.0, float("-inf"), tl.log(tl.where(total == 0.0, 1.0, total)))
