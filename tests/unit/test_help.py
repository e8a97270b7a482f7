"""What `help` shows of the public modules: words a user knows, and no names of types inside."""

import importlib
import inspect
import pydoc
import re

import pytest

import octavo

MODULES = [
    "octavo",
    "octavo.attention",
    "octavo.cache.events",
    "octavo.cache.identity",
    "octavo.cache.policies",
    "octavo.cache.results",
    "octavo.cache.step",
    "octavo.engine",
    "octavo.errors",
    "octavo.index",
    "octavo.model.layers",
    "octavo.planner.gpus",
    "octavo.planner.pools",
    "octavo.planner.sizes",
    "octavo.planner.wish",
    "octavo.scheduling",
    "octavo.slots",
    "octavo.storage",
]
INSIDE = re.compile(
    r"NDArray|dtype\[|\bInts\b|\bInt64s\b|\bBools\b|^ +\w+ = (~|typing|numpy|octavo)"
)


@pytest.mark.parametrize("name", MODULES)
def test_help_of_a_module_names_no_inner_types(name):
    """Signatures say numpy.ndarray, and aliases for annotations are not listed as data."""
    text = pydoc.plain(pydoc.render_doc(importlib.import_module(name)))
    assert [] == [line for line in text.splitlines() if INSIDE.search(line)]


@pytest.mark.parametrize("name", octavo.__all__)
def test_help_of_a_name_names_no_inner_types(name):
    """The same of everything that `import octavo` offers."""
    text = pydoc.plain(pydoc.render_doc(getattr(octavo, name)))
    assert [] == [line for line in text.splitlines() if INSIDE.search(line)]


def test_signatures_of_arrays_are_readable():
    """An array is numpy.ndarray, however its elements are checked."""
    assert "tokens: collections.abc.Sequence[int] | numpy.ndarray" in str(
        inspect.signature(octavo.Cache.learn)
    )


@pytest.mark.parametrize("name", [*MODULES, "octavo.integrations.onnx"])
def test_help_of_a_module_has_its_names(name):
    """Those that are imported on use too."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", [])
    text = pydoc.plain(pydoc.render_doc(module))

    assert [] == [each for each in names if each not in dir(module)]
    assert [] == [each for each in names if not re.search(rf"(class |    ){each}[(= ]", text)]
