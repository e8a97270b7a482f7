"""Steps of one model that are recorded, by their shape, for as long as the model stays as it is.

In a small model calls of modules are a large part of a decode step on a CPU. When a shape has come
some times a step of it is recorded; the next is computed both ways; and where both gave the same
bits, those behind it are made of the recorded calls alone. Knows no requests, pages or kinds of
layers.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch.nn.modules import module as of_all_modules

from octavo.engine.recorded import Arena, Recorded
from octavo.engine.recorder import Recorder
from octavo.errors import uncopied

MOST_TOKENS = 64
"""Of a step that is recorded: beside the work of more, calls of modules cost little."""
BEFORE = 4
"""Steps of a shape before one is recorded: recording and trying it cost what as many steps gain."""
FIRST = BEFORE + 2
"""Steps of a shape before those that call no module."""
_KEPT = 64  # shapes
_KINDS = 4  # of modules that are set apart, after which nothing is recorded
_LOOK = 64  # steps after which the model is looked at again, if nobody asks

_PARTS = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_VERSION = attrgetter("_version")

Compute = Callable[..., torch.Tensor]
Keep = Callable[[], Callable[[], None]]


class Watched:
    """What a model's steps depend on beside their inputs: its modules, what these hold, and hooks.

    Args:
        model: as it is now.
        others: tensors that its steps read beside those its modules hold.

    Attributes:
        tensors: all that its steps may read; they live as long as this does.

    Cost: O(attributes of modules).
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, model: Any, others: Iterable[torch.Tensor] = ()) -> None:
        self._modules = list(model.modules())
        held = [vars(module) for module in self._modules]
        configs = {id(each["config"]): each["config"] for each in held if "config" in each}
        self._dicts = [
            *(each[name] for each in held for name in _PARTS),
            *held,
            *(vars(config) for config in configs.values() if hasattr(config, "__dict__")),
        ]
        self._hooks = [
            *(each[name] for each in held for name in _HOOKS),
            of_all_modules._global_forward_hooks,
            of_all_modules._global_forward_pre_hooks,
        ]
        members = list(chain.from_iterable(map(dict.values, self._dicts)))
        self.tensors = [each for each in members if isinstance(each, torch.Tensor)]
        self.tensors += others
        self._counted = [each for each in self.tensors if not each.is_inference()]
        self._kept = members, [each.untyped_storage() for each in self.tensors]  # ids stay theirs
        self._was = self._state()

    @property
    def hooked(self) -> bool:
        """Whether something is called beside the modules. O(modules), some microseconds."""
        return any(self._hooks)

    @property
    def same(self) -> bool:
        """Whether modules compute what they did, of what lies where it did.

        Seen is what modules and configs hold, not what lies in lists and objects of theirs.

        Cost: O(attributes of modules).
        """
        return bool(self._was == self._state())

    def _state(self) -> Any:
        """Of numbers changed in place autograd keeps count; layers may compute with copies."""
        kinds: list[Any] = list(map(type, self._modules))
        return (
            list(map(id, chain.from_iterable(map(dict.values, self._dicts)))),
            kinds,
            [(kind.forward, kind.__call__) for kind in dict.fromkeys(kinds)],
            list(map(torch.Tensor.data_ptr, self.tensors)),
            list(map(_VERSION, self._counted)),
        )


class _Shape:
    """Steps of one shape, and how far they have come."""

    def __init__(self) -> None:
        self.count = 0
        self.inputs: list[torch.Tensor] = []
        self.recorded: Recorded | None = None
        self.trusted = False


