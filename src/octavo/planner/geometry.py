"""Flat geometry: parts in rows, rows in blocks, blocks in a budget. Pure sizing, exact integers.

A *part* declares bytes per slot (grows with the page size) or constant bytes (recurrent state). A
*row* is what one layer of one group keeps in a block: parts of one sort, with offsets in the order
they are declared. Knows nothing of models, devices and lifetimes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.checks import check_int
from octavo.errors import BudgetTooSmall, PlanError


class Part(NamedTuple):
    """One component of a row: ``slot_bytes`` a token, or ``constant_bytes`` in all; never both."""

    name: str
    slot_bytes: int = 0
    constant_bytes: int = 0


class Row(NamedTuple):
    """What one layer of one group keeps in a block."""

    group: str
    layer: int
    parts: tuple[Part, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes per token."""
        return sum(part.slot_bytes for part in self.parts)

    @property
    def constant_bytes(self) -> int:
        """Bytes whatever the page size."""
        return sum(part.constant_bytes for part in self.parts)

    def bytes(self, page_size: int) -> int:
        """Bytes in a block of ``page_size`` tokens. O(parts)."""
        return self.slot_bytes * page_size + self.constant_bytes

    def offsets(self, page_size: int) -> list[int]:
        """Where each part begins in the row. O(parts)."""
        offsets, at = [], 0
        for part in self.parts:
            offsets.append(at)
            at += part.slot_bytes * page_size + part.constant_bytes
        return offsets


class Geometry(NamedTuple):
    """Tokens of a page, and bytes of the widest row of a block."""

    page_size: int
    block_bytes: int


class FlatTensor(NamedTuple):
    """One tensor of a flat plan.

    Attributes:
        name: what it holds.
        rows: the rows side by side in each of its blocks, with their offsets.
        row_bytes: bytes of a block.
    """

    name: str
    rows: tuple[tuple[Row, int], ...]
    row_bytes: int


class FlatPlan(NamedTuple):
    """A flat plan.

    Attributes:
        page_size: tokens of a page.
        num_blocks: blocks, the null page included.
        block_bytes: bytes of a block over all tensors, what is reserved left out.
        tensors: where the rows lie.
    """

    page_size: int
    num_blocks: int
    block_bytes: int
    tensors: tuple[FlatTensor, ...]

    @property
    def usable_blocks(self) -> int:
        """Blocks that can be handed out: all but the null page."""
        return self.num_blocks - 1


def fit_geometry(rows: Sequence[Row], page_size: int, alignment: int = 1) -> Geometry:
    """The smallest page of at least ``page_size`` tokens in which the widest row covers a state.

    Where it must grow it grows to a multiple of ``alignment``.

    Raises:
        PlanError: no row, a malformed one, or none that grows with the page.

    Cost: O(rows).
    """
    page_size = check_int("page_size", page_size, 1)
    alignment = check_int("alignment", alignment, 1)
    _check_rows(rows)
    widest = max(row.slot_bytes for row in rows)
    constant = max(row.constant_bytes for row in rows)
    if not widest:
        raise PlanError("rows", len(rows), "at least one row must hold bytes per slot")
    if widest * page_size < constant:
        page_size = -(-constant // (widest * alignment)) * alignment
    return Geometry(page_size, max(widest * page_size, constant))


def plan_components(
    rows: Sequence[Row], page_size: int, budget: int, reserved: int = 0
) -> FlatPlan:
    """A tensor a part; every block has room for every row.

    Args:
        reserved: bytes per block that a draft model's rows take beside them.

    Raises:
        BudgetTooSmall: no block beside the null page. PlanError: malformed rows.

    Cost: O(rows).
    """
    _check_rows(rows)
    tensors = tuple(
        FlatTensor(
            f"{row.group}.{row.layer}.{part.name}",
            ((row._replace(parts=(part,)), 0),),
            part.slot_bytes * page_size + part.constant_bytes,
        )
        for row in rows
        for part in row.parts
    )
    return _fill(tensors, page_size, budget, reserved)


def plan_slab(rows: Sequence[Row], page_size: int, budget: int, reserved: int = 0) -> FlatPlan:
    """One tensor per slot: slot j pairs the j-th layer of every group, side by side in each block.

    A row that holds a state is as wide as the widest row of a page.

    Args, raises and costs as `plan_components`.
    """
    _check_rows(rows)
    wide = max(row.bytes(page_size) for row in rows)
    slots: dict[int, list[Row]] = {}
    seen: dict[str, int] = {}
    for row in rows:
        place = seen[row.group] = seen.get(row.group, -1) + 1
        slots.setdefault(place, []).append(row)
    has_state = any(row.constant_bytes for row in rows)
    tensors = []
    for place, members in slots.items():
        at, placed = 0, []
        for row in members:
            placed.append((row, at))
            at += wide if has_state else row.bytes(page_size)
        tensors.append(FlatTensor(f"slot.{place}", tuple(placed), at))
    return _fill(tuple(tensors), page_size, budget, reserved)


def _fill(tensors: tuple[FlatTensor, ...], page_size: int, budget: int, reserved: int) -> FlatPlan:
    check_int("page_size", page_size, 1)
    budget, reserved = check_int("budget", budget, 0), check_int("reserved", reserved, 0)
    block = sum(tensor.row_bytes for tensor in tensors)
    blocks = budget // (block + reserved)
    if blocks < 2:
        terms = f"2 blocks (one of them the null page) of {block} and {reserved} reserved bytes"
        raise BudgetTooSmall(2 * (block + reserved), budget, terms)
    return FlatPlan(page_size, blocks, block, tensors)


def _check_rows(rows: Sequence[Row]) -> None:
    if not rows:
        raise PlanError("rows", 0, "a plan has at least one row")
    seen = set()
    for row in rows:
        if (row.group, row.layer) in seen:
            raise PlanError("rows", f"{row.group} {row.layer}", "each group and layer has one row")
        seen.add((row.group, row.layer))
        _check_parts(row)


def _check_parts(row: Row) -> None:
    names = [part.name for part in row.parts]
    if not names or len(set(names)) < len(names):
        raise PlanError("parts", names, "a row has at least one part, each with its own name")
    for part in row.parts:
        slot = check_int(f"{part.name}.slot_bytes", part.slot_bytes, 0)
        constant = check_int(f"{part.name}.constant_bytes", part.constant_bytes, 0)
        if bool(slot) == bool(constant):
            right = "a part has either bytes per slot or constant bytes, never both"
            raise PlanError(part.name, (slot, constant), right)
    if row.slot_bytes and row.constant_bytes:
        raise PlanError("parts", names, "a row grows with the page or is constant, never both")
