"""The arguments of a forward pass that concern a cache, and what they say as arrays.

Knows tensors and calls; no pages and no sequences.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from octavo.checks import check_int
from octavo.errors import LengthError, PlanError, TokenError, UnsupportedModel


@dataclass(frozen=True)
class PassArguments:
    """What a model is given for one forward pass.

    Attributes:
        ids: [B, q] or [B, q, codebooks]; None: embeddings are given instead.
        embeds: [B, q, width]; None: ids are given.
        mask: [B, L] or of another form; None: there is no padding.
        others: further arguments with one entry per token.
        plain: whether ids and positions say all: no pictures, sounds or kinds of tokens are given,
            and nothing is dropped at random.
        blind: whether ids name pictures or sounds that are not given.
        wanted: last positions whose logits are wanted; 0: all, or unknown.
        paged: whether the model attends by octavo's own attention.
        kept: False: ``use_cache=False``.
        autocast: the dtype that autocast computes in; None: it is off.
        by_column: whether hidden columns behind a row's first token are tokens too: transformers
            counts them where layers attend by chunks.
    """

    ids: torch.Tensor | None
    embeds: torch.Tensor | None
    mask: torch.Tensor | None
    others: dict[str, torch.Tensor]
    plain: bool
    blind: bool
    wanted: int
    paged: bool
    kept: bool
    autocast: torch.dtype | None
    by_column: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and new columns."""
        given = self.embeds if self.ids is None else self.ids
        assert given is not None
        return given.shape[0], given.shape[1]

    @property
    def array(self) -> Any:
        """The ids as int64[B, q]; None: they do not say what is computed."""
        return ids_of(self.ids) if self.plain else None

    @cached_property
    def real(self) -> Any:
        """bool[B, q], which of the new columns are tokens."""
        return real_of(self.mask, *self.shape, by_column=self.by_column)

    @property
    def hides(self) -> bool:
        """Whether the mask hides new tokens."""
        return self.by_column and bool((self.real & ~real_of(self.mask, *self.shape)).any())

    @property
    def positions(self) -> torch.Tensor | None:
        """[B or 1, q]: one position per token, or equal ones; None: not given, or others."""
        given = self.others.get("position_ids")
        if given is None or given.ndim == 2:
            return given
        same = given.ndim == 3 and bool((given == given[:1]).all())
        return given[0] if same else None

    @property
    def tells(self) -> bool:
        """Whether a mask has all columns."""
        return self.mask is not None and getattr(self.mask, "ndim", None) == 2

    def total(self, *, counted: bool) -> int | None:
        """Columns up to the last new one; None: the arguments do not say.

        Args:
            counted: whether positions that follow on each other are columns where no mask is
                given: generate() drops a mask without padding.
        """
        if self.tells:
            assert self.mask is not None
            return self.mask.shape[1]
        positions = self.positions
        if not counted or positions is None:
            return None
        first = positions[0, 0]
        following = torch.arange(positions.shape[1], device=first.device) + first
        return int(following[-1]) + 1 if torch.equal(following, positions[0].long()) else None

    def behind(self, start: int) -> "PassArguments":
        """The same without the first ``start`` new columns."""
        return replace(
            self,
            ids=None if self.ids is None else self.ids[:, start:],
            embeds=None if self.embeds is None else self.embeds[:, start:],
            others={name: value[..., start:] for name, value in self.others.items()},
        )

    def in_order(self, past: Any) -> bool:
        """Whether ids say what is computed: tokens at positions 0, 1, ... of their row, which see
        all tokens before them and no others. ``past`` bool[B, L] are the columns before.
        """
        if not is_plain(self.mask, past) or self.hides:
            return False
        real = self.real
        index = past.sum(axis=1)[:, None] + real.cumsum(axis=1) - 1
        positions = self.positions
        if positions is not None:
            found = positions.cpu().numpy()
        elif "position_ids" in self.others:  # pictures have positions of their own
            return False
        else:  # the model counts columns
            found = past.shape[1] + np.arange(real.shape[1])
        return bool(((found == index) | ~real).all())

    def check_kept(self, dtype: torch.dtype, *, generated: bool) -> None:
        """Refuse what would be computed without the cache, or in another dtype than its own.

        Args:
            dtype: of the pages.
            generated: whether generate() has begun a call.

        Raises:
            UnsupportedModel: a call with ``use_cache=False``. PlanError: autocast.
        """
        if generated and not self.kept:
            why = "with False generate() gives each pass all ids: leave it out, or the cache"
            raise UnsupportedModel("use_cache", why)
        if self.autocast not in (None, dtype):
            right = f"pages are {dtype}: load the model in the dtype to compute in"
            raise PlanError("dtype of autocast", str(self.autocast), right)

    def check_paged(self, past: Any, *, windows: bool) -> None:
        """Refuse masks that octavo's attention, which counts tokens, would not honour.

        Args:
            past: bool[B, L], which of the columns before are tokens.
            windows: whether a layer sees a window.

        Raises:
            UnsupportedModel: the mask hides more than padding, or padding stands where it may not.
        """
        if not is_plain(self.mask, past) or self.hides:
            why = "octavo's attention takes only masks of 2 axes that hide nothing but padding"
            raise UnsupportedModel("attention mask", why)
        real = self.real
        behind = ~real[:, -1] & (real.any(axis=1) | past.any(axis=1))
        if behind.any():
            why = "the model would answer the padding, which octavo's attention does not compute"
            raise UnsupportedModel("padding on the right", f"{why}; pad on the left")
        if windows and (real[:, :-1] & ~real[:, 1:]).any():
            why = "octavo's attention takes windows with padding on the left only"
            raise UnsupportedModel("padding on the right", why)

    def check_chunks(self, past: Any) -> None:
        """Refuse masks by which a row's chunks would begin elsewhere than they did.

        Args:
            past: bool[B, L], which of the columns before are tokens.

        Raises:
            UnsupportedModel: the mask has other axes than two, or another first token of a row.
        """
        begun = past.any(axis=1)
        if self.mask is not None and self.mask.ndim == 2:
            shown = real_of(self.mask, past.shape[0], self.mask.shape[1])
        elif self.mask is None:
            shown = np.ones_like(past)
        else:
            why = "layers with chunked attention go on only with a mask of 2 axes"
            raise UnsupportedModel("attention mask", why)
        if (shown.argmax(axis=1) != past.argmax(axis=1))[begun].any():
            why = "layers with chunked attention count from a row's first token, and it has changed"
            raise UnsupportedModel("attention mask", why)


