"""ONNX Runtime's com.microsoft::PagedAttention, version 1, as a NumPy function.

ONNX Runtime runs the op on GPUs alone; this is what it computes, out of the oracle's parts. In
order: queries, keys and values are split; queries and keys normalised, then rotated; keys and
values written to their slots; and every query attends to what its sequence has in the cache.
"""

from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.attention.kernels.oracle import attend, check_dtype, visible
from octavo.attention.stored import Floats, StoredPages
from octavo.errors import LengthError
from octavo.integrations.onnx.op.operands import (
    Array,
    Attributes,
    Extents,
    Inputs,
    check_operands,
    read_attributes,
)


class Outputs(NamedTuple):
    """What the op gives.

    Attributes:
        output: [tokens, num_heads * v_head_size] in the query's dtype.
        key_cache: the input itself, written in place.
        value_cache: likewise; None in LATENT.
    """

    output: Array
    key_cache: Array
    value_cache: Array | None


def paged_attention_op(
    *inputs: Array | None, dtype: Any = np.float32, **attributes: Any
) -> Outputs:
    """One node's work: new keys and values into the cache, and attention over it.

    A call looks like a node: the inputs in order, None for those that are absent, and the
    attributes by name. ``paged_attention_op(*Inputs(query=..., ...), num_heads=8, kv_num_heads=2)``
    names the inputs too. What each may be is said at `Inputs` and `Attributes` in
    `octavo.integrations.onnx.op.operands`.

    Token j of a sequence stands at position past + j. It sees the positions k of its sequence with
    k <= past + j if causal, and k > past + j - W with a window of W keys, where the block table has
    a page. Keys are cached normalised and rotated. What is attended to is read back from the cache,
    rounded to its element type: a token whose slot is -1 finds there what was there before. A page
    may stand more than once in the block table, in one row too (page 0 does, where a window dropped
    others): it is read as often.

    Args:
        inputs: as `Inputs` lists them.
        dtype: what is computed in: float32 or float64; queries are not rounded to T in between.
        attributes: as `Attributes` lists them.

    Returns:
        Outputs; the caches are the arrays given, changed in the slots that are mapped.

    Raises:
        PlanError: an unknown attribute; an input missing, of the wrong dtype, not contiguous; a
            value an attribute cannot have or ``dtype`` cannot hold; keys or values that are NaN or
            infinite for a quantised cache; a head_sink that is. Nothing is written.
        LengthError: a shape, length, page or slot that does not fit, or a slot that two tokens are
            written to. Nothing is written.

    Cost: O(tokens * num_heads * context * head_size).
    """
    dtype = check_dtype(dtype)
    given, settings = _inputs(inputs), read_attributes(attributes, dtype)
    sizes = check_operands(given, settings)
    positions = _positions(given)
    query, key, value = _split(given, settings, sizes, dtype)
    query, key = _prepare(given, settings, query, key, positions)
    keys, values = _stored(given, sizes)
    slots = _slots(given, sizes, positions)
    written = slots >= 0
    _check_apart(slots, written)
    place = np.divmod(slots[written], sizes.page_size)
    if values is not None:
        values.check_finite(value[written])  # before the keys are written
    keys.write(*place, key[written])
    if values is not None:
        values.write(*place, value[written])
    out = np.zeros((sizes.tokens, settings.num_heads, sizes.v_head_size), dtype)
    scale = settings.scale or 1 / sqrt(sizes.head_size)
    cap, sinks = settings.softcap or None, given.head_sink
    for row, (start, stop) in enumerate(pairwise(given.cumulative_sequence_length.tolist())):
        at, seen, page = _seen(given, settings, sizes, row, positions[start:stop])
        k = keys.read(page, at % sizes.page_size, dtype)
        v = k[..., : sizes.v_head_size]
        if values is not None:
            v = values.read(page, at % sizes.page_size, dtype)
        part = query[start:stop]
        out[start:stop] = attend(part, k, v, seen, scale, softcap=cap, sink_logits=sinks).out
    flat = out.reshape(sizes.tokens, out.shape[1] * out.shape[2]).astype(given.query.dtype)
    return Outputs(flat, given.key_cache, given.value_cache)


def _inputs(inputs: tuple[Any, ...]) -> Inputs:
    """Inputs of a node, which may end with its last one that is there."""
    if len(inputs) > len(Inputs._fields):
        raise LengthError("inputs", len(inputs), 0, len(Inputs._fields))
    return Inputs(*inputs, *[None] * (len(Inputs._fields) - len(inputs)))


