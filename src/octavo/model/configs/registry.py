"""What a row of the table of families holds, and what comes of reading a config by one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from octavo.model.configs.fields import Fields
from octavo.model.layers import Layer

Reader = Callable[[Fields], list[Layer]]
Predictors = Callable[[Fields, list[Layer]], tuple[Layer, ...]]


class ModelLayers(NamedTuple):
    """What a config says; the attributes are those of `octavo.ModelSpec`."""

    name: str
    layers: tuple[Layer, ...]
    max_length: int | None
    mtp: tuple[Layer, ...] = ()
    depth: "ModelLayers | None" = None
    notes: tuple[str, ...] = ()


class Family(NamedTuple):
    """A row of the table.

    Attributes:
        read: from the fields to the layers.
        defaults: what fields that are left out are; None: nothing, as if the file said null.
        mtp: from the fields and the layers to those that predict more than one token.
    """

    read: Reader
    defaults: Mapping[str, Any]
    mtp: Predictors


def like_the_last(fields: Fields, layers: list[Layer]) -> tuple[Layer, ...]:
    """``num_nextn_predict_layers`` layers that keep what the last layer does."""
    count = fields.layer_count("num_nextn_predict_layers", default=0, low=0)
    return (layers[-1],) * count


Sizes = tuple[int | None, int | None, int | None, int | None, int | None, int | None]
_COMMON = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_NONE: Mapping[str, Any] = {}


BY_HAND = "give its layers by hand: ModelSpec(name, layers=(octavo.Attention(...), ...))"
"""What to do about a model that no reader knows."""


def nearest_first(name: object, known: Iterable[str]) -> list[str]:
    """The known names, those most like ``name`` first. O(known)."""
    from difflib import get_close_matches

    names = sorted(known)
    near = get_close_matches(name.lower(), names, 5) if isinstance(name, str) else []
    return [*near, *(item for item in names if item not in near)]


def row(
    read: Reader,
    sizes: Sizes,
    more: Mapping[str, Any] = _NONE,
    mtp: Predictors = like_the_last,
) -> Family:
    """A family by its reader, the defaults that all families have, and those of its own."""
    return Family(read, {**dict(zip(_COMMON, sizes, strict=True)), **more}, mtp)