def ids_of(ids: torch.Tensor | None) -> Any:
    """int64[B, T], or None where tokens are no single ids."""
    if ids is None or ids.ndim != 2:
        return None
    return ids.detach().cpu().numpy().astype(np.int64)


def is_plain(mask: torch.Tensor | None, past: Any) -> bool:
    """Whether a mask hides padding alone, and of the past what was padding then."""
    if mask is None:
        return True
    if getattr(mask, "ndim", None) != 2:  # one a pair of tokens, or one a kind of layer
        return False
    shown = mask[:, : past.shape[1]].cpu().numpy().astype(np.bool_)
    return bool((shown == past).all())


def real_of(mask: torch.Tensor | None, batch: int, new: int, *, by_column: bool = False) -> Any:
    """bool[B, new], which of the last ``new`` columns are tokens.

    Args:
        mask: of 2 axes; others and None hide none.
        batch: rows.
        new: columns.
        by_column: whether columns behind a row's first token are tokens, hidden or not.
    """
    if mask is None or getattr(mask, "ndim", None) != 2:
        return np.ones((batch, new), np.bool_)
    if len(mask) not in (1, batch):
        raise LengthError("rows of attention_mask", len(mask), batch, batch, "those of the batch")
    shown = mask.cpu().numpy().astype(np.bool_)
    if by_column:
        shown = np.logical_or.accumulate(shown, axis=1)
    return np.broadcast_to(shown[:, mask.shape[1] - new :], (batch, new))


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
            raise LengthError(name, type(given).__name__, None, None, "it must be a tensor [B, T]")
    assert isinstance(ids, torch.Tensor)
    if ids.ndim != 2:
        raise LengthError("axes of input_ids", ids.ndim, 2, 2, "one id per token")
    check_int("rows of input_ids", ids.shape[0], 1)
    check_int("columns of input_ids", ids.shape[1], 1)
    if ids.is_floating_point():
        raise TokenError(0, ids[0, 0].item())
    if isinstance(mask, torch.Tensor) and mask.shape != ids.shape:
        right = f"that of input_ids, {tuple(ids.shape)}"
        raise LengthError("shape of attention_mask", tuple(mask.shape), None, None, right)
