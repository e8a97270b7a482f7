"""From layers to bytes: the page of every layer and the tensors of a whole pool.

Exact integer arithmetic only. Knows nothing of budgets and of devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from octavo.dtypes import DType
from octavo.spec import Attention

Order = Literal["token", "head"]
Component = Literal["key", "value"]

ALIGNMENT = 64
"""Bytes every tensor starts at a multiple of: one cache line, the widest vector load on CPUs."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the arena: the keys or the values of one layer, for every page.

    Attributes:
        layer: index in the model.
        component: ``key`` or ``value``.
        shape: (pages, page_size, kv_heads, dim) token-major, (pages, kv_heads, page_size, dim)
            head-major.
        offset: first byte in the arena.
        bytes: bytes it takes, without the padding behind it.
        page_stride: bytes from a page to the next.
    """

    layer: int
    component: Component
    shape: tuple[int, int, int, int]
    offset: int
    bytes: int
    page_stride: int


def align(value: int) -> int:
    """``value`` rounded up to a multiple of ``ALIGNMENT``. O(1)."""
    return -(-value // ALIGNMENT) * ALIGNMENT


def row_bytes(layers: tuple[Attention, ...], dtype: DType, page_size: int) -> list[int]:
    """Bytes of one page in each tensor, keys and values of each layer in turn. O(layers)."""
    return [
        page_size * layer.kv_heads * dim * dtype.bytes
        for layer in layers
        for dim in (layer.k_dim, layer.v_dim)
    ]


def arena_bytes(rows: list[int], num_pages: int) -> int:
    """Bytes of an arena holding ``num_pages`` of every row, each tensor aligned. O(layers)."""
    return sum(align(row * num_pages) for row in rows)


def lay_out(
    layers: tuple[Attention, ...], dtype: DType, page_size: int, num_pages: int, order: Order
) -> Iterator[TensorPlan]:
    """The tensors of a component layout, one after the other in the arena. O(layers)."""
    offset = 0
    components: tuple[Component, Component] = ("key", "value")
    for index, layer in enumerate(layers):
        for component, dim in zip(components, (layer.k_dim, layer.v_dim), strict=True):
            inner = (page_size, layer.kv_heads) if order == "token" else (layer.kv_heads, page_size)
            stride = page_size * layer.kv_heads * dim * dtype.bytes
            shape = (num_pages, *inner, dim)
            yield TensorPlan(index, component, shape, offset, num_pages * stride, stride)
            offset += align(num_pages * stride)
