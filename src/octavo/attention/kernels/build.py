"""The C kernel, compiled on first use for the processor at hand and kept in the user's cache.

A built kernel is named by what it was made from: its source, the compiler and its options, and the
processor, and by a digest of itself: what a full disk or a crash left damaged is never opened,
which a process might not survive, but built anew. It is written beside its place and renamed into
it, so that processes that build at the same time do not see half a file. Does not know what the
kernel computes.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from octavo.errors import ModelError, UnsupportedModel
from octavo.folders import cache_home

SOURCE = Path(__file__).with_name("cpu.c")
_OPTIONS = (
    *("-std=c11", "-O3", "-march=native", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_THREADS = ("-fopenmp",)
_FUNCTION = "octavo_paged_attention"
_PATIENCE = 120  # seconds a compiler may take


@cache
def load() -> ctypes.CDLL:
    """The compiled kernel; built unless it is there. Some seconds the first time on a machine.

    Raises:
        UnsupportedModel: it cannot be built or loaded here; the reason is named.
    """
    library, reason = _found()
    if library is None:
        raise UnsupportedModel("backend cpu", reason)
    return library


def why_not() -> str | None:
    """Why there is no kernel here, or None: there is one. Builds it to find out."""
    return _found()[1] or None


@cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    """The kernel, or why there is none; looked for once a process."""
    failure = ""
    try:
        for options in ((*_OPTIONS, *_THREADS), _OPTIONS):  # not every compiler has OpenMP
            command = (*_compiler(), *options)
            folder, made_from = cache_home() / "kernels", _key(command)
            path, failure = _kept(folder, made_from), ""
            if path is None:
                path, failure = _build(command, folder, made_from)
            if path is not None:
                return _opened(path), ""
    except (OSError, subprocess.SubprocessError, ModelError, ValueError, AttributeError) as error:
        failure = f"{type(error).__name__}: {error}"
    return None, f"the C kernel cannot be built: {failure}"


def _opened(path: Path) -> ctypes.CDLL:
    """The kernel at ``path``; AttributeError where the library lacks it."""
    library = ctypes.CDLL(str(path))
    getattr(library, _FUNCTION)
    return library


def _kept(folder: Path, made_from: str) -> Path | None:
    """The kernel that is there, whole; one that is not is removed."""
    for path in folder.glob(f"attention-{made_from}-*.so"):
        if path == _named(path, folder, made_from):
            return path
        path.unlink(missing_ok=True)
    return None


def _named(built: Path, folder: Path, made_from: str) -> Path:
    """Where a kernel of these bytes belongs."""
    digest = hashlib.sha256(built.read_bytes()).hexdigest()[:24]
    return folder / f"attention-{made_from}-{digest}.so"


def _compiler() -> tuple[str, ...]:
    """``$CC``, else ``cc``."""
    return tuple(shlex.split(os.environ.get("CC", ""))) or ("cc",)


def _key(command: tuple[str, ...]) -> str:
    """A name for what the kernel is made from."""
    version = subprocess.run(
        [command[0], "--version"], check=True, capture_output=True, timeout=_PATIENCE
    )
    digest = hashlib.sha256(SOURCE.read_bytes())
    for part in (*command, _processor()):
        digest.update(b"\0" + part.encode())
    digest.update(version.stdout)
    return digest.hexdigest()[:24]


def _processor() -> str:
    """What code compiled for this processor depends on."""
    with_flags = Path("/proc/cpuinfo")
    if with_flags.exists():
        for line in with_flags.read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"


def _build(command: tuple[str, ...], folder: Path, made_from: str) -> tuple[Path | None, str]:
    """The kernel, compiled into ``folder``; or what the compiler said where it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as apart:
        built = Path(apart) / "attention.so"
        run = subprocess.run(
            [*command, str(SOURCE), "-o", str(built), "-lm"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        if run.returncode:
            lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
            return None, f"{command[0]}: {lines[0]}"
        _opened(built)  # else a compiler's failure would stay in its place
        return built.replace(_named(built, folder, made_from)), ""
