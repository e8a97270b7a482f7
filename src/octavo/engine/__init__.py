"""The reference engine: a transformers model that generates through octavo's pages.

``hub``, ``loading`` and ``text`` get a model and turn text into tokens; Engine runs it. Importing
the package loads neither torch nor transformers; using one of its names does.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from octavo.lazy import on_use

if TYPE_CHECKING:
    from octavo.engine.engine import Engine
    from octavo.engine.host import HostMemory
    from octavo.engine.request import Completion, Request
    from octavo.engine.sampling import Frame, SamplingParams, TokenLogprobs
    from octavo.engine.speculation import Draft, PromptLookup
    from octavo.engine.totals import EngineStats

__all__ = [
    "Completion",
    "Draft",
    "Engine",
    "EngineStats",
    "Frame",
    "HostMemory",
    "PromptLookup",
    "Request",
    "SamplingParams",
    "TokenLogprobs",
]

_HOMES = {
    "Completion": "request",
    "Draft": "speculation",
    "Engine": "engine",
    "EngineStats": "totals",
    "Frame": "sampling",
    "HostMemory": "host",
    "PromptLookup": "speculation",
    "Request": "request",
    "SamplingParams": "sampling",
    "TokenLogprobs": "sampling",
}

__getattr__ = on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    """What `help` shows and editors complete: what is imported on use too, where it can be."""
    return sorted({*globals(), *(__all__ if find_spec("torch") else ())})
