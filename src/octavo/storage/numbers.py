"""Numbers that are to be stored: checked, and as 8 or 4 bits with a scale: value = stored x scale.

A scale is the largest magnitude of what it covers over the largest number that is stored, so each
row is quantised by itself and no earlier one is ever touched. Knows no pages.
"""

import torch
from torch.nn.functional import pad

from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.model.dtypes import DType

LARGEST = {"int8": 127.0, "int4": 7.0, "fp8": 448.0, "fp8_e5m2": 57344.0}
"""Largest number stored of each type; integers use the same range on both sides of zero."""
_SMALLEST = torch.finfo(torch.float32).tiny  # of a scale: zeros have one too, and none is 0


def check_floats(
    name: str, new: object, dtype: torch.dtype | None, device: torch.device
) -> torch.Tensor:
    """Whether ``new`` is a tensor of this type, or of any float type, on this device. O(1).

    Raises:
        PlanError: it is not.
    """
    if not isinstance(new, torch.Tensor):
        found = str(getattr(new, "dtype", type(new).__name__))
        raise PlanError(f"dtype of {name}", found, "a torch tensor is stored")
    if dtype is None and not (new.is_floating_point() and new.itemsize > 1):
        raise PlanError(f"dtype of {name}", str(new.dtype), "floats of 16 bits or more are stored")
    if dtype not in (None, new.dtype):
        raise PlanError(f"dtype of {name}", str(new.dtype), f"the plan's is {dtype}")
    if new.device != device:
        raise PlanError(f"device of {name}", str(new.device), f"the storage is on {device}")
    return new


def check_shape(name: str, new: torch.Tensor, shape: tuple[int, ...], why: str) -> None:
    """Whether ``new`` has this shape. O(axes).

    Raises:
        LengthError: the first axis that differs.
    """
    check_int(f"axes of {name}", new.ndim, len(shape), len(shape), why)
    for axis, (has, wanted) in enumerate(zip(new.shape, shape, strict=True)):
        check_int(f"axis {axis} of {name}", has, wanted, wanted, why)


def find_scales(name: str, values: torch.Tensor, dtype: DType, axes: int = 1) -> torch.Tensor:
    """fp32 scales of ``values``, one for each of its last ``axes`` axes' elements. O(values).

    Raises:
        PlanError: NaN or infinite values, by the argument's ``name``. On a GPU looking costs a
            synchronisation.
    """
    largest = values.flatten(-axes).abs().amax(-1).float()
    if not largest.is_meta and not bool(torch.isfinite(largest).all()):
        raise PlanError(name, "NaN or infinite", f"{dtype.name} stores finite numbers alone")
    return (largest / LARGEST[dtype.name]).clamp_min(_SMALLEST)


def encode(values: torch.Tensor, dtype: DType, scale: torch.Tensor | float) -> torch.Tensor:
    """``values / scale`` rounded to the nearest that ``dtype`` stores, saturating. O(values).

    Args:
        values: [..., dim].
        scale: a number, or fp32 that broadcasts to ``values``.

    Returns:
        [..., dim]; of int4 [..., dim / 2], the first of two in the low half of a byte and both
            with 8 added, as ONNX Runtime keeps them.
    """
    most = LARGEST[dtype.name]
    scaled = (values.float() / scale).clamp_(-most, most)
    if dtype.name.startswith("fp8"):
        return scaled.to(getattr(torch, dtype.torch_name))
    whole = scaled.round_().to(torch.int8)
    return whole if dtype.name == "int8" else _pack(whole)


def decode(stored: torch.Tensor, dtype: DType, scale: torch.Tensor | float) -> torch.Tensor:
    """fp32 ``stored * scale``, [..., dim]. O(values)."""
    whole = _unpack(stored) if dtype.name == "int4" else stored
    return whole.float() * scale


def encode_tiles(
    name: str, values: torch.Tensor, dtype: DType, tile: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [T, n] with a scale for each ``tile`` elements: stored [T, n], scales [T, tiles].

    Raises:
        PlanError: as `find_scales`.
    """
    padded = pad(values, (0, -values.shape[-1] % tile))
    tiles = padded.view(len(values), -1, tile)
    scales = find_scales(name, tiles, dtype)
    stored = encode(tiles, dtype, scales[..., None]).flatten(-2)
    return stored[..., : values.shape[-1]], scales


def decode_tiles(
    stored: torch.Tensor, dtype: DType, scales: torch.Tensor, tile: int
) -> torch.Tensor:
    """fp32 [T, n] of rows with a scale for each ``tile`` elements."""
    each = scales.repeat_interleave(tile, -1)[..., : stored.shape[-1]]
    return decode(stored, dtype, each)


def _pack(whole: torch.Tensor) -> torch.Tensor:
    """int8 [..., dim] in -8..7, with 8 added, as uint8 [..., dim / 2], low half first."""
    halves = (whole + 8).view(torch.uint8)
    return halves[..., ::2] | (halves[..., 1::2] << 4)


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """The int8 [..., dim] of `_pack`."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2).view(torch.int8) - 8
