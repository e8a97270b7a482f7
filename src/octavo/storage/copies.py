"""The one function that runs a step's copies, over NumPy arrays and torch tensors alike.

A page may be both a source and a target of one step, so everything is read before anything is
written. Knows arrays whose first axis is pages; torch is not imported.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from octavo.cache.step import Copies


def copy_pages(copies: Mapping[str, Copies], arrays: Mapping[str, Iterable[Any]]) -> None:
    """Run a step's ``copies`` (before the forward pass) or ``snapshots`` (after it).

    Args:
        copies: by group name; page numbers int[k] as a step has them, for torch tensors int64
            tensors on their device.
        arrays: by group name, every array [pages, ...] that holds something of the group's pages.

    Raises:
        KeyError: ``arrays`` lacks a group of ``copies``; nothing is written then.
        IndexError: a source is no page of an array; nothing is written then.

    Cost: O(bytes copied), held twice while it runs.
    """
    read = [
        (array, pages.target, take_pages(array, pages.source))
        for group, pages in copies.items()
        for array in arrays[group]
    ]
    for array, target, content in read:
        put_pages(array, target, content)


def take_pages(array: Any, pages: Any) -> Any:
    """Copies of whole pages, [k, ...]. O(bytes)."""
    if isinstance(array, np.ndarray):
        return array[pages]
    return array.index_select(0, pages)  # up to twice as fast as array[pages]


def put_pages(array: Any, pages: Any, content: Any) -> None:
    """Write ``content`` [k, ...] over whole pages. O(bytes)."""
    if isinstance(array, np.ndarray):
        array[pages] = content
    else:
        array.index_copy_(0, pages, content)
