"""C kernels, compiled on first use for the processor at hand and kept in the user's cache.

A built kernel is named by what it was made from: its source and what that includes, the compiler
and its options, and the
processor, and by a digest of itself: what a full disk or a crash left damaged is never opened,
which a process might not survive, but built anew. It is written beside its place and renamed into
it, so that processes that build at the same time do not see half a file. Does not know what the
kernel computes.
"""

import ctypes
import hashlib
import os
import platform
import re
import shlex
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.errors import ModelError, UnsupportedModel, uncopied
from octavo.folders import cache_home

_OPTIONS = (
    *("-std=c11", "-O3", "-march=native", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_THREADS = ("-fopenmp",)
_PATIENCE = 120  # seconds a compiler may take


class Kernel:
    """One C function and how it gets to be there; looked for once a process.

    Args:
        name: of the files that are kept.
        source: the C file.
        function: what it must have.
        subject: who needs it, for errors.
    """

    __reduce__ = uncopied("it has a library of this process")

    def __init__(self, name: str, source: Path, function: str, subject: str) -> None:
        self._name, self._source = name, source
        self._function, self._subject = function, subject

    def load(self) -> Any:
        """The compiled function; built unless it is there. Some seconds the first time.

        Raises:
            UnsupportedModel: it cannot be built or loaded here; the reason is named.
        """
        found, reason = self._found
        if found is None:
            raise UnsupportedModel(self._subject, reason)
        return found

    def why_not(self) -> str | None:
        """Why there is no kernel here, or None: there is one. Builds it to find out."""
        return self._found[1] or None

    @cached_property
    def _found(self) -> tuple[Any, str]:
        """The function, or None and why there is none."""
        failure = ""
        try:
            for options in ((*_OPTIONS, *_THREADS), _OPTIONS):  # not every compiler has OpenMP
                command = (*_compiler(), *options)
                folder, made_from = cache_home() / "kernels", self._key(command)
                path, failure = self._kept(folder, made_from), ""
                if path is None:
                    path, failure = self._build(command, folder, made_from)
                if path is not None:
                    return self._opened(path), ""
        except (OSError, subprocess.SubprocessError, ModelError, ValueError, AttributeError) as e:
            failure = f"{type(e).__name__}: {e}"
        return None, f"the C kernel cannot be built: {failure}"

    def _opened(self, path: Path) -> Any:
        """The function in the library at ``path``; AttributeError where it is not there."""
        return getattr(ctypes.CDLL(str(path)), self._function)

    def _kept(self, folder: Path, made_from: str) -> Path | None:
        """The kernel that is there, whole; one that is not is removed."""
        for path in folder.glob(f"{self._name}-{made_from}-*.so"):
            if path == self._named(path, folder, made_from):
                return path
            path.unlink(missing_ok=True)
        return None

    def _named(self, built: Path, folder: Path, made_from: str) -> Path:
        """Where a kernel of these bytes belongs."""
        digest = hashlib.sha256(built.read_bytes()).hexdigest()[:24]
        return folder / f"{self._name}-{made_from}-{digest}.so"

    def _key(self, command: tuple[str, ...]) -> str:
        """A name for what the kernel is made from."""
        version = subprocess.run(
            [command[0], "--version"], check=True, capture_output=True, timeout=_PATIENCE
        )
        digest = hashlib.sha256(self._source.read_bytes())
        for name in re.findall(rb'^#include "(.+)"', self._source.read_bytes(), re.MULTILINE):
            digest.update(self._source.with_name(name.decode()).read_bytes())
        for part in (*command, _processor()):
            digest.update(b"\0" + part.encode())
        digest.update(version.stdout)
        return digest.hexdigest()[:24]

    def _build(
        self, command: tuple[str, ...], folder: Path, made_from: str
    ) -> tuple[Path | None, str]:
        """The kernel, compiled into ``folder``; or what the compiler said where it failed."""
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as apart:
            built = Path(apart) / f"{self._name}.so"
            run = subprocess.run(
                [*command, str(self._source), "-o", str(built), "-lm"],
                check=False,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
            if run.returncode:
                lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
                return None, f"{command[0]}: {lines[0]}"
            self._opened(built)  # else a compiler's failure would stay in its place
            return built.replace(self._named(built, folder, made_from)), ""


def _compiler() -> tuple[str, ...]:
    """``$CC``, else ``cc``."""
    return tuple(shlex.split(os.environ.get("CC", ""))) or ("cc",)


def _processor() -> str:
    """What code compiled for this processor depends on."""
    with_flags = Path("/proc/cpuinfo")
    if with_flags.exists():
        for line in with_flags.read_text(encoding="utf-8").splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return f"{platform.machine()} {platform.processor()}"
