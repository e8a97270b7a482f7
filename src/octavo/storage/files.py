"""Pages in a file, readable by any storage of the same model, dtype and geometry.

The format is safetensors: a tensor for each component of each layer, ``group.layer.component``
[pages, ...] (states: [states, ...]), so that neither layout nor size of the pool matter. Its
metadata holds a fingerprint, what the caller adds, and a SHA-256 over all of it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from octavo.checks import check_int, check_path
from octavo.errors import LengthError, PageFileError, PageFileMismatch, PlanError
from octavo.storage.addresses import Ints, PageIndex
from octavo.storage.fields import ComponentField
from octavo.storage.store import Storage
from octavo.storage.weights import Weights, weights_name

_FORMAT = "octavo pages 1"
_OWN = "octavo."  # begins every entry of the metadata that is not the caller's

Named = Mapping[str, torch.Tensor]


def fingerprint(storage: Storage, model: Weights) -> dict[str, str]:
    """What must be equal for pages to mean the same, beside the tensors' shapes.

    Args:
        storage: the pages'.
        model: what computed them, as in `save_pages`.

    Raises:
        PlanError: ``model`` names no weights.

    Cost: O(layers), and O(bytes of the weights) where ``model`` has them.
    """
    plan = storage.plan
    assert plan.elements is not None
    types = plan.elements
    if storage.draft.fields and not isinstance(model, str):
        right = "the plan has a draft model too: a text that changes with the weights of both"
        raise PlanError("model", type(model).__name__, right)
    return {
        "format": _FORMAT,
        "model": weights_name(model),
        "dtype": f"{types.kv}, scales {types.scales}, recurrent {types.recurrent}, "
        f"conv {types.conv}, indexer {types.indexer}",
        "scales": json.dumps([storage.given_scales(), storage.draft.given_scales()]),
        "page_size": str(plan.page_size),
        "order": plan.order,
        "groups": ", ".join(f"{name} ({len(g.layers)})" for name, g in plan.groups.items()),
    }


def save_pages(
    path: str | os.PathLike[str],
    storage: Storage,
    pages: Mapping[str, Ints],
    *,
    model: Weights,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write pages to a file, whole or not at all.

    Args:
        path: the file; replaced where it exists.
        storage: where the pages are.
        pages: by group name, int[k] page ids; of states int[n, parts].
        model: what computed them: the model itself, whose weights are then read; or a text that
            changes with them, such as a path and revision, and with tensor parallelism the rank.
            A plan with a draft model needs a text, for both.
        metadata: text to find again in `PageFile.metadata`.

    Raises:
        UnknownGroup, PlanError, LengthError: no path, no such pages, a ``model`` that names no
            weights, or ``metadata`` that is no text, or begins as octavo's own entries do.
        OSError: the file cannot be written.

    Cost: O(bytes of the pages), held once more in host memory; of a ``model`` that is no text also
    O(bytes of its weights).
    """
    place = check_path("path", path)
    indices = {group: _index(storage, group, ids) for group, ids in pages.items()}
    held = {} if metadata is None else _checked(metadata)
    held |= {_OWN + key: value for key, value in fingerprint(storage, model).items()}
    tensors = {
        name: field.take_pages(_column(field, indices[group])).cpu()
        for name, group, field in _fields(storage)
        if group in indices
    }
    held[f"{_OWN}checksum"] = _checksum(tensors, held)
    _replace(place, tensors, held)


