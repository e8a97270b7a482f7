"""Paged attention in NumPy and float64: the definition every backend is compared with.

Readable first: one row, then one head at a time. Reads the slots of the keys that a row's queries
see and no others. Does not know where keys and values come from, nor anything of models.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from octavo.attention import registry
from octavo.attention.base import Attended, LayerCall, PreparedStep
from octavo.attention.parameters import Keywords
from octavo.attention.stored import Floats, StoredPages
from octavo.cache.step import Step
from octavo.checks import as_reals
from octavo.errors import LengthError, PlanError


class OracleStep(PreparedStep[NDArray[Any]]):
    """A step prepared for the oracle; it computes in float64."""

    backend = registry.backend("oracle")
    dtype: ClassVar[str] = "float64"

    def _computed_in(self, query: NDArray[Any]) -> str:
        del query
        return self.dtype

    def _attend(self, call: LayerCall[NDArray[Any]]) -> tuple[Floats, Floats]:
        sizes, given = call.sizes, call.parameters
        queries = as_reals("query", call.arrays.query).astype(self.dtype)
        keys, values = _stored(call)
        options = {"softcap": given.softcap, "sink_logits": given.sink_logits}
        if given.sink_logits is not None:
            options["sink_logits"] = as_reals("sink_logits", given.sink_logits, finite=True)
        out = np.zeros((sizes.tokens, sizes.heads, sizes.v_dim), self.dtype)
        lse = np.full((sizes.tokens, sizes.heads), -np.inf, self.dtype)
        for row in range(self.rows.start.size):
            mine, seen, page, offset = self._keys_of(row, call)
            k = keys.read(page, offset, self.dtype)
            v = k[..., : sizes.v_dim] if values is None else values.read(page, offset, self.dtype)
            out[mine], lse[mine] = attend(queries[mine], k, v, seen, call.scale, **options)
        return out, lse

    def _keys_of(
        self, row: int, call: LayerCall[NDArray[Any]]
    ) -> tuple[slice, NDArray[np.bool_], NDArray[Any], NDArray[Any]]:
        """A row's tokens, which of its keys each sees, and the page and offset of those keys."""
        rows = self.rows
        start, count, past = (int(each[row]) for each in (rows.start, rows.count, rows.past))
        at = np.arange(int(rows.base[row]), past + count)
        seen = visible(np.arange(past, past + count), at, **call.parameters.seen._asdict())
        used = seen.any(axis=0)
        column, offset = np.divmod(at[used] - rows.base[row], rows.page_size)
        return slice(start, start + count), seen[:, used], rows.table[row, column], offset


class SingleOracleStep(OracleStep):
    """A step prepared for the oracle, computing in float32."""

    dtype = "float32"


_STEPS = {"float64": OracleStep, "float32": SingleOracleStep}

prepare = OracleStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


def _stored(call: LayerCall[NDArray[Any]]) -> tuple[StoredPages, StoredPages | None]:
    """The layer's keys and values, to be read as numbers; no values in latent attention."""
    (_, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
    order, kind = given.order, given.kv_dtype
    k = StoredPages("key_cache", keys, order, sizes.k_dim, kind, given.key_scale)
    if values is None:
        return k, None
    return k, StoredPages("value_cache", values, order, sizes.v_dim, kind, given.value_scale)


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step | OracleStep,
    *,
    return_lse: Literal[True],
    dtype: Any = ...,
    **keywords: Unpack[Keywords],
) -> Attended[Floats]: ...


@overload
def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step | OracleStep,
    *,
    return_lse: Literal[False] = ...,
    dtype: Any = ...,
    **keywords: Unpack[Keywords],
) -> Floats: ...


