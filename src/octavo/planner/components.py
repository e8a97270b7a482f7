"""What one page of each layer is made of: tensors with a shape and an element type, exact bytes.

Knows layer kinds and element types. Does not know pools, budgets and where anything lies.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal, NamedTuple, get_args

from octavo.errors import PlanError
from octavo.model.dtypes import DTYPES, DType
from octavo.model.dtypes import dtype as find_dtype
from octavo.model.layers import (
    Attention,
    Compressed,
    Cross,
    Latent,
    LayerKind,
    Shape,
    Shared,
    State,
)
from octavo.model.lifetimes import group_name, lifetime_of
from octavo.model.spec import ModelSpec

Order = Literal["token", "head"]
Scales = Literal["none", "tensor", "token", "head"]
LATENT_TILE = 128
"""Elements of a quantised latent, or of an indexer's key, that share one scale."""
STATES = ("recurrent", "conv", "rows", "buffer")
"""Names of components of constant size per sequence."""
_FP32, _BF16, _FP8 = DTYPES["fp32"], DTYPES["bf16"], DTYPES["fp8"]


class Elements(NamedTuple):
    """Element types of a cache.

    Attributes:
        kv: of keys, values and latents.
        scales: how quantised keys and values are scaled: ``none`` or ``tensor`` (no bytes in a
            page), ``token`` (one fp32 per token each) or ``head`` (one per token and head each).
        recurrent: of recurrent tensors.
        conv: of the inputs a convolution keeps.
        indexer: of the keys of an indexer; fp8 with a scale for each 128 elements.
    """

    kv: DType
    scales: Scales
    recurrent: DType
    conv: DType
    indexer: DType = _FP8

    @property
    def rows(self) -> DType:
        """Of the last rows that a state keeps: as keys and values, where not quantised."""
        return self.kv if self.kv.bits > 8 else _BF16


class Component(NamedTuple):
    """One tensor of one page (of a state: of one state) of one layer.

    Attributes:
        layer: index in the model.
        group: name.
        name: key, value, latent, rope, indexer, recurrent, conv, rows, buffer, or one of them and
            ``_scale``.
        dtype: element type.
        shape: of one page.
        bytes: of one page.
        draft: whether it belongs to a draft model or to prediction layers.
    """

    layer: int
    group: str
    name: str
    dtype: DType
    shape: Shape
    bytes: int
    draft: bool = False

    @property
    def is_scale(self) -> bool:
        """Whether it holds scales of another component."""
        return self.name.endswith("_scale")


def read_elements(
    dtype: str | DType,
    scales: str | None,
    state_dtype: str | DType,
    conv_dtype: str | DType | None,
    indexer_dtype: str | DType = "fp8",
) -> Elements:
    """Element types, checked.

    Args:
        scales: None: ``head`` for int8 and int4, else ``none``.
        conv_dtype: None: as keys and values, where those are not quantised, else bf16.
        indexer_dtype: fp8, which has scales, or 16 bits or more.

    Raises:
        PlanError: unknown, or scales where nothing is quantised.
    """
    kv = find_dtype(dtype)
    whole = kv.name.startswith("int")
    chosen = ("head" if whole else "none") if scales is None else scales
    if chosen not in get_args(Scales):
        raise PlanError("scales", scales, f"it must be one of {', '.join(get_args(Scales))}")
    if chosen != "none" and kv.bits > 8:
        raise PlanError("scales", scales, f"{kv.name} is not quantised and has no scales")
    if chosen == "none" and whole:
        raise PlanError("scales", scales, f"{kv.name} needs scales: tensor, token or head")
    recurrent = _state_type("state_dtype", state_dtype)
    conv = _state_type(
        "conv_dtype", (kv if kv.bits > 8 else _BF16) if conv_dtype is None else conv_dtype
    )
    indexer = find_dtype(indexer_dtype)
    if indexer.bits < 16 and indexer != _FP8:
        raise PlanError("indexer_dtype", indexer.name, "it must be fp8, bf16, fp16 or fp32")
    return Elements(kv, chosen, recurrent, conv, indexer)  # type: ignore[arg-type]


def _state_type(name: str, wanted: str | DType) -> DType:
    """States are not quantised: no scales are kept for them."""
    found = find_dtype(wanted)
    if found.bits < 16:
        raise PlanError(name, found.name, "states are kept in 16 bits or more")
    return found


