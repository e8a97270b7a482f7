"""How figures are written wherever octavo tells them: amounts of bytes, counts, tables.

In integers, so that no size is too large. Knows no plan.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_LARGE = 2**20  # bytes from which on an amount in a unit stands beside the exact number


def amount(size: int, *, up: bool = False) -> str:
    """``size`` bytes in the largest binary unit of which there is at least one, as ``2.44 GiB``.

    To the nearest hundredth, or ``up`` to one. O(1).
    """
    for unit, name in _UNITS:
        if size >= unit:
            rounded = -(-100 * size // unit) if up else (200 * size + unit) // (2 * unit)
            whole, part = divmod(rounded, 100)
            return f"{whole:,}.{part:02}".rstrip("0").rstrip(".") + f" {name}"
    return f"{size:,} bytes"


def exact(size: int, *, up: bool = False) -> str:
    """``2,621,440,000 bytes (2.44 GiB)``; of less than a MiB the number alone. O(1)."""
    return f"{size:,} bytes" + _beside(size, up=up)


def term(size: int, *, up: bool = False) -> str:
    """As `exact` without the word, for sums: ``2,621,440,000 (2.44 GiB)``. O(1)."""
    return f"{size:,}" + _beside(size, up=up)


def _beside(size: int, *, up: bool) -> str:
    return f" ({amount(size, up=up)})" if size >= _LARGE else ""


def enough(size: int) -> str:
    """At least ``size`` bytes as text to type, ``2.45GiB``: read again it is no less. O(1)."""
    return amount(size, up=True).removesuffix(" bytes").replace(" ", "").replace(",", "")


def counted(number: int, what: str) -> str:
    """``1 layer``, ``2 layers``. O(1)."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def hundredths(number: "Fraction | int") -> str:
    """Two decimals, rounded down: ``21.15``. O(1)."""
    whole, part = divmod(int(number * 100), 100)
    return f"{whole:,}.{part:02}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: columns of numbers to the right, others to the left. O(cells)."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [any(cell[:1].isdigit() for cell in column) for column in columns]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]
