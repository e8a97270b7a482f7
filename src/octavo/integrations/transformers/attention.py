"""The one hook into a transformers model: attention that reads pages.

The cache that a model is given gets every layer's new keys and values by `update`.
`PagedPass.write` puts them in their slots, and `PagedPass.hand_over` marks the keys; the attention
function, registered with transformers under `NAME` and `NAME_WITH_MASKS`, finds the layer's pages
by that mark. Knows no requests, no prompts and no rows of sequences.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from octavo.errors import StepError, UnsupportedModel
from octavo.integrations.transformers.latents import Unexpanded
from octavo.integrations.transformers.paged import HANDLE, PagedLayer, PagedPass
from octavo.model.spec import Latent

NAME = "octavo"
"""Attention of models whose every layer goes through pages: transformers makes no masks for it."""
NAME_WITH_MASKS = "octavo_paged"
"""The same for models of which some layers, or some passes, attend as transformers does."""
_ABSENT: Any = object()
_UNAPPLIED = frozenset(("position_bias", "sinks", "indices", "block_indices"))
"""Keywords by which models change scores or choose keys, beside those that `attend` takes."""
F = TypeVar("F", bound=Callable[..., Any])


def eagerly(function: F) -> F:
    """The same, left out of what torch compiles: it looks at arrays and changes pages."""
    return cast("F", torch.compiler.disable(function))  # type: ignore[no-untyped-call]


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
    sliding_window: int | None = _ABSENT,
    is_causal: bool | None = None,
    octavo_pages: tuple[PagedPass, PagedLayer] | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function transformers calls under `NAME`.

    Args:
        module: says whether its tokens see those before them alone, where ``is_causal`` does not;
            of a latent layer its ``expand_kv`` is `Unexpanded`.
        value: of no use here.
        query: [rows, H, q, k_dim].
        key: the new keys, written before; they lead to the pages.
        attention_mask: None: what is seen follows from the step.
        scaling, softcap: of the scores.
        s_aux: [H], sink logits.
        sliding_window: the window the model believes in.
        is_causal: whether tokens see those before them alone; None: ask the module.
        octavo_pages: the mark of `PagedPass.hand_over`; None: the keys have it.
        rest: nothing else that changes scores.

    Returns:
        [rows, q, H, v_dim]; None for the weights.

    Raises:
        StepError: the keys lead to no pages: the model runs without octavo's cache.
        UnsupportedModel: the model and its spec disagree, or it adds to the scores, or chooses
            among the keys.
    """
    del value
    if not _UNAPPLIED.isdisjoint(rest):
        others = sorted(name for name in _UNAPPLIED & rest.keys() if rest[name] is not None)
        if others:
            why = f"the model gives it {' and '.join(others)}, which octavo does not apply"
            raise UnsupportedModel("attention", why)
    found: tuple[PagedPass, PagedLayer] | None = octavo_pages or getattr(key, HANDLE, None)
    if found is None:
        why = "the model's attention is octavo's; close the engine to use the model without it"
        raise StepError(why)
    if attention_mask is not None:
        raise UnsupportedModel("attention mask", "octavo derives what is seen from the step")
    now, paged = found
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not causal and query.shape[2] > 1:
        why = "the model lets tokens see later ones, such as those of a prefix; gather it"
        raise UnsupportedModel("attention mask", f"{why}, without attend()")
    if sliding_window is not _ABSENT and now.window(sliding_window) != paged.kind.window:
        why = f"the model asks for {sliding_window}, its config says {paged.kind.window}"
        raise UnsupportedModel("window", why)
    if isinstance(paged.kind, Latent):
        rows: Unexpanded = module.expand_kv
        return rows.expand(now.attend(paged, rows.absorb(query), scaling, softcap, s_aux)), None
    if key.shape[1] != paged.kind.kv_heads:
        why = f"the model attends to {key.shape[1]} heads, its config says {paged.kind.kv_heads}"
        raise UnsupportedModel("key/value heads", why)
    return now.attend(paged, query, scaling, softcap, s_aux), None


@eagerly
def attend_or_mask(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    octavo_pages: tuple[PagedPass, PagedLayer] | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """The same under `NAME_WITH_MASKS`: where there are no pages, torch's fused attention.

    Such are latent layers, which the model expands itself, and passes without the cache.

    Raises:
        UnsupportedModel: as `attend`, or such a layer has sinks or a soft cap.
    """
    pages = octavo_pages or getattr(key, HANDLE, None)
    if pages is not None:
        if attention_mask is not None:
            pages[0].check_mask(pages[1], attention_mask)
        rest["octavo_pages"] = pages
        return attend(module, query, key, value, None, softcap=softcap, s_aux=s_aux, **rest)
    if softcap is not None or s_aux is not None:
        raise UnsupportedModel("attention", "without pages it takes no sinks and no soft cap")
    found: tuple[torch.Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, **rest
    )
    return found


AttentionInterface.register(NAME, attend)
AttentionInterface.register(NAME_WITH_MASKS, attend_or_mask)
AttentionMaskInterface.register(NAME_WITH_MASKS, sdpa_mask)


def attention_of(model: Any) -> str | None:
    """The name of the implementation the model's decoder attends by. O(1)."""
    config = model.config.get_text_config(decoder=True)
    name: str | None = config._attn_implementation
    return name
