"""A model's linear layers on a CPU, computed by a C kernel for as long as an engine has the model.

For the few rows of a decode step the kernel reads weights at the speed of memory, where they lie:
nothing is packed or copied, and a row's result is the same to the bit beside any others. Weights
may also be quantised in groups of 32, which costs memory of their own. `linears.c` computes,
`octavo.attention.kernels.build` compiles it. Knows modules; no steps and no families of models.
"""

import ctypes
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch.nn.functional import linear

from octavo.attention.kernels.build import Kernel
from octavo.checkpoints.processor import fast_dtype
from octavo.errors import PlanError, UnsupportedModel, uncopied

KERNEL = Kernel("linears", Path(__file__).with_name("linears.c"), "octavo_linear", "linear layers")
"""The compiled kernel."""
GROUP = 32
"""Neighbouring weights of an output that share a scale, where they are quantised."""

Quantisation = Literal["int8", "int4"]
_KINDS = {torch.float32: 0, torch.bfloat16: 1, "int8": 2, "int4": 3}  # as linears.c counts them
_MANY = 64  # rows from which torch's product of matrices is faster than the kernel
_FEW = 8  # the same in bf16 where the processor multiplies it

_taken: WeakKeyDictionary[Any, "Linears"] = WeakKeyDictionary()  # model -> whose its layers are


class KernelCall(ctypes.Structure):
    """``struct call`` of linears.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "outs", "kind", "threads")),
    )


class Linears:
    """The linear layers of one model, which compute by octavo's kernel from `take` to `close`.

    Modules keep their place, their weights and their hooks; only their ``forward`` is another.
    Left as they are: modules that are no plain ``torch.nn.Linear`` in float32 or bfloat16 on a CPU,
    such as fused experts, and all where no kernel can be compiled. Training is never affected:
    where autograd is on, torch computes.

    Args:
        model: a transformers model.
        quantise: ``int4`` or ``int8``: layers compute with weights rounded to so many bits in
            groups of 32, the output layer with 8 bits at least; None: with the model's own.

    Attributes:
        nbytes: memory of the quantised weights, beside the model's own; 0 without.

    Raises:
        PlanError: no such quantisation.
        UnsupportedModel: quantised layers have no kernel here, or there are none.

    Cost: O(layers); quantising reads every weight once.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any, quantise: Quantisation | None = None) -> None:
        if quantise not in (None, "int8", "int4"):
            raise PlanError("quantise", quantise, "it must be int8, int4 or None")
        self._model = model
        if quantise is not None:
            KERNEL.load()
        found = [] if KERNEL.why_not() else [m for m in model.modules() if _is_plain(m)]
        if quantise is None:
            self._layers: list[Any] = [PlainLinear(module) for module in found]
        else:
            head = model.get_output_embeddings()
            self._layers = [
                QuantisedLinear(module, "int8" if module is head else quantise)
                for module in found
                if module.in_features % GROUP == 0
            ]
            if not self._layers:
                why = f"it has no linear layers on a CPU of a multiple of {GROUP} inputs"
                raise UnsupportedModel("quantised weights", why)

    @property
    def nbytes(self) -> int:
        """Bytes of quantised weights. O(layers)."""
        return sum(layer.nbytes for layer in self._layers)

    def take(self) -> None:
        """Have the layers compute by the kernel, whatever others have done since. O(1), O(layers).

        Layers that something else has given another ``forward`` are left to it.
        """
        owner = _taken.get(self._model)
        if owner is self:
            return
        if owner is not None:
            owner.close()
        for layer in self._layers:
            if "forward" not in vars(layer.module):
                layer.module.__dict__["forward"] = layer.compute
        _taken[self._model] = self

    def close(self) -> None:
        """Give the layers back; `take` takes them again. May be called twice. O(layers)."""
        if _taken.get(self._model) is not self:
            return
        for layer in self._layers:
            if vars(layer.module).get("forward") == layer.compute:
                del layer.module.forward
        del _taken[self._model]


