"""The C kernels for what lies between linear layers: functions of addresses, and what they read.

`elementwise.c` computes. Where it cannot be compiled there are no kernels, and torch computes.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from octavo.attention.kernels.build import Kernel
from octavo.engine.recorder import recorder

_DTYPES = (torch.float32, torch.bfloat16)
_SOURCE = Path(__file__).with_name("elementwise.c")
_AT, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_ARGUMENTS = {
    "octavo_norm": (*[_AT] * 3, *[_INT] * 2, _FLOAT, *[_INT] * 2),
    "octavo_turn": (*[*[_AT] * 2, *[_INT] * 3] * 2, *[_AT] * 2, *[_INT] * 5),
}
KERNELS = {name: Kernel("elementwise", _SOURCE, name, "elementwise kernels") for name in _ARGUMENTS}
"""The compiled functions, by name."""


def kernel(name: str) -> Any:
    """A function of elementwise.c as ctypes calls it; None: there is none here. O(1)."""
    if KERNELS[name].why_not():
        return None
    function = KERNELS[name].load()
    function.argtypes, function.restype = _ARGUMENTS[name], None
    return function


def launch(function: Any, arguments: tuple[Any, ...]) -> None:
    """Call a function of elementwise.c, and have it recorded where a step is. O(arguments).

    Args:
        function: from `kernel`.
        arguments: as it takes them, tensors in place of their addresses; None: no such tensor.
    """
    function(*_addresses(arguments))
    if (seen := recorder()) is not None:
        given = [at for at, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
        bind = partial(_bind, function, arguments, given)
        seen.note(bind, [arguments[at] for at in given])


def _addresses(arguments: Iterable[Any]) -> Iterator[Any]:
    return (each.data_ptr() if isinstance(each, torch.Tensor) else each for each in arguments)


def _bind(
    function: Any, arguments: tuple[Any, ...], given: list[int], *tensors: torch.Tensor
) -> Callable[[], Any]:
    """The same call on other tensors, with what it is given converted once."""
    mine = list(arguments)
    for at, tensor in zip(given, tensors, strict=True):
        mine[at] = tensor
    converted = (kind(each) for kind, each in zip(function.argtypes, _addresses(mine), strict=True))
    return partial(function, *converted)


def reads(x: torch.Tensor) -> bool:
    """Whether the kernels read a tensor: in fp32 or bf16, in memory, not for autograd. O(1)."""
    return x.dtype in _DTYPES and is_in_memory(x) and not torch.is_grad_enabled()


def is_in_memory(x: torch.Tensor) -> bool:
    """Whether a tensor's numbers are what lies at its address, on a CPU. O(1)."""
    return type(x) is torch.Tensor and x.is_cpu and x.data_ptr() != 0 and not x.is_neg()


def is_same(found: torch.Tensor, expected: Any) -> bool:
    """Whether two results differ by no more than the order of sums makes them. O(elements)."""
    if not isinstance(expected, torch.Tensor) or expected.shape != found.shape:
        return False
    if expected.dtype != found.dtype or not bool(expected.isfinite().all()):
        return False
    if found.dtype == torch.bfloat16:  # a few may be rounded to the other side
        alike = torch.isclose(found, expected, rtol=2**-7, atol=0)
        return bool(alike.all()) and float((found != expected).float().mean()) < 1 / 64
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
