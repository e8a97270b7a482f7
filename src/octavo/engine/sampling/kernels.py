"""The C kernels that choose tokens and tell their log probabilities, on a CPU.

`sampling.c` computes. Where it cannot be compiled there are none, and torch computes the same.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from octavo.attention.kernels.build import Kernel
from octavo.engine.elementwise import is_in_memory

_SOURCE = Path(__file__).with_name("sampling.c")
_AT, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_SIGNATURES = {
    "octavo_likeliest": (_INT, _AT, _INT),
    "octavo_change": (
        *(_INT, _AT, _INT, *[_AT, _INT] * 2),
        *(*[_AT] * 2, _INT, _AT, _INT),
        *(*[_FLOAT] * 3, *[_AT] * 2),
    ),
    "octavo_restore": (None, *[_AT] * 3, _INT),
    "octavo_draw_likely": (_INT, _AT, *[_INT] * 2, _FLOAT, _INT, *[_FLOAT] * 2, *[_INT] * 2),
    "octavo_draw_all": (_INT, _AT, *[_INT] * 2, _FLOAT, *[_INT] * 2),
    "octavo_logprobs": (_FLOAT, _AT, *[_INT] * 3, *[_AT] * 3),
}


@cache
def kernel(name: str) -> Any:
    """A function of sampling.c as ctypes calls it; None: there is none here.

    Compiled the first time, which takes seconds.
    """
    found = Kernel("sampling", _SOURCE, name, "sampling kernels")
    if found.why_not():
        return None
    function = found.load()
    function.restype, *function.argtypes = _SIGNATURES[name]
    return function


def reads(scores: torch.Tensor) -> bool:
    """Whether the kernels read a matrix of scores: float32, rows in memory as they are. O(1)."""
    return scores.dtype == torch.float32 and scores.stride(-1) == 1 and is_in_memory(scores)
