"""Element types a cache can be stored in, by name; knows sizes and nothing of arrays or devices."""

from typing import NamedTuple

from octavo.errors import PlanError


class DType(NamedTuple):
    """One element type.

    Attributes:
        name: octavo's name, e.g. ``bf16``.
        bits: bits an element takes.
        torch_name: attribute of the ``torch`` module that is the same type; two 4-bit elements
            share a ``uint8``.
    """

    name: str
    bits: int
    torch_name: str

    def __str__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Bytes an element takes, of types of whole bytes."""
        return self.bits // 8

    def size(self, elements: int) -> int:
        """Bytes of ``elements`` of them, exactly. O(1).

        Raises:
            PlanError: they do not fill whole bytes.
        """
        size, rest = divmod(elements * self.bits, 8)
        if rest:
            raise PlanError("dtype", self.name, f"{elements} elements do not fill whole bytes")
        return size


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("fp64", 64, "float64"),
        DType("fp32", 32, "float32"),
        DType("fp16", 16, "float16"),
        DType("bf16", 16, "bfloat16"),
        DType("fp8", 8, "float8_e4m3fn"),
        DType("fp8_e5m2", 8, "float8_e5m2"),
        DType("int8", 8, "int8"),
        DType("int4", 4, "uint8"),
    )
}
_ALIASES = {dtype.torch_name: dtype for dtype in DTYPES.values() if dtype.bits >= 8} | {
    "fp8_e4m3": DTYPES["fp8"]
}


def dtype(name: object) -> DType:
    """The element type called ``name``. O(1).

    Args:
        name: octavo's name or torch's (``bfloat16``), a dtype of torch, or a DType.

    Raises:
        PlanError: no such type; the message lists the known ones.
    """
    if isinstance(name, DType):
        return name
    is_torch = type(name).__module__ == "torch" and type(name).__name__ == "dtype"
    called = str(name).removeprefix("torch.") if is_torch else name
    found = DTYPES.get(called, _ALIASES.get(called)) if isinstance(called, str) else None
    if found is None:
        raise PlanError("dtype", name, f"known types are: {', '.join(DTYPES)}")
    return found
