"""What `paged_attention` takes, checked once for every backend; knows shapes and no numbers."""

from collections.abc import Sequence
from math import isfinite
from numbers import Real
from typing import Any, NamedTuple, Protocol, TypedDict

from octavo.errors import LengthError, PlanError
from octavo.spec import check_int

_INT64 = 2**63 - 1


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


class Sizes(NamedTuple):
    """The sizes in a call of `paged_attention`.

    Attributes:
        tokens: query tokens T.
        heads: query heads H, a multiple of ``kv_heads``.
        kv_heads: key/value heads.
        page_size: tokens a page holds.
        k_dim: elements of a query and of a key head.
        v_dim: elements of a value head and of an output head.
    """

    tokens: int
    heads: int
    kv_heads: int
    page_size: int
    k_dim: int
    v_dim: int


def check_arguments(
    query: Shaped,
    key_cache: Shaped,
    value_cache: Shaped,
    *,
    tokens: int,
    order: str,
    scale: float | None,
    window: int | None,
    sink_tokens: int,
    sink_logits: Shaped | None,
    softcap: float | None,
) -> Sizes:
    """The sizes of a call whose arguments fit each other. O(1).

    Args:
        query: [T, H, k_dim].
        key_cache: one layer's keys, [pages, page_size, kv_heads, k_dim] for ``order`` token and
            [pages, kv_heads, page_size, k_dim] for head.
        value_cache: likewise with v_dim.
        tokens: query tokens of the step.
        order: ``token`` or ``head``.
        scale: factor of the scores or None.
        window: keys a query sees, its own included, or None.
        sink_tokens: first positions that stay visible beside the window.
        sink_logits: [H] or None.
        softcap: bound of the scores or None.

    Raises:
        PlanError: no such order, or a scale or softcap that is no finite number.
        LengthError: a size or number out of range; it names the argument.
    """
    page_axis = check_order(key_cache, order)
    _same("axes of query", _axes(query), 3, "[T, H, k_dim]")
    _same("axes of value_cache", _axes(value_cache), 4, f"the {order} order of pages")
    first, second = 3 - page_axis, page_axis
    sizes = Sizes(
        tokens=query.shape[0],
        heads=query.shape[1],
        kv_heads=key_cache.shape[first],
        page_size=key_cache.shape[second],
        k_dim=key_cache.shape[3],
        v_dim=value_cache.shape[3],
    )
    for name in ("kv_heads", "page_size", "k_dim"):
        check_int(f"{name} of key_cache", getattr(sizes, name), 1)
    _same("tokens of query", sizes.tokens, tokens, "those of the step")
    _same("k_dim of query", query.shape[2], sizes.k_dim, "that of key_cache")
    if tuple(value_cache.shape[:3]) != tuple(key_cache.shape[:3]):
        for axis, (got, want) in enumerate(zip(value_cache.shape, key_cache.shape, strict=True)):
            if axis < 3:
                _same(f"axis {axis} of value_cache", got, want, "that of key_cache")
    if sizes.heads % sizes.kv_heads:
        why = f"a multiple of the {sizes.kv_heads} key/value heads"
        raise LengthError("heads of query", sizes.heads, sizes.kv_heads, None, why)
    if window is not None:
        check_int("window", window, 1, _INT64, "keys a query sees, its own included")
    check_int("sink_tokens", sink_tokens, 0, _INT64)
    _check_number("scale", scale)
    _check_number("softcap", softcap)
    if softcap is not None and softcap <= 0:
        raise PlanError("softcap", softcap, "it must be a number above 0, or None")
    if sink_logits is not None:
        _same("axes of sink_logits", _axes(sink_logits), 1, "[H]")
        _same("heads of sink_logits", sink_logits.shape[0], sizes.heads, "one a query head")
    return sizes


def check_order(key_cache: Shaped, order: str) -> int:
    """The axis of ``key_cache`` along which a page's tokens lie. O(1).

    Raises:
        PlanError: no such order.
        LengthError: not four axes.
    """
    if order not in ("token", "head"):
        raise PlanError("order", order, "it must be 'token' or 'head'")
    _same("axes of key_cache", _axes(key_cache), 4, f"the {order} order of pages")
    return 1 if order == "token" else 2


def _axes(array: object) -> int:
    """Axes of an array; none for what is no array."""
    return len(getattr(array, "shape", ()))


def _check_number(name: str, value: object) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if value is not None and not number:
        raise PlanError(name, value, "it must be a finite number, or None")


def _same(name: str, value: int, wanted: int, why: str) -> None:
    if value != wanted:
        raise LengthError(name, value, wanted, wanted, why)
