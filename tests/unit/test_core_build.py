"""What the build hook makes of the core, and which of its builds runs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from octavo.core import build

ROOT = Path(__file__).parents[2]
COUNT = "class Count:\n    def __init__(self, start: int) -> None:\n        self.value = start\n"
COUNT_TYPES = "cdef class Count:\n    cdef public int value\n"
DOUBLE = """\
from octavo.core import nocython as cython
from octavo.core.count import Count

compiled = cython.compiled


def double(count: Count) -> int:
    return 2 * count.value
"""
DOUBLE_TYPES = "from octavo.core.count cimport Count\ncpdef int double(Count count) except -1\n"
ASK = """\
import warnings
from octavo.core import build, compiled, double, why_not
from octavo.core.count import Count
assert 6 == double.double(Count(3))
assert compiled == double.compiled
with warnings.catch_warnings(record=True) as said:
    build.warn_once(why_not)
    build.warn_once(why_not)
print(compiled, why_not, len(said), sep="|")
"""
CAN = (
    shutil.which(os.environ.get("CC", "cc")) is not None
    and Path(sysconfig.get_path("include"), "Python.h").exists()
)


def run(code, folder, **environment):
    """The output of Python code run in a folder, with packages from ``src`` there, if any."""
    path = os.pathsep.join([str(folder / "src"), *filter(None, sys.path)])
    kept = {name: value for name, value in os.environ.items() if name != "OCTAVO_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=kept | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path):
    """The project with a core of two modules, of which one needs the other's C types."""
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    core = tmp_path / "src/octavo/core"
    core.mkdir(parents=True)
    core.parent.joinpath("__init__.py").write_text('__version__ = "0.1.0"\n')
    for name in ("__init__.py", "build.py", "nocython.py"):
        shutil.copy(ROOT / "src/octavo/core" / name, core)
    core.joinpath("count.py").write_text(COUNT)
    core.joinpath("count.pxd").write_text(COUNT_TYPES)
    core.joinpath("double.py").write_text(DOUBLE)
    core.joinpath("double.pxd").write_text(DOUBLE_TYPES)
    return tmp_path


def make_wheel(tree, **environment):
    """The name of the wheel of a tree, and an environment it is installed in."""
    run("from hatchling.build import build_wheel; build_wheel('dist')", tree, **environment)
    [wheel] = tree.joinpath("dist").iterdir()
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tree / "installed/src")
    return wheel.name, tree / "installed"


def make_editable(tree, **environment):
    """Install a tree in place."""
    run("from hatchling.build import build_editable; build_editable('dist')", tree, **environment)


def test_wheel_has_the_compiled_core_where_a_compiler_is(tree):
    """One wheel for every later Python; the tree is left as it was."""
    name, installed = make_wheel(tree)
    ending = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}.whl"

    assert CAN == name.endswith(ending)
    assert (
        "True|None|0" if CAN else "False|it was not compiled when octavo was installed|1"
    ) == run(ASK, installed)
    assert "False|OCTAVO_PURE is set|0" == run(ASK, installed, OCTAVO_PURE="1")
    assert not tree.joinpath("src/octavo/core/__compiled__").exists()


def test_wheel_is_pure_without_a_compiler(tree):
    """A compiler that fails leaves a wheel for everywhere, which warns once that it is slow."""
    name, installed = make_wheel(tree, CC="false")

    assert name.endswith("-py3-none-any.whl")
    assert "False|it was not compiled when octavo was installed|1" == run(ASK, installed)


def test_wheel_is_pure_where_that_is_wanted(tree):
    """``OCTAVO_PURE=1`` compiles nothing."""
    name, _ = make_wheel(tree, OCTAVO_PURE="1")

    assert name.endswith("-py3-none-any.whl")
    assert not tree.joinpath("build").exists()


def test_source_that_changed_runs_in_place_of_a_stale_build(tree):
    """After an edit the source runs, with a warning; the next install compiles what changed."""
    make_editable(tree)
    before = run(ASK, tree)
    translated = {path.name: path.stat().st_mtime_ns for path in tree.rglob("*.c")}
    source = tree / "src/octavo/core/double.py"
    source.write_text(DOUBLE + "\n\nmore = 1\n")
    os.utime(source, (1, 1))  # older than what was compiled: content decides, not time
    edited = run(ASK, tree)
    make_editable(tree)
    after = run(ASK, tree)
    again = {path.name: path.stat().st_mtime_ns for path in tree.rglob("*.c")}

    if CAN:
        assert ["True|None|0"] * 2 == [before, after]
        assert "False|it was compiled from other source|1" == edited
    changed = [name for name in again if again[name] != translated[name]]
    assert ["double.c"] == changed


def test_build_for_another_system_is_passed_over(tree):
    """Extensions that cannot be loaded here are a reason to run the source."""
    where = "from octavo.core import build; print(build.folder())"
    folder = Path(run(where, tree))
    folder.mkdir(parents=True)
    folder.joinpath("count.abi3.so").write_bytes(b"of another system")
    told = run(ASK, tree)
    folder.joinpath("count.abi3.so").unlink()

    assert told.startswith("False|its compiled modules cannot be loaded: ")
    assert "False|it was compiled for another kind of Python|1" == run(ASK, tree)


def test_editable_install_without_the_compiled_core_removes_an_older_one(tree):
    """What was compiled before does not outlive the wish to run the source."""
    older = tree / "src/octavo/core/__compiled__/0123456789abcdef"
    older.mkdir(parents=True)
    make_editable(tree, OCTAVO_PURE="1")

    assert not older.parent.exists()


def test_warning_says_why_and_what_mends_it(monkeypatch):
    """The one warning names the reason, what it costs, and both ways out."""
    monkeypatch.delenv("OCTAVO_PURE", raising=False)
    with pytest.warns(RuntimeWarning, match="slower than compiled: some reason.*OCTAVO_PURE=1"):
        build.warn_once.__wrapped__("some reason")
