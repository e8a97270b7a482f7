"""Records what a model computes in one step, so that later ones of its shape need not its modules.

While a `Recorder` is entered it sees every operation of torch, and the calls that octavo's own
kernels `note`. What it has seen is a list of calls on tensors: `octavo.engine.recorded` gives these
other places and makes them again. A module that cannot be recorded may be set apart: it is called
again as a whole. Knows no families of models and no steps.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from octavo.errors import StepError, uncopied

Bind = Callable[..., Callable[[], Any]]
"""Makes of a call's tensors what computes it."""

_READS = ("aten::resolve_conj", "aten::resolve_neg")  # what tolist() and numpy() do before reading
_EMPTY = ("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty")
_COPIES = ("aten::to", "aten::_to_copy", "aten::clone", "aten::contiguous")
_DIRECT = {"aten::add": torch.add, "aten::mul": torch.mul, "aten::silu": torch._C._nn.silu}
"""Functions of torch that need a third of the time of their overloads, where time counts."""
_MANY = (tuple, list)
_SEEDED, _SHAPED = torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape

_now: ContextVar["Recorder | None"] = ContextVar("recorder", default=None)


class Call(NamedTuple):
    """One call that computes something.

    Attributes:
        bind: given ``tensors`` and ``made``, or others of their shapes, makes what computes it; in
            place of what is made and never read it is given None.
        tensors: what it reads and writes.
        made: what comes into being by it.
        pure: whether it does nothing but make that.
    """

    bind: Bind
    tensors: tuple[torch.Tensor, ...]
    made: tuple[torch.Tensor, ...]
    pure: bool = False


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it all that torch computes in this thread is computed, and recorded.

    Args:
        known: tensors that are there whenever the calls are made again, such as weights and inputs.
        apart: modules that are to be called as a whole, whatever they compute.

    Attributes:
        calls: what was computed, in order.
        born: by the address of its storage, bytes and the number of the call before which memory
            was first used.
        why_not: why what was computed cannot be computed again so; None: it can.
        within: the module that was running then.

    Cost: some ten microseconds per operation.
    """

    __reduce__ = uncopied("it belongs to one step")

    def __init__(
        self, known: Iterable[torch.Tensor], apart: Iterable[torch.nn.Module] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.born: dict[int, tuple[int, int]] = {}
        self.why_not: str | None = None
        self.within: torch.nn.Module | None = None
        self._own = {module: vars(module).get("forward") for module in apart}
        self._forwards = {module: partial(self._call, module.forward) for module in self._own}
        self._known = {0, *map(_address, known)}  # 0: of no elements
        self._kept: list[Any] = []  # while they live no address stands for another storage
        self._paused = False

    def __enter__(self) -> Self:
        for module, ours in self._forwards.items():
            module.__dict__["forward"] = ours
        super().__enter__()  # type: ignore[no-untyped-call]
        _now.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Record no more, and give modules their forward back; again if an interrupt came between.

        Cost: O(modules set apart).
        """
        self._paused = True
        _now.set(None)
        for module, ours in self._forwards.items():
            if vars(module).get("forward") is ours:
                del module.forward
                if (own := self._own[module]) is not None:
                    module.__dict__["forward"] = own
        if _get_current_dispatch_mode() is self:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if not self._paused and self.why_not is None:
            self._see(function, args, kwargs, found)
        return found

    def note(
        self, bind: Bind, tensors: Sequence[torch.Tensor], made: Sequence[torch.Tensor] = ()
    ) -> None:
        """Record a call that torch does not see, such as one of a C kernel.

        Args:
            bind: takes the tensors, gives what computes the call.
            tensors: what it reads and writes, all of which torch has made or was given.
            made: what came out of it, made where nothing is recorded.
        """
        if self._paused or self.why_not is not None:
            return
        if self._are_known(tensors):
            self._add(Call(bind, tuple(tensors), tuple(made)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nothing is recorded: what happens there is noted as one call."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _see(self, function: Any, args: tuple[Any, ...], kwargs: Any, found: Any) -> None:
        name = function._schema.name
        if name == "aten::lift_fresh":  # a number of the model's code
            self._known.add(_address(found))
            self._kept.append(found)
            return
        given, results = tensors_in((args, kwargs)), found if isinstance(found, _MANY) else [found]
        outs = tensors_in(results)
        fresh = [at for at, out in enumerate(outs) if not self._is_known(out)]
        if not self._are_known(given):
            return
        if name in _READS or len(outs) < len(results):
            self._refuse(f"it reads numbers of tensors, by {name}")
        elif _SEEDED in function.tags and fresh:
            self._refuse(f"{name} may be random")
        elif _SHAPED in function.tags and not _is_by_number(name, given):
            self._refuse(f"the shape of {name} depends on numbers")
        elif any(out.is_conj() or out.is_neg() for out in outs):
            self._refuse(f"{name} gives what is to be conjugated or negated when it is read")
        elif name in _EMPTY:
            self._bear(outs)
        elif function._schema.is_mutable:
            bind = partial(_bind_mutable, function, args, kwargs)
            self._add(Call(bind, tuple(given), ()))
        elif fresh:  # the others are views, which need no computing
            make = _bind_one if len(outs) == 1 else _bind_whole
            bind = partial(make, function, args, kwargs, fresh)
            into = tuple(outs[at] for at in fresh)
            self._add(Call(bind, tuple(given), into, pure=True))
        self._kept.append(found)

    def _call(self, own: Any, *args: Any, **kwargs: Any) -> Any:
        """What a module that is set apart gives; calling it is one call."""
        with self.paused():
            found = own(*args, **kwargs)
        if self._paused or self.why_not is not None:
            return found
        outs = tensors_in(found)
        fresh = [at for at, out in enumerate(outs) if not self._is_known(out)]
        bind = partial(_bind_whole, own, args, kwargs, fresh)
        self.note(bind, tensors_in((args, kwargs)), [outs[at] for at in fresh])
        return found

    def _refuse(self, why: str) -> None:
        """Record nothing more."""
        self.why_not, frame = why, sys._getframe()
        while frame.f_back is not None and self.within is None:
            frame = frame.f_back
            if frame.f_code.co_name == "forward":
                module = frame.f_locals.get("self")
                self.within = module if isinstance(module, torch.nn.Module) else None

    def _are_known(self, tensors: Iterable[torch.Tensor]) -> bool:
        for tensor in tensors:
            if not self._is_known(tensor):
                self._refuse("it computes with tensors that were made elsewhere")
                return False
        return True

    def _is_known(self, tensor: torch.Tensor) -> bool:
        address = _address(tensor)
        return address in self._known or address in self.born

    def _add(self, call: Call) -> None:
        self._bear(call.made)
        self.calls.append(call)

    def _bear(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            if not self._is_known(tensor):
                self.born[_address(tensor)] = tensor.untyped_storage().nbytes(), len(self.calls)


def recorder() -> Recorder | None:
    """What records this thread's step now; None: nothing does. O(1)."""
    return _now.get()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors in a value, in tuples, lists and dicts too, in their order. O(value)."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for each in value for t in tensors_in(each)] if isinstance(value, _MANY) else []


def _with_tensors(value: Any, given: Iterator[torch.Tensor]) -> Any:
    """The same value with other tensors in place of its own."""
    if isinstance(value, torch.Tensor):
        return next(given)
    if type(value) in _MANY:
        return type(value)([_with_tensors(each, given) for each in value])
    if type(value) is dict:
        return {name: _with_tensors(each, given) for name, each in value.items()}
    if tensors_in(value):
        raise StepError(f"{type(value).__name__} holds tensors, and cannot be made of others")
    return value


def _is_by_number(name: str, given: list[torch.Tensor]) -> bool:
    """Whether an operation takes what lies at given places, not where a mask says."""
    masks = (torch.bool, torch.uint8)
    return name == "aten::index" and all(index.dtype not in masks for index in given[1:])


def _bind_mutable(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *tensors: torch.Tensor
) -> Callable[[], Any]:
    mine, named = _with_tensors((args, kwargs), iter(tensors))
    return partial(function, *mine, **named)


def _bind_one(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fresh: list[int],
    *tensors: torch.Tensor,
) -> Callable[[], Any]:
    """What computes an operation of one result into a tensor that is there."""
    (mine, named), out = _with_tensors((args, kwargs), iter(tensors)), tensors[-1]
    if function._schema.name in _COPIES and mine[0].shape == out.shape:
        return partial(out.copy_, mine[0])
    if (into := _out_of(function)) is not None:
        return partial(into, *mine, **named, out=out)
    return _bind_whole(function, args, kwargs, fresh, *tensors)


def _bind_whole(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: list[int], *tensors: Any
) -> Callable[[], Any]:
    """What computes an operation or a module, and copies what is new to tensors that are there."""
    given = iter(tensors)
    mine, named = _with_tensors((args, kwargs), given)
    places = [(at, out) for at, out in zip(fresh, given, strict=True) if out is not None]

    def compute() -> None:
        found = tensors_in(function(*mine, **named))
        for at, out in places:
            if found[at].shape != out.shape:  # which copy_ might take all the same
                raise StepError("a module gave another shape than when its step was recorded")
            out.copy_(found[at])

    return compute


def _out_of(function: Any) -> Any:
    """What an operation is called by that writes to a tensor it is given, or None."""
    if (direct := _DIRECT.get(function._schema.name)) is not None:
        return direct
    packet, own = function.overloadpacket, function._schema
    for name in ("out", f"{function._overloadname}_out"):
        if name not in packet.overloads():
            continue
        found = getattr(packet, name)
        rest = [(a.name, str(a.type)) for a in found._schema.arguments if not a.is_out]
        outs = [a.name for a in found._schema.arguments if a.is_out]
        if outs == ["out"] and rest == [(a.name, str(a.type)) for a in own.arguments]:
            return found
    return None
