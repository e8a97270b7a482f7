"""What attention kernels demand of pages, by the name of the kernel; checked, never rounded."""

from collections.abc import Iterable
from typing import NamedTuple

from octavo.errors import PlanError
from octavo.model.layers import Attention, Cross, Latent, LayerKind
from octavo.model.spec import ModelSpec
from octavo.planner.components import Order
from octavo.planner.layouts import TensorPlan


class KernelDemands(NamedTuple):
    """Demands of one kernel.

    Attributes:
        multiple: what a page's tokens must be a multiple of.
        power_of_two: whether they must be a power of two.
        dim_multiple: what a head's elements must be a multiple of.
        order: the one it reads, or None for either.
        bits: of the element offsets it computes within a tensor.
    """

    multiple: int = 1
    power_of_two: bool = False
    dim_multiple: int = 1
    order: Order | None = None
    bits: int = 64


KERNELS = {
    "flash_attn": KernelDemands(multiple=256, dim_multiple=8, order="token"),
    "flash_attn_3": KernelDemands(dim_multiple=8, order="token"),
    "flashinfer": KernelDemands(dim_multiple=8),
    "int32": KernelDemands(bits=32),
    "onnxruntime": KernelDemands(multiple=16, power_of_two=True, dim_multiple=8, order="token"),
    "tensorrt": KernelDemands(power_of_two=True, dim_multiple=8, order="head"),
    "vllm": KernelDemands(multiple=16, dim_multiple=8, order="token"),
    "vllm_cpu": KernelDemands(multiple=32, dim_multiple=8, order="token"),
}
"""flash_attn: FlashAttention 2 with a block table; flash_attn_3: its successor, with any page.
int32: any that computes offsets in 32 bits. onnxruntime: com.microsoft.PagedAttention. tensorrt:
TensorRT-LLM, tokens_per_block. vllm: its CUDA backends, block_size; vllm_cpu: its paged kernels for
processors."""


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
        sizes = _sizes(kind)
        if any(size % kernel.dim_multiple for size in sizes):
            right = f"{name} takes multiples of {kernel.dim_multiple}"
            raise PlanError("head size", sizes, right)


def check_reach(name: str, tensors: Iterable[TensorPlan]) -> None:
    """Whether the kernel's offsets reach every page of the tensors. O(tensors).

    Raises:
        PlanError: they do not; it names the tensor that ends first.
    """
    if KERNELS[name].bits > 32:
        return
    first = min(tensors, key=lambda tensor: tensor.max_addressable_pages - tensor.shape[0])
    if first.shape[0] > first.max_addressable_pages:
        what = f"{first.component} of layer {first.layer}"
        right = f"{name} reaches {first.max_addressable_pages} pages of {what} in 32 bits"
        raise PlanError("pages", first.shape[0], right)


def _sizes(kind: LayerKind) -> tuple[int, ...]:
    """Elements of what a kernel reads of one token and head."""
    if isinstance(kind, Attention | Cross):
        return kind.k_dim, kind.v_dim
    return (kind.rank, kind.rope) if isinstance(kind, Latent) else ()