def components_of(
    spec: ModelSpec, elements: Elements, page_size: int, order: Order, *, draft: bool = False
) -> list[Component]:
    """Every component of every layer of a model, in order. O(layers).

    Raises:
        PlanError: elements that do not fill whole bytes, or two kinds of one layer in one group.
    """
    kinds = spec.kinds()
    parts = {
        kind: (group_name(kind), list(_sized(kind, elements, page_size, order)))
        for kind in {kind for _, kind in kinds}
    }
    found = [
        Component(layer, group, name, dtype, shape, size, draft)
        for layer, kind in kinds
        for group, listed in (parts[kind],)
        for name, dtype, shape, size in listed
    ]
    if len({(item.layer, item.group, item.name) for item in found}) < len(found):
        right = "a layer has at most one kind of each lifetime"
        raise PlanError("spec", spec.name, right)
    return found


def _sized(
    kind: LayerKind, elements: Elements, page_size: int, order: Order
) -> Iterator[tuple[str, DType, Shape, int]]:
    """Components of a kind with their bytes; the last axis alone fills whole bytes."""
    for name, dtype, shape in _parts(kind, elements, page_size, order):
        yield name, dtype, shape, prod(shape[:-1]) * dtype.size(shape[-1])


def _parts(
    kind: LayerKind, elements: Elements, page_size: int, order: Order
) -> Iterator[tuple[str, DType, Shape]]:
    if isinstance(kind, State):
        yield from _state(kind, elements)
    elif isinstance(kind, Latent | Compressed):
        yield from _latent(kind, elements, lifetime_of(kind).units(page_size))
    elif not isinstance(kind, Shared):
        yield from _attention(kind, elements, page_size, order)


def _attention(
    kind: Attention | Cross, elements: Elements, page_size: int, order: Order
) -> Iterator[tuple[str, DType, Shape]]:
    outer = (page_size, kind.kv_heads) if order == "token" else (kind.kv_heads, page_size)
    yield "key", elements.kv, (*outer, kind.k_dim)
    yield "value", elements.kv, (*outer, kind.v_dim)
    if elements.scales in ("token", "head"):
        shape = outer if elements.scales == "head" else (page_size,)
        yield "key_scale", _FP32, shape
        yield "value_scale", _FP32, shape
    if isinstance(kind, Attention):
        yield from _indexer(kind.indexer, elements, page_size)


def _indexer(size: int, elements: Elements, page_size: int) -> Iterator[tuple[str, DType, Shape]]:
    """The key of an indexer, with its scales in fp8."""
    if not size:
        return
    yield "indexer", elements.indexer, (page_size, size)
    if elements.indexer == _FP8:
        yield "indexer_scale", _FP32, (page_size, -(-size // LATENT_TILE))


def _latent(
    kind: Latent | Compressed, elements: Elements, rows: int
) -> Iterator[tuple[str, DType, Shape]]:
    """A row of latent and position part; in fp8 the latent has a scale for each tile of it.

    Source of the quantised row (512 fp8, 4 fp32 scales, 64 bf16: 656 bytes): FlashMLA.
    """
    if not kind.rank:
        pass  # an indexer's key alone
    elif elements.kv.bits > 8:
        yield "latent", elements.kv, (rows, kind.rank + kind.rope)
    elif elements.kv.name.startswith("fp8"):
        yield "latent", elements.kv, (rows, kind.rank)
        yield "latent_scale", _FP32, (rows, -(-kind.rank // LATENT_TILE))
        if kind.rope:
            yield "rope", _BF16, (rows, kind.rope)
    else:
        raise PlanError("dtype", elements.kv.name, "latents are kept in fp8 or wider")
    yield from _indexer(kind.indexer, elements, rows)


def _state(kind: State, elements: Elements) -> Iterator[tuple[str, DType, Shape]]:
    recurrent = kind.recurrent
    if isinstance(recurrent, tuple) and recurrent:
        yield "recurrent", elements.recurrent, recurrent
    if kind.conv:
        yield "conv", elements.conv, kind.conv
    if kind.rows:
        yield "rows", elements.rows, kind.rows
    if kind.buffer:
        yield "buffer", _FP32, kind.buffer
