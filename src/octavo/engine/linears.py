"""A model's linear layers on a CPU, computed by a C kernel for as long as an engine has the model.

For the few rows of a decode step the kernel reads weights at the speed of memory, where they lie:
nothing is packed or copied, and a row's result is the same to the bit beside any others. Layers of
the same input, such as queries, keys and values, are one call. Weights may also be quantised in
groups of 32, which costs memory of their own, and rounds what the layers are given to 15 bits.
Where processor and Linux let it (AMX), tiles of 16 outputs are multiplied: bf16 by 16 rows in the
time of one, quantised weights by 8 rows and more. `linears.c` computes; modules are all that is
known here, no steps and no families of models.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal
from weakref import ref

import torch
from torch.nn.functional import linear

from octavo.attention.kernels.build import Kernel
from octavo.checkpoints.processor import fast_dtype
from octavo.engine.elementwise import is_in_memory
from octavo.engine.large_pages import LargePages, whole_lines
from octavo.engine.recorder import recorder
from octavo.engine.takeover import Takeover
from octavo.errors import PlanError, UnsupportedModel, uncopied

_SOURCE = Path(__file__).with_name("linears.c")
KERNEL = Kernel("linears", _SOURCE, "octavo_linear", "linear layers")
"""The compiled kernel."""
_TILES = Kernel("linears", _SOURCE, "octavo_linear_tiles", "linear layers")  # the same, by name
GROUP = 32
"""Neighbouring weights of an output that share a scale, where they are quantised."""
TILE = 16
"""Outputs whose quantised weights lie side by side; the last tile is filled up with zeros."""

Quantisation = Literal["int8", "int4"]
_KINDS = {torch.float32: 0, torch.bfloat16: 1, "int8": 2, "int4": 3}  # as linears.c counts them
_MANY = 64  # rows from which torch's product of matrices is faster than the kernel
_FEW = 8  # the same in bf16 where the processor multiplies it, but not by tiles
_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # take the same input


class KernelPart(ctypes.Structure):
    """``struct part`` of linears.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        ("outs", ctypes.c_int64),
    )


class KernelLayers(ctypes.Structure):
    """``struct layers`` of linears.c, field by field."""

    _fields_ = (
        ("parts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "width", "kind", "tiles")),
    )


_ARGUMENTS = (
    *(ctypes.POINTER(KernelLayers), ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)),
    *(ctypes.c_int64,) * 3,
)


@cache
def has_tiles() -> bool:
    """Whether the kernel multiplies bf16 by tiles here; asks Linux for it, once per process.

    Raises:
        UnsupportedModel: there is no kernel here.
    """
    return bool(_TILES.load()())


