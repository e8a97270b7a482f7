"""Imports go down only: the layers are the ones that docs/structure.md tells a reader."""

import ast
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
ROW = re.compile(r"^\| (\d+|-) \| `([\w/]+\.py)` \| \S.*\|$", re.MULTILINE)
BESIDE = 99  # octavo.testing may use everything and nothing uses it
NUMPY_ONLY = 5


def _module_name(path: str) -> str:
    """``engine/runner.py`` -> ``octavo.engine.runner``."""
    parts = ["octavo", *path.removesuffix(".py").split("/")]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layers() -> dict[str, int]:
    """Module name -> layer, from the table of docs/structure.md."""
    text = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    return {_module_name(p): BESIDE if n == "-" else int(n) for n, p in ROW.findall(text)}


def _modules(source: Path) -> dict[str, Path]:
    """Module name -> file of every module below ``source``/octavo."""
    package = source / "octavo"
    files = sorted(package.rglob("*.py"))
    return {_module_name(file.relative_to(package).as_posix()): file for file in files}


def _imports(name: str, file: Path, known: set[str]) -> set[str]:
    """Modules that ``file`` imports anywhere in it; of octavo's own the most specific."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            members = {f"{base}.{alias.name}" for alias in node.names}
            modules = members & known
            found |= modules | ({base} if members - modules else set())
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)}
    return found


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


def _violations(source: Path) -> list[str]:
    """One line for every import that goes up, or leaves NumPy in the layers that may not."""
    layers, modules = _layers(), _modules(source)
    allowed = {"numpy", "octavo", *sys.stdlib_module_names}
    lines = []
    for name, file in modules.items():
        own = layers.get(name, -1)
        for target in sorted(_imports(name, file, set(modules))):
            if target in modules and layers.get(target, BESIDE) > own:
                lines.append(f"{name} (layer {own}) imports {target} above it")
            if own <= NUMPY_ONLY and target.partition(".")[0] not in allowed:
                lines.append(f"{name} (layer {own}) imports {target}")
    return lines


def test_imports_go_down():
    """No module imports from a layer above its own, and layers 0-5 import NumPy alone."""
    assert [] == _violations(SOURCE)


def test_structure_page_lists_every_module():
    """docs/structure.md gives every module of the package one row, and no other."""
    assert sorted(_modules(SOURCE)) == sorted(_layers())


@pytest.mark.parametrize(
    ("module", "planted", "found"),
    [
        ("pages", "import octavo.cache", "(layer 2) imports octavo.cache above it"),
        ("pages", "from . import cache", "(layer 2) imports octavo.cache above it"),
        ("errors", "from octavo.spec import Attention", "(layer 0) imports octavo.spec above it"),
        (
            "cache",
            "def f():\n    from octavo import storage",
            "(layer 5) imports octavo.storage above it",
        ),
        (
            "cache",
            "from octavo import simulation",
            "(layer 5) imports octavo.simulation above it",
        ),
        (
            "simulation/replay",
            "import octavo.cli.report",
            "(layer 6) imports octavo.cli.report above it",
        ),
        ("table", "import torch.nn", "(layer 3) imports torch.nn"),
    ],
)
def test_planted_import_is_found(tmp_path, module, planted, found):
    """An upward or foreign import planted in a copy of the package is reported."""
    shutil.copytree(SOURCE / "octavo", tmp_path / "octavo")
    file = tmp_path / f"octavo/{module}.py"
    file.write_text(file.read_text(encoding="utf-8") + f"\n{planted}\n", encoding="utf-8")

    name = module.replace("/", ".")
    assert {f"octavo.{name} {found}"} == set(_violations(tmp_path)) - set(_violations(SOURCE))
