"""Paged attention in NumPy and float64: the definition every backend is compared with.

Readable first: one row, then one head at a time. Reads the slots of the keys that a row's queries
see and no others. Does not know where keys and values come from, nor anything of models.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from octavo.attention.arguments import Options, check_arguments
from octavo.attention.arrays import as_reals
from octavo.attention.rows import group_view, no_page
from octavo.attention.stored import Floats, Stored
from octavo.cache.step import GroupView, Step
from octavo.errors import LengthError, PlanError


class Attended(NamedTuple):
    """What attention gives, in float64 unless asked otherwise.

    Attributes:
        out: [T, H, v_dim], weighted values.
        lse: [T, H], natural log of the sum of exp(score) over the keys a query sees; the sink logit
            is not among them, so that results over disjoint keys can be merged.
    """

    out: Floats
    lse: Floats


class Rule(NamedTuple):
    """How scores become weights.

    Attributes:
        scale: factor of the scores.
        softcap: bound of the scores; None: none.
        sink_logits: [H], each in the denominator of its head only; None: none.
    """

    scale: float
    softcap: float | None = None
    sink_logits: NDArray[Any] | None = None


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step,
    *,
    return_lse: Literal[True],
    dtype: Any = ...,
    **options: Unpack[Options],
) -> Attended: ...


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step,
    *,
    return_lse: Literal[False] = ...,
    dtype: Any = ...,
    **options: Unpack[Options],
) -> Floats: ...


def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step,
    *,
    group: str | None = None,
    order: str = "token",
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    sink_logits: NDArray[Any] | None = None,
    v_dim: int | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
    kv_dtype: str | None = None,
    return_lse: bool = False,
    dtype: Any = np.float64,
) -> Floats | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    Row r has ``counts[r]`` queries, the last positions of its ``context[r]`` keys: query i stands
    at position p = context - counts + i. A key at position k is seen when

    - causal: k <= p, and
    - window W: k > p - W (W keys, the query's own included) or k < ``sink_tokens``.

    Scores are query . key * scale, then softcap * tanh(score / softcap). The weights are
    exp(score) / (sum of exp(score) + exp(sink logit)): a sink logit enters the denominator only.
    Query head h reads key/value head h // (H / kv_heads). No key seen: exactly 0, lse -inf.

    Args:
        query: [T, H, k_dim].
        key_cache: one layer's keys in ``order``: [pages, page_size, kv_heads, k_dim] token-major,
            [pages, kv_heads, page_size, k_dim] head-major.
        value_cache: likewise with v_dim. None is latent attention: ``key_cache`` is
            [pages, page_size, k_dim] in either order, one row for all heads, which is the key, and
            its first ``v_dim`` elements the value.
        step: rows, lengths and page tables.
        group: whose page table; None: the first token group.
        order: ``token`` or ``head``.
        scale: factor of the scores; None: 1 / sqrt(k_dim). Latent attention with v_dim < k_dim
            must be given one, as k_dim is not the head's size before absorption.
        causal: whether a query sees only its own and earlier positions.
        softcap: bound of the scores.
        window: keys a query sees; None: all.
        sink_tokens: first positions seen beside the window.
        sink_logits: [H].
        v_dim: elements of a value; None: those that ``value_cache`` has.
        key_scale: of a quantised cache, what stored elements are multiplied by: a number,
            [kv_heads], [kv_heads, k_dim], or the shape of ``key_cache`` without its last axis.
        value_scale: likewise for ``value_cache``.
        kv_dtype: how both caches are quantised: int8, fp8 or int4, stored as
            `octavo.attention.quantised` says; None: they hold numbers.
        return_lse: whether to return ``Attended`` and not ``out`` alone.
        dtype: what is computed in: float64 or float32.

    Returns:
        ``dtype``[T, H, v_dim], or Attended.

    Raises:
        PlanError: no step; no such order, dtype or ``kv_dtype``; a group that keeps no tokens; an
            array of anything but real numbers; a number or sink logit that is not finite, or that
            ``dtype`` cannot hold; a scale of the wrong shape, not above 0, missing or out of place.
        LengthError: sizes that do not fit each other, or a page table that lacks pages of keys that
            a query sees, as where a window has dropped them, or names one that does not exist.
        UnknownGroup: no such group.

    Cost: O(T * H * context * (k_dim + v_dim)).
    """
    view = group_view(step, group)
    computed = check_dtype(dtype)
    if sink_logits is not None:
        sink_logits = as_reals("sink_logits", sink_logits, finite=True)
    sizes = check_arguments(
        query,
        key_cache,
        value_cache,
        tokens=int(step.query_start[-1]),
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
        dtype=computed,
    )
    queries = as_reals("query", query).astype(computed)
    keys = Stored("key_cache", key_cache, order, sizes.k_dim, kv_dtype, key_scale)
    values = None
    if value_cache is not None:
        values = Stored("value_cache", value_cache, order, sizes.v_dim, kv_dtype, value_scale)
    rule = Rule(sizes.scale, sizes.softcap, sink_logits)
    result = Attended(
        np.zeros((sizes.tokens, sizes.heads, sizes.v_dim), computed),
        np.full((sizes.tokens, sizes.heads), -np.inf, computed),
    )
    window, sink_tokens = sizes.window, sizes.sink_tokens
    for row, context in enumerate(step.context.tolist()):
        start, stop = step.query_start[row : row + 2].tolist()
        positions = np.arange(context - (stop - start), context)
        at = np.arange(int(view.base[row]), context)
        seen = visible(positions, at, causal=causal, window=window, sink_tokens=sink_tokens)
        used = seen.any(axis=0)
        place = _addresses(view, row, at[used], sizes.page_size)
        k = keys.read(*place, computed)
        v = k[..., : sizes.v_dim] if values is None else values.read(*place, computed)
        found = attend(queries[start:stop], k, v, seen[:, used], rule)
        result.out[start:stop], result.lse[start:stop] = found
    return result if return_lse else result.out


