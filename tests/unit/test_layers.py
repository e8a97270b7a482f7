"""Imports go down only: between packages as docs/structure.md says, and in circles nowhere."""

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
ROW = re.compile(r"^\| `(\w+)` \| \S.*\|$", re.MULTILINE)
ENTRANCES = ["", "__main__"]  # the package itself and its command: above everything
NUMPY_ONLY = (
    "errors",
    "folders",
    "arrays",
    "checks",
    "slots",
    "model",
    "planner",
    "core",
    "cache",
    "index",
)


def _packages() -> list[str]:
    """Packages and root modules, lowest first, from the table of docs/structure.md."""
    return ROW.findall((ROOT / "docs/structure.md").read_text(encoding="utf-8"))


def _name(path: Path) -> str:
    """``engine/runner.py`` -> ``engine.runner``; the package's own ``__init__.py`` -> empty."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _modules(source: Path) -> dict[str, Path]:
    """Name below octavo -> file, of every module of the package."""
    package = source / "octavo"
    return {_name(file.relative_to(package)): file for file in sorted(package.rglob("*.py"))}


def _imports(name: str, file: Path, known: dict[str, Path]) -> tuple[set[str], set[str]]:
    """Modules of octavo that ``file`` imports anywhere in it, and other packages."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    own, other = set(), set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            members = [f"{base}.{alias.name}" for alias in node.names]
            found = [m if m.removeprefix("octavo.") in known else base for m in members]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        for target in found:
            if target.partition(".")[0] == "octavo":
                own.add(target.partition(".")[2])
            else:
                other.add(target.partition(".")[0])
    return own, other


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = ["octavo", *package.split(".")] if package else ["octavo"]
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _violations(source: Path) -> list[str]:
    """One line for every import that goes up, leaves NumPy where it may not, or closes a circle."""
    order, modules = _packages(), _modules(source)
    allowed = {"numpy", *sys.stdlib_module_names}
    lines, arrows = [], {}
    for name, file in modules.items():
        home = name.partition(".")[0]
        if name in ENTRANCES:
            continue
        own, other = _imports(name, file, modules)
        arrows[name] = own & set(modules)
        for target in sorted(own):
            there = target.partition(".")[0]
            if there in order and order.index(there) > order.index(home):
                lines.append(f"{name} imports {target} above it")
        if home in NUMPY_ONLY:
            lines += [f"{name} imports {target}" for target in sorted(other - allowed)]
    return lines + [f"circle: {' -> '.join(circle)}" for circle in _circles(arrows)]


def _circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Circles of modules; a module and the package it is in do not count as one."""
    found, done = [], set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(arrows.get(name, ())):
                if not name.startswith(f"{target}."):
                    visit(target, [*path, name])
            done.add(name)

    for name in sorted(arrows):
        visit(name, [])
    return found


def test_imports_go_down():
    """Packages import from those below them, NumPy's from NumPy alone, and no circle exists."""
    assert [] == _violations(SOURCE)


def test_structure_page_lists_every_package():
    """docs/structure.md gives every package and root module one row, and no other."""
    homes = {name.partition(".")[0] for name in _modules(SOURCE)} - set(ENTRANCES)
    assert sorted(homes) == sorted(_packages())


@pytest.mark.parametrize(
    ("module", "planted", "found"),
    [
        ("planner.packing", "import octavo.cache", "planner.packing imports cache above it"),
        ("errors", "from octavo.model.spec import State", "errors imports model.spec above it"),
        ("errors", "from .model import spec", "errors imports model.spec above it"),
        (
            "cache.policies",
            "def f():\n    from octavo import storage",
            "cache.policies imports storage above it",
        ),
        ("index.flashinfer", "import octavo.testing", "index.flashinfer imports testing above it"),
        ("cache.policies", "import torch.nn", "cache.policies imports torch"),
        (
            "model.dtypes",
            "import octavo.model.spec",
            "circle: model.dtypes -> model.spec -> model.dtypes",
        ),
    ],
)
def test_planted_import_is_found(tmp_path, module, planted, found):
    """An upward or foreign import, or a circle, planted in a copy of the package is reported."""
    shutil.copytree(SOURCE / "octavo", tmp_path / "octavo")
    file = tmp_path / f"octavo/{module.replace('.', '/')}.py"
    file.write_text(file.read_text(encoding="utf-8") + f"\n{planted}\n", encoding="utf-8")
    if "circle" in found:
        above = tmp_path / "octavo/model/spec.py"
        text = above.read_text(encoding="utf-8")
        above.write_text(f"{text}\nimport octavo.model.dtypes\n", encoding="utf-8")

    assert found in _violations(tmp_path)
    assert found not in _violations(SOURCE)
