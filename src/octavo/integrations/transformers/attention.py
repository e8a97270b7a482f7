"""octavo's own attention under transformers: reads a layer's pages in place.

Keys come with a handle to the pages they are in. Layers without one, such as latent ones that the
model expands itself, go through torch's fused attention with the mask transformers makes.
"""

from typing import Any

import numpy as np
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from octavo.attention import best
from octavo.errors import UnsupportedModel

NAME = "octavo_paged"
"""The attention implementation that is registered with transformers."""

mask = sdpa_mask
"""Masks for the layers that octavo does not attend for."""


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function transformers calls under the name ``octavo_paged``.

    Args:
        query: [B, H, q, k_dim].
        key: the new keys, written before; they lead to the pages.
        attention_mask: of no use here: padding is in no page.
        scaling, softcap: of the scores.
        s_aux: [H], sink logits.

    Returns:
        [B, q, H, v_dim], zeros at padding; None for the weights.

    Raises:
        UnsupportedModel: a layer that octavo does not attend for has sinks or a soft cap.
    """
    handle = getattr(key, "_octavo_pages", None)
    if handle is None:
        if softcap is not None or s_aux is not None:
            raise UnsupportedModel("attention", "without pages it takes no sinks and no soft cap")
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **rest
        )
        return found
    return _paged(handle, query, scaling, softcap, s_aux), None


def _paged(
    handle: Any,
    query: torch.Tensor,
    scaling: float | None,
    softcap: float | None,
    s_aux: torch.Tensor | None,
) -> torch.Tensor:
    """[B, q, H, v_dim] of a query [B, H, q, k_dim], or of the pass's last q columns."""
    layer, now = handle.layer, handle.now
    batch, heads, asked, dim = query.shape
    if asked < now.new:  # a layer that shares another's keys may be asked for the last ones alone
        query = torch.nn.functional.pad(query, (0, 0, now.new - asked, 0))
    out = query.new_zeros(batch * now.new, heads, layer.kind.v_dim)
    if now.step is not None:
        taken, source = _places(now, query.device)
        tokens = query.transpose(1, 2).reshape(-1, heads, dim).index_select(0, taken)
        keys, values = layer.parts["key"].tensor, layer.parts["value"].tensor
        backend = _backend(now, keys)
        found = backend.paged_attention(
            tokens,
            keys,
            values,
            _step(now, backend, layer.group, query.device),
            order="head",
            scale=scaling,
            softcap=softcap,
            window=layer.kind.window,
            sink_tokens=layer.kind.sink_tokens,
            sink_logits=s_aux,
        )
        out.index_copy_(0, taken, found)
        if source is not None:
            out = out.view(batch, -1).index_select(0, source)
    return out.view(batch, now.new, heads, -1)[:, now.new - asked :]


def _backend(now: Any, keys: torch.Tensor) -> Any:
    """The fastest attention for such pages, looked for once a pass."""
    found = now.work.get("backend")
    if found is None:
        dtype = str(keys.dtype).removeprefix("torch.")
        found = now.work["backend"] = best(keys.device, dtype, "head").load()
    return found


def _step(now: Any, backend: Any, group: str, device: torch.device) -> Any:
    """The step as the backend reads it, made once a pass and group."""
    step = now.work.get(("step", group))
    if step is None:
        step = backend.prepare(now.step, page_size=now.page_size, group=group, device=device)
        now.work["step", group] = step
    return step


def _places(now: Any, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Which new columns are tokens of the step; and which row's outcome each row takes."""
    found: tuple[torch.Tensor, torch.Tensor | None] | None = now.work.get("places")
    if found is None:
        taken = torch.from_numpy(now.taken).to(device)
        rows = np.arange(len(now.owner))
        source = np.where(now.owner < 0, rows, now.leader[now.owner])
        same = np.array_equal(source, rows)
        found = taken, None if same else torch.from_numpy(source).to(device)
        now.work["places"] = found
    return found
