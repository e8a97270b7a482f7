"""The reference engine: a transformers model that generates through octavo's pages.

``hub``, ``loading`` and ``text`` get a model and turn text into tokens; Engine runs it. Importing
the package loads neither torch nor transformers; using one of its names does.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.engine import Engine, EngineStats
    from octavo.engine.request import Completion, Request
    from octavo.engine.sampling import SamplingParams

__all__ = [
    "Completion",
    "Engine",
    "EngineStats",
    "Request",
    "SamplingParams",
]

_HOMES = {
    "Completion": "request",
    "Engine": "engine",
    "EngineStats": "engine",
    "Request": "request",
    "SamplingParams": "sampling",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    """What `help` shows and editors complete: what is imported on use too, where it can be."""
    return sorted({*globals(), *(__all__ if find_spec("torch") else ())})
