"""Paged attention by a C kernel that reads pages where they lie, compiled on first use.

For decode on a CPU, above all: nothing is gathered, heads are never expanded, a window costs its
window. Takes float32 and bfloat16 in either order; head-major pages are faster. `cpu.c`
computes, `building` compiles it; this module checks, and passes addresses.
"""

import ctypes
from typing import Any

import torch

from octavo.attention import building
from octavo.attention.arguments import check_arguments, check_order
from octavo.attention.rows import Rows
from octavo.attention.signature import Attended, one_signature
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.errors import PlanError, StepError, UnsupportedModel

_FAR = 2**62
"""Positions are below it: a larger window sees no more, and sums with it stay in 64 bits."""

DTYPES = (torch.float32, torch.bfloat16)
"""Element types the kernel reads; it computes in float32."""


class Call(ctypes.Structure):
    """``struct call`` of cpu.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "out", "lse")),
        *((name, ctypes.c_void_p) for name in ("sink_logits", "table")),
        *((name, ctypes.c_void_p) for name in ("start", "count", "past", "base")),
        *((name, ctypes.c_int64) for name in ("sequences", "width", "page_size")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "k_dim", "v_dim")),
        *((name, ctypes.c_int64) for name in ("query_token", "query_head")),
        *((name, ctypes.c_int64) for name in ("key_page", "key_head", "key_token")),
        *((name, ctypes.c_int64) for name in ("value_page", "value_head", "value_token")),
        *((name, ctypes.c_int64) for name in ("window", "sink_tokens", "causal")),
        *((name, ctypes.c_int64) for name in ("bf16", "threads")),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
    )


def why_not() -> str | None:
    """Why there is no kernel here, or None: there is one. Some seconds the first time."""
    return building.why_not()


class CpuStep(Rows):
    """A step prepared for the cpu backend; build it once a step and pass it to every layer.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.
        device: where the keys and values are: a CPU.

    Raises:
        PlanError: another device.
        LengthError, UnknownGroup: see Rows.

    Cost: O(rows * width).
    """

    def __init__(
        self,
        step: Step,
        *,
        page_size: int,
        group: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if torch.device(device).type != "cpu":
            raise PlanError("device", str(device), "the cpu backend reads a CPU's memory")
        super().__init__(step, page_size=page_size, group=group)
        arrays = ("table", "start", "count", "past", "base")
        self._call = Call(
            **{name: getattr(self, name).ctypes.data for name in arrays},
            sequences=len(self.start),
            width=self.table.shape[1],
            page_size=page_size,
        )

    def call(self) -> Call:
        """A call with the fields of the step. O(1)."""
        return Call.from_buffer_copy(self._call)


prepare = CpuStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


@one_signature
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Step | CpuStep,
    *,
    group: str | None = None,
    order: str = "token",
    scale: float | None = None,
    causal: bool = True,
    softcap: float | None = None,
    window: int | None = None,
    sink_tokens: int = 0,
    sink_logits: Any = None,
    v_dim: int | None = None,
    key_scale: Any = None,
    value_scale: Any = None,
    kv_dtype: str | None = None,
    return_lse: bool = False,
) -> torch.Tensor | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    The definition and the arguments are those of `octavo.attention.oracle.paged_attention`. A
    sequence's result is the same to the bit whatever others are in the step, and with any number of
    threads; there are ``torch.get_num_threads()``.

    Args:
        query: float32 or bfloat16 [T, H, k_dim] on the CPU.
        key_cache: one layer's keys in ``order``, or latent rows; of the query's dtype, and strided
            as one likes but for the last axis.
        value_cache: likewise with v_dim; None: latent attention.
        step: the step, or a CpuStep made of it once for all layers (which has its ``group``).
        group: whose page table; None: the first token group.
        order: ``head`` (faster) or ``token``.
        scale: factor of the scores; None: 1 / sqrt(k_dim).
        causal: whether a query sees only its own and earlier positions.
        softcap: bound of the scores.
        window: keys a query sees; None: all.
        sink_tokens: first positions seen beside the window.
        sink_logits: [H], in the denominator only.
        v_dim: elements of a value, for latent attention.
        kv_dtype: None; with key_scale and value_scale, which are then None: the kernel reads no
            quantised caches, the torch backend does.
        return_lse: whether to return ``Attended`` and not ``out`` alone.

    Returns:
        [T, H, v_dim] in the query's dtype, or Attended with lse in float32.

    Raises:
        PlanError: no tensor or step, no such order, a number that is not finite, a dtype, device or
            stride the kernel does not take, or a ``group`` beside a CpuStep.
        StepError: autograd would record the call, and there is no backward.
        LengthError: sizes that do not fit each other or the CpuStep, or a page table that
            lacks pages of a context or names one that does not exist.
        UnsupportedModel: a ``kv_dtype``, or the kernel cannot be built here.
        MemoryError: the kernel had none to work in: 64 * (k_dim + v_dim) numbers a thread.
        UnknownGroup: no such group.

    Cost: O(T * H * context * (k_dim + v_dim)); a window bounds the context. It holds beside the
    output a few hundred KiB a thread, whatever the context.
    """
    if kv_dtype is not None:
        raise UnsupportedModel(f"kv_dtype {kv_dtype}", "the cpu backend reads no quantised caches")
    _check_tensors(
        query=query, key_cache=key_cache, value_cache=value_cache, sink_logits=sink_logits
    )
    page_size = key_cache.shape[check_order(key_cache, order, latent=value_cache is None)]
    if not isinstance(step, CpuStep):
        step = CpuStep(step, page_size=page_size, group=group)
    elif group is not None:
        raise PlanError("group", group, "a CpuStep is made for its group; give it there")
    check_int("page_size of key_cache", page_size, step.page_size, step.page_size, "the step's")
    sizes = check_arguments(
        query,
        key_cache,
        value_cache,
        tokens=step.tokens,
        order=order,
        scale=scale,
        window=window,
        sink_tokens=sink_tokens,
        sink_logits=sink_logits,
        softcap=softcap,
        v_dim=v_dim,
        key_scale=key_scale,
        value_scale=value_scale,
        causal=causal,
        return_lse=return_lse,
        dtype="float32",
    )
    values = key_cache if value_cache is None else value_cache
    for name, tensor in (("query", query), ("key_cache", key_cache), ("value_cache", values)):
        _check_readable(name, tensor, query.dtype)
    step.require(key_cache.shape[0])
    step.require_seen(sizes.window, sizes.sink_tokens)
    sinks = None if sink_logits is None else sink_logits.float().contiguous().resolve_neg()
    out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
    lse = torch.empty(sizes.tokens, sizes.heads) if return_lse else None
    call = step.call()
    call.query, call.query_token, call.query_head = query.data_ptr(), *query.stride()[:2]
    call.key, call.value, call.out = key_cache.data_ptr(), values.data_ptr(), out.data_ptr()
    call.key_page, call.key_head, call.key_token = _strides(key_cache, order)
    call.value_page, call.value_head, call.value_token = _strides(values, order)
    call.heads, call.kv_heads = sizes.heads, sizes.kv_heads
    call.k_dim, call.v_dim = sizes.k_dim, sizes.v_dim
    call.scale = sizes.scale
    call.softcap = sizes.softcap or 0.0
    call.causal, call.sink_tokens = causal, min(sizes.sink_tokens, _FAR)
    call.window = 0 if sizes.window is None else min(sizes.window, _FAR)
    call.bf16, call.threads = query.dtype == torch.bfloat16, torch.get_num_threads()
    if sinks is not None:
        call.sink_logits = sinks.data_ptr()
    if lse is not None:
        call.lse = lse.data_ptr()
    if building.load().octavo_paged_attention(ctypes.byref(call)):
        raise MemoryError("no memory for paged attention")
    return out if lse is None else Attended(out, lse)