def _is_plain(module: Any) -> bool:
    """Whether a module is a linear layer that the kernel can read."""
    if type(module) is not torch.nn.Linear or "forward" in vars(module):
        return False
    weight, bias = module.weight, module.bias
    return (
        weight.device.type == "cpu"
        and weight.dtype in _KINDS
        and weight.is_contiguous()
        and weight.numel() > 0
        and (bias is None or (bias.dtype == weight.dtype and bias.is_contiguous()))
    )


class PlainLinear:
    """One layer with the module's own weights.

    Args:
        module: the layer.
    """

    __reduce__ = uncopied("it is a part of one engine")

    nbytes = 0

    def __init__(self, module: torch.nn.Linear) -> None:
        self.module = module
        native = module.weight.dtype == torch.bfloat16 and fast_dtype() == "bf16"
        self._most = _FEW if native else _MANY

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output for ``x`` [..., in_features]; many rows are left to torch."""
        weight, bias = self.module.weight, self.module.bias
        rows = x.numel() // weight.shape[1]
        if torch.is_grad_enabled() or not 0 < rows <= self._most or x.dtype != weight.dtype:
            return linear(x, weight, bias)
        return _run(x, rows, weight, None, bias, _KINDS[weight.dtype])


class QuantisedLinear:
    """One layer with weights in groups of `GROUP`, each with a scale; of 4 bits with a zero too.

    Of 8 bits a weight is number * scale, of 4 bits number * scale + zero with the group's least and
    greatest weights exact: weights that come from 4 bits with groups of this size stay as they are.

    Args:
        module: the layer.
        bits: what to make of its weights.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, module: torch.nn.Linear, bits: Quantisation) -> None:
        self.module, self._kind = module, _KINDS[bits]
        make = _int8 if bits == "int8" else _int4
        self._weight, self._scale = make(module.weight.detach())

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self._weight.nbytes + self._scale.nbytes

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output for ``x`` [..., in_features]."""
        weight, bias = self.module.weight, self.module.bias
        rows = x.numel() // weight.shape[1]
        if torch.is_grad_enabled() or not rows or x.dtype != weight.dtype:
            return linear(x, weight, bias)
        return _run(x, rows, self._weight, self._scale, bias, self._kind)


def _run(
    x: torch.Tensor,
    rows: int,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    kind: int,
) -> torch.Tensor:
    """What the kernel makes of some rows."""
    given = x.float().contiguous()
    added = None if bias is None else bias.detach().float()
    outs = len(weight)
    out = torch.empty(*x.shape[:-1], outs, dtype=torch.float32)
    call = KernelCall(
        given.data_ptr(),
        weight.data_ptr(),
        0 if scale is None else scale.data_ptr(),
        0 if added is None else added.data_ptr(),
        out.data_ptr(),
        rows,
        x.shape[-1],
        outs,
        kind,
        torch.get_num_threads(),
    )
    if KERNEL.load()(ctypes.byref(call)):
        raise MemoryError("no memory for a linear layer")
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def _int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as int8[outs, width], and the scales of their groups, float32[outs, groups]."""
    groups = weight.float().view(len(weight), -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True) / 127
    numbers = (groups / scale.clamp_min(torch.finfo(torch.float32).tiny)).round()
    return numbers.to(torch.int8).flatten(1).contiguous(), scale.flatten(1).contiguous()


def _int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as uint8[outs, width / 2], a group's first half in the low bits; scales and zeros.

    The latter are float32[outs, 2 * groups], one behind the other.
    """
    groups = weight.float().view(len(weight), -1, GROUP)
    zero, top = groups.aminmax(dim=-1, keepdim=True)
    scale = (top - zero) / 15
    numbers = ((groups - zero) / scale.clamp_min(torch.finfo(torch.float32).tiny)).round()
    first, second = numbers.clamp(0, 15).to(torch.uint8).chunk(2, dim=-1)
    both = (first | second << 4).flatten(1).contiguous()
    return both, torch.cat([scale, zero], dim=-1).flatten(1).contiguous()
