"""A model's linear layers on a CPU, computed by a C kernel for as long as an engine has the model.

For the few rows of a decode step the kernel reads weights at the speed of memory, where they lie:
nothing is packed or copied, and a row's result is the same to the bit beside any others. Layers of
the same input, such as queries, keys and values, are one call. Weights may also be quantised in
groups of 32, which costs memory of their own. `linears.c` computes; modules are all that is known
here, no steps and no families of models.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
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
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # take the same input

_taken: WeakKeyDictionary[Any, "Linears"] = WeakKeyDictionary()  # model -> whose its layers are


class KernelPart(ctypes.Structure):
    """``struct part`` of linears.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "scale", "bias", "out")),
        ("outs", ctypes.c_int64),
    )


class KernelCall(ctypes.Structure):
    """``struct call`` of linears.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "parts")),
        *((name, ctypes.c_int64) for name in ("count", "rows", "width", "kind", "threads")),
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
        found = [module for module in model.modules() if _is_plain(module)]
        if found and KERNEL.why_not():
            found = []
        self._layers: dict[Any, PlainLinear | QuantisedLinear]
        if quantise is None:
            self._layers = {module: PlainLinear(module) for module in found}
        else:
            head = model.get_output_embeddings()
            self._layers = {
                module: QuantisedLinear(module, "int8" if module is head else quantise)
                for module in found
                if module.in_features % GROUP == 0
            }
            if not self._layers:
                why = f"it has no linear layers on a CPU of a multiple of {GROUP} inputs"
                raise UnsupportedModel("quantised weights", why)
        self._forwards = {
            module: partial(together.compute, number)
            for together in map(Together, self._groups())
            for number, module in enumerate(together.modules)
        }

    @property
    def nbytes(self) -> int:
        """Bytes of quantised weights. O(layers)."""
        return sum(layer.nbytes for layer in self._layers.values())

    def take(self) -> None:
        """Have the layers compute by the kernel, whatever others have done since. O(1), O(layers).

        Layers that something else has given another ``forward`` are left to it.
        """
        owner = _taken.get(self._model)
        if owner is self:
            return
        if owner is not None:
            owner.close()
        for module, forward in self._forwards.items():
            if "forward" not in vars(module):
                module.__dict__["forward"] = forward
        _taken[self._model] = self

    def close(self) -> None:
        """Give the layers back; `take` takes them again. May be called twice. O(layers)."""
        if _taken.get(self._model) is not self:
            return
        for module, forward in self._forwards.items():
            if vars(module).get("forward") is forward:
                del module.forward
        del _taken[self._model]

    def _groups(self) -> list[list["PlainLinear | QuantisedLinear"]]:
        """The layers, those together that take the same input. O(modules)."""
        groups, left = [], dict(self._layers)
        for parent in self._model.modules():
            for names in _TOGETHER:
                mine = [getattr(parent, name, None) for name in names]
                layers = [left[module] for module in mine if module in left]
                if len({(layer.module.in_features, layer.kind) for layer in layers}) == 1:
                    groups.append(layers)
                    for layer in layers:
                        del left[layer.module]
        return groups + [[layer] for layer in left.values()]


def _is_plain(module: Any) -> bool:
    """Whether a module is a linear layer that the kernel can read."""
    if type(module) is not torch.nn.Linear or "forward" in vars(module):
        return False
    weight, bias = module.weight, module.bias
    return (
        type(weight) is torch.nn.Parameter  # others may be quantised by someone else
        and weight.dtype in _KINDS
        and _is_readable(weight)
        and weight.numel() > 0
        and (bias is None or (bias.dtype == weight.dtype and _is_readable(bias)))
    )


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's numbers lie one behind the other in this process's memory."""
    return tensor.is_cpu and tensor.layout == torch.strided and tensor.is_contiguous()


