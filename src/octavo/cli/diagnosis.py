"""What ``octavo doctor`` finds out without computing anything: versions, builds, the machine.

Every fact is a number, a text, a list or a dict of these, as ``--json`` prints them.
"""

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from octavo import __version__, core
from octavo.attention import Backend, backends
from octavo.checkpoints import processor
from octavo.checks import not_installed
from octavo.cli.machine import available_memory, machine_memory
from octavo.errors import ModelError
from octavo.folders import cache_home

_PACKAGES = (
    *("numpy", "torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2"),
    *("triton", "onnx", "onnxruntime", "matplotlib"),
)
_TOLD_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_VARIABLES = ("OCTAVO_HOME", "OCTAVO_PURE", "OMP_NUM_THREADS", "CC", "CUDA_VISIBLE_DEVICES")


def facts() -> dict[str, Any]:
    """All of it. The first time it compiles the attention kernel, which takes some seconds."""
    return {
        "octavo": __version__,
        "folder": str(Path(__file__).parents[1]),
        "python": f"{platform.python_version()}, {platform.python_implementation()}",
        "system": " ".join(filter(None, (*_system(), *platform.libc_ver()))),
        "packages": {name: _version(name) for name in _PACKAGES},
        "core": _core(),
        "backends": [_backend(each) for each in backends()],
        "kernels": _kernels(),
        "compiler": _compiler(),
        "processor": _processor(),
        "memory": {"bytes": machine_memory(), "available_bytes": available_memory()},
        "environment": {name: os.environ[name] for name in _VARIABLES if os.environ.get(name)},
    }


def _system() -> tuple[str, str]:
    return platform.system(), platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _core() -> dict[str, Any]:
    """Which core runs; the folder of the compiled one."""
    folder = None if core.why_not else str(core.build.folder())
    return {"compiled": core.why_not is None, "why_not": core.why_not, "folder": folder}


def _backend(backend: Backend) -> dict[str, Any]:
    """Whether a backend works here; ``broken``: its packages are here and fail."""
    try:
        why_not, broken = backend.missing, False
    except Exception as error:  # noqa: BLE001  # a broken package is what a doctor is to find
        why_not, broken = f"{type(error).__name__}: {error}", True
    why_not = why_not and " ".join(why_not.split())
    works = why_not is None
    return {"name": backend.name, "works": works, "broken": broken, "why_not": why_not}


def _kernels() -> dict[str, Any]:
    """The folder of compiled kernels, and how many are in it."""
    try:
        folder = cache_home() / "kernels"
    except ModelError as error:
        return {"folder": None, "why_not": str(error), "count": 0}
    return {"folder": str(folder), "why_not": None, "count": len(list(folder.glob("*.so")))}


def _compiler() -> str | None:
    """The C compiler that ``$CC``, else ``cc``, names; None: it is not here."""
    name = (os.environ.get("CC") or "cc").split()[0]
    return shutil.which(name)


def _processor() -> dict[str, Any]:
    """Its name, how many cores, and of its instructions those that decide how fast it computes."""
    flags = processor.flags()
    mine = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return {
        "name": _processor_name(),
        "cores": os.cpu_count(),
        "usable_cores": len(mine),
        "flags": [name for name in _TOLD_FLAGS if name in flags] if flags else None,
        "fast_dtype": processor.fast_dtype(),
    }


def _processor_name() -> str | None:
    """What the processor is called, where the system says it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    named = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in named if key.strip() == "model name"), None)


def faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with what is here, a line each; none: all that is here works. O(facts)."""
    wrong = [
        f"attention backend {each['name']}: {each['why_not']}"
        for each in found["backends"]
        if each["broken"]
    ]
    tests = found.get("tests", {}).items()
    wrong += [f"test {name}: {each['fault']}" for name, each in tests if "fault" in each]
    why_no_folder = found["kernels"]["why_not"]
    return wrong + ([why_no_folder] if why_no_folder else [])


def advice(found: dict[str, Any]) -> list[str]:
    """What would make octavo faster here or let it do more, a line each. O(facts)."""
    lines = []
    why_not = found["core"]["why_not"]
    if why_not and why_not != "OCTAVO_PURE is set":
        lines.append(
            f"the core runs as Python source ({why_not}), to the same results but 2 to 80 times "
            "slower: install octavo again where a C compiler and Python's headers are"
        )
    if found["packages"]["torch"] is None:
        lines.append(
            f"{not_installed('torch', 'engine')}: octavo generate needs it, and the engine"
        )
    elif found["compiler"] is None and not found["backends"][0]["works"]:
        lines.append("the attention kernel for CPUs needs a C compiler: install one, or set CC")
    if found["processor"]["flags"] and found["processor"]["fast_dtype"] == "fp32":
        lines.append(
            "the processor has no instructions for bf16: prefill in bf16 takes several times as "
            "long as in fp32, so --dtype auto is fp32 here"
        )
    return lines
