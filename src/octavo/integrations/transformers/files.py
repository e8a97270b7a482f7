"""Prefixes of a drop-in cache in files, over `octavo.storage`'s.

Knows ids and files; no passes and no rows.
"""

from contextlib import AbstractContextManager
from os import PathLike
from typing import Any

import torch

from octavo.cache.cache import Cache
from octavo.checks import check_int
from octavo.integrations.transformers.arguments import check_prompt, ids_of
from octavo.storage import Storage, load_prefix, save_prefix


class PrefixFiles:
    """What a drop-in cache can do with files.

    Attributes:
        pages: that own the prefixes.
        storage: that has their bytes.
    """

    pages: Cache
    storage: Storage

    def _at_rest(self) -> AbstractContextManager[Any]:
        """For a time when no pass is open; gives the model."""
        raise NotImplementedError

    def save(self, path: str | PathLike[str], input_ids: torch.Tensor) -> int:
        """Save what is found of a prompt to a file, for `load` in another process.

        Args:
            path: the file; replaced where it exists.
            input_ids: [T] or [1, T].

        Returns:
            Tokens saved: whole pages.

        Raises:
            LengthError: several rows, or no page of them is there. TokenError: not ids.
            UnsupportedModel, OSError: as `octavo.storage.save_prefix`.

        Cost: O(bytes of the pages, and of the weights, whose digest is saved).
        """
        alone = isinstance(input_ids, torch.Tensor) and input_ids.ndim == 1
        rows = input_ids[None] if alone else input_ids
        check_prompt(rows, None)
        check_int("rows of input_ids", len(rows), 1, 1)
        with self._at_rest() as model:
            return save_prefix(path, self.pages, self.storage, ids_of(rows)[0], model=model)

    def load(self, path: str | PathLike[str]) -> int:
        """Have prompts find what `save` wrote, of the same model with the same weights.

        Returns:
            Tokens that a prompt can find now.

        Raises:
            PageFileMismatch: of another model, other weights or another plan.
            PageFileError, OSError: no such file, or damaged. OutOfPages: no room for it.

        Cost: O(bytes of the pages, and of the weights).
        """
        with self._at_rest() as model:
            return load_prefix(path, self.pages, self.storage, model=model)
