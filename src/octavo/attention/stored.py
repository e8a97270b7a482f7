"""A layer's keys or values as they are stored, read and written as numbers by page and offset.

Hides the order of pages, the element type and its scales. Reads and writes the slots it is
given and no others.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.attention.arrays import as_reals
from octavo.attention.quantised import as_bytes, decode, encode
from octavo.checks import check_positive
from octavo.errors import LengthError, PlanError

Floats = NDArray[np.floating[Any]]


class StoredPages:
    """One component of a layer: n pages of ``page_size`` tokens with ``kv_heads`` rows of ``dim``.

    Args:
        name: what the array is called in errors.
        cache: [n, page_size, kv_heads, dim] for ``order`` token, [n, kv_heads, page_size, dim] for
            head, [n, page_size, dim] for both where all heads share one row; of int4 the last axis
            is ceil(dim / 2).
        order: ``token`` or ``head``.
        dim: elements of a row.
        kv_dtype: int8, fp8 or int4; None: the array holds numbers.
        scale: what a stored element is multiplied by: a number, [kv_heads], [kv_heads, dim], or one
            a row, shaped like ``cache`` without its last axis; None: 1.

    Raises:
        PlanError: an array of anything but real numbers, or not of the dtype of ``kv_dtype``, or a
            scale that is not above 0.
    """

    def __init__(
        self,
        name: str,
        cache: NDArray[Any],
        order: str,
        dim: int,
        kv_dtype: str | None = None,
        scale: Any = None,
    ) -> None:
        self._name, self._dim, self._kv_dtype = name, dim, kv_dtype
        cache = as_reals(name, cache)
        if kv_dtype is not None:
            cache = as_bytes(name, cache, kv_dtype)
        factors = as_reals(f"scale of {name}", 1.0 if scale is None else scale)
        self._each = factors.ndim > 1 and factors.shape == cache.shape[:-1]
        if not self._each and not (np.isfinite(factors) & (factors > 0)).all():
            raise PlanError(f"scale of {name}", scale, "each must be a finite number above 0")
        if cache.ndim == 3:
            cache, factors = cache[:, :, None], factors[:, :, None] if self._each else factors
        elif order == "head":
            cache, factors = cache.swapaxes(1, 2), factors.swapaxes(1, 2) if self._each else factors
        self._cache, self._factors = cache, factors

    def read(self, page: NDArray[Any], offset: NDArray[Any], dtype: Any = np.float64) -> Floats:
        """The rows of some slots as numbers, ``dtype``[slots, kv_heads, dim].

        Args:
            page, offset: int[slots], pages below n and offsets below ``page_size``.
            dtype: float64 or float32.

        Raises:
            LengthError: a page that does not exist.
            PlanError: the scale of one of these rows is not above 0.

        Cost: O(slots * kv_heads * dim).
        """
        self._check(page)
        numbers: Floats = self._cache[page, offset]
        if self._kv_dtype is not None:
            numbers = decode(numbers, self._kv_dtype, self._dim)
            numbers = numbers * self._factors_of(page, offset)
        return numbers.astype(dtype)

    def write(self, page: NDArray[Any], offset: NDArray[Any], numbers: Floats) -> None:
        """Store ``numbers`` [slots, kv_heads, dim] in some slots, rounded to the element type.

        Raises:
            LengthError: a page that does not exist; nothing is written.
            PlanError: NaN or infinite numbers, where quantised; or the scale of one of these rows
                is not above 0. Nothing is written.

        Cost: O(slots * kv_heads * dim).
        """
        self._check(page)
        self.check_finite(numbers)
        if self._kv_dtype is None:
            self._cache[page, offset] = numbers.astype(self._cache.dtype)
            return
        inverse = 1 / self._factors_of(page, offset).astype(numbers.dtype)
        self._cache[page, offset] = encode(numbers * inverse, self._kv_dtype)

    def check_finite(self, numbers: Floats) -> None:
        """Refuse what a quantised cache cannot store. O(numbers).

        Raises:
            PlanError: NaN or infinite numbers for a quantised cache.
        """
        if self._kv_dtype is not None and not np.isfinite(numbers).all():
            right = f"{self._kv_dtype} stores finite numbers alone"
            raise PlanError(f"numbers for {self._name}", "NaN or infinite", right)

    def _check(self, page: NDArray[Any]) -> None:
        last = len(self._cache) - 1
        beyond = page[(page < 0) | (page > last)]
        if beyond.size:
            why = f"{self._name} has {last + 1} pages"
            raise LengthError("page", int(beyond[0]), 0, last, why)

    def _factors_of(self, page: NDArray[Any], offset: NDArray[Any]) -> Floats:
        """Scales that broadcast over [slots, kv_heads, dim]."""
        if not self._each:
            return self._factors[:, None] if self._factors.ndim == 1 else self._factors
        factors: Floats = self._factors[page, offset][:, :, None]
        for at, number in enumerate(factors.min(axis=(1, 2), initial=np.inf)):
            check_positive(f"scale of {self._name} at page {page[at]}, offset {offset[at]}", number)
        return factors
