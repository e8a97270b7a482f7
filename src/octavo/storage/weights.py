"""Which weights pages were computed with, as a name that changes with them.

A name its user gave is taken as it is; a model is named by a digest of its weights and of what its
config says. Knows no pages.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from octavo.errors import PlanError

Weights = torch.nn.Module | str
"""A model, or a text that changes with its weights."""

_NO_MATTER = {
    *("architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"),
    *("output_attentions", "output_hidden_states", "return_dict", "problem_type"),
}
"""Entries of a config that change no key and no value; nor do those that begin with ``_``, nor ids
of special tokens."""


def weights_name(model: object) -> str:
    """A name that two models have in common only where they compute the same keys and values.

    Args:
        model: the model; or a text, which must change with the weights.

    Returns:
        The text, or ``sha256:`` and a digest over the parameters and buffers that ``state_dict``
        has, by name, element type, shape and bytes, and over ``model.config`` where there is one:
        a rope that was scaled by it has the same weights.

    Raises:
        PlanError: neither, a text that is empty, or a weight on the ``meta`` device.

    Cost: O(1) of a text; O(bytes of the weights) of a model, about a second a GB.
    """
    if isinstance(model, str) and model:
        return model
    if not isinstance(model, torch.nn.Module):
        right = "it must be the model itself, or a text that changes with its weights"
        raise PlanError("model", model, right)
    whole: torch.nn.Module = getattr(model, "_orig_mod", model)  # what torch.compile was given
    digest = hashlib.sha256(_config(whole).encode())
    for name, weight in sorted(whole.state_dict().items()):
        if not isinstance(weight, torch.Tensor):  # what a module keeps beside them, as some do
            digest.update(f"{name} {weight!r}\0".encode())
            continue
        if weight.is_meta:
            raise PlanError("model", f"{name} on meta", "its weights must have been loaded")
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\0".encode())
        digest.update(_bytes(weight))
    return f"sha256:{digest.hexdigest()}"


def _bytes(weight: torch.Tensor) -> Any:
    """A tensor's elements in the order of its axes. O(bytes)."""
    plain = weight.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.flatten().view(torch.uint8).numpy().data


def _config(model: torch.nn.Module) -> str:
    """What the model's config says, as text; empty where it has none."""
    as_dict = getattr(getattr(model, "config", None), "to_dict", None)
    return "" if as_dict is None else json.dumps(_telling(as_dict()), sort_keys=True, default=str)


def _telling(config: Mapping[Any, Any]) -> dict[str, Any]:
    """The entries that keys and values may depend on, nested ones too."""
    return {
        str(name): _telling(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if name not in _NO_MATTER and not str(name).startswith("_")
        if not str(name).endswith("_token_id")
    }
