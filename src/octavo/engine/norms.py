"""Norms by the root of the mean square, by one C kernel instead of six operations of torch.

A module is one if it computes what the kernel does, which is tried on random numbers and weights:
classes and families are not known by name.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

from octavo.engine.elementwise import is_same, kernel, launch, reads
from octavo.errors import uncopied

_PLUS_ONE, _ROUNDS = 2, 4  # flags of elementwise.c
_EPSILON = ("variance_epsilon", "eps")
_ROWS, _WIDTH = 16, 96  # of a trial; the width where no weight says it


class Norm:
    """One norm: x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Args:
        module: the norm, with its own ``forward``.
        flags: as elementwise.c has them: whether 1 is added to the weight, and whether bfloat16 is
            rounded before it is multiplied.
        run: the kernel.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, module: Any, flags: int, run: Any) -> None:
        self._own, self._run, self._held = module.forward, run, vars(module)
        self._name = next(name for name in _EPSILON if name in self._held)
        weight = self._held["_parameters"].get("weight")  # read so, it is there four times as fast
        self._dtype = None if weight is None else weight.dtype  # flags were tried with it
        self._flags = flags

    def compute(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for ``x`` [..., width]; what it is not made for, torch computes."""
        weight = self._held["_parameters"].get("weight")
        width = x.shape[-1]
        if args or kwargs or not reads(x) or not self._takes(x, weight):
            return self._own(x, *args, **kwargs)
        x = x.contiguous()
        out = torch.empty_like(x)
        flags = self._flags | (x.dtype == torch.bfloat16)
        epsilon, rows = self._held[self._name], x.numel() // width
        launch(
            self._run,
            (x, weight, out, rows, width, epsilon, flags, torch.get_num_threads()),
        )
        return out

    def _takes(self, x: torch.Tensor, weight: torch.Tensor | None) -> bool:
        """Whether a row and the weight, which may have moved, are such as were tried."""
        if weight is None:
            return self._dtype is None
        return (
            weight.dtype == x.dtype == self._dtype
            and weight.shape == x.shape[-1:]
            and weight.is_cpu
            and weight.is_contiguous()
        )


def norm_of(module: Any) -> Callable[..., Any] | None:
    """What computes a norm from now on; None: the module is none, or not as the kernel has it.

    Cost: O(1), and for a module that may be a norm O(width).
    """
    if not _may_be(module) or (run := kernel("octavo_norm")) is None:
        return None
    for flags in (0, _PLUS_ONE, _ROUNDS, _PLUS_ONE | _ROUNDS):
        if _agrees(module, flags, run):
            return Norm(module, flags, run).compute
    return None


def _may_be(module: Any) -> bool:
    """Whether a module has what a norm has, and nothing else."""
    parameters = dict(module.named_parameters())
    weight = parameters.pop("weight", None)
    return (
        not parameters
        and not any(True for _ in module.children())
        and not any(True for _ in module.buffers())
        and (weight is None or (weight.ndim == 1 and type(weight) is torch.nn.Parameter))
        and any(isinstance(vars(module).get(name), float) for name in _EPSILON)
    )


def _agrees(module: Any, flags: int, run: Any) -> bool:
    """Whether kernel and module give the same for random rows and weights."""
    weight = getattr(module, "weight", None)
    dtype = torch.float32 if weight is None else weight.dtype
    width = _WIDTH if weight is None else len(weight)
    seeded = torch.Generator().manual_seed(width)
    twin = copy.copy(module)
    if weight is not None:
        random = torch.randn(width, generator=seeded).to(dtype)
        twin.__dict__["_parameters"] = {"weight": torch.nn.Parameter(random, requires_grad=False)}
    x = torch.randn(_ROWS, width, generator=seeded).to(dtype) * 3
    with torch.inference_mode():
        if not reads(x):
            return False
        try:
            expected = twin.forward(x)
        except Exception:  # noqa: BLE001, it wants something else than rows
            return False
        return is_same(Norm(twin, flags, run).compute(x), expected)