class PageFile(NamedTuple):
    """Pages read from a file and found whole, and of this model, dtype and geometry.

    Attributes:
        path: the file.
        tensors: by name, on the host.
        counts: by group name, its pages (states).
        metadata: what `save_pages` was given.
    """

    path: str
    tensors: Named
    counts: Mapping[str, int]
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, path: str | os.PathLike[str], storage: Storage, *, model: Weights) -> "PageFile":
        """Read and verify a file that `save_pages` wrote; the storage is not changed.

        Args:
            path: the file.
            storage: where the pages are to go.
            model: as in `save_pages`.

        Raises:
            PlanError: no path; ``model`` names no weights.
            PageFileMismatch: of another model, dtype or geometry; names both sides.
            PageFileError: not there, no file of pages, truncated or damaged.

        Cost: O(bytes of the file), and as `save_pages` of the ``model``.
        """
        name = str(check_path("path", path))
        tensors, held = _load(name)
        _verify(name, tensors, held)
        _compare(name, held, fingerprint(storage, model))
        counts = _counts(name, tensors, storage)
        _check_scales(name, tensors)
        own = {key: value for key, value in held.items() if not key.startswith(_OWN)}
        return cls(name, tensors, counts, own)

    def write(self, storage: Storage, group: str, rows: slice, pages: Ints) -> None:
        """Put pages of the file into pages of the storage it was read for.

        Args:
            storage: that storage.
            group: name.
            rows: which of the group's pages in the file.
            pages: as many pages of the storage; of states int[n, parts].

        Raises:
            UnknownGroup, PlanError, LengthError: no such pages, or one twice. Nothing has been
                written then.

        Cost: O(bytes).
        """
        index = self._targets(storage, group, rows, pages)
        for name, owner, field in _fields(storage):
            if owner == group:
                content = self.tensors[name][rows].to(storage.device)
                field.put_pages(_column(field, index), content)

    def _targets(self, storage: Storage, group: str, rows: slice, pages: Ints) -> PageIndex:
        """Where ``rows`` of a group go, checked. O(pages * log pages)."""
        index = storage.addresses.written(_index(storage, group, pages), group)
        wanted = len(range(self.counts.get(group, 0))[rows])
        name = f"pages of {group}"
        check_int(name, len(index.pages), wanted, wanted, "as many as in the file")
        return index


def load_pages(
    path: str | os.PathLike[str],
    storage: Storage,
    pages: Mapping[str, Ints],
    *,
    model: Weights,
) -> Mapping[str, str]:
    """Read a file of `save_pages` into pages of a storage.

    Args:
        path: the file.
        storage: where they go.
        pages: by group name, as many pages as the file holds; not the null page.
        model: as in `save_pages`.

    Returns:
        The metadata that was saved with them.

    Raises:
        PageFileMismatch, PageFileError: as `PageFile.read`.
        UnknownGroup, PlanError, LengthError: no such pages, one twice, or not as many as the file
            holds. Nothing has been written then.

    Cost: as `PageFile.read`.
    """
    file = PageFile.read(path, storage, model=model)
    if pages.keys() != file.counts.keys():
        right = f"the file holds {', '.join(file.counts)}"
        raise LengthError("groups", sorted(pages), None, None, right)
    for group, ids in pages.items():
        file._targets(storage, group, slice(None), ids)
    storage.addresses.all_written(pages)
    for group, ids in pages.items():
        file.write(storage, group, slice(None), ids)
    return file.metadata


def _index(storage: Storage, group: str, pages: Ints) -> PageIndex:
    """Page ids [k], of states [n, parts]."""
    index, plan = storage.page_index(pages, group), storage.plan.groups[group]
    axes = 2 if plan.lifetime.form == "state" else 1
    check_int(f"axes of pages of {group}", index.pages.ndim, axes, axes)
    if axes == 2:
        check_int(f"parts of pages of {group}", index.pages.shape[1], plan.parts, plan.parts)
    return index


def _checked(metadata: object) -> dict[str, str]:
    """The caller's metadata; PlanError where it is no text, or takes names of octavo's own."""
    texts: dict[Any, Any] = dict(metadata) if isinstance(metadata, Mapping) else {None: None}
    if not all(isinstance(text, str) for entry in texts.items() for text in entry):
        raise PlanError("metadata", metadata, "it must map text to text")
    for name in texts:
        if name.startswith(_OWN):
            raise PlanError("metadata", name, f"names that begin with {_OWN} are octavo's own")
    return texts


