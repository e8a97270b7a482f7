"""What a pass is given, read as arrays: ids, which columns are tokens, and whether ids tell it all.

Knows tensors and calls; no pages and no sequences.
"""

from typing import Any

import numpy as np
import torch

from octavo.checks import check_int
from octavo.errors import LengthError, TokenError
from octavo.integrations.transformers.hooks import Call


def ids_of(ids: torch.Tensor | None) -> Any:
    """int64[B, T], or None where tokens are no single ids."""
    if ids is None or ids.ndim != 2:
        return None
    return ids.detach().cpu().numpy().astype(np.int64)


def in_order(call: Call, real: Any, past: Any) -> bool:
    """Whether ids say what is computed: tokens at positions 0, 1, ... of their row, which see all
    tokens before them and no others. ``past`` are the columns before.
    """
    if not is_plain(call.mask, past):
        return False
    index = past.sum(axis=1)[:, None] + real.cumsum(axis=1) - 1
    positions = call.others.get("position_ids")
    if positions is None:  # the model counts columns
        found = past.shape[1] + np.arange(real.shape[1])
    elif positions.ndim == 2:
        found = positions.cpu().numpy()
    else:
        return False
    return bool(np.array_equal(np.broadcast_to(found, real.shape)[real], index[real]))


def is_plain(mask: torch.Tensor | None, past: Any) -> bool:
    """Whether a mask hides padding alone, and of the past what was padding then."""
    if mask is None:
        return True
    if getattr(mask, "ndim", None) != 2:  # one a pair of tokens, or one a kind of layer
        return False
    shown = mask[:, : past.shape[1]].cpu().numpy().astype(np.bool_)
    return bool((shown == past).all())


def real_of(mask: torch.Tensor | None, batch: int, new: int) -> Any:
    """bool[B, new], which of the last ``new`` columns are tokens."""
    if mask is None or getattr(mask, "ndim", None) != 2:
        return np.ones((batch, new), np.bool_)
    if len(mask) not in (1, batch):
        raise LengthError("rows of attention_mask", len(mask), batch, batch, "those of the batch")
    shown = mask[:, mask.shape[1] - new :].cpu().numpy().astype(np.bool_)
    return np.broadcast_to(shown, (batch, new))


def count_of(tokens_to_remove: object) -> int:
    """How many columns a crop by a number of 0 or below takes back."""
    try:
        return check_int("count", -tokens_to_remove, 0)  # type: ignore[operator]
    except (TypeError, LengthError):
        why = "an int of 0 or below"
        raise LengthError("tokens_to_remove", tokens_to_remove, None, 0, why) from None


def check_prompt(ids: object, mask: object) -> None:
    """Raise LengthError or TokenError unless these are ids [B, T] and a mask of them."""
    for name, given in (("input_ids", ids), ("attention_mask", mask)):
        if not isinstance(given, torch.Tensor) and (given is not None or name == "input_ids"):
            raise LengthError(name, type(given).__name__, None, None, "a tensor [B, T]")
    assert isinstance(ids, torch.Tensor)
    if ids.ndim != 2:
        raise LengthError("axes of input_ids", ids.ndim, 2, 2, "one id a token")
    check_int("rows of input_ids", ids.shape[0], 1)
    check_int("columns of input_ids", ids.shape[1], 1)
    if ids.is_floating_point():
        raise TokenError(0, ids[0, 0].item())
    if isinstance(mask, torch.Tensor) and mask.shape != ids.shape:
        right = f"that of input_ids, {tuple(ids.shape)}"
        raise LengthError("shape of attention_mask", tuple(mask.shape), None, None, right)