def attend(
    query: Floats, keys: Floats, values: Floats, seen: NDArray[np.bool_], rule: Rule
) -> Attended:
    """Attention of n queries over the same m keys, head by head.

    Args:
        query: [n, H, k_dim].
        keys: [m, kv_heads, k_dim].
        values: [m, kv_heads, v_dim].
        seen: bool[n, m], which keys each query sees.
        rule: how scores become weights.

    Returns:
        out [n, H, v_dim] and lse [n, H], in the dtype of the arguments.

    Cost: O(n * H * m * (k_dim + v_dim)).
    """
    (count, heads, _), repeats = query.shape, query.shape[1] // keys.shape[1]
    out = np.zeros((count, heads, values.shape[2]), query.dtype)
    sums = np.zeros((count, heads), query.dtype)
    for head in range(heads):
        scores = query[:, head] @ keys[:, head // repeats].T * rule.scale
        if rule.softcap is not None:
            scores = rule.softcap * np.tanh(scores / rule.softcap)
        scores = np.where(seen, scores, -np.inf)
        sink = -np.inf if rule.sink_logits is None else float(rule.sink_logits[head])
        weights, sums[:, head] = softmax(scores, sink)
        out[:, head] = weights @ values[:, head // repeats]
    return Attended(out, sums)


def softmax(scores: Floats, sink: float = -np.inf) -> tuple[Floats, Floats]:
    """Weights of each row of ``scores``, ``sink`` in the denominator, and the lse without it.

    Args:
        scores: [n, m]; -inf: not seen.
        sink: a logit that takes weight and has no value.

    Returns:
        [n, m], exp(score) / (sum of exp(score) + exp(sink)), zeros where nothing is seen; and [n].

    Cost: O(n * m).
    """
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    peak = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores - peak).sum(axis=1, keepdims=True)) + peak
    total = np.logaddexp(lse, sink)
    return np.exp(scores - np.where(np.isneginf(total), 0.0, total)), lse[:, 0]


