"""Memory: sizes as people write them, what is left of a device for the cache, and where it goes.

Exact integers only.
"""

import re
from typing import TYPE_CHECKING, NamedTuple

from octavo.errors import BudgetTooSmall, PlanError

if TYPE_CHECKING:
    from fractions import Fraction

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MAX_BYTES = 2**63 - 1
_DIGITS = 40  # of a memory given as text: more than any number of bytes has


class Budget(NamedTuple):
    """Where every byte of the memory goes; the parts sum to ``total``.

    Attributes:
        total: bytes given.
        payload: bytes of usable pages that hold keys, values and states.
        padding: bytes between and inside pages that hold nothing (packed: at most so many,
            whichever group a parent is bound to).
        null_page: bytes of page 0, which is never handed out.
        scales: bytes of quantisation scales in usable pages.
        reserved: bytes of usable pages that a draft model or prediction layers take.
        remainder: bytes too few for another page.
    """

    total: int
    payload: int
    padding: int
    null_page: int
    scales: int
    reserved: int
    remainder: int


class Memory(NamedTuple):
    """How much of a device the cache gets.

    Attributes:
        device: bytes of the memory, or those given to the cache where nothing else is named.
        utilization: share of it that may be used, as text of an exact fraction.
        weights: bytes of the model.
        activations: bytes of the largest forward pass.
        other: bytes of anything else.
        available: what is left for the cache.
    """

    device: int
    utilization: str
    weights: int
    activations: int
    other: int
    available: int


def available_memory(
    memory: int | str,
    utilization: float | str = 1,
    weights: int | str = 0,
    activations: int | str = 0,
    other: int | str = 0,
) -> Memory:
    """``memory x utilization - weights - activations - other``, rounded down.

    Raises:
        PlanError: a size that is none, or a utilization outside (0, 1].
        BudgetTooSmall: nothing is left; it names every term.
    """
    from fractions import Fraction  # here: it costs a tenth of importing octavo

    share = _fraction(utilization)
    device = parse_memory(memory)
    taken = [
        parse_memory(size, name)
        for name, size in (("weights", weights), ("activations", activations), ("other", other))
    ]
    usable = int(device * share)
    left = usable - sum(taken)
    if left < 0:
        terms = f"{device} x {share} - {' - '.join(map(str, taken))} (weights, activations, other)"
        raise BudgetTooSmall(int(Fraction(sum(taken)) / share) + 1, device, f"{terms} = {left}")
    return Memory(device, str(share), taken[0], taken[1], taken[2], left)


def _fraction(utilization: object) -> "Fraction":
    from fractions import Fraction

    try:
        share = Fraction(str(utilization))
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise PlanError("utilization", utilization, "it must be above 0 and at most 1")
    return share


def parse_memory(memory: int | str, name: str = "memory") -> int:
    """Bytes of ``memory``: an int, or text such as ``512MiB``, ``1.5 GiB``, ``80GB``. O(1).

    Raises:
        PlanError: negative, 2**63 bytes or more, or not understood.
    """
    right = "give bytes as an int, or text such as '16GiB' or '16GB'"
    if isinstance(memory, str):
        found = (
            None
            if len(memory) > _DIGITS
            else re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory, re.ASCII)
        )
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None:
            raise PlanError(name, memory, right)
        from fractions import Fraction

        size = int(Fraction(found[1]) * unit)
    elif isinstance(memory, int) and not isinstance(memory, bool) and memory >= 0:
        size = memory
    else:
        raise PlanError(name, memory, right)
    if size > _MAX_BYTES:
        raise PlanError(name, memory, f"it must be at most {_MAX_BYTES} bytes")
    return size
