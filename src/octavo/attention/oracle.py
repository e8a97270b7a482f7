"""Paged attention in NumPy and float64: the definition every backend is compared with.

Readable first: one row, then one head at a time. Reads the slots of each row's keys and no others.
Does not know where keys and values come from, nor anything of models.
"""

from math import sqrt
from typing import Any, Literal, NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from octavo.attention.arguments import Options, check_arguments
from octavo.table import GroupView, Step

Floats = NDArray[np.float64]


class Attended(NamedTuple):
    """What attention gives.

    Attributes:
        out: float64[T, H, v_dim], weighted values.
        lse: float64[T, H], natural log of the sum of exp(score) over the keys a query sees; the
            sink logit is not among them, so that results over disjoint keys can be merged.
    """

    out: Floats
    lse: Floats


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    step: Step,
    *,
    return_lse: Literal[True],
    **options: Unpack[Options],
) -> Attended: ...


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
    step: Step,
    *,
    return_lse: Literal[False] = ...,
    **options: Unpack[Options],
) -> Floats: ...


def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any],
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
    return_lse: bool = False,
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
        value_cache: likewise with v_dim.
        step: rows, lengths and page tables.
        group: whose page table; None: the first token group.
        order: ``token`` or ``head``.
        scale: factor of the scores; None: 1 / sqrt(k_dim).
        causal: whether a query sees only its own and earlier positions.
        softcap: bound of the scores.
        window: keys a query sees; None: all.
        sink_tokens: first positions seen beside the window.
        sink_logits: [H].
        return_lse: whether to return ``Attended`` and not ``out`` alone.

    Returns:
        float64[T, H, v_dim], or Attended.

    Raises:
        PlanError: no such order, or a scale or softcap that is no finite number.
        LengthError: sizes that do not fit each other.
        KeyError: no such group.

    Cost: O(T * H * context * (k_dim + v_dim)).
    """
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
    )
    if order == "head":
        key_cache, value_cache = key_cache.swapaxes(1, 2), value_cache.swapaxes(1, 2)
    factor = 1 / sqrt(sizes.k_dim) if scale is None else scale
    sinks = np.full(sizes.heads, -np.inf) if sink_logits is None else sink_logits
    result = Attended(
        np.zeros((sizes.tokens, sizes.heads, sizes.v_dim)),
        np.full((sizes.tokens, sizes.heads), -np.inf),
    )
    view, repeats = step.group(group), sizes.heads // sizes.kv_heads
    for row, context in enumerate(step.context.tolist()):
        start, stop = step.query_start[row : row + 2].tolist()
        at = np.arange(int(view.base[row]), context)
        keys, values = (_gather(c, view, row, at) for c in (key_cache, value_cache))
        queries = np.arange(context - (stop - start), context)
        seen = visible(queries, at, causal=causal, window=window, sink_tokens=sink_tokens)
        for head in range(sizes.heads):
            part = query[start:stop, head].astype(np.float64)
            scores = part @ keys[:, head // repeats].T * factor
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            scores = np.where(seen, scores, -np.inf)
            weights, lse = _softmax(scores, float(sinks[head]))
            result.out[start:stop, head] = weights @ values[:, head // repeats]
            result.lse[start:stop, head] = lse
    return result if return_lse else result.out


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


def _gather(cache: NDArray[Any], view: GroupView, row: int, at: NDArray[Any]) -> Floats:
    """Keys or values of the positions ``at`` of one row, float64[len(at), kv_heads, dim]."""
    column, offset = np.divmod(at - view.base[row], cache.shape[1])
    gathered: Floats = cache[view.table[row, column], offset].astype(np.float64)
    return gathered


def _softmax(scores: Floats, sink: float) -> tuple[Floats, Floats]:
    """Weights of each row of ``scores``, ``sink`` in the denominator, and the lse without it."""
    top = scores.max(axis=1, keepdims=True, initial=-np.inf)
    peak = np.where(np.isneginf(top), 0.0, top)
    exps = np.exp(scores - peak)
    total = exps.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + peak
    denominator = np.logaddexp(lse, sink)
    weights = np.exp(scores - np.where(np.isneginf(denominator), 0.0, denominator))
    return weights, lse[:, 0]
