"""Which format each function of `octavo.index` gives."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

from octavo.errors import PlanError
from octavo.index.block_tables import DENSE, FLASH, VLLM, dense, flash, vllm
from octavo.index.emit import Format
from octavo.index.flashinfer import CASCADE, FLASHINFER, cascade, flashinfer
from octavo.index.runtimes import ONNXRUNTIME, TENSORRT, onnxruntime, tensorrt

_FORMATS: list[tuple[Callable[..., Any], Format]] = [
    (vllm, VLLM),
    (flash, FLASH),
    (flashinfer, FLASHINFER),
    (cascade, CASCADE),
    (onnxruntime, ONNXRUNTIME),
    (tensorrt, TENSORRT),
    (dense, DENSE),
]


def format_of(emit: Any, *more: str) -> Format:
    """The format of the function that ``emit`` is, or wraps. O(formats).

    Args:
        more: names of other functions the caller takes, for the message.

    Raises:
        PlanError: it is no format's function.
    """
    found = unwrap(emit) if callable(emit) else emit
    for function, made in _FORMATS:
        if found is function:
            return made
    names = ", ".join([made.name for _, made in _FORMATS] + list(more))
    raise PlanError("emit", emit, f"it must be a function of octavo.index: {names}")