class Linears(Takeover):
    """The linear layers of one model, which compute by octavo's kernel from `take` to `close`.

    Modules keep their place, their weights and their hooks; only their ``forward`` is another.
    Left as they are: modules that are no plain ``torch.nn.Linear`` in float32 or bfloat16 on a CPU,
    such as fused experts, and all where no kernel can be compiled. Training is never affected:
    where autograd is on, torch computes.

    Args:
        model: a transformers model.
        quantise: ``int4`` or ``int8``: layers compute with weights rounded to so many bits in
            groups of 32, the output layer with 8 bits at least, and with inputs rounded to 15 bits
            in groups of 32; None: with the model's own.

    Attributes:
        nbytes: memory of the quantised weights, beside the model's own; 0 without.

    Raises:
        PlanError: no such quantisation.
        UnsupportedModel: quantised layers have no kernel here, or there are none.

    Cost: O(layers); quantising reads every weight once.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, model: Any, quantise: Quantisation | None = None) -> None:
        if quantise not in (None, "int8", "int4"):
            raise PlanError("quantise", quantise, "it must be int8, int4 or None")
        super().__init__(model, ())
        if quantise is not None:
            KERNEL.load()
        found = [module for module in model.modules() if _is_plain(module)]
        if found and KERNEL.why_not():
            found = []
        self._layers: Mapping[Any, PlainLinear | QuantisedLinear]
        if quantise is None:
            self._layers = {module: PlainLinear(module) for module in found}
        else:
            head = model.get_output_embeddings()
            bits: dict[Any, Quantisation] = {
                module: "int8" if module is head else quantise
                for module in found
                if module.in_features % GROUP == 0
            }
            if not bits:
                why = f"it has no linear layers on a CPU of a multiple of {GROUP} inputs"
                raise UnsupportedModel("quantised weights", why)
            self._layers = quantised(bits)
        self._together = list(map(Together, self._groups()))
        self._forwards |= {
            module: partial(together.compute, number)
            for together in self._together
            for number, module in enumerate(together.modules)
        }

    @property
    def nbytes(self) -> int:
        """Bytes of quantised weights. O(layers)."""
        return sum(layer.nbytes for layer in self._layers.values())

    def take(self) -> None:
        """See Takeover."""
        super().take()
        for together in self._together:
            together.taken = True

    def close(self) -> None:
        """See Takeover."""
        super().close()
        for together in self._together:
            together.taken = False

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

    Attributes:
        kind: as linears.c counts it.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    nbytes = 0

    def __init__(self, module: torch.nn.Linear) -> None:
        self.module, self._held = module, vars(module)["_parameters"]
        self._dtype, self._shape = module.weight.dtype, module.weight.shape
        self.kind, self._most = _KINDS[self._dtype], _MANY
        tiled = module.in_features % GROUP == 0 and has_tiles()
        if self._dtype == torch.bfloat16 and not tiled and fast_dtype() == "bf16":
            self._most = _FEW

    def fill(self, part: KernelPart, x: torch.Tensor, rows: int) -> bool:
        """Say where weights and bias lie now, if the kernel computes so many rows faster, and can.

        Others may have moved or changed them.
        """
        weight = self._held.get("weight")  # not there where something computes it
        if type(weight) is not torch.nn.Parameter or weight.shape != self._shape:
            return False
        if not (0 < rows <= self._most and x.dtype == weight.dtype == self._dtype):
            return False
        part.weight = weight.data_ptr()
        return _is_readable(weight) and _fill_bias(part, self._held, x)


class QuantisedLinear:
    """One layer with weights in groups of `GROUP`, each with a scale; of 4 bits with a zero too.

    Of 8 bits a weight is number * scale, of 4 bits number * scale + zero with the group's least and
    greatest weights exact: weights that come from 4 bits with groups of this size stay as they are.

    Args:
        module: the layer.
        bits: what to make of its weights.

    Attributes:
        kind: as linears.c counts it.
        weight: uint8[tiles, groups, bytes], numbers and scales as linears.c has them.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, module: torch.nn.Linear, bits: Quantisation) -> None:
        self.module, self._held, self.kind = module, vars(module)["_parameters"], _KINDS[bits]
        self._made_of, self._version = ref(module.weight), _version(module.weight)
        groups = module.weight.detach().float().view(module.out_features, -1, GROUP)
        self.weight = _int8(groups) if bits == "int8" else _int4(groups)

    def fill(self, part: KernelPart, x: torch.Tensor, rows: int) -> bool:
        """Say where weights and bias lie, if the kernel computes so many rows: all it is given.

        Where the module's weights have changed since they were rounded, torch computes with them.
        """
        part.weight = self.weight.data_ptr()
        now: torch.Tensor | None = self._held.get("weight")
        if now is None or now is not self._made_of() or _version(now) != self._version:
            return False
        return rows > 0 and x.dtype in _KINDS and _fill_bias(part, self._held, x)

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales."""
        return self.weight.nbytes


def quantised(bits: Mapping[torch.nn.Linear, Quantisation]) -> dict[Any, QuantisedLinear]:
    """Layers by their modules, with weights of so many bits, all in one piece of memory.

    One is rounded at a time, so that no more is held than stays. O(weights).
    """
    pages = LargePages(sum(whole_lines(_nbytes(module, each)) for module, each in bits.items()))
    layers = {}
    for module, each in bits.items():
        layers[module] = layer = QuantisedLinear(module, each)
        layer.weight = pages.place(layer.weight)
    return layers


def _nbytes(module: torch.nn.Linear, bits: Quantisation) -> int:
    """Bytes of a layer's weights and scales with so many bits."""
    tiles, groups = -(-module.out_features // TILE), module.in_features // GROUP
    return tiles * groups * TILE * {"int8": GROUP + 4, "int4": GROUP // 2 + 8}[bits]


def _version(weight: torch.Tensor) -> tuple[int, int]:
    """Another one after a change of a tensor; those of inference tensors in place are not seen."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _fill_bias(part: KernelPart, held: dict[str, Any], x: torch.Tensor) -> bool:
    """Say where the bias lies, if a layer's parameters have one; whether the kernel can read it."""
    bias = held.get("bias")
    if bias is None:
        part.bias = None
        return "bias" in held  # else something computes it
    part.bias = bias.data_ptr()
    return bias.dtype == x.dtype and bias.shape == (part.outs,) and _is_readable(bias)


class Layers:
    """Layers of the same kind and width, as one call of the kernel.

    What the kernel must know of them is written once; a call adds what is its own, so that several
    threads may call.

    Args:
        layers: at least one.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, layers: Sequence[PlainLinear | QuantisedLinear]) -> None:
        self._outs = [layer.module.out_features for layer in layers]
        self._parts = (KernelPart * len(layers))(*(KernelPart(0, 0, outs) for outs in self._outs))
        self._filled = list(zip(layers, self._parts, strict=True))
        self._width = layers[0].module.in_features
        self._given = KernelLayers(
            ctypes.addressof(self._parts), len(layers), self._width, layers[0].kind, has_tiles()
        )
        self._pointers = ctypes.c_void_p * len(layers)
        self._kernel = KERNEL.load()
        self._kernel.argtypes = _ARGUMENTS

    def compute(self, x: torch.Tensor) -> list[torch.Tensor] | None:
        """What each layer makes of ``x`` [..., width], on a CPU; None: torch should compute."""
        if not is_in_memory(x) or x.shape[-1:] != (self._width,):
            return None
        rows = x.numel() // self._width
        for layer, part in self._filled:
            if not layer.fill(part, x, rows):
                return None
        x, shape = x.contiguous(), x.shape[:-1]
        outs = [x.new_empty((*shape, count)) for count in self._outs]
        self._bind(x, *outs)()
        if (seen := recorder()) is not None:
            seen.note(self._bind, (x, *outs))
        return outs

    def _bind(self, x: torch.Tensor, *outs: torch.Tensor) -> Callable[[], None]:
        """What computes outputs of an input, with the weights as they lie now."""
        return partial(
            _checked,
            self._kernel,
            self._given,
            ctypes.c_void_p(x.data_ptr()),
            self._pointers(*[out.data_ptr() for out in outs]),
            ctypes.c_int64(x.numel() // self._width),
            ctypes.c_int64(x.dtype == torch.bfloat16),
            ctypes.c_int64(torch.get_num_threads()),
        )


def _checked(kernel: Any, *arguments: Any) -> None:
    if kernel(*arguments):
        raise MemoryError("no memory for a linear layer")


class Together:
    """Layers that take the same input: the first that is called computes all.

    Where their inputs turn out to be different ones, each is computed by itself from then on.

    Args:
        layers: of the same kind and width.

    Attributes:
        modules: those of the layers.
        taken: whether an engine has the model; what wraps a layer's ``forward`` may outlive it.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, layers: Sequence[PlainLinear | QuantisedLinear]) -> None:
        self.taken = False
        self.modules = [layer.module for layer in layers]
        self._layers, self._all = layers, Layers(layers)
        self._alone: list[Layers] = []  # each, where their inputs are different ones
        self._x: torch.Tensor | None = None
        self._found: dict[int, torch.Tensor] = {}  # what they make of it, until they are called

    def compute(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """What a layer makes of ``x`` [..., in_features]; many rows may be left to torch."""
        if x is self._x and number in self._found:
            return self._take(number)
        module = self.modules[number]
        if not self.taken or torch.is_grad_enabled():
            return linear(x, module.weight, module.bias)
        if self._found and not self._alone:
            self._alone = [Layers([layer]) for layer in self._layers]
        outs = (self._alone[number] if self._alone else self._all).compute(x)
        if outs is None:
            return linear(x, module.weight, module.bias)
        if len(outs) == 1:
            self._found.clear()
            return outs[0]
        self._x, self._found = x, dict(enumerate(outs))
        return self._take(number)

    def _take(self, number: int) -> torch.Tensor:
        """What was found for a layer; nothing is held once all have been called."""
        found = self._found.pop(number)
        if not self._found:
            self._x = None
        return found


def _tiled(of_each: torch.Tensor) -> torch.Tensor:
    """What each output has, [outs, groups, n], by tiles: [tiles, groups, TILE, n]."""
    outs, groups, count = of_each.shape
    full = torch.zeros((-(-outs // TILE) * TILE, groups, count), dtype=of_each.dtype)
    full[:outs] = of_each
    return full.view(-1, TILE, groups, count).transpose(1, 2)


def _packed(numbers: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    """Numbers of groups, uint8[outs, groups, n], four of each output of a tile side by side.

    Behind them scales, each float32[outs, groups, 1].
    """
    tiles = _tiled(numbers)
    fours = tiles.reshape(*tiles.shape[:3], -1, 4).transpose(2, 3)  # [..., n / 4, TILE, 4]
    behind = (_tiled(scale).flatten(2).contiguous().view(torch.uint8) for scale in scales)
    return torch.cat([fours.flatten(2), *behind], dim=-1)


def _int8(groups: torch.Tensor) -> torch.Tensor:
    """Groups of weights, float32[outs, groups, GROUP], as ``struct int8`` of linears.c."""
    scale = groups.abs().amax(-1, keepdim=True) / 127
    numbers = (groups / scale.clamp_min(torch.finfo(torch.float32).tiny)).round()
    return _packed((numbers + 128).to(torch.uint8), scale)


def _int4(groups: torch.Tensor) -> torch.Tensor:
    """Groups of weights, float32[outs, groups, GROUP], as ``struct int4`` of linears.c."""
    zero, top = groups.aminmax(dim=-1, keepdim=True)
    scale = (top - zero) / 15
    numbers = ((groups - zero) / scale.clamp_min(torch.finfo(torch.float32).tiny)).round()
    first, second = numbers.clamp(0, 15).to(torch.uint8).chunk(2, dim=-1)
    return _packed(first | second << 4, scale, zero)
