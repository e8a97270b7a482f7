"""Bytes of the weights that lie beside a config, by an index or the sizes of their files."""

import json
import re
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SETS = (
    *("model*.safetensors", "pytorch_model*.bin", "consolidated*.safetensors"),
    *("consolidated*.pth", "*.gguf"),
)
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.\w+)")


class WeightsFound(NamedTuple):
    """Weights beside a config.

    Attributes:
        bytes: of all tensors; of files without an index, of the files.
        file: name of the file that says so, or of the first of several.
    """

    bytes: int
    file: str


def weights_beside(path: str | PathLike[str]) -> WeightsFound | None:
    """Those in the folder of ``path``, or in the folder that it is; None: there are none.

    An index says its total. Else the files of one model count as they are, all parts of it: of
    safetensors, else of PyTorch's, else of Meta's and Mistral's, else of GGUF. Of several models in
    one format, as of GGUF files quantised in several ways, nobody knows which is meant: None.
    Cost: O(index + files).
    """
    from pathlib import Path  # here: the import costs more than the rest of this module

    path = Path(path)
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf" and path.is_file():
        return _whole(_parts_of(path))
    for name in _INDICES:
        total = _total(folder / name)
        if total is not None:
            return WeightsFound(total, name)
    for pattern in _SETS:
        files = sorted(folder.glob(pattern))
        if files:
            return _whole(files)
    return None


def _parts_of(file: "Path") -> list["Path"]:
    """The files of a model that is split as llama.cpp names its parts; the file itself if not."""
    found = _PART.fullmatch(file.name)
    if found is None:
        return [file]
    return sorted(file.parent.glob(f"{found[1]}-*-of-{found[3]}{found[4]}"))


def _whole(files: Sequence["Path"]) -> WeightsFound | None:
    """Bytes of the files of one model: one file, all its numbered parts, or shards by rank."""
    parts = [_PART.fullmatch(file.name) for file in files]
    if any(parts):
        models = {(part[1], part[3]) for part in parts if part}
        if not all(parts) or len(models) > 1 or len(files) != int(next(iter(models))[1]):
            return None
    elif len(files) > 1 and not files[0].name.startswith("consolidated."):
        return None
    return WeightsFound(sum(file.stat().st_size for file in files), files[0].name)


def _total(index: "Path") -> int | None:
    """``metadata.total_size`` of an index, else the sizes of its files; None: neither is there."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict):
        return None
    about, listed = content.get("metadata"), content.get("weight_map")
    total = about.get("total_size") if isinstance(about, dict) else None
    if isinstance(total, int | float) and not isinstance(total, bool) and total > 0:
        return int(total)
    names = set(map(str, listed.values())) if isinstance(listed, dict) else set()
    files = [index.with_name(name) for name in names if "/" not in name]
    if not files or not all(file.is_file() for file in files):
        return None
    return sum(file.stat().st_size for file in files)
