"""Layouts: where the components of a plan's pages lie in one arena.

``component``: a tensor a component. ``slab``: slot j pairs the j-th layer of every group, side by
side in one block. ``packed``: `octavo.planner.packing`. In the first two a page id counts in every
group. Exact integers; knows no budget's terms and no device.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from octavo.model.dtypes import DType
from octavo.model.layers import Shape
from octavo.planner.components import Component

if TYPE_CHECKING:
    from octavo.planner.packing import Packing

Layout = Literal["component", "slab", "packed"]
ALIGNMENT = 64
"""Bytes every tensor starts at a multiple of: one cache line, the widest vector load on CPUs."""
_PART_GRAIN = 16  # bytes every component of a slab's block begins at a multiple of


class TensorPlan(NamedTuple):
    """One component of one layer, for every page: a strided view of the arena.

    Attributes:
        layer: index in the model.
        group: name; its first axis counts the page ids of that group.
        component: key, value, latent, rope, indexer, recurrent, conv, or a ``_scale`` of them.
        dtype: element type.
        shape: (pages, ...): of a token group (pages, page_size, ...) or head-major (pages,
            kv_heads, page_size, ...), of a state (states, ...).
        offset: first byte in the arena.
        page_stride: bytes from a page to the next; within a page elements are contiguous.
        part: which page of a state holds it.
        draft: whether it belongs to a draft model or to prediction layers.
    """

    layer: int
    group: str
    component: str
    dtype: DType
    shape: Shape
    offset: int
    page_stride: int
    part: int = 0
    draft: bool = False

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.dtype.size(prod(self.shape[1:]))

    @property
    def bytes(self) -> int:
        """Bytes of its elements, over all pages."""
        return self.page_bytes * self.shape[0]

    @property
    def max_addressable_pages(self) -> int:
        """Pages that a kernel reaches with 32-bit offsets, counted in elements."""
        elements = prod(self.shape[1:])
        return (2**31 - elements) // (self.page_stride * 8 // self.dtype.bits) + 1


class Flat(NamedTuple):
    """Tensors of blocks that every page id counts in.

    Attributes:
        tensors: components of each tensor, with their offsets in its block.
        block_bytes: bytes of a block of each tensor.
    """

    tensors: tuple[tuple[tuple[Component, int], ...], ...]
    block_bytes: tuple[int, ...]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page id over all tensors."""
        return sum(self.block_bytes)

    def size(self, pages: int) -> int:
        """Bytes of an arena of so many pages, each tensor aligned. O(tensors)."""
        return sum(_up(block * pages, ALIGNMENT) for block in self.block_bytes)

    def most_pages(self, budget: int, limit: int) -> int:
        """Most pages, at most ``limit``, of an arena that fits into ``budget``. O(tensors)."""
        pages = min(budget // self.page_bytes, limit)
        while pages and self.size(pages) > budget:
            pages -= 1
        return pages


def flat_components(components: Sequence[Component]) -> Flat:
    """The component layout: a tensor each. O(components)."""
    tensors = tuple(((component, 0),) for component in components)
    return Flat(tensors, tuple(component.bytes for component in components))


def flat_slab(groups: Mapping[str, Sequence[Component]]) -> Flat:
    """The slab layout: slot j pairs the j-th layer of every group. O(components)."""
    slots: dict[int, list[tuple[Component, int]]] = {}
    sizes: dict[int, int] = {}
    for components in groups.values():
        layers = dict.fromkeys((item.draft, item.layer) for item in components)
        places = {layer: slot for slot, layer in enumerate(layers)}
        for component in components:
            slot = places[component.draft, component.layer]
            offset = _up(sizes.get(slot, 0), _PART_GRAIN)
            slots.setdefault(slot, []).append((component, offset))
            sizes[slot] = offset + component.bytes
    blocks = tuple(_up(size, _PART_GRAIN) for size in sizes.values())
    return Flat(tuple(tuple(members) for members in slots.values()), blocks)


def lay_flat(flat: Flat, pages: int) -> Iterator[TensorPlan]:
    """The tensors of a flat layout, one after the other in the arena. O(components)."""
    base = 0
    for members, block in zip(flat.tensors, flat.block_bytes, strict=True):
        for component, offset in members:
            yield _tensor(component, pages, base + offset, block)
        base += _up(block * pages, ALIGNMENT)


def lay_packed(packing: "Packing") -> Iterator[TensorPlan]:
    """The tensors of a packed layout, interleaved in its planes. O(components)."""
    for name, load in packing.loads.items():
        pages = 1 + packing.parents * packing.per_parent[name]
        for placed in load.placed:
            address, stride = packing.address(placed), packing.stride(name)
            yield _tensor(placed.component, pages, address, stride, placed.part)


def _tensor(
    component: Component, pages: int, offset: int, stride: int, part: int = 0
) -> TensorPlan:
    return TensorPlan(
        component.layer,
        component.group,
        component.name,
        component.dtype,
        (pages, *component.shape),
        offset,
        stride,
        part,
        component.draft,
    )


def _up(value: int, grain: int) -> int:
    return -(-value // grain) * grain
