"""Paged attention by FlashInfer, through its wrappers for paged decode and prefill.

This module builds what the wrappers plan with and says what they cannot do. They read pages where
they lie, in either order. A wrapper plans a step once for all layers that attend alike. An answer
that is not finite, which is waited for, is not kept: NaN may have spread to who does not see it.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.attention import registry
from octavo.attention.kernels.torch import attend_with_care
from octavo.attention.parameters import Parameters
from octavo.attention.tensors import TensorCall, Tensors, TensorStep, no_cuda, with_sinks
from octavo.index.rows import page_lists, running_sums

WORKSPACE_BYTES = 128 * 2**20
"""What the wrappers of a device share for results of divided rows: FlashInfer's advice."""

_LN2 = float(np.log(2))
_FAR = 2**31 - 1

why_not = no_cuda


class FlashinferStep(TensorStep):
    """A step prepared for the flashinfer backend; sink logits come in afterwards, by the lse.

    Planning, O(rows), happens once per step for all layers alike. The tensors are on the CPU, where
    the wrappers plan.

    Attributes:
        query_starts: int32[r + 1], running sums of the queries of the rows that have some.
        pages: the pages of those rows, as `octavo.index.flashinfer` emits them: where each row's
            begin, int32[r + 1]; all of them; and the tokens in each row's last page, int32[r].

    Raises:
        UnsupportedModel: in a call, values of another size or other strides than keys, or sink
            tokens beside a window.
        CapacityError: more pages than int32 counts.

    Cost: O(rows * width).
    """

    backend = registry.backend("flashinfer")

    def _make(self) -> None:
        rows = self.rows
        taking = np.flatnonzero(rows.count)
        keys = np.maximum(rows.context - rows.base, 0)[taking]
        self.query_starts = torch.from_numpy(running_sums(rows.count[taking]))
        listed = page_lists(rows.table[taking], keys, self.page_size)
        self.pages = tuple(map(torch.from_numpy, listed))

    @classmethod
    def _check_arrays(cls, arrays: Tensors, parameters: Parameters) -> None:
        super()._check_arrays(arrays, parameters)
        _, key_cache, value_cache = arrays
        assert value_cache is not None  # or refused before
        if key_cache.shape != value_cache.shape or key_cache.stride() != value_cache.stride():
            what = f"values of shape {tuple(value_cache.shape)}, strides {value_cache.stride()}"
            keys = f"{tuple(key_cache.shape)}, {key_cache.stride()}"
            cls._refuse(what, f"the kernels address them as they do keys, {keys}")
        if parameters.window is not None and parameters.sink_tokens:
            cls._refuse(f"sink_tokens {parameters.sink_tokens}", "the kernels' window has none")

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        query, sizes, given = call.arrays.query, call.sizes, call.parameters
        if not sizes.tokens:
            shape = (0, sizes.heads)
            return query.new_empty(*shape, sizes.v_dim), query.new_empty(shape).float()
        decode = int(self.rows.count.max()) == 1
        wrapper = _planned(self, _Plan.of(call, decode=decode))
        caches = call.arrays[1:]
        sums = call.lse or given.sink_logits is not None
        found = wrapper.run(query, caches, return_lse=True) if sums else wrapper.run(query, caches)
        out, lse = found if sums else (found, None)
        if not bool(out.isfinite().all()):
            return attend_with_care(self.rows, call)
        if lse is None:
            return out, None
        lse = lse * _LN2  # the kernels' logarithms are to base 2
        return with_sinks(out, lse, given.sink_logits), lse


prepare = FlashinferStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = FlashinferStep.paged_attention


class _Plan(NamedTuple):
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
    decode: bool  # one query per row, which sees all keys, causal or not

    @classmethod
    def of(cls, call: TensorCall, *, decode: bool) -> "_Plan":
        """The plan of a layer."""
        sizes, given = call.sizes, call.parameters
        return cls(
            *(sizes.heads, sizes.kv_heads, sizes.k_dim, given.order, call.arrays.query.dtype),
            *(call.scale, given.causal, given.window, given.softcap, decode),
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

    def __init__(self, layer: _Plan, device: torch.device) -> None:
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


def _planned(step: FlashinferStep, layer: _Plan) -> Any:
    """The layer's wrapper, with ``step`` as its plan."""
    wrapper = _wrapper(layer, step.device)
    if wrapper.step is step:
        return wrapper.made
    wrapper.step = None  # a plan that fails leaves none behind
    sizes = (layer.heads, layer.kv_heads, layer.dim, step.page_size)
    if layer.decode:
        wrapper.made.plan(*step.pages, *sizes, **layer.options())
    else:
        options = {**layer.options(), "causal": layer.causal}
        wrapper.made.plan(step.query_starts, *step.pages, *sizes, **options)
    wrapper.step = step
    return wrapper.made