def merge(parts: Iterable[Attended], sink_logits: ArrayLike | None = None) -> Attended:
    """The result over all keys from results of the same queries over disjoint parts of them.

    Each part counts with exp(its lse); one with lse -inf does not, whatever its out is. The parts
    must have been computed without sink logits: a sink takes part once, here.

    Args:
        parts: at least one pair of out [T, H, v_dim] and lse [T, H]; natural logarithms.
        sink_logits: [H] or None.

    Returns:
        out and lse (without the sinks) over the union of the keys; 0 and -inf where it is empty.

    Raises:
        PlanError: parts that are no pairs of real arrays; sinks that are none, or not finite.
        LengthError: no parts, or parts or sinks of other shapes.

    Cost: O(parts * T * H * v_dim).
    """
    outs, sums = _stacked(parts)
    lse = np.logaddexp.reduce(sums)
    total = lse
    if sink_logits is not None:
        sinks, heads = as_reals("sink_logits", sink_logits, finite=True), lse.shape[1]
        if sinks.shape != (heads,):
            raise LengthError("sink_logits", sinks.shape, None, None, f"[{heads}], one a head")
        total = np.logaddexp(lse, sinks)
    weights = np.exp(sums - np.where(np.isneginf(total), 0.0, total))[..., None]
    shares = np.where(np.isneginf(sums)[..., None], 0.0, weights * outs)
    return Attended(shares.sum(axis=0), lse)


def _stacked(parts: Iterable[Attended]) -> tuple[Floats, Floats]:
    """out [parts, T, H, v_dim] and lse [parts, T, H] of parts that fit each other."""
    try:
        pairs = [(out, lse) for out, lse in parts]
    except (TypeError, ValueError):
        right = "results of the same queries, each a pair of out and lse"
        raise PlanError("parts", type(parts).__name__, right) from None
    if not pairs:
        raise LengthError("parts", 0, 1, None, "at least one result")
    found = [
        (_floats(f"out of part {at}", out), _floats(f"lse of part {at}", lse))
        for at, (out, lse) in enumerate(pairs)
    ]
    shape = found[0][0].shape
    for at, (out, lse) in enumerate(found):
        if out.ndim != 3 or (out.shape, lse.shape) != (shape, shape[:2]):
            why = f"part {at} must have out [T, H, v_dim] and lse [T, H], shaped like part 0"
            raise LengthError("parts", (out.shape, lse.shape), None, None, why)
    return np.stack([out for out, _ in found]), np.stack([lse for _, lse in found])


def _floats(name: str, array: Any) -> Floats:
    """``array`` as float32 or wider."""
    reals = as_reals(name, array)
    return reals.astype(np.result_type(reals.dtype, np.float32))


def visible(
    queries: NDArray[Any], keys: NDArray[Any], *, causal: bool, window: int | None, sink_tokens: int
) -> NDArray[np.bool_]:
    """Which keys each query sees, by position: bool[queries, keys]. O(queries * keys)."""
    q, k = queries[:, None], keys[None, :]
    seen = np.ones((queries.size, keys.size), np.bool_)
    if causal:
        seen &= k <= q
    if window is not None:
        seen &= (k > q - window) | (k < sink_tokens)
    return seen


def check_dtype(dtype: Any) -> str:
    """The name of what is computed in, float64 or float32. O(1).

    Raises:
        PlanError: another dtype, or none.
    """
    try:
        name: str = np.dtype(dtype).name
    except (TypeError, ValueError):
        name = ""
    if name not in ("float64", "float32"):
        raise PlanError("dtype", name or dtype, "float64 or float32")
    return name


def _addresses(
    view: GroupView, row: int, at: NDArray[Any], page_size: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Page and offset of the positions ``at`` of one row."""
    column, offset = np.divmod(at - view.base[row], page_size)
    width = view.table.shape[1]
    if column.size and column[-1] >= width:
        why = f"pages in the table of row {row}, whose context needs more"
        raise LengthError("columns", int(column[-1]) + 1, 0, width, why)
    page = view.table[row, column]
    for missing in column[page == 0][:1]:
        raise no_page(row, int(missing))
    return page, offset
