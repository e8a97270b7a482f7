"""Plans side by side: of other page sizes, element types or memories."""

from collections.abc import Sequence
from typing import Any

import octavo
from octavo import explain
from octavo.errors import BudgetTooSmall, PlanError
from octavo.plans import Plan
from octavo.spec import ModelSpec

CHOICES = ("page-size", "dtype", "memory")
_PAGE_SIZES = (1, 16, 32, 64, 256)
_DTYPES = ("fp32", "bf16", "fp8", "int8", "int4")
_HEAD = ("bytes a token", "padding", "tokens", "sequences")

Row = dict[str, Any]


def rows(
    spec: ModelSpec, memory: int, wanted: dict[str, Any], plan: Plan, choice: str | None
) -> list[Row]:
    """A row a plan, all at the longest length of ``plan``; of a plan that cannot be: the reason."""
    length = plan.max_length or plan.tokens
    return [
        _row(spec, at, wanted | changed, name, length)
        for name, at, changed in _variants(memory, wanted, choice)
    ]


def _variants(
    memory: int, wanted: dict[str, Any], choice: str | None
) -> list[tuple[str, int, dict[str, Any]]]:
    """(name, memory, changed arguments) of each; what was asked for is one of them."""
    if choice == "page-size":
        sizes = sorted({*_PAGE_SIZES, wanted["page_size"]})
        return [(str(size), memory, {"page_size": size}) for size in sizes]
    if choice == "dtype":
        names = dict.fromkeys((*_DTYPES[:2], wanted["dtype"], *_DTYPES[2:]))
        return [(name, memory, {"dtype": name, "scales": None}) for name in names]
    if choice == "memory":
        sizes = [memory // 4, memory // 2, memory, 2 * memory, 4 * memory]
        return [(explain.amount(size), size, {}) for size in sizes]
    return []


def _row(spec: ModelSpec, memory: int, wanted: dict[str, Any], name: str, length: int) -> Row:
    try:
        plan = _planned(spec, memory, wanted)
    except PlanError as error:
        return {"choice": name, "refused": str(error)}
    assert plan.budget is not None
    return {
        "choice": name,
        "page_size": plan.page_size,
        "dtype": wanted["dtype"],
        "memory": memory,
        "bytes_per_token": plan.bytes_per_token,
        "padding": plan.budget.padding,
        "tokens": plan.tokens,
        "length": length,
        "max_sequences": int(plan.max_sequences(length) * 100) / 100,
    }


def _planned(spec: ModelSpec, memory: int, wanted: dict[str, Any]) -> Plan:
    """The plan, and where the longest sequence does not fit one without it."""
    try:
        return octavo.plan(spec, memory, **wanted)
    except BudgetTooSmall:
        return octavo.plan(spec, memory, **wanted | {"max_length": None})


def table(found: Sequence[Row], choice: str) -> list[list[str]]:
    """Cells of a table with its header; what was refused is left out. O(rows)."""
    cells = [[choice, *_HEAD]]
    for row in found:
        if "refused" not in row:
            numbers = [f"{row[name]:,}" for name in ("bytes_per_token", "padding", "tokens")]
            cells.append([row["choice"], *numbers, f"{row['max_sequences']:,.2f}"])
    return cells


def lines(found: Sequence[Row], choice: str) -> list[str]:
    """The table as text, and below it why a plan is left out. O(rows)."""
    length = next((f" of {row['length']:,}" for row in found if "length" in row), "")
    cells = table(found, choice)
    cells[0][-1] += length
    refused = [f"{row['choice']}: {row['refused']}" for row in found if "refused" in row]
    return [*explain.table(cells), *refused]