def paged_attention(
    query: NDArray[Any],
    key_cache: NDArray[Any],
    value_cache: NDArray[Any] | None,
    step: Step | OracleStep,
    *,
    return_lse: Any = False,
    dtype: Any = np.float64,
    **keywords: Unpack[Keywords],
) -> Floats | Attended[Floats]:
    """Attention of a step's query tokens over their sequences' pages.

    Row r has ``counts[r]`` queries, the last positions of its ``context[r]`` keys: query i stands
    at position p = context - counts + i. A key at position k is seen when

    - causal: k <= p, and
    - window W: k > p - W (W keys, the query's own included) or k < ``sink_tokens``.

    Scores are query . key * scale, then softcap * tanh(score / softcap). Against the largest score
    of a query, m, the weights are exp(score - m), the output is sum of weight * value / (sum of
    weights + exp(sink logit - m)): a sink logit enters the denominator only; and the lse is
    m + log(sum of weights). Query head h reads key/value head h // (H / kv_heads). Where nothing
    has weight, as no key is seen or all scores are -inf: exactly 0, lse -inf.

    NaN and infinity are what IEEE arithmetic makes of them in these formulas. What a query does not
    see changes nothing, whatever it holds. NaN in a query, or in a key that it sees, makes that
    query and head NaN, lse too, and so does a score of +inf. NaN in a value that it sees makes that
    channel NaN; an infinite one makes it infinite, or NaN where its weight is 0, as that of a score
    of -inf is.

    Args:
        query: [T, H, k_dim].
        key_cache: one layer's keys in ``order``: [pages, page_size, kv_heads, k_dim] token-major,
            [pages, kv_heads, page_size, k_dim] head-major.
        value_cache: likewise with v_dim. None is latent attention: ``key_cache`` is
            [pages, page_size, k_dim] in either order, one row for all heads, which is the key, and
            its first ``v_dim`` elements the value.
        step: rows, lengths and page tables; or what `prepare` made of them.
        return_lse: whether to return ``Attended`` and not ``out`` alone.
        dtype: what is computed in: float64 or float32.
        keywords: those of `octavo.attention.Parameters`, and ``group``, the one that has the page
            table; None: the first token group. Quantised caches are stored as
            `octavo.attention.stored` says.

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
    kind: Any = type(step) if isinstance(step, OracleStep) else _STEPS[check_dtype(dtype)]
    found: Floats | Attended[Floats] = kind.paged_attention(
        query, key_cache, value_cache, step, return_lse=return_lse, **keywords
    )
    return found


def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    seen: NDArray[np.bool_],
    scale: float,
    *,
    softcap: float | None = None,
    sink_logits: NDArray[Any] | None = None,
) -> Attended[Floats]:
    """Attention of n queries over the same m keys, head by head.

    Args:
        query: [n, H, k_dim].
        keys: [m, kv_heads, k_dim].
        values: [m, kv_heads, v_dim].
        seen: bool[n, m], which keys each query sees.
        scale: factor of the scores.
        softcap: bound of the scores; None: none.
        sink_logits: [H], each in the denominator of its head only; None: none.

    Returns:
        out [n, H, v_dim] and lse [n, H], in the dtype of the arguments.

    Cost: O(n * H * m * (k_dim + v_dim)).
    """
    (count, heads, _), repeats = query.shape, query.shape[1] // keys.shape[1]
    out = np.zeros((count, heads, values.shape[2]), query.dtype)
    sums = np.zeros((count, heads), query.dtype)
    for head in range(heads):
        with np.errstate(invalid="ignore", over="ignore"):  # what is seen may be anything
            scores = query[:, head] @ keys[:, head // repeats].T * scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
        scores = np.where(seen, scores, -np.inf)
        sink = -np.inf if sink_logits is None else float(sink_logits[head])
        weights, sums[:, head] = softmax(scores, sink)
        out[:, head] = _weighted(weights, values[:, head // repeats], seen)
    return Attended(out, sums)


def _weighted(weights: Floats, values: Floats, seen: NDArray[np.bool_]) -> Floats:
    """weights [n, m] @ values [m, v_dim], where a value counts for those who see it alone."""
    finite = np.isfinite(values)
    out: Floats = weights @ np.where(finite, values, 0.0)
    odd = ~finite.all(axis=1)
    for query in np.flatnonzero(seen[:, odd].any(axis=1)):
        mine = seen[query]
        with np.errstate(invalid="ignore"):
            out[query] = weights[query, mine] @ values[mine]
    return out


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
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(scores - peak).sum(axis=1, keepdims=True)) + peak
        total = np.logaddexp(lse, sink)
        return np.exp(scores - np.where(np.isneginf(total), 0.0, total)), lse[:, 0]


def merge(parts: Iterable[Attended[Any]], sink_logits: ArrayLike | None = None) -> Attended[Floats]:
    """The result over all keys from results of the same queries over disjoint parts of them.

    Each part counts with exp(its lse); one with lse -inf does not, whatever its out is, and one
    with NaN makes the whole NaN. The parts must have been computed without sink logits: a sink
    takes part once, here.

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
    with np.errstate(invalid="ignore"):  # of parts that are NaN
        lse = total = np.logaddexp.reduce(sums)
        if sink_logits is not None:
            total = np.logaddexp(lse, _sinks(sink_logits, lse.shape[1]))
        weights = np.exp(sums - np.where(np.isneginf(total), 0.0, total))[..., None]
        shares = np.where(np.isneginf(sums)[..., None], 0.0, weights * outs)
        return Attended(shares.sum(axis=0), lse)


def _sinks(sink_logits: ArrayLike, heads: int) -> NDArray[Any]:
    """Sink logits, one per head."""
    sinks = as_reals("sink_logits", sink_logits, finite=True)
    if sinks.shape != (heads,):
        raise LengthError(
            "sink_logits", sinks.shape, None, None, f"it must be [{heads}], one per head"
        )
    return sinks


def _stacked(parts: Iterable[Attended[Any]]) -> tuple[Floats, Floats]:
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