def _fields(storage: Storage) -> Iterator[tuple[str, str, ComponentField]]:
    """(name in a file, group, field) of every component, the draft's too."""
    for prefix, layers in (("", storage), ("draft.", storage.draft)):
        for (layer, group, component), field in layers.fields.items():
            yield f"{prefix}{group}.{layer}.{component}", group, field


def _column(field: ComponentField, index: PageIndex) -> torch.Tensor:
    """The pages that hold a field: of states those of its part."""
    return index.pages if index.pages.ndim == 1 else index.pages[:, field.plan.part]


def _checksum(tensors: Named, metadata: Mapping[str, str]) -> str:
    """SHA-256 over metadata, names, types, shapes and bytes, in the order of names."""
    covered = {key: value for key, value in metadata.items() if key != f"{_OWN}checksum"}
    shapes = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(tensors.items())]
    digest = hashlib.sha256(json.dumps([covered, shapes], sort_keys=True).encode())
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _replace(path: Path, tensors: Named, metadata: dict[str, str]) -> None:
    """Write a new file beside ``path`` and move it there."""
    from safetensors.torch import save_file  # here: storage itself needs torch alone

    with TemporaryDirectory(dir=path.parent, prefix=".saving-") as apart:
        whole, plain = Path(apart) / "pages", Path(apart) / "plain"
        save_file(dict(tensors), whole, metadata)
        plain.touch()  # safetensors lets the owner alone read; this one has the umask's mode
        whole.chmod(S_IMODE(plain.stat().st_mode))
        whole.replace(path)


def _load(path: str) -> tuple[Named, dict[str, str]]:
    from safetensors import SafetensorError, safe_open  # as above

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise PageFileError(path, f"it cannot be read: {error}") from None


def _verify(path: str, tensors: Named, held: Mapping[str, str]) -> None:
    if f"{_OWN}checksum" not in held:
        raise PageFileError(path, "it has no checksum that octavo wrote, so it is no file of pages")
    if held[f"{_OWN}checksum"] != _checksum(tensors, held):
        raise PageFileError(path, "its checksum differs: it is damaged")


def _compare(path: str, held: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for key, here in wanted.items():
        saved = held.get(_OWN + key, "")
        if saved != here:
            raise PageFileMismatch(path, key, saved, here)


def _counts(path: str, tensors: Named, storage: Storage) -> dict[str, int]:
    """Pages by group; of every group that is there each tensor is there, as planned."""
    planned = {name: (group, field) for name, group, field in _fields(storage)}
    there = {planned[name][0] for name in tensors if name in planned}
    wanted = {name: _kind(field.view) for name, (group, field) in planned.items() if group in there}
    for name in wanted | dict.fromkeys(tensors):
        saved = _kind(tensors[name]) if name in tensors else "nothing"
        if saved != wanted.get(name, "nothing"):
            raise PageFileMismatch(path, name, saved, wanted.get(name, "nothing"))
    counts = {planned[name][0]: len(tensor) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if len(tensor) != counts[planned[name][0]]:
            raise PageFileError(path, f"{name} has {len(tensor)} pages, others have more or fewer")
    return counts


def _check_scales(path: str, tensors: Named) -> None:
    """Refuse scales that no numbers have; NaN would spread from them. O(scales)."""
    for name, tensor in tensors.items():
        if name.endswith("_scale") and not bool((tensor.isfinite() & (tensor >= 0)).all()):
            raise PageFileError(path, f"{name} is negative or not finite somewhere")


def _kind(pages: torch.Tensor) -> str:
    """Type and shape of one page, in words."""
    if not pages.ndim:
        return "a single number"
    return f"{list(pages.shape[1:])} of {str(pages.dtype).removeprefix('torch.')}"
