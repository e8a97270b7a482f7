"""Which element type this machine's processor multiplies fast. Looks at no model."""

from pathlib import Path

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them on x86, the last on ARM


def flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """What the processor can do, in Linux's names; empty where the system does not say."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    named = (line.partition(":") for line in lines)
    return next((set(v.split()) for k, _, v in named if k.strip() in {"flags", "Features"}), set())


def fast_dtype(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """``bf16`` where the processor has instructions for it, else ``fp32``.

    Without them a prompt takes several times as long in bf16 as in fp32, for half the memory.
    """
    return "bf16" if flags(cpuinfo) & _BF16 else "fp32"
