"""Paged attention by a C kernel that reads pages where they lie, compiled on first use.

For decode on a CPU, above all: nothing is gathered, heads are never expanded, a window costs its
window. Takes float32 and bfloat16 in either order; head-major pages are faster. Many queries of
bfloat16 are multiplied by tiles where processor and Linux let it (AMX). `cpu.c` computes, `build`
compiles it; this module passes addresses.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from octavo.attention import registry
from octavo.attention.kernels.build import Kernel
from octavo.attention.parameters import Parameters
from octavo.attention.sizes import Sizes
from octavo.attention.tensors import TensorCall, Tensors, TensorStep, strides
from octavo.errors import PlanError, uncopied

_SOURCE = Path(__file__).with_name("cpu.c")
KERNEL = Kernel("attention", _SOURCE, "octavo_paged_attention", "backend cpu")
"""The compiled kernel."""
PUT = Kernel("attention", _SOURCE, "octavo_put_rows", "backend cpu")
"""What puts new keys and values where it reads them."""
_TILES = Kernel("attention", _SOURCE, "octavo_attention_tiles", "backend cpu")
Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""
_FAR = 2**62
"""Positions are below it: a larger window sees no more, and sums with it stay in 64 bits."""


@cache
def has_tiles() -> bool:
    """Whether the kernel multiplies bf16 by tiles here; asks Linux for it, once per process.

    Raises:
        UnsupportedModel: there is no kernel here.
    """
    return bool(_TILES.load()())


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
        *((name, ctypes.c_int64) for name in ("bf16", "threads", "tiles")),
        *((name, ctypes.c_double) for name in ("scale", "softcap")),
    )


class _PutRows(ctypes.Structure):
    """``struct rows`` of cpu.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("new", "cache")),
        *((name, ctypes.c_int64) for name in ("size", "new_token", "new_head")),
        *((name, ctypes.c_int64) for name in ("page", "head", "token")),
    )


