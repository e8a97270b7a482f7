"""Following a model: a cache sees the arguments of every forward pass that it is given to.

A cache's `update` sees keys and values and never the ids they belong to. torch's own hooks on
modules do; they are removed with the cache. What a model asks of the cache before it runs, when
generate() prepares positions, `PromptTeller` tells.
"""

import re
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from transformers import GenerationMixin

from octavo.errors import uncopied
from octavo.integrations.transformers.arguments import PassArguments
from octavo.integrations.transformers.attention import NAME_WITH_MASKS, attention_of, eagerly

_PER_TOKEN = ("position_ids", "token_type_ids", "mm_token_type_ids")
_TEXT = ("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels")
_KINDS = "mm_token_type_ids"
"""Which tokens are of pictures or sounds; zeros: none is."""
_PREPARE = "_prepare_position_ids_for_generation"
_PLACEHOLDER = re.compile("(image|video|audio)_token_(id|index)")


class Follower(Protocol):
    """What follows the passes of a model."""

    def before(self, call: PassArguments) -> PassArguments:
        """The model is about to run; returns what it is to be given."""

    def after(self, *, failed: bool) -> None:
        """It has run, or raised."""

    def shown(self, columns: int, *, whole: bool) -> AbstractContextManager[None]:
        """generate() prepares positions of ``columns``, all of them new or the last alone."""


class PromptTeller:
    """In place of the method by which a model prepares positions from the length of its cache.

    generate() calls it before it says that a call begins, so that a length which another prompt
    left would have this one's positions follow on that. Of models with three axes of positions.

    Args:
        model: whose class has a method of its own for it.

    Attributes:
        users: caches that follow the model.
    """

    __reduce__ = uncopied("it stands in for a method of one model")

    def __init__(self, model: Any) -> None:
        self._model, self.users = weakref.ref(model), 0

    def __call__(self, inputs: torch.Tensor, kwargs: dict[str, Any]) -> Any:
        """The model's own answer, after its cache was told."""
        model, cache = self._model(), _cache_of(kwargs)
        prepare = getattr(type(model), _PREPARE)
        if not hasattr(cache, "shown"):
            return prepare(model, inputs, kwargs)
        ids, mask = kwargs.get("input_ids"), kwargs.get("attention_mask")
        new = (inputs if ids is None or not ids.shape[1] else ids).shape[1]
        columns = new if mask is None else mask.shape[1]
        with cache.shown(columns, whole=columns == new):
            return prepare(model, inputs, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PromptTeller":
        return type(self)(memo[id(self._model())])  # of the model's own copy

    def stop(self) -> None:
        """One cache less follows the model."""
        self.users -= 1
        model = self._model()
        if model is not None and not self.users:
            del model.__dict__[_PREPARE]


def _tell(model: Any) -> Callable[[], object]:
    """Have generate() tell the model's cache of prompts, where it must; returns how to stop."""
    if getattr(type(model), _PREPARE, None) in (None, getattr(GenerationMixin, _PREPARE)):
        return lambda: None
    teller: PromptTeller = model.__dict__.setdefault(_PREPARE, PromptTeller(model))
    teller.users += 1
    return teller.stop


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

    first = model.register_forward_pre_hook(eagerly(before), with_kwargs=True)
    second = model.register_forward_hook(eagerly(after), with_kwargs=True, always_call=True)
    third = _tell(model)

    def stop() -> None:
        third()
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
    device = (module if given is None else given).device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    text = not any(_beside_text(name, value) for name, value in kwargs.items())
    return PassArguments(
        ids=ids,
        embeds=embeds,
        mask=kwargs.get("attention_mask"),
        others=others,
        plain=text and not module.training and autocast is None,
        blind=text and _names_pictures(module, ids),
        wanted=wanted if isinstance(wanted, int) else 0,
        paged=attention_of(module) == NAME_WITH_MASKS,
        kept=kwargs.get("use_cache") is not False,
        autocast=autocast,
    )


def _beside_text(name: str, value: Any) -> bool:
    """Whether an argument says what ids do not: of pictures, sounds or kinds of tokens."""
    if not isinstance(value, torch.Tensor) or name in _TEXT:
        return False
    return name != _KINDS or bool(value.any())


def _names_pictures(module: Any, ids: torch.Tensor | None) -> bool:
    """Whether ids have a place for a picture or a sound. O(ids) where the model takes any."""
    config = vars(module.config)
    places = [config[name] for name in config if _PLACEHOLDER.fullmatch(name)]
    known = [place for place in places if isinstance(place, int)]
    if ids is None or not known:
        return False
    return bool(torch.isin(ids, torch.tensor(known, device=ids.device)).any())


def _changed(call: PassArguments, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that have become others."""
    changed: dict[str, Any] = dict(call.others)
    if kwargs.get("input_ids") is not None:
        changed["input_ids"] = call.ids
    if kwargs.get("inputs_embeds") is not None:
        changed["inputs_embeds"] = call.embeds
    return changed
