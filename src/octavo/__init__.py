"""octavo: the KV cache of autoregressive inference as a library.

It plans what fits in memory, owns every page, addresses every token and attends to only what is
there. Importing it loads NumPy and the standard library alone; ``octavo.storage``,
``octavo.attention``, ``octavo.engine`` and ``octavo.integrations`` are imported by name.
"""

from octavo.cache import Cache
from octavo.errors import (
    BudgetTooSmall,
    CapacityError,
    ConfigError,
    DuplicateSequence,
    IntegrityError,
    LengthError,
    ModelError,
    NeverFits,
    OctavoError,
    OutOfPages,
    PlanError,
    PullError,
    RollbackUnsupported,
    SamplingError,
    StaleSequence,
    StepError,
    TokenError,
    UnknownArchitecture,
    UnknownSequence,
    UnsupportedModel,
)
from octavo.planning import Plan, plan
from octavo.spec import Attention, ModelSpec

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "BudgetTooSmall",
    "Cache",
    "CapacityError",
    "ConfigError",
    "DuplicateSequence",
    "IntegrityError",
    "LengthError",
    "ModelError",
    "ModelSpec",
    "NeverFits",
    "OctavoError",
    "OutOfPages",
    "Plan",
    "PlanError",
    "PullError",
    "RollbackUnsupported",
    "SamplingError",
    "StaleSequence",
    "StepError",
    "TokenError",
    "UnknownArchitecture",
    "UnknownSequence",
    "UnsupportedModel",
    "plan",
]
