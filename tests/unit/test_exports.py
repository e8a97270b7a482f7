"""The names that `import octavo` offers."""

import types

import pytest

import octavo
from octavo import errors

ERRORS = sorted(
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.OctavoError)
)


def test_all_is_complete_and_sorted():
    """`octavo.__all__` names every public object of the package, once, sorted."""
    public = [
        name
        for name, value in vars(octavo).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]

    assert sorted(public) == octavo.__all__


@pytest.mark.parametrize("name", ERRORS)
def test_all_errors_are_exported(name):
    """Every error of octavo.errors can be caught as `octavo.Name`."""
    assert getattr(errors, name) is getattr(octavo, name)
    assert name in errors.__all__


@pytest.mark.parametrize("name", ["Copies", "CrossView", "Delta", "GroupView", "StateView"])
def test_views_of_a_step_stay(name):
    """What a step holds can be named as before."""
    assert name == getattr(octavo, name).__name__


@pytest.mark.parametrize("name", ["Mapping", "OutOfTime", "__file"])
def test_other_names_are_unknown(name):
    """What is no error and no export is refused, be it a name that octavo.errors imports."""
    with pytest.raises(AttributeError, match=name):
        getattr(octavo, name)


def test_the_interface_stands():
    """The names of the README's loop are there; taking one away breaks every caller."""
    assert {"Attention", "Cache", "ModelSpec", "OctavoError", "Plan", "plan"} <= set(octavo.__all__)