def _split(
    inputs: Inputs, attributes: Attributes, sizes: Extents, dtype: Any
) -> tuple[Floats, Floats, Floats]:
    """Queries [tokens, num_heads, head_size], keys and values [tokens, kv_num_heads, head_size]."""
    new = [part for part in (inputs.query, inputs.key, inputs.value) if part is not None]
    joined = np.concatenate([part.astype(dtype) for part in new], axis=1)
    rows = joined.reshape(sizes.tokens, joined.shape[1] // sizes.head_size, sizes.head_size)
    heads, behind = attributes.num_heads, attributes.num_heads + attributes.kv_num_heads
    return rows[:, :heads], rows[:, heads:behind], rows[:, behind:]


def _positions(inputs: Inputs) -> NDArray[np.int64]:
    """Position of each token in its sequence, int64[tokens]."""
    starts = inputs.cumulative_sequence_length.astype(np.int64)
    counts = np.diff(starts)
    return np.arange(starts[-1]) + (inputs.past_seqlens - starts[:-1]).repeat(counts)


def _prepare(
    inputs: Inputs, attributes: Attributes, query: Floats, key: Floats, positions: Array
) -> tuple[Floats, Floats]:
    """Queries and keys, normalised and then rotated where the node says so."""
    if inputs.q_norm_weight is not None and inputs.k_norm_weight is not None:
        query = rms_norm(query, inputs.q_norm_weight, attributes.qk_norm_epsilon)
        key = rms_norm(key, inputs.k_norm_weight, attributes.qk_norm_epsilon)
    if not attributes.do_rotary or inputs.cos_cache is None or inputs.sin_cache is None:
        return query, key
    cos, sin = inputs.cos_cache[positions], inputs.sin_cache[positions]
    offset, interleaved = attributes.rotary_offset, bool(attributes.rotary_interleaved)
    query = rotate(query, cos, sin, offset=offset, interleaved=interleaved)
    return query, rotate(key, cos, sin, offset=offset, interleaved=interleaved)


def _stored(inputs: Inputs, sizes: Extents) -> tuple[StoredPages, StoredPages | None]:
    """The caches, to read and write numbers."""

    def stored(name: str, cache: Array, scale: Array | None) -> StoredPages:
        if scale is not None:
            scale = scale.reshape(()) if scale.size == 1 else scale[:, 0]
        return StoredPages(name, cache, "token", sizes.head_size, sizes.kv_dtype, scale)

    keys = stored("key_cache", inputs.key_cache, inputs.k_scale)
    if inputs.value_cache is None:
        return keys, None
    return keys, stored("value_cache", inputs.value_cache, inputs.v_scale)


def _slots(inputs: Inputs, sizes: Extents, positions: Array) -> Array:
    """Where each token's key and value go, int[tokens]; -1: nowhere."""
    if inputs.slot_mapping is not None:
        return inputs.slot_mapping
    counts = np.diff(inputs.cumulative_sequence_length)
    row = np.arange(counts.size).repeat(counts)
    column, offset = np.divmod(positions, sizes.page_size)
    page = inputs.block_table[row, column].astype(np.int64)
    return np.where(page < 0, -1, page * sizes.page_size + offset)


def _check_apart(slots: Array, written: NDArray[np.bool_]) -> None:
    """Refuse two tokens that are written to the same slot: one of them would be lost."""
    at = np.flatnonzero(written)
    _, first, which = np.unique(slots[at], return_index=True, return_inverse=True)
    twice = np.flatnonzero(first[which] != np.arange(at.size))
    if twice.size:
        token, other = int(at[twice[0]]), int(at[first[which[twice[0]]]])
        why = f"token {other} is written there too"
        raise LengthError(f"slot of token {token}", int(slots[token]), None, None, why)


def _seen(
    inputs: Inputs, attributes: Attributes, sizes: Extents, row: int, queries: Array
) -> tuple[Array, NDArray[np.bool_], Array]:
    """Positions that a row's queries see, which query sees which, and the page of each."""
    window = None if attributes.local_window_size < 0 else attributes.local_window_size
    at = np.arange(int(inputs.past_seqlens[row]) + queries.size)
    causal = bool(attributes.is_causal)
    seen = visible(queries, at, causal=causal, window=window, sink_tokens=0)
    page = inputs.block_table[row, at // sizes.page_size]
    used = seen.any(axis=0) & (page >= 0)
    return at[used], seen[:, used], page[used]


def rms_norm(rows: Floats, weight: NDArray[Any], epsilon: float) -> Floats:
    """x * weight / sqrt(mean of x^2 + epsilon) over the last axis (Zhang & Sennrich, 2019).

    Args:
        rows: [..., dim].
        weight: [dim].
        epsilon: above 0.

    Returns:
        [..., dim] in the dtype of ``rows``.

    Cost: O(elements).
    """
    mean = np.mean(rows * rows, axis=-1, keepdims=True)
    normed: Floats = rows / np.sqrt(mean + epsilon) * weight.astype(rows.dtype)
    return normed


def rotate(
    rows: Floats,
    cos: NDArray[Any],
    sin: NDArray[Any],
    *,
    offset: int = 0,
    interleaved: bool = False,
) -> Floats:
    """Rotary position embedding of some elements of each row (Su et al., RoFormer, 2021).

    Of the 2r elements from ``offset`` on, pair i is turned by angle i: (a, b) becomes
    (a cos - b sin, b cos + a sin). Pair i is elements i and r + i, or if ``interleaved`` 2i and
    2i + 1. All others stay.

    Args:
        rows: [T, heads, dim].
        cos, sin: [T, r], of each token's angles.
        offset: first element that is turned; offset + 2r <= dim.
        interleaved: which elements make a pair.

    Returns:
        [T, heads, dim] in the dtype of ``rows``.

    Cost: O(elements).
    """
    half = cos.shape[1]
    first, second = slice(offset, offset + half), slice(offset + half, offset + 2 * half)
    if interleaved:
        end = offset + 2 * half
        first, second = slice(offset, end, 2), slice(offset + 1, end, 2)
    c, s = (table[:, None].astype(rows.dtype) for table in (cos, sin))
    a, b, turned = rows[..., first], rows[..., second], rows.copy()
    turned[..., first], turned[..., second] = a * c - b * s, b * c + a * s
    return turned
