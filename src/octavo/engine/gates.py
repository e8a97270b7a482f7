"""Gated layers, down(activation(gate(x)) * up(x)), of which one C kernel makes the middle part.

A module is one if its children have these names and its code does nothing else, which is tried with
others in their place. Its layers are called as before, so that their hooks and kernels stay.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch

from octavo.engine.elementwise import is_same, kernel, reads
from octavo.errors import uncopied

_LAYERS = ("gate_proj", "up_proj", "down_proj")
_ACTIVATIONS = ("act_fn", "act", "activation_fn")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")  # where torch keeps a module's
_KINDS = 2  # of activations, as elementwise.c counts them
_ROWS, _WIDTH = 4, 96  # of a trial


class Gate:
    """One gated layer.

    Args:
        module: the layer, with its own ``forward``.
        activation: which, as elementwise.c counts them.
        run: the kernel.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, module: Any, activation: int, run: Any) -> None:
        self._module, self._own, self._run = module, module.forward, run
        self._activation = activation
        self._act = next(getattr(module, name) for name in _ACTIVATIONS if hasattr(module, name))
        self._hooks = [vars(self._act)[name] for name in _HOOKS]

    def compute(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for ``x`` [..., width]; what it is not made for, torch computes."""
        module = self._module
        if args or kwargs or not reads(x) or any(self._hooks):
            return self._own(x, *args, **kwargs)
        gate, up = module.gate_proj(x), module.up_proj(x)
        if gate.dtype != up.dtype or gate.shape != up.shape or not reads(gate):
            return module.down_proj(self._act(gate) * up)
        return module.down_proj(self._gated(gate.contiguous(), up.contiguous()))

    def _gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """activation(gate) * up."""
        out, width = torch.empty_like(gate), gate.shape[-1]
        self._run(
            gate.data_ptr(),
            up.data_ptr(),
            out.data_ptr(),
            gate.numel() // width,
            width,
            self._activation,
            gate.dtype == torch.bfloat16,
            torch.get_num_threads(),
        )
        return out


def gate_of(module: Any) -> Callable[..., Any] | None:
    """What computes a gated layer from now on; None: it is none, or not as the kernel has it.

    Cost: O(1); no weights are read.
    """
    children = dict(module.named_children())
    layers = [children.pop(name, None) for name in _LAYERS]
    if None in layers or len(children) != 1 or not children.keys() <= set(_ACTIVATIONS):
        return None
    if dict(module.named_parameters(recurse=False)) or (run := kernel("octavo_gate")) is None:
        return None
    kinds = (kind for kind in range(_KINDS) if _agrees(module, kind, run))
    found = next(kinds, None)
    return None if found is None else Gate(module, found, run).compute


def _agrees(module: Any, activation: int, run: Any) -> bool:
    """Whether the module's code, with stand-ins for its layers, gives what the kernel does."""
    twin, children = copy.copy(module), dict(module.named_children())
    children |= dict(zip(_LAYERS, (torch.nn.Identity(), _Flipped(), _Shifted()), strict=True))
    (name,) = children.keys() - set(_LAYERS)
    children[name] = copy.copy(children[name])
    children[name].__dict__.update({key: {} for key in _HOOKS})  # which are not for a trial
    twin.__dict__["_modules"] = children
    seeded = torch.Generator().manual_seed(activation)
    x = torch.randn(_ROWS, _WIDTH, generator=seeded) * 3
    with torch.inference_mode():
        try:
            expected = twin.forward(x)
        except Exception:  # noqa: BLE001, it does something else with its layers
            return False
        return is_same(Gate(twin, activation, run).compute(x), expected)


class _Flipped(torch.nn.Module):
    """Stands for a layer in a trial."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The elements in the other order."""
        return x.flip(-1)


class _Shifted(torch.nn.Module):
    """Stands for a layer in a trial."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Something that is not linear, so that it matters what comes before and behind."""
        return x * x + 1
