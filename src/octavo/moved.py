"""Modules that moved: their old paths, importable for this release, give the very module object.

A finder before Python's own looks each name below octavo up in a table; other names it leaves
alone. Knows paths, and imports nothing of them before somebody does.
"""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # the real one would bring importlib.resources and what it needs

MOVED = {
    "octavo.attention.active": "octavo.active_prefix.cache",
    "octavo.attention.arrays": "octavo.checks",
    "octavo.attention.cpu": "octavo.attention.kernels.cpu",
    "octavo.attention.flash_attn": "octavo.attention.kernels.flash_attn",
    "octavo.attention.flashinfer": "octavo.attention.kernels.flashinfer",
    "octavo.attention.flex": "octavo.attention.kernels.flex",
    "octavo.attention.flexmask": "octavo.attention.kernels.flex",
    "octavo.attention.onepass": "octavo.active_prefix.prefix",
    "octavo.attention.operands": "octavo.integrations.onnx.op.operands",
    "octavo.attention.operator": "octavo.integrations.onnx.op.operator",
    "octavo.attention.oracle": "octavo.attention.kernels.oracle",
    "octavo.attention.quantised": "octavo.attention.stored",
    "octavo.attention.torch": "octavo.attention.kernels.torch",
    "octavo.attention.triton": "octavo.attention.kernels.triton",
    "octavo.configs": "octavo.model.configs",
    "octavo.dtypes": "octavo.model.dtypes",
    "octavo.engine.hub": "octavo.checkpoints.hub",
    "octavo.engine.loading": "octavo.checkpoints.loading",
    "octavo.engine.text": "octavo.checkpoints.text",
    "octavo.events": "octavo.cache.events",
    "octavo.identity": "octavo.cache.identity",
    "octavo.planning": "octavo.planner.request",
    "octavo.policies": "octavo.cache.policies",
    "octavo.sequences": "octavo.cache.sequence",
    "octavo.spec": "octavo.model.spec",
    "octavo.storage.latents": "octavo.storage.keyvalues",
    "octavo.storage.quantisation": "octavo.storage.numbers",
    "octavo.table": "octavo.cache.step",
    "octavo.testing.strategies": "octavo.testing.drawing",
}
"""Old path to new, what lies below them included; importing an old one warns."""
SHORT = {
    "octavo.geometry": "octavo.planner.geometry",
    "octavo.integrations.onnx.op.rotary": "octavo.integrations.onnx.op.operator",
    "octavo.integrations.onnx.reference": "octavo.integrations.onnx.runners",
    "octavo.integrations.onnx.runtime": "octavo.integrations.onnx.runners",
}
"""A second name that stays, without a warning."""


class _Alias(Loader):
    """Loads the module of another name in place of one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself, imported if nobody has yet."""
        del spec
        module = importlib.import_module(self._name)
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It ran when it was imported; its spec, which the import system replaced, comes back."""
        module.__spec__ = self._own


class _Finder:
    """Finds old names and what lies below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a moved module; None: it is none."""
        del path, target
        new = _new_name(fullname) if fullname.startswith("octavo.") else None
        if new is None:
            return None
        if fullname in MOVED:  # below it, the package has warned
            text = f"{fullname} is now {new}; the old path goes with the next release"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(new))


def _new_name(name: str) -> str | None:
    head, tail = name, ""
    while head:
        found = MOVED.get(head) or SHORT.get(head)
        if found is not None:
            return found + tail
        head, dot, last = head.rpartition(".")
        tail = f"{dot}{last}{tail}"
    return None


def install() -> None:
    """Put the finder before Python's own, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