class PlainLinear:
    """One layer with the module's own weights.

    Args:
        module: the layer.

    """

    __reduce__ = uncopied("it is a part of one engine")

    nbytes, scale = 0, None

    def __init__(self, module: torch.nn.Linear) -> None:
        self.module = module
        native = module.weight.dtype == torch.bfloat16 and fast_dtype() == "bf16"
        self._most = _FEW if native else _MANY

    @property
    def weight(self) -> torch.Tensor:
        """As the module has it now."""
        return self.module.weight

    @property
    def kind(self) -> int:
        """As linears.c counts it."""
        return _KINDS[self.module.weight.dtype]

    def takes(self, x: torch.Tensor, rows: int) -> bool:
        """Whether the kernel computes so many rows faster, and can: weights may have moved."""
        weight = self.module.weight
        return 0 < rows <= self._most and x.dtype == weight.dtype and _is_readable(weight)


class QuantisedLinear:
    """One layer with weights in groups of `GROUP`, each with a scale; of 4 bits with a zero too.

    Of 8 bits a weight is number * scale, of 4 bits number * scale + zero with the group's least and
    greatest weights exact: weights that come from 4 bits with groups of this size stay as they are.

    Args:
        module: the layer.
        bits: what to make of its weights.

    Attributes:
        kind: as linears.c counts it.
        weight: the numbers.
        scale: float32, the scales, and the zeros.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, module: torch.nn.Linear, bits: Quantisation) -> None:
        self.module, self.kind = module, _KINDS[bits]
        make = _int8 if bits == "int8" else _int4
        self.weight, self.scale = make(module.weight.detach())

    def takes(self, x: torch.Tensor, rows: int) -> bool:
        """Whether the kernel computes so many rows: all in the element type of the model."""
        return rows > 0 and x.dtype == self.module.weight.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self.weight.nbytes + self.scale.nbytes


class Together:
    """Layers that take the same input: the first that is called computes all.

    Where their inputs turn out to be different ones, each is computed by itself from then on.

    Args:
        layers: of the same kind and width.

    Attributes:
        modules: those of the layers.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, layers: Sequence[PlainLinear | QuantisedLinear]) -> None:
        self._layers, self.modules = layers, [layer.module for layer in layers]
        self._apart = False
        self._x: torch.Tensor | None = None
        self._found: dict[int, torch.Tensor] = {}  # what they make of it, until they are called

    def compute(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """What a layer makes of ``x`` [..., in_features]; many rows may be left to torch."""
        if x is self._x and number in self._found:
            return self._take(number)
        module = self.modules[number]
        rows = x.numel() // module.in_features
        if torch.is_grad_enabled() or not x.is_cpu:
            return linear(x, module.weight, module.bias)
        if not all(layer.takes(x, rows) for layer in self._layers):
            return linear(x, module.weight, module.bias)
        self._apart |= bool(self._found)
        numbers = [number] if self._apart else range(len(self._layers))
        outs = _run(x, rows, [self._layers[n] for n in numbers])
        self._x, self._found = x, dict(zip(numbers, outs, strict=True))
        return self._take(number)

    def _take(self, number: int) -> torch.Tensor:
        """What was found for a layer; nothing is held once all have been called."""
        found = self._found.pop(number)
        if not self._found:
            self._x = None
        return found


def _run(
    x: torch.Tensor, rows: int, layers: Sequence[PlainLinear | QuantisedLinear]
) -> list[torch.Tensor]:
    """What the kernel makes of some rows by layers of the same kind."""
    given = x.float().contiguous()
    biases = [None if b is None else b.detach().float() for b in (y.module.bias for y in layers)]
    shapes = [(*x.shape[:-1], len(layer.weight)) for layer in layers]
    outs = [torch.empty(shape, dtype=torch.float32) for shape in shapes]
    parts = (KernelPart * len(layers))(
        *(
            KernelPart(
                layer.weight.data_ptr(),
                0 if layer.scale is None else layer.scale.data_ptr(),
                0 if bias is None else bias.data_ptr(),
                out.data_ptr(),
                out.shape[-1],
            )
            for layer, bias, out in zip(layers, biases, outs, strict=True)
        )
    )
    call = KernelCall(
        given.data_ptr(),
        ctypes.addressof(parts),
        len(layers),
        rows,
        x.shape[-1],
        layers[0].kind,
        torch.get_num_threads(),
    )
    if KERNEL.load()(ctypes.byref(call)):
        raise MemoryError("no memory for a linear layer")
    return outs if x.dtype == torch.float32 else [out.to(x.dtype) for out in outs]


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
