"""Modules of a model whose ``forward`` is another for as long as an engine has the model.

Which other is said by what is asked when it is made: norms, rotary codes, and of a class of its own
linear layers. Knows no families: a module is taken only where what it computes was seen to be the
same.
"""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from octavo.errors import uncopied

Forward = Callable[..., Any]

_taken: WeakKeyDictionary[Any, dict[type, "Takeover"]] = WeakKeyDictionary()
"""Of a model whose its modules are, by what takes them."""


class Takeover:
    """Modules of one model that compute otherwise from `take` to `close`.

    Modules keep their place, their weights and their hooks. Those that something else has given
    another ``forward`` are left to it.

    Args:
        model: in which modules are looked for; another takeover of the same class gives its
            modules back first.
        makers: each gives what a module is to compute by; None: it is not of its kind.

    Cost: O(modules), and a trial of each that is of a kind.
    """

    __reduce__ = uncopied("an engine computes by it; close the engine first")

    def __init__(self, model: Any, makers: Iterable[Callable[[Any], Forward | None]]) -> None:
        self._model = model
        self._give_way()
        makers = tuple(makers)
        self._forwards: dict[Any, Forward] = {}
        for module in model.modules():
            if "forward" in vars(module):
                continue
            found = next((made for make in makers if (made := make(module)) is not None), None)
            if found is not None:
                self._forwards[module] = found

    def take(self) -> None:
        """Have the modules compute so, whatever others have done since. O(1), O(modules)."""
        if self._owner() is self:
            return
        self._give_way()
        for module, forward in self._forwards.items():
            if "forward" not in vars(module):
                module.__dict__["forward"] = forward
        _taken.setdefault(self._model, {})[type(self)] = self

    def close(self) -> None:
        """Give the modules back; `take` takes them again. May be called twice. O(modules)."""
        if self._owner() is not self:
            return
        for module, forward in self._forwards.items():
            if vars(module).get("forward") is forward:
                del module.forward
        del _taken[self._model][type(self)]

    def _owner(self) -> "Takeover | None":
        return _taken.get(self._model, {}).get(type(self))

    def _give_way(self) -> None:
        """Have modules that another of this class has taken be given back."""
        if (owner := self._owner()) is not None:
            owner.close()
