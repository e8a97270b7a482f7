"""Tokens that see later ones: pictures and prefixes that a decoder sees as a whole.

In Gemma 3 and 4 the tokens of a picture see each other, in PaliGemma those of a whole prompt. A
chunk that ends within a picture is computed with the tokens up to the picture's end ahead of it,
for the sake of their keys; these are computed anew in the chunk that has them. Knows masks and
positions; no models and no pages.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.errors import UnsupportedModel

_WINDOWED = "sliding_attention"


class Stretch(NamedTuple):
    """What the tokens of one prompt of n see in layers of one kind.

    Attributes:
        until: int64[n], the first position behind those that each token sees.
        window: how many positions up to itself a token sees; None: all.
    """

    until: torch.Tensor
    window: int | None


class Seen(NamedTuple):
    """What the tokens of one prompt see, where some see later ones.

    Attributes:
        by_kind: by kind of layer, as a decoder takes masks; of one that takes one mask for all
            layers the kind is None.
        dtype: of its masks; of other than bool they are added to scores.
    """

    by_kind: dict[str | None, Stretch]
    dtype: torch.dtype

    @property
    def until(self) -> torch.Tensor:
        """int64[n], the first position behind those that each token sees in any layer. O(n)."""
        return torch.stack([each.until for each in self.by_kind.values()]).amax(0)

    def ahead(self, past: int, end: int) -> int | None:
        """How many tokens from ``end`` on those of ``past..end-1`` see; None: none sees later ones.

        O(n).
        """
        until = self.until[past:end]
        if not bool((until > torch.arange(past, past + len(until)) + 1).any()):
            return None
        return max(int(until.max()) - end, 0)

    @property
    def together(self) -> NDArray[np.bool_]:
        """bool[n], tokens that see later ones or are seen by earlier ones. O(n)."""
        until = self.until
        before = torch.cat([until.new_zeros(1), until.cummax(0).values[:-1]])
        at = torch.arange(len(until))
        return ((until > at + 1) | (before > at)).numpy()

    def masks(self, at: torch.Tensor, cache: Any, kinds: list[str] | None) -> Any:
        """What hides the rest from a decoder: a mask [1, 1, q, columns], or one by kind of layer.

        Args:
            at: int64[q], positions of one row, beyond the prompt too, on the device of its cache.
            cache: gives the columns of its layers.
            kinds: of the decoder's layers; None: it has but one.

        Cost: O(q columns).
        """
        masks = {}
        for kind, (until, window) in self.by_kind.items():
            if kind is not None and kinds is not None and kind not in kinds:
                continue  # a mask for layers that the decoder has not
            layer = 0 if kind is None or kinds is None else kinds.index(kind)
            columns, first = cache.get_mask_sizes(len(at), layer)
            key = torch.arange(first, first + columns, device=at.device)
            mine = until.to(at.device)
            ends = torch.where(at < len(mine), mine[at.clamp(max=len(mine) - 1)], at + 1)
            shown = _shown(at, key, ends, window)[None, None]
            masks[kind] = shown if self.dtype == torch.bool else _added(shown, self.dtype)
        return masks.get(None, masks)


def seen_of(masks: Any, window: int | None) -> Seen | None:
    """What a prompt's tokens see by the masks of its decoder; None: those before each, and itself.

    Args:
        masks: a mask, or masks by kind of layer; [1, n], or [1, 1, n, n] bool or added to scores.
        window: of the layers that have one.

    Raises:
        UnsupportedModel: tokens are hidden, or what one sees later than itself is no stretch.

    Cost: O(masks).
    """
    given = masks if isinstance(masks, Mapping) else {None: masks}
    squares = {kind: _square(each) for kind, each in given.items()}
    wholes = [k for k, each in squares.items() if each is not None and bool(each.triu(1).any())]
    if not wholes:
        return None
    by_kind = {}
    for kind, shown in squares.items():
        mine = window if kind == _WINDOWED else None
        if shown is None:
            until = torch.arange(1, len(squares[wholes[0]]) + 1)  # type: ignore[arg-type]
        else:
            until = len(shown) - shown.flip(-1).byte().argmax(-1)
            at = torch.arange(len(until), device=until.device)
            if not torch.equal(shown, _shown(at, at, until, mine)):
                raise UnsupportedModel("inputs", "what is seen as a whole is no stretch of tokens")
        by_kind[kind] = Stretch(until.cpu(), mine)
    return Seen(by_kind, given[wholes[0]].dtype)


def _square(mask: Any) -> torch.Tensor | None:
    """bool[n, n], what is shown; None: what is before each token, and itself.

    Raises:
        UnsupportedModel: it hides a prompt's first tokens, or is no mask.
    """
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor):
        raise UnsupportedModel("inputs", f"the mask for media is a {type(mask).__name__}")
    shown = mask if mask.dtype == torch.bool or mask.ndim == 2 else mask == 0
    if mask.ndim == 4:
        return shown[0, 0]
    if not bool(shown.all()):
        raise UnsupportedModel("inputs", "the model hides some tokens of the prompt")
    return None


def _shown(
    query: torch.Tensor, key: torch.Tensor, until: torch.Tensor, window: int | None
) -> torch.Tensor:
    """bool[queries, keys]: from a window's first position up to each query's own end."""
    shown = key < until[:, None]
    return shown if window is None else shown & (key > query[:, None] - window)


def _added(shown: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same to be added to scores."""
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=shown.device)
    return torch.where(shown, least.new_zeros(()), least)