class _PutCall(ctypes.Structure):
    """``struct put`` of cpu.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("pages", "offsets")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "bytes")),
        *((name, _PutRows) for name in ("key", "value")),
    )


_OF_STEP = KernelCall.table.offset, KernelCall.page_size.offset - KernelCall.table.offset
"""Where in a call lies what is the step's, and how many bytes it has."""


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
        self._at = ctypes.addressof(self._call) + _OF_STEP[0]

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

    def repeated(self, call: TensorCall) -> Callable[[Tensors], torch.Tensor]:
        """See `octavo.attention.base.PreparedStep.repeated`; the kernel's call is filled once."""
        return partial(_run, KERNEL.load(), self._filled(call), call.sizes)

    def again(self, call: TensorCall, out: torch.Tensor) -> Callable[[Any], None]:
        """See `octavo.attention.tensors.TensorStep.again`; copies the step's part of the call."""
        if call.parameters.sink_logits is not None:
            return super().again(call, out)
        to, kernel, (start, size) = self._filled(call), KERNEL.load(), _OF_STEP
        _place(to, call.arrays, out)
        given, at = ctypes.byref(to), ctypes.addressof(to) + start

        def run(step: "CpuStep") -> None:
            ctypes.memmove(at, step._at, size)
            if kernel(given):
                raise MemoryError("no memory for paged attention")

        return run

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        sizes, to = call.sizes, self._filled(call)
        lse = torch.empty(sizes.tokens, sizes.heads) if call.lse else None
        sinks = call.parameters.sink_logits
        if sinks is not None:
            sinks = sinks.float().contiguous().resolve_neg()  # the name keeps it alive in the call
            to.sink_logits = sinks.data_ptr()
        if lse is not None:
            to.lse = lse.data_ptr()
        return _run(KERNEL.load(), to, sizes, call.arrays), lse

    def _filled(self, call: TensorCall) -> KernelCall:
        """The kernel's call but for the addresses of the layer's arrays."""
        (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
        to = KernelCall.from_buffer_copy(self._call)
        to.key_page, to.key_head, to.key_token = strides(keys, given.order)
        to.value_page, to.value_head, to.value_token = strides(
            keys if values is None else values, given.order
        )
        to.heads, to.kv_heads = sizes.heads, sizes.kv_heads
        to.k_dim, to.v_dim = sizes.k_dim, sizes.v_dim
        to.scale, to.softcap = call.scale, given.softcap or 0.0
        to.causal, to.sink_tokens = given.causal, min(given.sink_tokens, _FAR)
        to.window = 0 if given.window is None else min(given.window, _FAR)
        to.bf16, to.threads = query.dtype == torch.bfloat16, torch.get_num_threads()
        to.tiles = has_tiles()
        return to


def _run(kernel: Any, to: KernelCall, sizes: Sizes, arrays: Tensors) -> torch.Tensor:
    """The output of one layer, whose call is filled but for these arrays."""
    out = arrays.query.new_empty(sizes.tokens, sizes.heads, sizes.v_dim)
    _place(to, arrays, out)
    if kernel(ctypes.byref(to)):
        raise MemoryError("no memory for paged attention")
    return out


def _place(to: KernelCall, arrays: Tensors, out: torch.Tensor) -> None:
    """Say where a layer's arrays are."""
    query, keys, values = arrays
    to.query, (to.query_token, to.query_head, _) = query.data_ptr(), query.stride()
    to.key, to.out = keys.data_ptr(), out.data_ptr()
    to.value = to.key if values is None else values.data_ptr()


class RowPut:
    """Puts new keys and values of a step's tokens where `CpuStep` reads them.

    Args:
        pages: int64[T], the page of each token.
        offsets: int64[T], its place in the page.
        order: of the pages.

    Raises:
        UnsupportedModel: there is no kernel here.
    """

    __reduce__ = uncopied("it is made for one step")

    def __init__(self, pages: torch.Tensor, offsets: torch.Tensor, order: str) -> None:
        self._pages, self._offsets = pages.contiguous(), offsets.contiguous()
        self._at = self._pages.data_ptr(), self._offsets.data_ptr()
        self._order, self._heads_at = order, 1 if order == "head" else 2
        self._kernel = PUT.load()
        self._kernel.restype = None

    def repeated(self, new: Pair, caches: Pair) -> Callable[[Pair, Pair], None] | None:
        """What puts keys and values into the pages of layers that are alike. O(1).

        Args:
            new: keys and values [rows, heads, columns, dim], of one row or of one column.
            caches: a layer's keys and values.

        Returns:
            A function of a layer's ``new`` and ``caches`` with the shapes, strides and element
            types of these, of O(T * heads * dim). For one thread at a time. None: these are for
            `octavo.storage.LayerStore.write` to store or to refuse, such as rows of another size.
        """
        to = self._filled(new, caches)
        return None if to is None else partial(self._put, to, to.key, to.value)

    def again(self, new: Pair, caches: Pair) -> Callable[["RowPut"], None] | None:
        """What puts these keys and values where another step's tokens are, of as many. O(1).

        Args:
            new, caches: as of `repeated`; what lies in ``new`` may change.

        Returns:
            A function of where the tokens are; None as of `repeated`.
        """
        to = self._filled(new, caches)
        if to is None:
            return None
        to.key.new, to.value.new = new[0].data_ptr(), new[1].data_ptr()
        to.key.cache, to.value.cache = caches[0].data_ptr(), caches[1].data_ptr()
        given, kernel = ctypes.byref(to), self._kernel

        def run(at: "RowPut") -> None:
            to.pages, to.offsets = at._at
            kernel(given)

        return run

    def _filled(self, new: Pair, caches: Pair) -> "_PutCall | None":
        """The kernel's call but for the addresses of a layer's; None: it does not take these."""
        if not all(map(self._takes, new, caches)):
            return None
        rows, heads, columns, _ = new[0].shape
        to = _PutCall(
            pages=self._at[0],
            offsets=self._at[1],
            tokens=rows * columns,
            heads=heads,
            bytes=new[0].itemsize,
        )
        for part, each, into in zip((to.key, to.value), new, caches, strict=True):
            of_row, part.new_head, of_column, _ = each.stride()
            part.new_token, part.size = of_column if rows == 1 else of_row, each.shape[3]
            part.page, part.head, part.token = strides(into, self._order)
        return to

    def _takes(self, new: torch.Tensor, cache: torch.Tensor) -> bool:
        rows, heads, columns, size = new.shape
        return (
            new.dtype == cache.dtype
            and new.is_cpu
            and (rows == 1 or columns == 1)
            and rows * columns == len(self._pages)
            and cache.shape[self._heads_at] == heads
            and cache.shape[3] == size
            and new.stride(3) == 1
        )

    def _put(self, to: _PutCall, key: _PutRows, value: _PutRows, new: Pair, caches: Pair) -> None:
        """Keys and values of one layer, whose call is filled but for these arrays."""
        key.new, value.new = new[0].data_ptr(), new[1].data_ptr()
        key.cache, value.cache = caches[0].data_ptr(), caches[1].data_ptr()
        self._kernel(ctypes.byref(to))


prepare = CpuStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = CpuStep.paged_attention
