"""What attention kernels demand of pages, by the name of the kernel; checked, never rounded."""

from collections.abc import Iterable
from typing import NamedTuple

from octavo.components import Order
from octavo.errors import PlanError
from octavo.spec import Attention, ModelSpec


class Kernel(NamedTuple):
    """Demands of one kernel.

    Attributes:
        multiple: what a page's tokens must be a multiple of.
        power_of_two: whether they must be a power of two.
        dim_multiple: what a head's elements must be a multiple of.
        order: the one it reads, or None for either.
    """

    multiple: int = 1
    power_of_two: bool = False
    dim_multiple: int = 1
    order: Order | None = None


KERNELS = {
    "flash_attn": Kernel(multiple=256, dim_multiple=8, order="token"),
    "flashinfer": Kernel(dim_multiple=8),
    "onnxruntime": Kernel(multiple=16, power_of_two=True, dim_multiple=8, order="token"),
    "tensorrt": Kernel(power_of_two=True, dim_multiple=8, order="head"),
    "vllm": Kernel(multiple=16, dim_multiple=8, order="token"),
}
"""flash_attn: FlashAttention 2 with a block table. onnxruntime: com.microsoft.PagedAttention.
tensorrt: TensorRT-LLM, tokens_per_block. vllm: its CUDA backends, block_size."""


def check_kernel(name: str, page_size: int, order: Order, stages: Iterable[ModelSpec]) -> None:
    """Whether the kernel called ``name`` can read such pages. O(layers).

    Raises:
        PlanError: no such kernel, or a demand that is not met; it names the demand.
    """
    kernel = KERNELS.get(name)
    if kernel is None:
        raise PlanError("kernel", name, f"known kernels are: {', '.join(KERNELS)}")
    if page_size % kernel.multiple:
        raise PlanError("page_size", page_size, f"{name} takes multiples of {kernel.multiple}")
    if kernel.power_of_two and page_size & (page_size - 1):
        raise PlanError("page_size", page_size, f"{name} takes powers of two")
    if kernel.order not in (None, order):
        raise PlanError("order", order, f"{name} reads pages in order {kernel.order!r}")
    for _, kind in (pair for stage in stages for pair in stage.kinds()):
        if isinstance(kind, Attention) and (kind.k_dim | kind.v_dim) % kernel.dim_multiple:
            right = f"{name} takes multiples of {kernel.dim_multiple}"
            raise PlanError("head size", (kind.k_dim, kind.v_dim), right)
