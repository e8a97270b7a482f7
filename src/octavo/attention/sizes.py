"""The sizes in a layer's arrays, which must fit each other; knows shapes and no elements."""

import warnings
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from octavo.attention.parameters import Parameters
from octavo.checks import check_int
from octavo.errors import LengthError, PlanError


class Shaped(Protocol):
    """An array of any library."""

    @property
    def shape(self) -> Sequence[int]:
        """Elements along each axis."""
        ...


A = TypeVar("A", bound=Shaped)


class LayerArrays(NamedTuple, Generic[A]):
    """A layer's query and caches.

    Attributes:
        query: [T, H, k_dim].
        keys: one layer's keys, [pages, page_size, kv_heads, k_dim] for ``order`` token and
            [pages, kv_heads, page_size, k_dim] for head; [pages, page_size, k_dim] for both where
            there are no ``values``. The last axis of ``int4`` is half as long, rounded up.
        values: likewise with v_dim; None: latent attention, where values are the first v_dim
            elements of a key.
    """

    query: A
    keys: A
    values: A | None


class Sizes(NamedTuple):
    """The sizes in a layer's arrays.

    Attributes:
        tokens: query tokens T.
        heads: query heads H, a multiple of ``kv_heads``.
        kv_heads: key/value heads.
        page_size: tokens per page.
        k_dim: elements of a query and of a key head.
        v_dim: elements of a value head and of an output head.
    """

    tokens: int
    heads: int
    kv_heads: int
    page_size: int
    k_dim: int
    v_dim: int


def page_axis(arrays: LayerArrays[A], order: str) -> int:
    """The axis of the keys along which a page's tokens lie. O(1).

    Raises:
        LengthError: not four axes, or not three of latent rows.
    """
    key_cache = arrays.keys
    if arrays.values is None:
        _same("axes of key_cache", _axes(key_cache), 3, "[pages, page_size, k_dim]")
        return 1
    _same("axes of key_cache", _axes(key_cache), 4, f"the {order} order of pages")
    return 1 if order == "token" else 2


def sizes_of(arrays: LayerArrays[A], parameters: Parameters) -> Sizes:
    """The sizes of arrays that fit each other and ``parameters``. O(1).

    Raises:
        PlanError: a scale of the scores that must be given; a scale of quantised elements of
            another shape, or where there are none.
        LengthError: a size out of range; it names the argument.

    Warns:
        RuntimeWarning: a quantised cache without its scale, which is then 1.
    """
    query, key_cache, value_cache = arrays
    axis, kv_dtype = page_axis(arrays, parameters.order), parameters.kv_dtype
    _same("axes of query", _axes(query), 3, "[T, H, k_dim]")
    tokens, heads, wanted = query.shape
    k_dim, page_size = _elements(key_cache.shape[-1], kv_dtype, wanted), key_cache.shape[axis]
    kv_heads = 1 if value_cache is None else key_cache.shape[3 - axis]
    for name, size in (("kv_heads", kv_heads), ("page_size", page_size), ("k_dim", k_dim)):
        check_int(f"{name} of key_cache", size, 1)
    if value_cache is None:
        v_dim = _latent_v_dim(k_dim, parameters)
    else:
        v_dim = _v_dim(key_cache, value_cache, parameters)
    _same("k_dim of query", wanted, k_dim, "that of key_cache")
    if heads % kv_heads:
        why = f"a multiple of the {kv_heads} key/value heads"
        raise LengthError("heads of query", heads, kv_heads, None, why)
    if parameters.sink_logits is not None:
        _same("axes of sink_logits", _axes(parameters.sink_logits), 1, "[H]")
        _same("heads of sink_logits", parameters.sink_logits.shape[0], heads, "one per query head")
    if kv_dtype is not None:
        _check_factor("key_scale", parameters.key_scale, key_cache, (kv_heads, k_dim), kv_dtype)
        if value_cache is not None:
            shape = (kv_heads, v_dim)
            _check_factor("value_scale", parameters.value_scale, value_cache, shape, kv_dtype)
    return Sizes(tokens, heads, kv_heads, page_size, k_dim, v_dim)


def _latent_v_dim(k_dim: int, parameters: Parameters) -> int:
    """Elements of a value that is a part of its key."""
    why = "leading elements of a key, as no value_cache"
    v_dim = check_int("v_dim", parameters.v_dim, 1, k_dim, why)
    if parameters.scale is None and v_dim != k_dim:
        why = "a key whose values are a part of it says nothing of the head it stands for; give one"
        raise PlanError("scale", None, why)
    if parameters.value_scale is not None:
        right = "without value_cache, key_scale serves both"
        raise PlanError("value_scale", parameters.value_scale, right)
    return v_dim


def _v_dim(key_cache: Shaped, value_cache: Shaped, parameters: Parameters) -> int:
    """Elements of a value, of a ``value_cache`` that is shaped like ``key_cache``."""
    right = f"the {parameters.order} order of pages"
    _same("axes of value_cache", _axes(value_cache), 4, right)
    for axis in range(3):
        found, right_size = value_cache.shape[axis], key_cache.shape[axis]
        _same(f"axis {axis} of value_cache", found, right_size, "that of key_cache")
    stored, v_dim = value_cache.shape[3], parameters.v_dim
    elements = _elements(stored, parameters.kv_dtype, 2 * stored if v_dim is None else v_dim)
    if v_dim is not None:
        _same("v_dim", v_dim, elements, "that of value_cache")
    return elements


def _elements(stored: int, kv_dtype: str | None, wanted: int) -> int:
    """Elements in a row of ``stored``; int4 has two a byte, of which the last may be unused."""
    if kv_dtype != "int4":
        return stored
    return wanted if -(-wanted // 2) == stored else 2 * stored


def _check_factor(
    name: str, scale: Any, cache: Shaped, shape: tuple[int, int], kv_dtype: str
) -> None:
    """Refuse a quantisation scale of no known shape."""
    if scale is None:
        text = f"{name} is None: stored {kv_dtype} elements are taken as they are, with scale 1"
        warnings.warn(text, RuntimeWarning, stacklevel=5)
        return
    known = [(), shape[:1], shape, tuple(cache.shape[:-1])]
    if tuple(getattr(scale, "shape", ())) not in known:
        right = f"a number or an array of one of the shapes {', '.join(map(str, known[1:]))}"
        raise PlanError(name, f"of shape {tuple(scale.shape)}", right)


def _axes(array: object) -> int:
    """Axes of an array; none for what is no array."""
    return len(getattr(array, "shape", ()))


def _same(name: str, value: int, wanted: int, why: str) -> None:
    if value != wanted:
        raise LengthError(name, value, wanted, wanted, why)
