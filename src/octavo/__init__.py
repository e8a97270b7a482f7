"""octavo: the KV cache of autoregressive inference as a library.

It plans what fits in memory, owns every page, addresses every token and attends to only what is
there. Importing it loads NumPy and the standard library alone; ``octavo.storage``,
``octavo.attention`` and ``octavo.engine`` are imported by name.
"""

from octavo.batch import Batch
from octavo.cache import Cache
from octavo.errors import (
    BudgetTooSmall,
    CapacityError,
    ConfigError,
    DuplicateSequence,
    IdentityError,
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
    TraceError,
    UnknownArchitecture,
    UnknownGroup,
    UnknownSequence,
    UnsupportedModel,
)
from octavo.identity import Adapter, CrossInput, Media, Salt
from octavo.planning import Plan, plan
from octavo.sequences import Sequence
from octavo.spec import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.table import Step

__version__ = "0.1.0"

__all__ = [
    "Adapter",
    "Attention",
    "Batch",
    "BudgetTooSmall",
    "Cache",
    "CapacityError",
    "ConfigError",
    "Cross",
    "CrossInput",
    "DuplicateSequence",
    "IdentityError",
    "IntegrityError",
    "Latent",
    "LengthError",
    "Media",
    "ModelError",
    "ModelSpec",
    "NeverFits",
    "OctavoError",
    "OutOfPages",
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
