"""What queries and keys go through between projection and cache: RMS norm and rotary positions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.attention.stored import Floats


def rms_norm(rows: Floats, weight: NDArray[Any], epsilon: float) -> Floats:
    """x * weight / sqrt(mean of x^2 + epsilon) over the last axis (Zhang & Sennrich, 2019).

    Args:
        rows: [..., dim].
        weight: [dim].
        epsilon: above 0.

    Returns:
        [..., dim] in the dtype of ``rows``.

    Cost: O(elements).
    """
    mean = np.mean(rows * rows, axis=-1, keepdims=True)
    normed: Floats = rows / np.sqrt(mean + epsilon) * weight.astype(rows.dtype)
    return normed


def rotate(
    rows: Floats,
    cos: NDArray[Any],
    sin: NDArray[Any],
    *,
    offset: int = 0,
    interleaved: bool = False,
) -> Floats:
    """Rotary position embedding of some elements of each row (Su et al., RoFormer, 2021).

    Of the 2r elements from ``offset`` on, pair i is turned by angle i: (a, b) becomes
    (a cos - b sin, b cos + a sin). Pair i is elements i and r + i, or if ``interleaved`` 2i and
    2i + 1. All others stay.

    Args:
        rows: [T, heads, dim].
        cos, sin: [T, r], of each token's angles.
        offset: first element that is turned; offset + 2r <= dim.
        interleaved: which elements make a pair.

    Returns:
        [T, heads, dim] in the dtype of ``rows``.

    Cost: O(elements).
    """
    half = cos.shape[1]
    first, second = slice(offset, offset + half), slice(offset + half, offset + 2 * half)
    if interleaved:
        end = offset + 2 * half
        first, second = slice(offset, end, 2), slice(offset + 1, end, 2)
    c, s = (table[:, None].astype(rows.dtype) for table in (cos, sin))
    a, b, turned = rows[..., first], rows[..., second], rows.copy()
    turned[..., first], turned[..., second] = a * c - b * s, b * c + a * s
    return turned
