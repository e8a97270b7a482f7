"""What a package imports on use: names that its modules have, and the modules themselves."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any


def on_use(package: str, homes: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package, by which ``octavo.attention.kernels`` need not be imported.

    Args:
        package: its ``__name__``.
        homes: by name, the module below it that has it; modules need not be named.
    """

    def attribute(name: str) -> Any:
        if name in homes:
            return getattr(import_module(f"{package}.{homes[name]}"), name)
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return attribute
