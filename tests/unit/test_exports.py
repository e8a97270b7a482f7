"""The names that `import octavo` offers."""

import types

import octavo


def test_all_is_complete_and_sorted():
    """`octavo.__all__` names every public object of the package, once, sorted."""
    public = [
        name
        for name, value in vars(octavo).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]

    assert sorted(public) == octavo.__all__


def test_all_errors_are_exported():
    """Every error of octavo.errors can be caught as `octavo.Name`."""
    errors = {
        name
        for name, value in vars(octavo.errors).items()
        if isinstance(value, type) and issubclass(value, octavo.OctavoError)
    }

    assert set() == errors - set(octavo.__all__)


def test_the_interface_stands():
    """The names of the README's loop are there; taking one away breaks every caller."""
    assert {"Attention", "Cache", "ModelSpec", "OctavoError", "Plan", "plan"} <= set(octavo.__all__)
