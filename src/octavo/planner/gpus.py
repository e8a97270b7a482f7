"""Memory of GPUs by name, as their drivers report it or their vendor writes it down.

What a program may use is up to a hundredth less, as the driver keeps some: a utilization below 1
leaves it room.
"""

import re
from typing import NamedTuple

from octavo.errors import PlanError

__all__ = ["GPUS", "Gpu", "find_gpu"]

_MODAL = "nvidia-smi, https://github.com/modal-labs/modal-client/pull/2797"
_AMD = "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
_3090 = "nvidia-smi, https://github.com/noonghunna/club-3090/issues"


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
        name: as people write it, its nominal size included.
        memory: bytes.
        source: who reported so much, and where.
    """

    name: str
    memory: int
    source: str


GPUS = tuple(
    Gpu(name, mebibytes * 2**20, source)
    for name, mebibytes, source in (
        ("T4-16GB", 15_360, _MODAL),
        ("A10-24GB", 23_028, _MODAL),
        ("L4-24GB", 23_034, _MODAL),
        ("RTX3090-24GB", 24_576, f"{_3090}/390"),
        ("RTX4090-24GB", 24_564, "nvidia-smi, https://github.com/RLinf/RLinf/issues/255"),
        ("RTX5090-32GB", 32_607, f"{_3090}/617"),
        ("A100-40GB", 40_960, _MODAL),
        ("L40S-48GB", 46_068, _MODAL),
        ("A100-80GB", 81_920, _MODAL),
        ("H100-80GB", 81_559, _MODAL),
        ("H200-141GB", 143_771, "nvidia-smi, https://github.com/NVIDIA/cuda-samples/issues/311"),
        ("B200-180GB", 183_359, "nvidia-smi, https://github.com/NVIDIA/TensorRT-LLM/issues/10278"),
        ("MI300X-192GB", 192 * 1024, _AMD),
        ("MI325X-256GB", 256 * 1024, _AMD),
        ("MI355X-288GB", 288 * 1024, _AMD),
    )
)
"""Every GPU known by name."""


def find_gpu(name: str, field: str = "gpu") -> Gpu:
    """The GPU of that name, in any case, its size left out where there is one of it alone. O(GPUs).

    Args:
        name: such as ``H100-80GB``, ``h200`` or ``RTX 4090``.
        field: what an error calls it.

    Raises:
        PlanError: there is none, or several; those that may be meant are named.
    """
    plain = _plain(name)
    same = [gpu for gpu in GPUS if plain in (_plain(gpu.name), _plain(gpu.name.split("-")[0]))]
    if len(same) == 1:
        return same[0]
    known = ", ".join(gpu.name for gpu in same or _close(plain) or GPUS)
    raise PlanError(field, name, f"give bytes as an int, as '16GiB', or a GPU of: {known}")


def _close(plain: str) -> list[Gpu]:
    """Those whose name is the most like it, where one is. O(GPUs)."""
    from difflib import get_close_matches  # here: few names are wrong, and the import is slow

    names = {gpu: _plain(gpu.name.split("-")[0]) for gpu in GPUS}
    nearest = get_close_matches(plain, names.values(), n=1, cutoff=0.75)
    return [gpu for gpu, name in names.items() if name in nearest]


def _plain(name: str) -> str:
    """Without what people write differently: RTX 4090 and rtx4090 are one."""
    return re.sub(r"[\s_-]", "", name.lower())
