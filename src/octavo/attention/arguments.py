"""What `paged_attention` takes, checked once for every backend; knows shapes and no elements."""

import warnings
from collections.abc import Collection, Sequence
from math import inf, isfinite, sqrt
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypedDict

from octavo.checks import check_int
from octavo.errors import LengthError, PlanError

_INT64 = 2**63 - 1

KV_DTYPES = ("int8", "fp8", "int4")
"""Element types of quantised caches, by the names of `octavo.model.dtypes`."""

_RANGES = {"float64": (0.0, inf), "float32": (2.0**-149, (2 - 2.0**-23) * 2.0**127)}
"""Smallest and largest number beside 0 that a type holds."""


class Shaped(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements along each axis."""
        ...


class Options(TypedDict, total=False):
    """The keywords of `paged_attention` that do not change what it returns; explained there."""

    group: str | None
    order: str
    scale: float | None
    causal: bool
    softcap: float | None
    window: int | None
    sink_tokens: int
    sink_logits: Any
    v_dim: int | None
    key_scale: Any
    value_scale: Any
    kv_dtype: str | None


class Sizes(NamedTuple):
    """The sizes and numbers in a call of `paged_attention`.

    Attributes:
        tokens: query tokens T.
        heads: query heads H, a multiple of ``kv_heads``.
        kv_heads: key/value heads.
        page_size: tokens a page holds.
        k_dim: elements of a query and of a key head.
        v_dim: elements of a value head and of an output head.
        scale: factor of the scores, its default filled in.
        softcap: bound of the scores, or None.
        window: keys a query sees, or None.
        sink_tokens: first positions that stay visible beside it.
    """

    tokens: int
    heads: int
    kv_heads: int
    page_size: int
    k_dim: int
    v_dim: int
    scale: float = 1.0
    softcap: float | None = None
    window: int | None = None
    sink_tokens: int = 0


def check_arguments(
    query: Shaped,
    key_cache: Shaped,
    value_cache: Shaped | None,
    *,
    tokens: int,
    order: str,
    scale: float | None,
    window: int | None,
    sink_tokens: int,
    sink_logits: Shaped | None,
    softcap: float | None,
    v_dim: int | None = None,
    kv_dtype: str | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
    causal: bool = True,
    return_lse: bool = False,
    dtype: str = "float64",
) -> Sizes:
    """The sizes and numbers of a call whose arguments fit each other. O(1).

    Args:
        query: [T, H, k_dim].
        key_cache: one layer's keys, [pages, page_size, kv_heads, k_dim] for ``order`` token and
            [pages, kv_heads, page_size, k_dim] for head; [pages, page_size, k_dim] for both where
            there is no ``value_cache``. The last axis of ``int4`` is half as long, rounded up.
        value_cache: likewise with v_dim; None: values are the first v_dim elements of a key.
        tokens: query tokens of the step.
        order: ``token`` or ``head``.
        scale: factor of the scores or None.
        window: keys a query sees, its own included, or None.
        sink_tokens: first positions that stay visible beside the window.
        sink_logits: [H] or None.
        softcap: bound of the scores or None.
        v_dim: elements of a value; needed without ``value_cache``.
        kv_dtype: how the caches are quantised, one of ``KV_DTYPES``, or None.
        key_scale: what a stored key element is multiplied by: a number, [kv_heads],
            [kv_heads, k_dim], or the shape of ``key_cache`` without its last axis.
        value_scale: likewise for values.
        causal: whether a query sees only its own and earlier positions.
        return_lse: whether the lse is returned too.
        dtype: float64 or float32, which must hold ``scale`` and ``softcap``.

    Raises:
        PlanError: no such order or ``kv_dtype``; a number that is not finite, or beyond ``dtype``;
            a flag that is no bool; a scale that must be given or must not.
        LengthError: a size or number out of range; it names the argument.

    Warns:
        RuntimeWarning: a quantised cache without its scale, which is then 1.
    """
    sizes = _sizes(query, key_cache, value_cache, order, kv_dtype, v_dim)
    _same("tokens of query", sizes.tokens, tokens, "those of the step")
    if window is not None:
        window = check_int("window", window, 1, _INT64, "keys a query sees, its own included")
    sink_tokens = check_int("sink_tokens", sink_tokens, 0, _INT64)
    for flag, given in (("causal", causal), ("return_lse", return_lse)):
        check_flag(flag, given)
    if scale is None and value_cache is None and sizes.v_dim != sizes.k_dim:
        why = "a key whose values are a part of it says nothing of the head it stands for; give one"
        raise PlanError("scale", scale, why)
    factor = 1 / sqrt(sizes.k_dim) if scale is None else check_number("scale", scale, dtype)
    if softcap is not None:
        softcap = check_positive("softcap", softcap, dtype)
    if sink_logits is not None:
        _same("axes of sink_logits", _axes(sink_logits), 1, "[H]")
        _same("heads of sink_logits", sink_logits.shape[0], sizes.heads, "one a query head")
    _check_factor("key_scale", key_scale, key_cache, kv_dtype, (sizes.kv_heads, sizes.k_dim))
    if value_cache is not None:
        shape = (sizes.kv_heads, sizes.v_dim)
        _check_factor("value_scale", value_scale, value_cache, kv_dtype, shape)
    elif value_scale is not None:
        raise PlanError("value_scale", value_scale, "without value_cache, key_scale serves both")
    return sizes._replace(scale=factor, softcap=softcap, window=window, sink_tokens=sink_tokens)


def _sizes(
    query: Shaped,
    key_cache: Shaped,
    value_cache: Shaped | None,
    order: str,
    kv_dtype: str | None,
    v_dim: int | None,
) -> Sizes:
    page_axis = check_order(key_cache, order, latent=value_cache is None)
    if kv_dtype is not None:
        check_choice("kv_dtype", kv_dtype, KV_DTYPES)
    _same("axes of query", _axes(query), 3, "[T, H, k_dim]")
    tokens, heads, wanted = query.shape
    k_dim, page_size = _elements(key_cache.shape[-1], kv_dtype, wanted), key_cache.shape[page_axis]
    kv_heads = 1 if value_cache is None else key_cache.shape[3 - page_axis]
    for name, size in (("kv_heads", kv_heads), ("page_size", page_size), ("k_dim", k_dim)):
        check_int(f"{name} of key_cache", size, 1)
    if value_cache is None:
        v_dim = check_int("v_dim", v_dim, 1, k_dim, "leading elements of a key, as no value_cache")
    else:
        v_dim = _v_dim(key_cache, value_cache, order, kv_dtype, v_dim)
    _same("k_dim of query", wanted, k_dim, "that of key_cache")
    if heads % kv_heads:
        why = f"a multiple of the {kv_heads} key/value heads"
        raise LengthError("heads of query", heads, kv_heads, None, why)
    return Sizes(tokens, heads, kv_heads, page_size, k_dim, v_dim)


def _v_dim(
    key_cache: Shaped, value_cache: Shaped, order: str, kv_dtype: str | None, v_dim: int | None
) -> int:
    """Elements of a value, of a ``value_cache`` that is shaped like ``key_cache``."""
    _same("axes of value_cache", _axes(value_cache), 4, f"the {order} order of pages")
    for axis in range(3):
        got, want = value_cache.shape[axis], key_cache.shape[axis]
        _same(f"axis {axis} of value_cache", got, want, "that of key_cache")
    stored = value_cache.shape[3]
    wanted = stored if v_dim is None else check_int("v_dim", v_dim, 1)
    found = _elements(stored, kv_dtype, 2 * stored if v_dim is None else wanted)
    if v_dim is not None:
        _same("v_dim", v_dim, found, "that of value_cache")
    return found


def _elements(stored: int, kv_dtype: str | None, wanted: int) -> int:
    """Elements in a row of ``stored``; int4 has two a byte, of which the last may be unused."""
    if kv_dtype != "int4":
        return stored
    return wanted if -(-wanted // 2) == stored else 2 * stored


def _check_factor(
    name: str, scale: Any, cache: Shaped, kv_dtype: str | None, shape: tuple[int, int]
) -> None:
    """Refuse a quantisation scale of no known shape."""
    if kv_dtype is None:
        if scale is not None:
            raise PlanError(name, scale, "only quantised caches have one; name their kv_dtype")
        return
    if scale is None:
        text = f"{name} is None: stored {kv_dtype} elements are taken as they are, with scale 1"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
        return
    if not _axes(scale) and not hasattr(scale, "shape"):
        check_positive(name, scale)
        return
    known = [(), shape[:1], shape, tuple(cache.shape[:-1])]
    if tuple(scale.shape) not in known:
        right = f"a number or an array of one of the shapes {', '.join(map(str, known[1:]))}"
        raise PlanError(name, f"of shape {tuple(scale.shape)}", right)


def check_positive(name: str, value: object, dtype: str = "float64") -> float:
    """``value`` as a float; what is no finite number above 0 is refused. O(1).

    Raises:
        PlanError: it is none, or ``dtype`` cannot hold it.
    """
    number = check_number(name, value, dtype)
    if number <= 0:
        raise PlanError(name, value, "it must be a finite number above 0")
    return number


def check_number(name: str, value: object, dtype: str = "float64") -> float:
    """``value`` as a float; what is no finite number is refused. O(1).

    Args:
        name: what the number is called in an error.
        value: any real number of Python or NumPy, but no bool.
        dtype: float64 or float32, in which it must neither overflow nor become 0.

    Raises:
        PlanError: it is none, or ``dtype`` cannot hold it.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise PlanError(name, value, "it must be a finite number")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise PlanError(name, value, "it must be a finite number")
    smallest, largest = _RANGES[dtype]
    if number and not smallest <= abs(number) <= largest:
        raise PlanError(name, value, f"it must be a number that {dtype} holds")
    return number


def check_flag(name: str, value: object) -> bool:
    """``value`` as a bool, of Python or NumPy. O(1).

    Raises:
        PlanError: it is none.
    """
    if type(value).__name__ not in ("bool", "bool_"):
        raise PlanError(name, value, "it must be True or False")
    return bool(value)


def check_choice(name: str, value: object, known: Collection[str]) -> str:
    """``value``, which must be one of the names ``known``. O(known).

    Raises:
        PlanError: it is none of them.
    """
    if not isinstance(value, str) or value not in known:
        raise PlanError(name, value, f"one of {', '.join(known)}")
    return value


def check_order(key_cache: Shaped, order: str, *, latent: bool = False) -> int:
    """The axis of ``key_cache`` along which a page's tokens lie. O(1).

    Args:
        key_cache: one layer's keys.
        order: ``token`` or ``head``.
        latent: whether a token has one row for all heads, in either order.

    Raises:
        PlanError: no such order.
        LengthError: not four axes, or not three if ``latent``.
    """
    check_choice("order", order, ("token", "head"))
    if latent:
        _same("axes of key_cache", _axes(key_cache), 3, "[pages, page_size, k_dim]")
        return 1
    _same("axes of key_cache", _axes(key_cache), 4, f"the {order} order of pages")
    return 1 if order == "token" else 2


def _axes(array: object) -> int:
    """Axes of an array; none for what is no array."""
    return len(getattr(array, "shape", ()))


def _same(name: str, value: int, wanted: int, why: str) -> None:
    if value != wanted:
        raise LengthError(name, value, wanted, wanted, why)
