"""Tests for a cache, shipped: shapes, a store that remembers, laws, and rules to break them with.

`ModelStore` stands in for a model's KV memory and notices every wrong read. `World` drives a cache
beside it and plain lists, and holds the laws; `stress` does so at random,
``octavo.testing.machine`` under Hypothesis, which it alone needs. `freeze` proves that a verb which
raised changed nothing; `unowned_slots` says what to fill with NaN; `run_case` runs a case given as
plain data. `check_kernel` compares any paged attention with the oracle.
``python -m octavo.testing --rules N --seed S`` is the long run. `traffic` lets requests come to a
scheduler and a mock model, until all have ended as promised; ``--requests N`` is its long run.
"""

from octavo.lazy import on_use
from octavo.testing.casedata import CaseFailed
from octavo.testing.cases import run_case
from octavo.testing.conformance import KernelMismatch, KernelReport, check_kernel
from octavo.testing.drawing import any_extras, any_shape
from octavo.testing.freezing import freeze
from octavo.testing.router import Router
from octavo.testing.shapes import SHAPES, Shape
from octavo.testing.store import ModelStore, Text
from octavo.testing.stress import Report, stress
from octavo.testing.traffic import traffic
from octavo.testing.unowned import Unowned, unowned_slots
from octavo.testing.world import World

__all__ = [
    "SHAPES",
    "CaseFailed",
    "KernelMismatch",
    "KernelReport",
    "ModelStore",
    "Report",
    "Router",
    "Shape",
    "Text",
    "Unowned",
    "World",
    "any_extras",
    "any_shape",
    "check_kernel",
    "freeze",
    "run_case",
    "stress",
    "traffic",
    "unowned_slots",
]

__getattr__ = on_use(__name__)
