"""Following a model: a cache sees the arguments of every forward pass that it is given to.

A cache's `update` sees keys and values and never the ids they belong to. torch's own hooks on
modules do; they are removed with the cache.
"""

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from octavo.integrations.transformers.arguments import PassArguments
from octavo.integrations.transformers.attention import NAME_WITH_MASKS, attention_of

_PER_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids")
_TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels")


class Follower(Protocol):
    """What follows the passes of a model."""

    def before(self, call: PassArguments) -> PassArguments:
        """The model is about to run; returns what it is to be given."""

    def after(self, *, failed: bool) -> None:
        """It has run, or raised."""


def follow(model: Any, cache: Follower) -> Callable[[], object]:
    """Call ``cache`` around every pass of ``model`` that it is given to; returns how to stop.

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
        return args, kwargs | _changed(cache.before(call), kwargs)

    def after(_module: Any, _args: Any, *rest: Any) -> None:
        cache = known()
        if cache is not None and len(rest) == 2 and _cache_of(rest[0]) is cache:
            cache.after(failed=rest[1] is None)  # torch gives none where the model raised

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


def _read(module: Any, kwargs: dict[str, Any]) -> PassArguments:
    ids, embeds = kwargs.get("input_ids"), kwargs.get("inputs_embeds")
    given = embeds if ids is None else ids
    new = 0 if given is None else given.shape[1]
    others = {
        name: kwargs[name]
        for name in _PER_TOKEN
        if isinstance(kwargs.get(name), torch.Tensor) and kwargs[name].shape[-1] == new
    }
    wanted = kwargs.get("logits_to_keep", 0)
    return PassArguments(
        ids=ids,
        embeds=embeds,
        mask=kwargs.get("attention_mask"),
        others=others,
        plain=not module.training
        and all(name in _TEXT for name, value in kwargs.items() if isinstance(value, torch.Tensor)),
        wanted=wanted if isinstance(wanted, int) else 0,
        paged=attention_of(module) == NAME_WITH_MASKS,
    )


def _changed(call: PassArguments, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that have become others."""
    changed: dict[str, Any] = dict(call.others)
    if kwargs.get("input_ids") is not None:
        changed["input_ids"] = call.ids
    if kwargs.get("inputs_embeds") is not None:
        changed["inputs_embeds"] = call.embeds
    return changed
