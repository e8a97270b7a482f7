"""Bytes of the weights that lie beside a config, read from the headers of their files alone."""

import json
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_INDEX = "model.safetensors.index.json"


class WeightsFound(NamedTuple):
    """Weights beside a config.

    Attributes:
        bytes: of all tensors.
        file: name of the file that says so.
    """

    bytes: int
    file: str


def weights_beside(path: str | PathLike[str]) -> WeightsFound | None:
    """Those in the folder of ``path``, or in the folder that it is; None: there are none.

    An index of safetensors says its total; else the one GGUF file there is counts as it is.
    Cost: O(index).
    """
    from pathlib import Path  # here: the import costs more than the rest of this module

    if Path(path).suffix == ".gguf" and Path(path).is_file():
        return WeightsFound(Path(path).stat().st_size, Path(path).name)
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    total = _total(folder / _INDEX)
    if total is not None:
        return WeightsFound(total, _INDEX)
    files = sorted(folder.glob("*.gguf"))
    return WeightsFound(files[0].stat().st_size, files[0].name) if len(files) == 1 else None


def _total(index: "Path") -> int | None:
    """``metadata.total_size`` of an index; None: there is none that says it."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    about = content.get("metadata") if isinstance(content, dict) else None
    total = about.get("total_size") if isinstance(about, dict) else None
    if not isinstance(total, int | float) or isinstance(total, bool) or total <= 0:
        return None
    return int(total)
