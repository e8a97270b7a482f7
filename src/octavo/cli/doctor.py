"""``octavo doctor``: what of octavo works here, and why the rest does not."""

import argparse
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from octavo import __version__, core
from octavo.attention import Backend, backends
from octavo.errors import ModelError
from octavo.folders import cache_home

_PACKAGES = ("numpy", "torch", "transformers", "triton", "onnxruntime")


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="say what works on this machine, and why the rest does not",
        description="Print versions, whether octavo's core is compiled, the attention backends "
        "that work here, where compiled kernels are kept, and the processors. The first time it "
        "compiles the attention kernel for them.",
        epilog="docs/install.md tells what a core that is not compiled costs, and what to do.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:  # noqa: ARG001  # it has none
    """Print the report, one line a fact."""
    for name, fact in _facts():
        print(f"{name:13} {fact}")


def _facts() -> Iterator[tuple[str, str]]:
    """(name, what is found) of everything the report tells."""
    yield "octavo", __version__
    yield "python", f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    yield from ((name, _version(name)) for name in _PACKAGES)
    yield "core", f"Python source: {core.why_not}" if core.why_not else "compiled"
    yield "attention", "by backend, the fastest first"
    yield from ((f"  {each.name}", _state(each)) for each in backends())
    yield "kernels", _kernels()
    yield "processors", _processors()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _state(backend: Backend) -> str:
    """Whether a backend works here."""
    try:
        reason = backend.missing
    except Exception as error:  # noqa: BLE001  # a broken package is what a doctor is to find
        reason = f"{type(error).__name__}: {error}"
    return "works" if reason is None else f"no: {' '.join(reason.split())}"


def _kernels() -> str:
    """The folder of compiled kernels, and how many are in it."""
    try:
        folder = cache_home() / "kernels"
    except ModelError as error:
        return f"no folder: {error}"
    return f"{folder}, {len(list(folder.glob('*.so')))} in it"


def _processors() -> str:
    """How many there are, and how many threads the programs in C take."""
    mine = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    threads = os.environ.get("OMP_NUM_THREADS") or "not set: one a core"
    return f"{os.cpu_count()}, of which this process may use {len(mine)}; OMP_NUM_THREADS {threads}"
