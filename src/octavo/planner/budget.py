"""Memory: sizes as people write them, what is left of a device for the cache, and where it goes.

Exact integers only.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from octavo.errors import PlanError
from octavo.planner.figures import exact, term
from octavo.planner.gpus import find_gpu

if TYPE_CHECKING:
    from fractions import Fraction

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
MAX_BYTES = 2**63 - 1
"""More memory than this is refused."""
_DIGITS = 40  # of a memory given as text: more than any number of bytes has


class Budget(NamedTuple):
    """Where every byte of the memory goes; the parts sum to ``total``.

    In a packed plan groups share the pool: payload, padding, scales and reserved are as sequences
    of the length that the layout was chosen for share it.

    Attributes:
        total: bytes given.
        payload: bytes of usable pages that hold keys, values and states.
        padding: bytes between and inside pages that hold nothing.
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


def divide(
    total: int, used: int, null_page: int, payload: int, scales: int = 0, reserved: int = 0
) -> Budget:
    """The budget of an arena of ``used`` bytes: padding and remainder are what is left. O(1)."""
    padding = used - null_page - payload - scales - reserved
    return Budget(total, payload, padding, null_page, scales, reserved, remainder=total - used)


class Memory(NamedTuple):
    """How much of a device the cache gets.

    Attributes:
        device: bytes of the memory, or those given to the cache where nothing else is named.
        utilization: share of it that may be used, as text.
        weights: bytes of the model; None: not given.
        activations: bytes of the largest forward pass.
        other: bytes of anything else.
        available: what is left for the cache; negative where nothing is.
        gpu: name of the GPU whose memory it is; None: no GPU was named.
        given: whether it was; otherwise it is exactly what the sequences asked for need.
    """

    device: int
    utilization: str
    weights: int | None
    activations: int
    other: int
    available: int
    gpu: str | None = None
    given: bool = True

    @property
    def formula(self) -> str:
        """The terms and what comes of them, in words."""
        terms = {"weights": self.weights, "activations": self.activations, "other": self.other}
        taken = "".join(f" - {term(size)} {name}" for name, size in terms.items() if size)
        share = f" x {self.utilization}" if self.utilization != "1" else ""
        up = not self.given  # as what is needed is
        device, left = term(self.device, up=up), exact(self.available, up=up)
        return f"{device}{share}{taken} = {left} for the cache"

    def device_for(self, available: int) -> int:
        """The fewest bytes of a device that leave so many for the cache. O(1)."""
        taken = (self.weights or 0) + self.activations + self.other
        return -(-(available + taken) // _fraction(self.utilization))


def available_memory(
    memory: int | str | Sequence[int | str] | None,
    utilization: float | str = 1,
    weights: int | str | None = None,
    activations: int | str = 0,
    other: int | str = 0,
) -> Memory:
    """``memory x utilization - weights - activations - other``, rounded down.

    Args:
        memory: of several ranks the one with the least counts; a GPU's by its name; None: not
            given, and nothing.

    Raises:
        PlanError: a size that is none, or a utilization outside (0, 1].
    """
    share = _fraction(utilization)
    if isinstance(memory, Sequence) and not isinstance(memory, str) and memory:
        device, gpu = min(map(_device, memory))
    else:
        device, gpu = _device(memory)
    model = None if weights is None else parse_memory(weights, "weights")
    forward, rest = parse_memory(activations, "activations"), parse_memory(other, "other")
    left = int(device * share) - (model or 0) - forward - rest
    given = memory is not None
    return Memory(device, str(utilization), model, forward, rest, left, gpu or None, given)


def _device(memory: object) -> tuple[int, str]:
    """Bytes of a memory, and of which GPU they are, if its name says it."""
    if memory is None:
        return 0, ""
    if not isinstance(memory, str) or not memory[:1].isalpha():
        return parse_memory(memory), ""
    gpu = find_gpu(memory, "memory")
    return gpu.memory, gpu.name


def _fraction(utilization: object) -> "Fraction":
    from fractions import Fraction  # here: it costs a tenth of importing octavo

    text = str(utilization)
    decimal = re.fullmatch(r"\d*\.?\d*(e-\d\d?)?", text, re.ASCII) and len(text) <= _DIGITS
    try:
        share = Fraction(text if decimal else 0)
    except ValueError:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise PlanError("utilization", utilization, "it must be above 0 and at most 1")
    return share


def parse_memory(memory: object, name: str = "memory") -> int:
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
    if size > MAX_BYTES:
        raise PlanError(name, memory, f"it must be at most {MAX_BYTES} bytes")
    return size
