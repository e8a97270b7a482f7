"""Paged attention by FlashAttention 2 (package flash-attn), through its own block table.

This module builds the arguments of ``flash_attn_varlen_func``, which serves prefill, decode and
both in one call, and says what that kernel cannot do. It reads pages where they lie, token-major,
of a multiple of 256 tokens. An answer that is not finite, which is waited for, is not kept: the
kernel has one lse for NaN and for no keys, and spreads NaN to queries beside those who see it.
"""

from typing import Any

import numpy as np
import torch

from octavo.attention import registry
from octavo.attention.kernels.torch import attend_with_care
from octavo.attention.parameters import Parameters
from octavo.attention.tensors import TensorCall, Tensors, TensorStep, no_cuda, with_sinks
from octavo.index.rows import running_sums

PAGE_MULTIPLE = 256
"""Tokens of a page are a multiple of it."""

_WIDEST = 256  # elements of a head
_FAR = 2**31 - 1

why_not = no_cuda


class FlashStep(TensorStep):
    """A step prepared for the flash_attn backend; sink logits come in afterwards, by the lse.

    Rows that sit out are left out: a step of one query a row is decoded by another kernel, which
    takes one query of every row.

    Attributes:
        arguments: those of ``flash_attn_varlen_func`` that say where queries and keys are, as
            `octavo.index.flash` emits them of the other rows.

    Raises:
        UnsupportedModel: in a call, pages of no multiple of 256 tokens; heads of more than 256
            elements, of no multiple of 8, or of other sizes for keys and values; sink tokens beside
            a window.
        CapacityError: more keys than int32 counts.

    Cost: O(rows * width), and three copies to the device.
    """

    backend = registry.backend("flash_attn")

    def _make(self) -> None:
        rows = self.rows
        taking = np.flatnonzero(rows.count)
        keys = (rows.context - rows.base)[taking]
        arrays = {
            "cu_seqlens_q": running_sums(rows.count[taking]),
            "cu_seqlens_k": running_sums(keys),
            "block_table": rows.table[taking],
        }
        on_device = {name: torch.from_numpy(each).to(self.device) for name, each in arrays.items()}
        longest = int(rows.count.max(initial=0)), int(keys.max(initial=0))
        self.arguments: dict[str, Any] = {
            "max_seqlen_q": longest[0],
            "max_seqlen_k": longest[1],
            **on_device,
        }

    @classmethod
    def _check_arrays(cls, arrays: Tensors, parameters: Parameters) -> None:
        super()._check_arrays(arrays, parameters)
        _, key_cache, value_cache = arrays
        assert value_cache is not None  # or refused before
        if key_cache.ndim == 4 and key_cache.shape[1] % PAGE_MULTIPLE:
            why = f"the kernel takes pages of a multiple of {PAGE_MULTIPLE} tokens"
            cls._refuse(f"page_size {key_cache.shape[1]}", why)
        k_dim, v_dim = key_cache.shape[-1], value_cache.shape[-1]
        if k_dim != v_dim or k_dim > _WIDEST or k_dim % 8:
            why = f"the kernel takes one size for both, a multiple of 8 up to {_WIDEST}"
            cls._refuse(f"k_dim {k_dim} and v_dim {v_dim}", why)
        if parameters.window is not None and parameters.sink_tokens:
            cls._refuse(f"sink_tokens {parameters.sink_tokens}", "the kernel's window has none")

    def _attend(self, call: TensorCall) -> tuple[torch.Tensor, torch.Tensor | None]:
        from flash_attn import flash_attn_varlen_func

        (query, keys, values), sizes, given = call.arrays, call.sizes, call.parameters
        if not sizes.tokens:
            shape = (0, sizes.heads)
            return query.new_empty(*shape, sizes.v_dim), query.new_empty(shape).float()
        left = -1 if given.window is None else min(given.window, _FAR) - 1
        found = flash_attn_varlen_func(
            query,
            keys,
            values,
            softmax_scale=call.scale,
            causal=given.causal,
            window_size=(left, 0 if given.causal and left >= 0 else -1),
            softcap=given.softcap or 0.0,
            return_attn_probs=call.lse or given.sink_logits is not None,
            **self.arguments,
        )
        out = found[0] if isinstance(found, tuple) else found
        if not bool(out.isfinite().all()):
            return attend_with_care(self.rows, call)
        if not isinstance(found, tuple):
            return out, None
        lse = found[1].transpose(0, 1).contiguous()
        lse = lse.masked_fill(lse.isposinf(), float("-inf"))  # the kernel's word for no keys
        return with_sinks(out, lse, given.sink_logits), lse


prepare = FlashStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""

paged_attention = FlashStep.paged_attention
