"""The line that says what a benchmark ran on: without it a figure means nothing."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine_line(*packages: str) -> str:
    """Processor, usable cores, system, Python and the versions of ``packages``, in one line."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        f"{_processor()}, {cores} cores",
        f"{platform.system()} {platform.machine()}",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
    ]
    return "machine: " + "; ".join(parts)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
