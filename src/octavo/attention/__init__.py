"""Attention over paged keys and values: one signature, `paged_attention`, and a backend a module.

Every backend reads only the slots a step's context covers, so an unowned slot may hold NaN.
`oracle` is the truth (NumPy, float64); the others are compared with it. Importing this package
imports no backend.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from octavo.errors import UnsupportedModel


class Backend(NamedTuple):
    """One implementation of `paged_attention`.

    Attributes:
        name: its module in ``octavo.attention``.
        requires: the distribution it needs to be installed, or None.
        orders: page orders it takes, the fastest first.
        about: one sentence for people.
    """

    name: str
    requires: str | None
    orders: tuple[str, ...]
    about: str

    def load(self) -> Any:
        """The backend's module, with its ``paged_attention``.

        Raises:
            UnsupportedModel: what it requires is not installed.
        """
        if self.requires is not None and find_spec(self.requires) is None:
            raise UnsupportedModel(f"backend {self.name}", f"{self.requires} is not installed")
        return import_module(f"octavo.attention.{self.name}")


_BACKENDS = (
    Backend("oracle", None, ("token", "head"), "NumPy in float64, row by row: the truth, not fast"),
    Backend("torch", "torch", ("head", "token"), "PyTorch operators on any of its devices"),
)


def backends() -> tuple[Backend, ...]:
    """The backends whose requirements are installed, the oracle first. O(backends)."""
    return tuple(b for b in _BACKENDS if b.requires is None or find_spec(b.requires) is not None)
