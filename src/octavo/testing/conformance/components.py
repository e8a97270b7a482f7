"""Keys or values of one layer as a kernel gets them: element types, scales, orders, gaps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.attention.stored import encode
from octavo.model.dtypes import dtype as dtype_of
from octavo.testing.conformance.cases import Case

Array = NDArray[Any]

_STEPS = {"int8": 0.03, "fp8": 1.0, "int4": 0.4}  # scales at which normal numbers fill the range
_POISON = {"int8": 127, "fp8": 127, "int4": 255}  # bytes of NaN in fp8, and large in the others


def component(
    case: Case, dim: int, owned: NDArray[np.bool_], poison: float, rng: np.random.Generator
) -> tuple[Array, Any]:
    """Pages of random numbers, and their quantisation scales or None.

    Args:
        dim: elements of a row.
        owned: bool[pages, page_size], slots that hold numbers.
        poison: what the others hold; if NaN, the largest byte where the type has no NaN. The null
            page holds zeros.

    Returns:
        Pages in the case's order, or [pages, page_size, dim] of latent rows; scales as float32
        that bfloat16 holds exactly.

    Cost: O(pages * page_size * kv_heads * dim).
    """
    numbers = rng.standard_normal((*owned.shape, case.kv_heads, dim))
    kv_dtype = case.rule.options.get("kv_dtype")
    if kv_dtype is None:
        return _finished(rounded(numbers, case.dtype), owned, poison, case), None
    scales = _scales(case, numbers.shape, rng)
    stored = encode(numbers / _spread(scales, case), kv_dtype)
    if case.scales == "token":
        scales[~owned] = poison
        scales = _in_order(scales, case)
    nothing = _POISON[kv_dtype] if np.isnan(poison) else 0
    return _finished(stored, owned, nothing, case), scales


def rounded(numbers: Array, name: str) -> Array:
    """``numbers`` in the element type ``name``; of bf16 the same numbers as float32. O(n)."""
    if name != "bf16":
        return numbers.astype(dtype_of(name).torch_name)
    bits = numbers.astype(np.float32).view(np.uint32)
    even = bits + 0x7FFF + ((bits >> 16) & 1)  # ties go to the even mantissa
    return (even & np.uint32(0xFFFF0000)).view(np.float32)


def _scales(case: Case, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """A number, or float32 [kv_heads], [kv_heads, dim], [pages, page_size, kv_heads]."""
    sizes = {"number": (), "head": shape[2:3], "channel": shape[2:], "token": shape[:3]}
    factors = rng.uniform(0.7, 1.3, sizes[case.scales]) * _STEPS[case.rule.options["kv_dtype"]]
    exact = rounded(np.asarray(factors), "bf16")
    return exact if exact.ndim else float(exact)


def _spread(scales: Any, case: Case) -> Any:
    """Scales that broadcast over [pages, page_size, kv_heads, dim]."""
    return scales[..., None] if case.scales in ("head", "token") else scales


def _in_order(pages: Array, case: Case) -> Array:
    """[pages, page_size, kv_heads, ...] with the axes the case has."""
    if case.rule.latent:
        return np.ascontiguousarray(pages[:, :, 0])
    return np.ascontiguousarray(pages.swapaxes(1, 2) if case.order == "head" else pages)


def _finished(stored: Array, owned: NDArray[np.bool_], nothing: float, case: Case) -> Array:
    """The pages in their order; if the case is strided, each behind a gap as large as a page."""
    stored[~owned], stored[0] = nothing, 0
    pages = _in_order(stored, case)
    if not case.strided:
        return pages
    arena = np.full((pages.shape[0], 2, *pages.shape[1:]), nothing, pages.dtype)
    arena[:, 1] = pages
    return arena[:, 1]
