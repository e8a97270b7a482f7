"""The one function that runs a step's copies, over NumPy arrays and torch tensors alike.

A page may be both a source and a target of one step, so everything is read before anything is
written. Knows arrays whose first axis is pages; torch is not imported.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.views import Copies
from octavo.checks import check_apart, check_int, check_mapping, entries_of
from octavo.errors import LengthError, PlanError, UnknownGroup

Arrays = Mapping[str, Iterable[Any]]


def copy_pages(
    copies: Mapping[str, Copies], arrays: Arrays, fresh: Mapping[str, Any] | None = None
) -> None:
    """Run a step's ``copies`` (before the forward pass) or ``snapshots`` (after it).

    Args:
        copies: by group name; page numbers int[k] as a step has them, for torch tensors int64
            tensors on their device, which is waited for.
        arrays: by group name, every array [pages, ...] that holds something of the group's pages.
        fresh: by group name, pages to fill with zeros, such as the step's ``fresh``: after all
            sources are read and before any target is written. None: none.

    Raises:
        UnknownGroup: ``arrays`` lacks a group.
        PlanError: page numbers that are no array of ints; a target that stands twice, in one group
            or in two that have an array in common.
        LengthError: a page that an array does not have, the null page as a target or among the
            fresh ones, or not as many targets as sources. Nothing is written in any of these cases.

    Cost: O(bytes copied), held twice while it runs.
    """
    copies, arrays = check_mapping("copies", copies), check_mapping("arrays", arrays)
    fresh = {} if fresh is None else check_mapping("fresh", fresh)
    held = {group: _of(arrays, group) for group in {**copies, **fresh}}
    targets: dict[str, NDArray[np.int64]] = {}
    writers: dict[int, list[str]] = {}  # by array, the groups that have it
    for group, pages in copies.items():
        if not isinstance(pages, Copies):
            raise PlanError(
                f"copies of {group}", pages, "it must be Copies, of which page to which"
            )
        source = _numbers(f"source of {group}", pages.source, 0, held[group])
        target = _numbers(f"target of {group}", pages.target, 1, held[group])
        check_int(f"targets of {group}", target.size, source.size, source.size, "one a source")
        targets[group] = target
        for array in held[group]:
            writers.setdefault(id(array), []).append(group)
    for groups in {tuple(each) for each in writers.values()}:
        name = f"target of {' and '.join(groups)}"
        check_apart(name, np.concatenate([targets[group] for group in groups]))
    for group, ids in fresh.items():
        _numbers(f"fresh page of {group}", ids, 1, held[group])
    move_pages(copies, held, fresh)


def move_pages(copies: Mapping[str, Copies], arrays: Arrays, fresh: Mapping[str, Any]) -> None:
    """The same of page numbers that were checked. O(bytes)."""
    read = [
        (array, pages.target, take_pages(array, pages.source))
        for group, pages in copies.items()
        for array in arrays[group]
    ]
    for group, pages in fresh.items():
        for array in arrays[group]:
            clear_pages(array, pages)
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


def clear_pages(array: Any, pages: Any) -> None:
    """Fill whole pages with zeros. O(bytes)."""
    if isinstance(array, np.ndarray):
        array[pages] = 0
    else:
        array.index_fill_(0, pages, 0)


def _of(arrays: Arrays, group: str) -> list[Any]:
    if not isinstance(group, str) or group not in arrays:
        raise UnknownGroup(group, list(arrays))
    right = "it must be a list of arrays"
    return entries_of(arrays[group], lambda: PlanError(f"arrays of {group}", arrays[group], right))


def _numbers(name: str, pages: Any, low: int, arrays: list[Any]) -> NDArray[np.int64]:
    """Page numbers that all these arrays have, as NumPy's; of none, any."""
    try:
        found = np.asarray(pages.tolist() if hasattr(pages, "tolist") else pages)
    except Exception as error:
        raise PlanError(name, pages, "pages are one axis of ints") from error
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise PlanError(name, pages, "pages are one axis of ints")
    high = min(map(len, arrays), default=2**63) - 1
    for page in found[(found < low) | (found > high)][:1].tolist():
        raise LengthError(name, page, low, high, "the null page is never written" * low)
    return found.astype(np.int64)
