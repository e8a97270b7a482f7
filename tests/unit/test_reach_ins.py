"""No package reads what another keeps to itself: ``x._name`` stays where it is defined."""

import ast
from collections.abc import Iterator
from pathlib import Path

import octavo

SOURCE = Path(octavo.__file__).parent
OWN = {"self", "cls"}
NAMED_TUPLE = {"_replace", "_asdict", "_make", "_fields"}


def is_private(name):
    """One leading underscore, and nothing named tuples offer to everybody."""
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def is_own(node):
    """Whether an attribute is that of ``self``, ``cls`` or ``super()``."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in OWN


def defined(tree) -> Iterator[str]:
    """Private names a module defines: functions, variables, attributes and slots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Assign) and "__slots__" in ast.unparse(node.targets[0]):
            yield from map(str, ast.literal_eval(node.value))


def reach_ins(root):
    """``package/module.py:line: text`` of each use of another package's private name."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))}
    package = {path: path.relative_to(root).parts[0] for path in trees}
    owners = {}
    for path, tree in trees.items():
        for name in filter(is_private, defined(tree)):
            owners.setdefault(name, set()).add(package[path])
    return [
        f"{path.relative_to(root)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value)
        if package[path] not in owners.get(node.attr, {package[path]})
    ]


def test_no_package_reaches_into_another():
    """Within a package modules may know each other."""
    assert [] == reach_ins(SOURCE)


def test_a_reach_in_is_found(tmp_path):
    """One planted between packages; not one within a package, of self, or of others' code."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "engine").mkdir()
    (tmp_path / "cache" / "cache.py").write_text(
        "class Cache:\n    __slots__ = ('_open',)\n    def f(self):\n        self._core = 1\n"
    )
    (tmp_path / "cache" / "look.py").write_text("def look(cache):\n    return cache._core\n")
    (tmp_path / "engine" / "engine.py").write_text(
        "class Engine:\n    def run(self, cache, stats):\n        self._core = cache._theirs\n"
        "        self._cache, more = cache, super()._core\n"
        "        return cache._open, self._cache._core, stats._asdict(), cache.__dict__\n"
    )

    assert ["engine/engine.py:5: cache._open"] == reach_ins(tmp_path)
    (tmp_path / "engine" / "other.py").write_text(
        "def f(engine):\n    return engine._cache._gone\n"
    )
    (tmp_path / "cache" / "more.py").write_text("class More:\n    _gone = 1\n")
    assert ["engine/engine.py:5: cache._open", "engine/other.py:2: engine._cache._gone"] == (
        reach_ins(tmp_path)
    )
