"""The file ``config.json``: found, read and refused where it is none.

Knows JSON, and no field of a config.
"""

import json
import re
import stat
from os import PathLike
from typing import TYPE_CHECKING, Any

from octavo.checks import first_twice
from octavo.errors import ConfigError
from octavo.model.configs.gguf_file import gguf_metadata

if TYPE_CHECKING:
    from pathlib import Path

_MAX_CONFIG_BYTES = 64 * 2**20
_HUB = "of a model on a hub, save its config.json first and give that file"


def load_config(path: str | PathLike[str]) -> dict[str, Any]:
    """The content of ``path``; for a folder of its ``config.json``, else its ``params.json``.

    Of a ``.gguf`` file its metadata, by the file's own keys; of a folder too where one model's GGUF
    file, or parts of it, are all there is.

    Raises:
        ConfigError: no such file, no regular file of at most 64 MiB, not UTF-8 JSON, or not a JSON
            object.
    """
    from pathlib import Path  # here: the import costs more than the rest of this module

    if not isinstance(path, (str, PathLike)) or not str(path):
        raise ConfigError("path", path, "it must be the path of a config.json or of its folder")
    file = Path(path)
    try:
        file = _in_folder(file) if file.is_dir() else file
        about = file.stat()
        if file.suffix == ".gguf" and stat.S_ISREG(about.st_mode):
            return gguf_metadata(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MAX_CONFIG_BYTES:
            right = f"it must be a regular file of at most {_MAX_CONFIG_BYTES} bytes"
            raise ConfigError("path", str(file), right)
        config = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except FileNotFoundError:
        raise ConfigError("path", str(path), _missing(Path(path))) from None
    except OSError as error:
        raise ConfigError("path", str(file), error.strerror or "cannot be read") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("path", str(file), f"not a JSON file: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError("path", str(file), "a config is a JSON object")
    return _with_quantisation(config, file)


def _missing(path: "Path") -> str:
    """What is not there, and what to do where it looks like the name of a model on a hub."""
    if path.is_dir():
        return "the folder has no config.json"
    if looks_like_hub_name(str(path)):
        return f"there is no such folder here; {_HUB}"
    where = "" if path.parent.is_dir() else f", nor a folder {str(path.parent)!r}"
    return f"there is no such file or folder{where}"


def looks_like_hub_name(name: str) -> bool:
    """Whether it may be ``organisation/model``. O(1)."""
    organisation, _, model = name.partition("/")
    plain = all(part and not part.startswith(".") for part in (organisation, model))
    return plain and "/" not in model and not model.endswith((".json", ".gguf"))


def _with_quantisation(config: dict[str, Any], file: "Path") -> dict[str, Any]:
    """The config with what ModelOpt's ``hf_quant_config.json`` beside it says of quantisation."""
    beside = file.with_name("hf_quant_config.json")
    if "quantization_config" in config or not beside.is_file():
        return config
    try:
        said = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return config  # it is no part of what is asked
    part = said.get("quantization") if isinstance(said, dict) else None
    return {**config, "quantization_config": part} if isinstance(part, dict) else config


def _in_folder(folder: "Path") -> "Path":
    """The folder's ``config.json``, else its ``params.json``, else the GGUF file of its model."""
    usual, other = folder / "config.json", folder / "params.json"
    if usual.exists() or other.is_file():
        return usual if usual.exists() else other
    files = sorted(file for file in folder.glob("*.gguf") if not file.name.startswith("mmproj"))
    models = {re.sub(r"-\d{5}-of-\d{5}$", "", file.stem) for file in files}
    return files[0] if len(models) == 1 else usual  # the first part holds the metadata


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key stands twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = str(first_twice(key for key, _ in pairs))
        raise ConfigError(twice, found[twice], "it stands twice in the file")
    return found
