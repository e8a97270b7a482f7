"""A recorded step that is computed again, in memory that is planned once.

What a step makes on its way dies soon: all of it lies in one piece of memory, where what is dead
makes room for what comes. No tensor is made, no module called, and no address asked for twice.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from octavo.engine.recorder import Recorder
from octavo.errors import uncopied

_ALIGNED = 64  # bytes: a line of a processor's cache


class Arena:
    """Memory of recorded steps, of which one is computed at a time."""

    __reduce__ = uncopied("recorded steps have addresses in it")

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, nbytes: int) -> torch.Tensor:
        """uint8[nbytes or more]; another than before where that was too small. O(1)."""
        if len(self._memory) < nbytes:
            self._memory = torch.empty(2 * nbytes, dtype=torch.uint8)
        return self._memory


class Recorded:
    """One step's calls, to be made again.

    Args:
        seen: what has recorded it, and can compute it again.
        result: what the step gave.
        arena: memory for what it makes.

    Cost: O(calls).
    """

    __reduce__ = uncopied("it has the addresses of one model's weights")

    def __init__(self, seen: Recorder, result: torch.Tensor, arena: Arena) -> None:
        places, nbytes = _plan(seen, result)
        self._memory = memory = arena.of(nbytes)  # calls have its addresses

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            place = places.get(_address(tensor))
            if place is None:
                return tensor
            start = place // tensor.itemsize + tensor.storage_offset()
            return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), start)

        uses = _uses(seen, result)
        self._calls = list[Callable[[], Any]]()
        for call in seen.calls:
            made = [moved(each) if uses[_address(each)] > 1 else None for each in call.made]
            if any(each is not None for each in made) or not call.pure:
                self._calls.append(call.bind(*map(moved, call.tensors), *made))
        self._result = moved(result)

    def run(self) -> torch.Tensor:
        """Compute the step; what it gives is overwritten by the next. Cost: the step's."""
        for call in self._calls:
            call()
        return self._result


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _uses(seen: Recorder, result: torch.Tensor) -> Counter[int]:
    """How often the memory at an address is made, read or written. O(calls)."""
    every = chain.from_iterable((*call.tensors, *call.made) for call in seen.calls)
    return Counter(map(_address, (*every, result)))


def _plan(seen: Recorder, result: torch.Tensor) -> tuple[dict[int, int], int]:
    """By the address of a storage its offset in the arena, and the bytes of all.

    Each lies at the lowest place that is free from its first call to its last.

    Cost: O(storages * those alive at once).
    """
    last: dict[int, int] = {}
    for at, call in enumerate(seen.calls):
        last |= dict.fromkeys(map(_address, (*call.tensors, *call.made)), at)
    last[_address(result)] = len(seen.calls)
    places: dict[int, int] = {}
    alive: list[tuple[int, int, int]] = []  # offset, end, last call; by offset
    top = 0
    for address, (nbytes, birth) in seen.born.items():
        alive = [each for each in alive if each[2] >= birth]
        place = 0
        for start, end, _ in alive:
            if place + nbytes <= start:
                break
            place = end
        end = place + -(-nbytes // _ALIGNED) * _ALIGNED
        insort(alive, (place, end, last.get(address, birth)))
        places[address], top = place, max(top, end)
    return places, top
