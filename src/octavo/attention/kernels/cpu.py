"""Paged attention by a C kernel that reads pages where they lie, compiled on first use.

For decode on a CPU, above all: nothing is gathered, heads are never expanded, a window costs its
window. Takes float32 and bfloat16 in either order; head-major pages are faster. `cpu.c`
computes, `build` compiles it; this module passes addresses.
"""

import ctypes
from pathlib import Path

import torch

from octavo.attention import registry
from octavo.attention.kernels.build import Kernel
from octavo.attention.parameters import Parameters
from octavo.attention.tensors import TensorCall, Tensors, TensorStep, strides
from octavo.errors import PlanError

KERNEL = Kernel(
    "attention", Path(__file__).with_name("cpu.c"), "octavo_paged_attention", "backend cpu"
)
"""The compiled kernel."""
_FAR = 2**62
"""Positions are below it: a larger window sees no more, and sums with it stay in 64 bits."""


class KernelCall(ctypes.Structure):
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
    return KERNEL.why_not()


class CpuStep(TensorStep):
    """A step prepared for the cpu backend, whose kernel reads float32 and bfloat16.

    A sequence's result is the same to the bit whatever others are in the step, and with any number
    of threads; there are ``torch.get_num_threads()``.

    Its ``run`` costs O(T * H * context * (k_dim + v_dim)); a window bounds the context. It holds
    beside the output a few hundred KiB a thread, whatever the context, and raises MemoryError where
    there is none: 64 * (k_dim + v_dim) numbers a thread. Under autograd it raises StepError, as
    there is no backward.

    Raises:
        PlanError: another device.
    """

    backend = registry.backend("cpu")
    has_backward = False

    def _make(self) -> None:
        if self.device.type != "cpu":
            raise PlanError("device", str(self.device), "the cpu backend reads a CPU's memory")
        rows = self.rows
        arrays = ("table", "start", "count", "past", "base")
        self._call = KernelCall(
            **{name: getattr(rows, name).ctypes.data for name in arrays},
            sequences=len(rows.start),
            width=rows.table.shape[1],
            page_size=self.page_size,
        )

    @classmethod
    def _check_arrays(cls, arrays: Tensors, parameters: Parameters) -> None:
        query = arrays.query
        if isinstance(query, torch.Tensor) and query.device.type != "cpu":
            right = "the cpu backend needs a CPU's"
            raise PlanError("device of query", str(query.device), right)
        super()._check_arrays(arrays, parameters)

    def _computed_in(self, query: torch.Tensor) -> str:
        del query
        return "float32"

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
        values = keys if values is None else values
        out = query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
        lse = torch.empty(sizes.tokens, sizes.heads) if call.lse else None
        to = KernelCall.from_buffer_copy(self._call)
        to.query, to.query_token, to.query_head = query.data_ptr(), *query.stride()[:2]
        to.key, to.value, to.out = keys.data_ptr(), values.data_ptr(), out.data_ptr()
        to.key_page, to.key_head, to.key_token = strides(keys, given.order)
        to.value_page, to.value_head, to.value_token = strides(values, given.order)
        to.heads, to.kv_heads = sizes.heads, sizes.kv_heads
        to.k_dim, to.v_dim = sizes.k_dim, sizes.v_dim
        to.scale, to.softcap = call.scale, given.softcap or 0.0
        to.causal, to.sink_tokens = given.causal, min(given.sink_tokens, _FAR)
        to.window = 0 if given.window is None else min(given.window, _FAR)
        to.bf16, to.threads = query.dtype == torch.bfloat16, torch.get_num_threads()
        sinks = given.sink_logits
        if sinks is not None:
            sinks = sinks.float().contiguous().resolve_neg()  # the name keeps it alive in the call
            to.sink_logits = sinks.data_ptr()
        if lse is not None:
            to.lse = lse.data_ptr()
        if KERNEL.load()(ctypes.byref(to)):
            raise MemoryError("no memory for paged attention")
        return out, lse


prepare = CpuStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = CpuStep.paged_attention
