"""Paged attention by FlashAttention 2 (package flash-attn), through its own block table.

This module builds the arguments of ``flash_attn_varlen_func``, which serves prefill, decode and
both in one call, and says what that kernel cannot do. It reads pages where they lie, token-major,
of a multiple of 256 tokens.
"""

from typing import Any, Unpack, cast

import numpy as np
import torch

from octavo.attention.arguments import Options
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
"""Element types the kernel takes."""

PAGE_MULTIPLE = 256
"""Tokens of a page are a multiple of it."""

_WIDEST = 256  # elements of a head
_FAR = 2**31 - 1

why_not = no_cuda


class FlashStep(Rows):
    """A step prepared for the flash_attn backend; build it once and pass it to every layer.

    Rows that sit out are left out: a step of one query a row is decoded by another kernel, which
    takes one query of every row.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.
        device: where the keys and values are.

    Attributes:
        arguments: those of ``flash_attn_varlen_func`` that say where queries and keys are.

    Raises:
        LengthError, UnknownGroup: see Rows.

    Cost: O(rows * width), and three copies to the device.
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
        taking = np.flatnonzero(self.count)
        keys = (self.context - self.base)[taking]
        self.arguments: dict[str, Any] = {
            "cu_seqlens_q": summed(self.count[taking]).to(device),
            "cu_seqlens_k": summed(keys).to(device),
            "max_seqlen_q": int(self.count.max(initial=0)),
            "max_seqlen_k": int(keys.max(initial=0)),
            "block_table": torch.from_numpy(self.table[taking]).to(device),
        }


prepare = FlashStep
"""What `paged_attention` takes instead of the step, made once for all layers of a group."""


@one_signature
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor | None,
    step: Step | FlashStep,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> torch.Tensor | Attended:
    """Attention of a step's query tokens over their sequences' pages.

    The definition and the options are those of `octavo.attention.oracle.paged_attention`. Sink
    logits, which the kernel does not know, come in afterwards by its lse.

    Args:
        query: float16 or bfloat16 [T, H, k_dim].
        key_cache: one layer's keys, token-major, of the query's dtype and device.
        value_cache: likewise, with as many elements.
        step: the step, or a FlashStep made of it once for all layers (which has its ``group``).
        return_lse: whether to return ``Attended`` and not ``out`` alone.
        options: as the oracle's.

    Returns:
        [T, H, v_dim] in the query's dtype, or Attended with lse in float32.

    Raises:
        UnsupportedModel: what the kernel lacks: a latent or quantised cache, head-major pages,
            pages of no multiple of 256 tokens, heads of more than 256 elements, of no multiple of
            8, or of other sizes for keys and values, sink tokens beside a window.
        PlanError: a number that is not finite, a dtype, device or stride the kernel does not take,
            or a ``group`` beside a FlashStep.
        LengthError: sizes that do not fit each other or the FlashStep, or a page table that lacks
            pages of a context or names one that does not exist.
        UnknownGroup: no such group.

    Cost: the kernel's, O(T * H * context * (k_dim + v_dim)).
    """
    from flash_attn import flash_attn_varlen_func

    asked = Asked(**options)
    _check_supported(key_cache, value_cache, asked)
    assert value_cache is not None
    if isinstance(step, Step):
        size = page_size_of(key_cache, asked, latent=False)
        step = FlashStep(step, page_size=size, group=asked.group, device=query.device)
    elif asked.group is not None:
        raise PlanError("group", asked.group, "a FlashStep is made for its group; give it there")
    sizes = check_call("flash_attn", query, key_cache, value_cache, step, asked, dtypes=DTYPES)
    if not sizes.tokens:
        out, lse = query.new_empty(0, sizes.heads, sizes.v_dim), query.new_empty(0, sizes.heads)
        return Attended(out, lse.float()) if return_lse else out
    left = -1 if asked.window is None else min(asked.window, _FAR) - 1
    found = flash_attn_varlen_func(
        query,
        key_cache,
        value_cache,
        softmax_scale=sizes.scale,
        causal=asked.causal,
        window_size=(left, 0 if asked.causal and left >= 0 else -1),
        softcap=sizes.softcap or 0.0,
        return_attn_probs=return_lse or asked.sink_logits is not None,
        **step.arguments,
    )
    if not isinstance(found, tuple):
        return cast("torch.Tensor", found)
    lse = found[1].transpose(0, 1).contiguous()
    lse = lse.masked_fill(lse.isposinf(), float("-inf"))  # the kernel's word for no keys
    out = with_sinks(found[0], lse, asked.sink_logits)
    return Attended(out, lse) if return_lse else out


def _check_supported(
    key_cache: torch.Tensor, value_cache: torch.Tensor | None, asked: Asked
) -> None:
    """Refuse what the kernel lacks, before anything is made for it."""
    if value_cache is None:
        refuse("flash_attn", "latent attention", "the kernel takes keys and values as two tensors")
    if asked.order != "token":
        refuse("flash_attn", f"order {asked.order}", "the kernel reads token-major pages")
    size = page_size_of(key_cache, asked, latent=False)
    if size % PAGE_MULTIPLE:
        why = f"the kernel takes pages of a multiple of {PAGE_MULTIPLE} tokens"
        refuse("flash_attn", f"page_size {size}", why)
    k_dim, v_dim = key_cache.shape[-1], value_cache.shape[-1]
    if k_dim != v_dim or k_dim > _WIDEST or k_dim % 8:
        why = f"the kernel takes one size for both, a multiple of 8 up to {_WIDEST}"
        refuse("flash_attn", f"k_dim {k_dim} and v_dim {v_dim}", why)
    if asked.window is not None and asked.sink_tokens:
        refuse("flash_attn", f"sink_tokens {asked.sink_tokens}", "the kernel's window has none")
