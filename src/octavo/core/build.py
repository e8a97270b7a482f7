"""Which build of the core runs: the compiled one, or the Python source as it stands.

The build hook, ``hatch_build.py``, compiles every ``X.py`` in this folder that has an ``X.pxd``
beside it, and puts the extensions into ``__compiled__/<digest of these files>``. `choose` puts that
folder first among those where this package looks for its modules; the import system does the rest.
A folder of another digest was compiled from other source and is never looked into, so that a stale
build cannot run. Needs the standard library alone: the hook runs this file to learn the digest.
"""

import hashlib
import os
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent


def sources() -> list[Path]:
    """The files the extensions are made from, in the order of their names."""
    types = sorted(HERE.glob("*.pxd"))
    return [path for each in types for path in (each, each.with_suffix(".py")) if path.exists()]


def modules() -> list[str]:
    """The names of the modules that are compiled where a compiler is."""
    return [path.stem for path in sources() if path.suffix == ".py"]


def folder() -> Path:
    """Where the extensions lie that were compiled from these sources. Reads them all: 0.3 ms."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return HERE / "__compiled__" / digest.hexdigest()[:16]


def pure() -> bool:
    """Whether ``OCTAVO_PURE=1`` is set: nothing is compiled then, and nothing compiled is run."""
    return os.environ.get("OCTAVO_PURE", "") not in ("", "0")


def choose(search: list[str]) -> str | None:
    """Let ``octavo.core`` find its compiled modules, and import them.

    Args:
        search: the package's ``__path__``; changed if the compiled modules are there and load.

    Returns:
        Why the source runs, or None: the compiled modules do.
    """
    compiled = folder()
    if pure():
        return "OCTAVO_PURE is set"
    if not compiled.is_dir():
        stale = compiled.parent.is_dir()
        return (
            "it was compiled from other source"
            if stale
            else "it was not compiled when octavo was installed"
        )
    search.insert(0, str(compiled))
    try:
        loaded = [import_module(f"octavo.core.{name}") for name in modules()]
    except ImportError as error:  # made for another system
        reason = f"its compiled modules cannot be loaded: {error}"
    else:
        if all(str(module.__file__).startswith(str(compiled)) for module in loaded):
            return None
        reason = "it was compiled for another kind of Python"
    search.remove(str(compiled))
    for name in modules():
        sys.modules.pop(f"octavo.core.{name}", None)
    return reason


@cache
def warn_once(reason: str | None) -> None:
    """Say once a process that the source runs for want of a compiled core, and what would mend it.

    Args:
        reason: what `choose` returned.

    Warns:
        RuntimeWarning: the source runs, and ``OCTAVO_PURE`` does not say that it shall.
    """
    if reason is not None and not pure():
        warnings.warn(
            f"octavo's core runs as Python source, 2 to 80 times slower than compiled: {reason}. "
            "Install octavo again where a C compiler is (pip install -v shows what it says), or "
            "set OCTAVO_PURE=1 to run the source without this warning",
            RuntimeWarning,
            stacklevel=3,
        )
