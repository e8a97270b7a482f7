"""Paged attention by FlashInfer, through its wrappers for paged decode and prefill.

This module builds what the wrappers plan with and says what they cannot do. They read pages where
they lie, in either order. A wrapper plans a step once for all layers that attend alike.
"""

from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from octavo.attention.arguments import Options, Sizes
from octavo.attention.calls import (
    Asked,
    check_call,
    no_cuda,
    page_size_of,
    refuse,
    summed,
    with_sinks,
)
from octavo.attention.rows import Rows
from octavo.attention.signature import Attended, one_signature
from octavo.cache.step import Step
from octavo.errors import PlanError

DTYPES = (torch.float16, torch.bfloat16)
"""Element types the kernels take."""

WORKSPACE_BYTES = 128 * 2**20
"""What the wrappers of a device share for results of divided rows: FlashInfer's advice."""

_LN2 = float(np.log(2))
_FAR = 2**31 - 1

why_not = no_cuda


class FlashinferStep(Rows):
    """A step prepared for the flashinfer backend; build it once and pass it to every layer.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.
        device: where the keys and values are.

    Attributes:
        query_starts: int32[r + 1], running sums of the queries of the rows that have some. These
            and the other tensors are on the CPU, where the wrappers plan.
        page_starts: int32[r + 1], of their pages.
        page_list: int32[pages], those pages.
        last_lengths: int32[r], tokens in each row's last page.

    Raises:
        LengthError, UnknownGroup: see Rows.

    Cost: O(rows * width).
    """

    def __init__(
        self,
        step: Step,
        *,
        page_size: int,
        group: str | None = None,
        device: torch.device | str = "cuda",
    ) -> None:
        super().__init__(step, page_size=page_size, group=group)
        self.device = torch.device(device)
        taking = np.flatnonzero(self.count)
        keys = np.maximum(self.context - self.base, 0)[taking]
        pages = -(-keys // page_size)
        held = np.arange(self.table.shape[1]) < pages[:, None]
        last = np.where(keys > 0, (keys - 1) % page_size + 1, 1)
        self.query_starts = summed(self.count[taking])
        self.page_starts = summed(pages)
        self.page_list = torch.from_numpy(self.table[taking][held])
        self.last_lengths = torch.from_numpy(last.astype(np.int32))


prepare = FlashinferStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


@one_signature
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Step | FlashinferStep,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> torch.Tensor | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    The definition and the options are those of `octavo.attention.oracle.paged_attention`. Sink
    logits come in afterwards, by the kernels' lse.

    Args:
        query: float16 or bfloat16 [T, H, k_dim].
        key_cache: one layer's keys in ``order``, of the query's dtype and device.
        value_cache: likewise, with as many elements and the same strides.
        step: the step, or a FlashinferStep made of it once for all layers (which has its group).
        return_lse: whether to return ``Attended`` and not ``out`` alone.
        options: as the oracle's.

    Returns:
        [T, H, v_dim] in the query's dtype, or Attended with lse in float32.

    Raises:
        UnsupportedModel: what the kernels lack: a latent or quantised cache, values of another size
            or other strides than keys, sink tokens beside a window.
        PlanError: no such order, a number that is not finite, a dtype, device or stride the kernels
            do not take, or a ``group`` beside a FlashinferStep.
        LengthError: sizes that do not fit each other or the FlashinferStep, or a page table that
            lacks pages of a context or names one that does not exist.
        UnknownGroup: no such group.

    Cost: planning, O(rows), once a step for all layers alike; then the kernel's.
    """
    asked = Asked(**options)
    _check_supported(key_cache, value_cache, asked)
    if isinstance(step, Step):
        size = page_size_of(key_cache, asked, latent=False)
        step = FlashinferStep(step, page_size=size, group=asked.group, device=query.device)
    elif asked.group is not None:
        raise PlanError("group", asked.group, "a prepared step has its group; give it there")
    sizes = check_call("flashinfer", query, key_cache, value_cache, step, asked, dtypes=DTYPES)
    if not sizes.tokens:
        out, lse = query.new_empty(0, sizes.heads, sizes.v_dim), query.new_empty(0, sizes.heads)
        return Attended(out, lse.float()) if return_lse else out
    wrapper = _planned(step, _Layer.of(query, sizes, asked, decode=int(step.count.max()) == 1))
    if not return_lse and asked.sink_logits is None:
        found: torch.Tensor = wrapper.run(query, (key_cache, value_cache))
        return found
    out, lse = wrapper.run(query, (key_cache, value_cache), return_lse=True)
    lse = lse * _LN2  # the kernels' logarithms are to base 2
    out = with_sinks(out, lse, asked.sink_logits)
    return Attended(out, lse) if return_lse else out


def _check_supported(
    key_cache: torch.Tensor, value_cache: torch.Tensor | None, asked: Asked
) -> None:
    """Refuse what the kernels lack, before anything is made for them."""
    if value_cache is None:
        refuse("flashinfer", "latent attention", "these wrappers take keys and values")
    if key_cache.shape != value_cache.shape or key_cache.stride() != value_cache.stride():
        what = f"values of shape {tuple(value_cache.shape)}, strides {value_cache.stride()}"
        keys = f"{tuple(key_cache.shape)}, {key_cache.stride()}"
        refuse("flashinfer", what, f"the kernels address them as they do keys, {keys}")
    if asked.window is not None and asked.sink_tokens:
        refuse("flashinfer", f"sink_tokens {asked.sink_tokens}", "the kernels' window has none")


class _Layer(NamedTuple):
    """What a plan is made for beside the step; layers that have it in common share the plan."""

    heads: int
    kv_heads: int
    dim: int
    order: str
    dtype: torch.dtype
    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    decode: bool  # one query a row, which sees all keys, causal or not

    @classmethod
    def of(cls, query: torch.Tensor, sizes: Sizes, asked: Asked, *, decode: bool) -> "_Layer":
        """The layer of a call."""
        return cls(
            *(sizes.heads, sizes.kv_heads, sizes.k_dim, asked.order, query.dtype),
            *(sizes.scale, asked.causal, asked.window, sizes.softcap, decode),
        )

    def options(self) -> dict[str, Any]:
        """The keywords that both wrappers plan with."""
        return {
            "pos_encoding_mode": "NONE",
            "window_left": -1 if self.window is None else min(self.window, _FAR) - 1,
            "logits_soft_cap": self.softcap,
            "sm_scale": self.scale,
            "q_data_type": self.dtype,
            "kv_data_type": self.dtype,
        }


class _Wrapper:
    """A wrapper of one device and layer, and the step it has planned."""

    def __init__(self, layer: _Layer, device: torch.device) -> None:
        import flashinfer

        workspace, layout = _workspace(device), "NHD" if layer.order == "token" else "HND"
        self.step: FlashinferStep | None = None
        self.made = (
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                workspace, layout, use_tensor_cores=layer.heads > layer.kv_heads
            )
            if layer.decode
            else flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout)
        )


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Bytes the wrappers of a device share."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


_wrapper = cache(_Wrapper)  # one holds buffers of its own, so it outlives the step


def _planned(step: FlashinferStep, layer: _Layer) -> Any:
    """The layer's wrapper, with ``step`` as its plan."""
    wrapper = _wrapper(layer, step.device)
    if wrapper.step is step:
        return wrapper.made
    wrapper.step = None  # a plan that fails leaves none behind
    pages = (step.page_starts, step.page_list, step.last_lengths)
    sizes = (layer.heads, layer.kv_heads, layer.dim, step.page_size)
    if layer.decode:
        wrapper.made.plan(*pages, *sizes, **layer.options())
    else:
        options = {**layer.options(), "causal": layer.causal}
        wrapper.made.plan(step.query_starts, *pages, *sizes, **options)
    wrapper.step = step
    return wrapper.made
