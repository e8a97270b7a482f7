"""Tests for a cache, shipped: a snapshot, a store that remembers, a reference, a state machine.

`snapshot` proves that a verb which raised changed nothing. `ModelStore` stands in for a model's KV
memory and notices every wrong read. `World` drives a cache beside a plain-Python `Reference`;
`stress` does so at random, ``octavo.testing.machine`` under Hypothesis, which it alone needs.
``python -m octavo.testing --rules N --seed S`` is the long run.
"""

from octavo.testing.observing import Snapshot, snapshot
from octavo.testing.reference import Reference
from octavo.testing.store import ModelStore
from octavo.testing.stress import Report, stress
from octavo.testing.world import SHAPES, Shape, World

__all__ = [
    "SHAPES",
    "ModelStore",
    "Reference",
    "Report",
    "Shape",
    "Snapshot",
    "World",
    "snapshot",
    "stress",
]
