"""Whether a model's weights are those that computed what a cache keeps.

torch counts how often a tensor was written in place: `load_state_dict` and optimisers do. What is
written past that count, through `parameter.data`, is not seen. Knows tensors; no passes.
"""

import weakref
from typing import Any, NamedTuple

import torch

from octavo.errors import uncopied


class _Weight(NamedTuple):
    """One parameter or buffer as it was."""

    tensor: "weakref.ref[torch.Tensor]"
    version: int
    address: int

    def is_still(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is it, in the same memory, and was not written since. O(1)."""
        same = self.tensor() is tensor and self.version == _version(tensor)
        return same and self.address == _address(tensor)


class Weights:
    """A model's parameters and buffers as they were when read last; those that are saved with it.

    Args:
        model: whose; known weakly.
    """

    __reduce__ = uncopied("it watches the weights of one model")

    def __init__(self, model: torch.nn.Module) -> None:
        self._model: weakref.ref[torch.nn.Module] = weakref.ref(model)
        self.read()

    def read(self) -> None:
        """Take those of now for the known ones. O(weights)."""
        self._known = [
            _Weight(weakref.ref(each), _version(each), _address(each)) for each in self._now()
        ]

    def written(self) -> bool:
        """Whether one was written in place or is gone. O(weights), fast enough for each pass."""
        for known, version, _ in self._known:  # no call of Python for each: a pass looks at all
            tensor = known()
            if tensor is None:
                return True
            if version >= 0 and version != tensor._version:
                return True
        return False

    def others(self) -> bool:
        """Whether one was written, or exchanged for another. O(weights)."""
        now = self._now()
        if len(now) != len(self._known):
            return True
        pairs = zip(self._known, now, strict=True)
        return not all(known.is_still(each) for known, each in pairs)

    def _now(self) -> list[torch.Tensor]:
        model: Any = self._model()
        found = [] if model is None else list(model.parameters())
        for module in () if model is None else model.modules():
            passing = module._non_persistent_buffers_set  # codes of positions, made anew in passes
            found += [each for name, each in module._buffers.items() if name not in passing]
        return [each for each in found if each is not None]


def _version(tensor: torch.Tensor) -> int:
    """How often it was written in place; -1 where torch does not count, as in inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def _address(tensor: torch.Tensor) -> int:
    """Where it lies; 0 for what lies in no memory of its own."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0
