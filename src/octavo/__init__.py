"""octavo: the KV cache of autoregressive inference as a library.

It plans what fits in memory, owns every page, addresses every token and attends to only what is
there. Importing it loads NumPy and the standard library alone; ``octavo.storage``,
``octavo.attention`` and ``octavo.engine`` are imported by name. ``octavo.ActivePrefixCache`` is
imported, and PyTorch with it, when it is asked for.
"""

import importlib
import typing

from octavo.cache.admission import Explanation, Match
from octavo.cache.batch import Batch
from octavo.cache.cache import Cache
from octavo.cache.committing import Committed
from octavo.cache.identity import Adapter, CrossInput, Media, Salt
from octavo.cache.reports import Fit, Pin, Stats
from octavo.cache.sequence import Sequence
from octavo.cache.step import Copies, CrossView, Delta, GroupView, StateView, Step
from octavo.errors import (
    BudgetTooSmall,
    CapacityError,
    ConfigError,
    DuplicateSequence,
    IdentityError,
    IntegrityError,
    KernelMismatch,
    LengthError,
    ModelError,
    NeverFits,
    OctavoError,
    OutOfPages,
    PageFileError,
    PageFileMismatch,
    PlanError,
    PullError,
    RollbackUnsupported,
    SamplingError,
    StaleSequence,
    StepError,
    TokenError,
    TraceError,
    UnknownArchitecture,
    UnknownGroup,
    UnknownSequence,
    UnsupportedModel,
)
from octavo.model.spec import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.planner.request import Plan, plan

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Attention",
    "Batch",
    "BudgetTooSmall",
    "Cache",
    "CapacityError",
    "Committed",
    "ConfigError",
    "Copies",
    "Cross",
    "CrossInput",
    "CrossView",
    "Delta",
    "DuplicateSequence",
    "Explanation",
    "Fit",
    "GroupView",
    "IdentityError",
    "IntegrityError",
    "KernelMismatch",
    "Latent",
    "LengthError",
    "Match",
    "Media",
    "ModelError",
    "ModelSpec",
    "NeverFits",
    "OctavoError",
    "OutOfPages",
    "PageFileError",
    "PageFileMismatch",
    "Pin",
    "Plan",
    "PlanError",
    "PullError",
    "RollbackUnsupported",
    "Salt",
    "SamplingError",
    "Sequence",
    "Shared",
    "StaleSequence",
    "State",
    "StateView",
    "Stats",
    "Step",
    "StepError",
    "TokenError",
    "TraceError",
    "UnknownArchitecture",
    "UnknownGroup",
    "UnknownSequence",
    "UnsupportedModel",
    "plan",
]

_ON_USE = {"ActivePrefixCache": "octavo.active_prefix.cache"}  # these need more than NumPy


def __getattr__(name: str) -> typing.Any:
    """The names that are imported on use."""
    if name not in _ON_USE:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_USE[name]), name)
