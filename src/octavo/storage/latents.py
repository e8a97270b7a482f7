"""Latent rows of one layer, and the keys of its indexer."""

import torch

from octavo.planner.components import LATENT_TILE
from octavo.storage.fields import ComponentField, WriteIndex
from octavo.storage.keyvalues import check_floats, check_shape
from octavo.storage.quantisation import decode_tiles, encode_tiles

Parts = list[tuple[ComponentField, torch.Tensor]]


class LatentRows:
    """One row a token: a latent with its position part, or an indexer's key.

    In 8 bits each `octavo.planner.components.LATENT_TILE` elements have a scale; the position part
    is kept in bf16.

    Args:
        name: ``latent`` or ``indexer``.
        fields: the layer's fields by component.
    """

    def __init__(self, name: str, fields: dict[str, ComponentField]) -> None:
        self._name, self._field = name, fields[name]
        self._scale = fields.get(f"{name}_scale")
        self._rope = fields.get("rope") if name == "latent" else None
        self._dtype, self.group = self._field.plan.dtype, self._field.plan.group
        self._own = self._field.view.shape[-1]
        self.width = self._own + (0 if self._rope is None else self._rope.view.shape[-1])

    def check(self, new: torch.Tensor, tokens: int) -> None:
        """Whether ``new`` is [tokens, width] of a type that is stored here. O(1)."""
        view = self._field.view
        check_floats(self._name, new, view.dtype if self._scale is None else None, view.device)
        check_shape(self._name, new, (tokens, self.width), "slots, width")

    def write(self, new: torch.Tensor, index: WriteIndex) -> None:
        """See `Storage.write_latent`."""
        self.check(new, index.tokens)
        for field, rows in self._encoded(index.select(new)):
            field.put(index, rows)

    def _encoded(self, new: torch.Tensor) -> Parts:
        if self._scale is None:
            return [(self._field, new)]
        own = new[:, : self._own]
        stored, scales = encode_tiles(self._name, own, self._dtype, LATENT_TILE)
        found = [(self._field, stored), (self._scale, scales)]
        if self._rope is not None:
            found.append((self._rope, new[:, self._own :].to(self._rope.view.dtype)))
        return found

    def gather(self, pages: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """See `Storage.gather_latent`."""
        stored = self._field.take(pages)[start:stop]
        if self._scale is None:
            return stored
        scales = self._scale.take(pages)[start:stop]
        found = decode_tiles(stored, self._dtype, scales, LATENT_TILE)
        if self._rope is None:
            return found
        return torch.cat((found, self._rope.take(pages)[start:stop].float()), -1)
