"""A decoder's weights by the names they have in a Hugging Face state dict: their shapes, checked.

Knows names and shapes; what they are for stands in the decoder and its layers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import PlanError
from octavo.model.layers import Shape

Floats = NDArray[np.floating[Any]]
Weights = Mapping[str, NDArray[Any]]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def check_weights(shapes: Mapping[str, Shape], weights: Weights, *, tied: bool | None) -> None:
    """Whether ``weights`` are of these names and shapes. O(weights).

    Args:
        shapes: by name.
        weights: by name.
        tied: whether the embedding gives the logits: `HEAD` may then be left out, or must be equal
            to it; None: it may be left out, and the embedding then serves.

    Raises:
        PlanError: one is missing, unknown, of another shape, or no array of floats; a head of its
            own beside a tied embedding.
    """
    for name in weights:
        if name not in shapes:
            raise PlanError("weights", name, "this decoder has no weight of that name")
    for name, shape in shapes.items():
        if name in weights:
            _check_weight(name, weights[name], shape)
        elif name != HEAD or tied is False:
            raise PlanError("weights", list(weights), f"{name} of shape {shape} is missing")
    if tied and HEAD in weights and not np.array_equal(weights[HEAD], weights[EMBEDDING]):
        raise PlanError(HEAD, "another than the embedding", "the config says that they are tied")


def _check_weight(name: str, values: object, shape: Shape) -> None:
    found = getattr(values, "shape", None)
    if found != shape:
        raise PlanError(name, found, f"its shape must be {shape}")
    if not isinstance(values, np.ndarray) or not np.can_cast(values.dtype, np.float64):
        right = "it must be a NumPy array of floats; of a tensor, tensor.float().numpy()"
        raise PlanError(name, str(getattr(values, "dtype", None)), right)


def random_weights(shapes: Mapping[str, Shape], seed: int) -> dict[str, Floats]:
    """Weights drawn at random: float32; vectors are about 1. O(their size)."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            rng.normal(1, 0.1, shape) if len(shape) == 1 else rng.normal(0, shape[1] ** -0.5, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }


def split_fused(weights: Weights, parts: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Weights with each fused map as the maps it is made of, which are views of its rows.

    Args:
        weights: by name; a fused map's is ``{prefix}.{first}_{second}..._proj.weight``, such as
            ``qkv_proj`` or ``gate_up_proj``.
        parts: by name of a map (``q_proj``), its rows; a fused one has those it names, in order.

    Cost: O(weights).
    """
    found = {}
    for name, values in weights.items():
        prefix, _, last = name.removesuffix(".weight").rpartition(".")
        if last not in FUSED:
            found[name] = values
            continue
        stops = np.cumsum([parts[part] for part in FUSED[last]])
        for part, rows in zip(FUSED[last], np.split(values, stops[:-1]), strict=True):
            found[f"{prefix}.{part}.weight"] = rows
    return found


FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Fused linear maps (Phi-3), and the maps whose rows they hold, in order."""
