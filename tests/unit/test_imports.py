"""What `import octavo` loads, seen in a fresh interpreter."""

import subprocess
import sys

OWN = {"octavo", "numpy"}
START = "import sys, numpy; before = set(sys.modules)"  # all that NumPy loads itself is NumPy's


def _foreign_packages(statement: str) -> set[str]:
    """Top-level packages beyond the standard library, NumPy and octavo that ``statement`` loads.

    A module is called by its spec: names the compiled core adds for its own have none, or octavo's.
    """
    code = (
        f"{START}\n{statement}\n"
        "new = [sys.modules[name] for name in set(sys.modules) - before]\n"
        "specs = [getattr(module, '__spec__', None) for module in new]\n"
        "print('\\n'.join({spec.name.partition('.')[0] for spec in specs if spec}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split()) - OWN - set(sys.stdlib_module_names)


def test_core_loads_only_numpy_and_the_standard_library():
    """`import octavo` loads no package but NumPy."""
    foreign = _foreign_packages("import octavo")

    assert set() == foreign


def test_core_does_not_load_the_index_formats():
    """`import octavo` leaves octavo.index to those who drive a kernel of their own."""
    code = "import sys, octavo; print([name for name in sys.modules if 'octavo.index' in name])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == run.stdout.strip()


def test_command_line_starts_without_torch():
    """`octavo --help` and `octavo plan` need not wait for torch: the commands import it on use."""
    foreign = _foreign_packages("import octavo.cli")

    assert set() == foreign


def test_check_sees_a_foreign_package():
    """The check above can fail: a package that is not NumPy is named."""
    foreign = _foreign_packages("import octavo, yaml")

    assert {"yaml"} <= foreign


def test_packages_resolve_on_use():
    """`octavo.index.vllm` after `import octavo` alone; what nobody names is not loaded."""
    code = (
        "import sys, octavo\n"
        "print(octavo.index.vllm.__name__, octavo.geometry.__name__, octavo.slots.__name__)\n"
        "print('octavo.engine' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ["vllm octavo.planner.geometry octavo.slots", "False"] == run.stdout.splitlines()
