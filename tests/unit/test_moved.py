"""Old paths of moved modules."""

import importlib
import pickle
import subprocess
import sys

import pytest

import octavo
from octavo.moved import MOVED, SHORT


def fresh(code):
    """What ``code`` prints in an interpreter of its own, with warnings shown."""
    command = [sys.executable, "-W", "always", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_old_paths_are_the_very_modules():
    """An old path gives the module of the new one, unchanged, with a warning that names it."""
    run = fresh(
        "import importlib, sys\n"
        "from octavo.moved import MOVED\n"
        "for old, new in MOVED.items():\n"
        "    found, module = importlib.import_module(old), importlib.import_module(new)\n"
        "    print(found is module, module.__name__, module.__spec__.name, old in sys.modules)"
    )

    assert [f"True {new} {new} True" for new in MOVED.values()] == run.stdout.splitlines()
    for old, new in MOVED.items():
        assert 1 == run.stderr.count(f"DeprecationWarning: {old} is now {new}; ")


@pytest.mark.parametrize("old", SHORT)
def test_short_path_stays(old):
    """A second name that stays gives the module without a warning."""
    run = fresh(f"import octavo, {old}, {SHORT[old]}; print({old} is {SHORT[old]})")

    assert ("True", "") == (run.stdout.strip(), run.stderr)


def test_what_lies_below_moved_with_it():
    """A module below a moved package is found once, under both names."""
    with pytest.warns(DeprecationWarning, match="octavo.configs is now octavo.model.configs"):
        found = importlib.import_module("octavo.configs.families")

    assert importlib.import_module("octavo.model.configs.families") is found


def test_warning_names_the_line_that_imports():
    """The warning points at the caller, not into the import system."""
    with pytest.warns(DeprecationWarning, match="octavo.table is now") as caught:
        importlib.import_module("octavo.table")

    assert "importlib/_bootstrap" not in caught[0].filename


def test_pickles_of_old_paths_load():
    """An object that was pickled by its old module's name is the same class now."""
    text = pickle.dumps(octavo.Attention(1, 2, 3), protocol=0)
    old = text.replace(b"coctavo.model.layers\n", b"coctavo.spec\n")

    with pytest.warns(DeprecationWarning, match="octavo.spec is now octavo.model.spec"):
        assert octavo.Attention(1, 2, 3) == pickle.loads(old)  # noqa: S301


def test_unknown_modules_are_unknown():
    """A name that never was is refused as ever."""
    with pytest.raises(ModuleNotFoundError, match="octavo.specs"):
        importlib.import_module("octavo.specs")


def test_nothing_more_is_loaded():
    """`import octavo` loads no module under an old name, and none that only old names need."""
    run = fresh(
        "import sys, octavo, octavo.moved as m\n"
        "print(sorted(n for n in sys.modules if n in {**m.MOVED, **m.SHORT}), "
        "'octavo.model.configs' in sys.modules)"
    )

    assert "[] False" == run.stdout.strip()
