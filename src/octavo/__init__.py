"""octavo: the KV cache of autoregressive inference as a library.

It plans what fits in memory, owns every page, addresses every token and attends to only what is
there. Importing it loads NumPy and the standard library alone; packages as ``octavo.index``,
``octavo.storage`` and ``octavo.engine`` are imported on use, with what they need. All errors are in
``octavo.errors``. ``octavo.ActivePrefixCache`` is imported on use, and PyTorch with it.
"""

from octavo import interrupts  # first of all, for what is imported next

# isort: split
import importlib
import typing

from octavo import moved
from octavo.cache.batch import Batch
from octavo.cache.cache import Cache
from octavo.cache.identity import Adapter, CrossInput, Media, Salt
from octavo.cache.prompt import Prompt
from octavo.cache.results import Committed, Explanation, Fit, Match, Pin, Stats
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import CapacityError, NeverFits, OctavoError, OutOfPages, PlanError
from octavo.model.layers import Attention, Compressed, Cross, Latent, Shared, State
from octavo.model.spec import ModelSpec
from octavo.planner.plan import Plan
from octavo.planner.request import memory_for, plan

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Attention",
    "Batch",
    "Cache",
    "CapacityError",
    "Committed",
    "Compressed",
    "Cross",
    "CrossInput",
    "Explanation",
    "Fit",
    "Latent",
    "Match",
    "Media",
    "ModelSpec",
    "NeverFits",
    "OctavoError",
    "OutOfPages",
    "Pin",
    "Plan",
    "PlanError",
    "Prompt",
    "Salt",
    "Sequence",
    "Shared",
    "State",
    "Stats",
    "Step",
    "memory_for",
    "plan",
]

moved.install()
interrupts.imported()

_VIEWS = ("Copies", "CrossView", "Delta", "GroupView", "StateView")
_HOMES = {"ActivePrefixCache": "octavo.active_prefix.cache"}  # this one needs more than NumPy
_HOMES |= dict.fromkeys(_VIEWS, "octavo.cache.views")  # these were here in an earlier release
_PACKAGES = (
    "active_prefix",
    "attention",
    "checkpoints",
    "engine",
    "geometry",
    "index",
    "integrations",
    "scheduling",
    "simulation",
    "slots",
    "storage",
    "testing",
)


def __getattr__(name: str) -> typing.Any:
    """What is imported on use, and names of an earlier release: every error, and views."""
    if name in _PACKAGES:
        return importlib.import_module(f"octavo.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    found = getattr(importlib.import_module("octavo.errors"), name, None)
    if isinstance(found, type) and issubclass(found, OctavoError):
        return found
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