def _check_tensors(**tensors: Any) -> None:
    """Refuse what is no tensor on a CPU, and what autograd would follow. O(1)."""
    for name, tensor in tensors.items():
        if tensor is None and name in ("value_cache", "sink_logits"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise PlanError(name, type(tensor).__name__, "it must be a torch.Tensor")
        if tensor.device.type != "cpu":
            right = "the cpu backend needs a CPU's"
            raise PlanError(f"device of {name}", str(tensor.device), right)
        if tensor.requires_grad and torch.is_grad_enabled():
            right = "the cpu backend has no backward; run under torch.no_grad()"
            raise StepError(f"{name} requires a gradient; {right}")


def _check_readable(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Refuse what the kernel would misread. O(1)."""
    if tensor.dtype not in DTYPES:
        raise PlanError(f"dtype of {name}", str(tensor.dtype), "float32 or bfloat16")
    if tensor.dtype != dtype:
        raise PlanError(f"dtype of {name}", str(tensor.dtype), f"the query's is {dtype}")
    if tensor.layout != torch.strided or tensor.is_neg():
        found = "a negated view" if tensor.is_neg() else str(tensor.layout)
        raise PlanError(f"layout of {name}", found, "it must be a plain tensor: see resolve_neg()")
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        right = "elements of the last axis must lie next to each other"
        raise PlanError(f"strides of {name}", tensor.stride(), right)


def _strides(cache: torch.Tensor, order: str) -> tuple[int, int, int]:
    """Elements from a page, a head and a token to the next; a latent cache has no heads."""
    if cache.ndim == 3:
        page, token, _ = cache.stride()
        return page, 0, token
    page, first, second, _ = cache.stride()
    return (page, first, second) if order == "head" else (page, second, first)
