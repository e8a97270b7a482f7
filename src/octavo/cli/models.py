"""The model that a command's CONFIG names, under the name people know it by."""

from dataclasses import replace
from pathlib import Path

from octavo.checkpoints import hub
from octavo.errors import ConfigError
from octavo.model.configs.weights import WeightsFound, weights_beside
from octavo.model.spec import ModelSpec

_ELSEWHERE = "save the config.json that lies beside its weights on a hub, and give that file"
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pth")


def read_model(config: str) -> ModelSpec:
    """What the model of a file, a folder or a pulled name keeps; a note says how it was read.

    Raises:
        ConfigError: it cannot be read, or is of an unknown architecture.
        ModelError: the named model has not been pulled.
    """
    is_name = config and "/" not in config and not config.endswith((".json", ".gguf"))
    if is_name and config not in hub.MODELS and not Path(config).exists():
        known = ", ".join(hub.MODELS)
        nowhere = f"there is no such file or folder, and no model of that name (known: {known})"
        raise ConfigError("path", config, f"{nowhere}; {_ELSEWHERE}")
    spec, name = ModelSpec.from_config(_path(config)), _title(config)
    if spec.name == name:
        return spec
    return replace(spec, name=name, notes=(f"{name} is read as {spec.name}", *spec.notes))


def read_weights(config: str) -> WeightsFound | None:
    """The weights that lie beside it."""
    return weights_beside(_path(config))


def model_files(config: str) -> list[Path]:
    """The files that reading the model and its weights may look at. O(files beside it).

    Raises:
        ModelError: the named model has not been pulled.
    """
    path = Path(_path(config))
    folder = path if path.is_dir() else path.parent
    settings = ("*.json",) if path.is_dir() else ("*.index.json", "hf_quant_config.json")
    return [path, *(file for kind in (*settings, *_WEIGHTS) for file in folder.glob(kind))]


def _title(config: str) -> str:
    """What people call it: its name, or that of the file, or of the folder of ``config.json``."""
    path = Path(config)
    if path.suffix not in (".json", ".gguf") or path.stem in ("config", "params"):
        return (path if path.suffix not in (".json", ".gguf") else path.parent).resolve().name
    return path.stem


def _path(config: str) -> str | Path:
    return hub.find(config) if config in hub.MODELS else config
