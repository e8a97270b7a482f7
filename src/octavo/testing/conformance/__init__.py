"""Any paged attention beside the oracle: the grid, real steps, poisoned slots, and a diagnosis."""

from octavo.errors import KernelMismatch
from octavo.testing.conformance.cases import FEATURES, Case
from octavo.testing.conformance.check import TOLERANCES, KernelReport, check_kernel

__all__ = ["FEATURES", "TOLERANCES", "Case", "KernelMismatch", "KernelReport", "check_kernel"]
