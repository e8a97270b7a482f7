"""Plans side by side: of other page sizes, element types or memories."""

from collections.abc import Sequence
from typing import Any

import octavo
from octavo.errors import BudgetTooSmall, PlanError
from octavo.model.spec import ModelSpec
from octavo.planner import explain, sizes
from octavo.planner.plan import Plan

CHOICES = ("page-size", "dtype", "memory")
_PAGE_SIZES = (1, 16, 32, 64, 256)
_DTYPES = ("fp32", "bf16", "fp8", "int8", "int4")
_SHORT = 1000  # tokens of the shorter sequences that page sizes are compared at
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
        return [
            (name, memory, {} if name == wanted["dtype"] else {"dtype": name, "scales": None})
            for name in names
        ]
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
    token_groups = [group for group in plan.groups.values() if group.lifetime.form == "tokens"]
    return {
        "choice": name,
        "page_size": plan.page_size,
        "dtype": wanted["dtype"],
        "scales": plan.elements.scales if plan.elements else None,
        "memory": memory,
        "bytes_per_token": plan.bytes_per_token,
        "padding": plan.budget.padding,
        "tokens": plan.tokens,
        "length": length,
        "max_sequences": int(plan.max_sequences(length) * 100) / 100,
        "lost_bytes": sum(sizes.cost(plan, group) for group in token_groups) // 2,
        "reuse_tokens": plan.page_size,
        "table_entries": sum(g.steady_pages(length, plan.page_size) for g in token_groups),
        "max_sequences_short": int(plan.max_sequences(min(_SHORT, length)) * 100) / 100,
        "short_length": min(_SHORT, length),
    }


def _planned(spec: ModelSpec, memory: int, wanted: dict[str, Any]) -> Plan:
    """The plan, and where the longest sequence does not fit one without it."""
    try:
        return octavo.plan(spec, memory, **wanted)
    except BudgetTooSmall:
        return octavo.plan(spec, memory, **wanted | {"max_length": None})


def table(found: Sequence[Row], choice: str) -> list[list[str]]:
    """Cells of a table with its header; what was refused is left out. O(rows)."""
    told = [row for row in found if "refused" not in row]
    of = f" of {told[0]['length']:,}" if told else ""
    cells = [[choice, *_HEAD[:-1], _HEAD[-1] + of]]
    for row in told:
        numbers = [f"{row[name]:,}" for name in ("bytes_per_token", "padding", "tokens")]
        cells.append([_name(row, choice), *numbers, f"{row['max_sequences']:,.2f}"])
    if choice == "page-size":
        short = f"of {told[0]['short_length']:,}" if told else ""
        cells[0] += [short, "lost a sequence", "reuse in steps of", "table entries"]
        for row, line in zip(told, cells[1:], strict=True):
            names = ("lost_bytes", "reuse_tokens", "table_entries")
            line += [f"{row['max_sequences_short']:,.2f}", *(f"{row[name]:,}" for name in names)]
    return cells


def _name(row: Row, choice: str) -> str:
    """What was chosen; with the scales of a quantised type."""
    scaled = choice == "dtype" and row["scales"] not in (None, "none")
    return f"{row['choice']}, scale a {row['scales']}" if scaled else str(row["choice"])


def lines(found: Sequence[Row], choice: str) -> list[str]:
    """The table as text, and below it why a plan is left out. O(rows)."""
    refused = [f"{row['choice']}: {row['refused']}" for row in found if "refused" in row]
    notes = []
    if choice == "page-size":
        notes = [
            "(lost: half a page a group, in bytes; table entries: pages of a longest sequence)"
        ]
    return [*explain.table(table(found, choice)), *notes, *refused]
