"""Attention over paged keys and values: one signature, `paged_attention`, and a backend a module.

Every backend reads only the slots a step's context covers, so an unowned slot may hold NaN.
`octavo.attention.kernels.oracle` is the truth (NumPy, float64); the others are compared with it.
Importing this package imports no backend.
"""

from octavo.attention.base import Attended
from octavo.attention.parameters import Parameters
from octavo.attention.registry import Backend, backend, backends, best
from octavo.lazy import on_use

__all__ = ["Attended", "Backend", "Parameters", "backend", "backends", "best"]

__getattr__ = on_use(__name__)