class Recordings:
    """The recorded steps of one model.

    Args:
        model: whose steps are computed.
        others: tensors that its steps read beside those its modules hold.
        apart: modules that are called as a whole, as what they read is the step's; those that turn
            out to depend on numbers are too.

    Attributes:
        why_not: why no step is recorded any more; None: they are.
    """

    __reduce__ = uncopied("it has the addresses of one model's weights")

    def __init__(
        self,
        model: Any,
        others: Iterable[torch.Tensor] = (),
        apart: Iterable[torch.nn.Module] = (),
    ) -> None:
        self._model, self._others = model, tuple(others)
        self.why_not: str | None = None
        self._open: Recorder | None = None  # what an interrupt has kept from being undone
        self._given, self._kinds, self._unseen = set(apart), set[type](), 0
        self._arena = Arena()
        self._forget()

    def close(self) -> None:
        """Leave the model's modules as they were found. May be called twice."""
        if self._open is not None:
            self._open.undo()
            self._open = None

    def look(self) -> None:
        """See whether the model has changed; what was recorded of another is dropped. O(modules).

        Hooks are seen at every step, and weights of layers that compute with the model's own are
        read at every step; what else modules and configs hold is looked at here, and every 64th
        step.
        """
        self._unseen = 0
        if not self._watched.same:
            self._forget()

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        compute: Compute,
        keep: Callable[[], Callable[[], None]],
    ) -> torch.Tensor:
        """What ``compute`` gives for ``inputs``, or what was recorded of it gives.

        Args:
            inputs: int64 on the CPU, the first of all tokens; steps whose inputs have the same
                shapes are alike.
            compute: takes the inputs.
            keep: called before a step is computed twice; what it returns is called in between, and
                makes all as it was.

        Returns:
            A tensor that the next call may overwrite.

        Cost: that of ``compute``; once per shape twice that.
        """
        if self.why_not is not None or len(inputs[0]) > MOST_TOKENS or self._watched.hooked:
            return compute(*inputs)
        self._unseen += 1
        if self._unseen == _LOOK:
            self.look()
        shape = self._shape(inputs)
        shape.count += 1
        if shape.count <= BEFORE:
            return compute(*inputs)
        if shape.recorded is None:
            return self._record(shape, inputs, compute)
        for mine, given in zip(shape.inputs, inputs, strict=True):
            mine.copy_(given)
        if shape.trusted:
            return shape.recorded.run()
        return self._try(shape, shape.recorded, inputs, compute, keep)

    def _try(
        self,
        shape: _Shape,
        recorded: Recorded,
        inputs: Sequence[torch.Tensor],
        compute: Compute,
        keep: Keep,
    ) -> torch.Tensor:
        """What ``compute`` gives; what was recorded is trusted from then on, or never."""
        again = keep()
        try:
            found = recorded.run().clone()
        except Exception as error:  # noqa: BLE001, whatever a module raises that is set apart
            found, why = None, f"what was recorded raised {type(error).__name__}: {error}"
        else:
            why = "what was recorded gave other numbers than the model"
        again()
        expected = compute(*inputs)
        shape.trusted = found is not None and torch.equal(expected, found)
        self.why_not = None if shape.trusted else why
        return expected

    def _shape(self, inputs: Sequence[torch.Tensor]) -> _Shape:
        """What is known of steps like this one; of those longest not used nothing is."""
        casts = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        key = torch.get_num_threads(), casts, *map(len, inputs)
        found = self._shapes.setdefault(key, _Shape())
        self._shapes.move_to_end(key)
        if len(self._shapes) > _KEPT:
            self._shapes.popitem(last=False)
        return found

    def _record(
        self, shape: _Shape, inputs: Sequence[torch.Tensor], compute: Compute
    ) -> torch.Tensor:
        mine = [tensor.clone() for tensor in inputs]
        apart = [m for m in self._model.modules() if m in self._given or type(m) in self._kinds]
        self._open = seen = Recorder([*self._watched.tensors, *mine], apart)
        with seen:
            found = compute(*mine)
        self._open = None
        if seen.why_not is None:
            shape.inputs, shape.recorded = mine, Recorded(seen, found, self._arena)
        elif len(self._kinds) < _KINDS and self._is_part(seen.within):
            self._kinds.add(type(seen.within))
        else:
            self.why_not = seen.why_not
        return found

    def _is_part(self, module: torch.nn.Module | None) -> bool:
        """Whether enough is left to be recorded where modules of a kind are set apart."""
        if module is None or type(module) in self._kinds:
            return False
        mine, every = (sum(w.numel() for w in m.parameters()) for m in (module, self._model))
        return 2 * mine < every

    def _forget(self) -> None:
        self._shapes: OrderedDict[Any, _Shape] = OrderedDict()
        self._watched = Watched(self._model, self._others)
