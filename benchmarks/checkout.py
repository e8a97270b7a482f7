"""Single modules of a peer that is a folder of sources, without what its package imports first."""

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType


def open_checkout(variable: str, *packages: str) -> None:
    """Let modules of ``packages`` be imported from the checkout that an environment variable names.

    Args:
        variable: its name; its value is the folder of the repository.
        packages: folder of each package in it, with its dotted name behind a colon.

    Raises:
        FileNotFoundError: the variable is not set, or there is no such folder.
    """
    root = os.environ.get(variable)
    if not root:
        raise FileNotFoundError(f"{variable} names no checkout")
    for package in packages:
        folder, _, name = package.partition(":")
        if not (Path(root) / folder).is_dir():
            raise FileNotFoundError(f"{variable}={root} has no {folder}")
        bare = ModuleType(name)
        bare.__path__ = [str(Path(root) / folder)]
        sys.modules[name] = bare


def digest(module: ModuleType) -> str:
    """What stands for a version: the beginning of the SHA-256 of a module's file."""
    assert module.__file__ is not None
    return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()[:8]
