"""Following a model: what each forward pass is given, told to the cache that is given with it.

A cache's `update` sees keys and values and never the ids they belong to. torch's own hooks on
modules do; they are removed with the cache.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from octavo.integrations.transformers.attention import NAME

_PER_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids")
_TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels")


@dataclass(frozen=True)
class Call:
    """The arguments of a forward pass that concern a cache.

    Attributes:
        ids: [B, q] or [B, q, codebooks]; None: embeddings are given instead.
        embeds: [B, q, width]; None: ids are given.
        mask: [B, L] or of another form; None: there is no padding.
        others: further arguments with an entry a token.
        plain: whether ids and positions say all: no pictures, sounds or kinds of tokens are given,
            and nothing is dropped at random.
        wanted: last positions whose logits are wanted; 0: all, or unknown.
        paged: whether the model attends by octavo's own attention.
    """

    ids: torch.Tensor | None
    embeds: torch.Tensor | None
    mask: torch.Tensor | None
    others: dict[str, torch.Tensor]
    plain: bool
    wanted: int
    paged: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and new columns."""
        given = self.embeds if self.ids is None else self.ids
        assert given is not None
        return given.shape[0], given.shape[1]

    def total(self, *, counted: bool) -> int | None:
        """Columns up to the last new one; None: it is not said.

        Args:
            counted: whether positions that follow on each other are columns where no mask is
                given: generate() drops a mask without padding.
        """
        if self.mask is not None and getattr(self.mask, "ndim", None) == 2:
            return self.mask.shape[1]
        positions = self.others.get("position_ids")
        if not counted or positions is None or positions.ndim != 2:
            return None
        first = positions[0, 0]
        told = torch.arange(positions.shape[1], device=first.device) + first
        return int(told[-1]) + 1 if torch.equal(told, positions[0].long()) else None

    def behind(self, start: int) -> "Call":
        """The same without the first ``start`` new columns."""
        return replace(
            self,
            ids=None if self.ids is None else self.ids[:, start:],
            embeds=None if self.embeds is None else self.embeds[:, start:],
            others={name: value[..., start:] for name, value in self.others.items()},
        )


class Follower(Protocol):
    """What is told of passes."""

    def before(self, call: Call) -> Call:
        """The model is about to run; returns what it is to be given."""

    def after(self, *, failed: bool) -> None:
        """It has run, or raised."""


def watch(model: Any, cache: Follower) -> Callable[[], object]:
    """Tell ``cache`` of every pass of ``model`` that it is given to; returns how to stop.

    The hooks know the cache weakly and go with it.
    """
    known = weakref.ref(cache)

    # torch leaves kwargs out while another thread is adding or removing the hook: not our pass
    def before(module: Any, args: Any, kwargs: dict[str, Any] | None = None) -> Any:
        cache = known()
        if cache is None or kwargs is None or _cache_of(kwargs) is not cache:
            return None
        if args:
            args, kwargs = args[1:], kwargs | {"input_ids": args[0]}
        call = _read(module, kwargs)
        return args, kwargs | _written(cache.before(call), kwargs)

    def after(_module: Any, _args: Any, *told: Any) -> None:
        cache = known()
        if cache is not None and len(told) == 2 and _cache_of(told[0]) is cache:
            cache.after(failed=told[1] is None)  # torch gives none where the model raised

    first = model.register_forward_pre_hook(before, with_kwargs=True)
    second = model.register_forward_hook(after, with_kwargs=True, always_call=True)

    def stop() -> None:
        first.remove()
        second.remove()

    return weakref.finalize(cache, stop)


def _cache_of(kwargs: dict[str, Any]) -> Any:
    """The cache a pass is given, by its newer or its older name."""
    found = kwargs.get("cache")
    return kwargs.get("past_key_values") if found is None else found


def _read(module: Any, kwargs: dict[str, Any]) -> Call:
    ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    given = embeds if ids is None else ids
    new = 0 if given is None else given.shape[1]
    others = {
        name: kwargs[name]
        for name in _PER_TOKEN
        if isinstance(kwargs.get(name), torch.Tensor) and kwargs[name].shape[-1] == new
    }
    wanted = kwargs.get("logits_to_keep", 0)
    config = module.config.get_text_config(decoder=True)
    return Call(
        ids=ids,
        embeds=embeds,
        mask=kwargs.get("attention_mask"),
        others=others,
        plain=not module.training
        and all(name in _TEXT for name, value in kwargs.items() if isinstance(value, torch.Tensor)),
        wanted=wanted if isinstance(wanted, int) else 0,
        paged=config._attn_implementation == NAME,
    )


def _written(call: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that have become others."""
    changed: dict[str, Any] = dict(call.others)
    if kwargs.get("input_ids") is not None:
        changed["input_ids"] = call.ids
    if kwargs.get("inputs_embeds") is not None:
        changed["inputs_embeds"] = call.embeds
    return changed
