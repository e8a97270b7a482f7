"""Element types a cache can be stored in, by name; knows sizes and nothing of arrays or devices."""

from typing import NamedTuple

from octavo.errors import PlanError


class DType(NamedTuple):
    """One element type.

    Attributes:
        name: octavo's name, e.g. ``bf16``.
        bytes: bytes an element takes.
        torch_name: attribute of the ``torch`` module that is the same type.
    """

    name: str
    bytes: int
    torch_name: str

    def __str__(self) -> str:
        return self.name


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("fp64", 8, "float64"),
        DType("fp32", 4, "float32"),
        DType("fp16", 2, "float16"),
        DType("bf16", 2, "bfloat16"),
    )
}
_ALIASES = {dtype.torch_name: dtype for dtype in DTYPES.values()}


def dtype(name: str | DType) -> DType:
    """The element type called ``name``; torch's names (``bfloat16``) are understood too. O(1).

    Raises:
        PlanError: no such type; the message lists the known ones.
    """
    if isinstance(name, DType):
        return name
    found = DTYPES.get(name, _ALIASES.get(name)) if isinstance(name, str) else None
    if found is None:
        raise PlanError("dtype", name, f"known types are: {', '.join(DTYPES)}")
    return found
