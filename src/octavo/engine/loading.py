"""From a name or a path to a model ready to run: weights, tokenizer, config and ModelSpec.

Reads Hugging Face folders (``config.json`` and safetensors), GGUF files and the named models of
``hub``. Only local files are looked at, and everything is checked that transformers would let pass:
a tensor that is missing from the files is refused rather than filled with random numbers. Does not
download, plan or run.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from octavo.dtypes import DType
from octavo.dtypes import dtype as dtype_of
from octavo.engine import hub
from octavo.errors import ModelError, OctavoError
from octavo.spec import ModelSpec, load_config

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        name: what it was asked for by.
        model: the transformers model, in evaluation mode.
        tokenizer: its transformers tokenizer.
        config: the content of its config.json.
        spec: what each layer keeps.
    """

    name: str
    model: Any
    tokenizer: Any
    config: Mapping[str, Any]
    spec: ModelSpec

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, by the generation config and the tokenizer; ascending."""
        declared = self.model.generation_config.eos_token_id
        ids = set(declared if isinstance(declared, (list, tuple)) else [declared])
        ids.add(self.tokenizer.eos_token_id)
        return tuple(sorted(i for i in ids if i is not None))


def load(name_or_path: str | Path, dtype: str | DType = "bf16") -> LoadedModel:
    """Load a model from a folder, a GGUF file, or by the name it was pulled under.

    Args:
        name_or_path: a name of ``hub.MODELS``, a Hugging Face folder or a ``.gguf`` file.
        dtype: element type of the weights: ``bf16``, ``fp16`` or ``fp32``.

    Raises:
        ModelError: not found, not pulled, no model, damaged or incomplete weights.
        ConfigError: the config lacks a field or holds a wrong value.
        UnknownArchitecture: no reader for this architecture.

    Cost: reads every weight once.
    """
    path = hub.find(name_or_path)
    kind = getattr(torch, dtype_of(dtype).torch_name)
    if path.is_dir():
        return _load_folder(str(name_or_path), path, kind)
    return _load_gguf(str(name_or_path), path, kind)


def _load_folder(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    """Check what can be checked cheaply, then have transformers read the folder."""
    if not (path / "config.json").is_file():
        raise ModelError(name, "is no model folder: it has no config.json")
    config = load_config(path)
    spec = ModelSpec.from_config(config)
    for file in _weight_files(path):
        _require_whole(file)
    tokenizer = _tokenizer(path)
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(path, f"transformers cannot load it: {_line(error)}") from error
    _require_all_tensors(path, found)
    return LoadedModel(name, model, tokenizer, config, spec)


def _load_gguf(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    """Read the file into memory and hand its tensors to the transformers class."""
    from octavo.engine import gguf

    file = gguf.read(path, dtype)
    config = file.config.to_dict()
    spec = ModelSpec.from_config(config)
    try:
        model, found = getattr(transformers, file.model_class).from_pretrained(
            None, config=file.config, state_dict=file.tensors, dtype=dtype, output_loading_info=True
        )
    except (ValueError, RuntimeError) as error:
        raise ModelError(path, f"its tensors do not fit its config: {_line(error)}") from error
    _require_all_tensors(path, found)
    return LoadedModel(name, model, file.tokenizer, config, spec)


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder, all of them there."""
    if (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    index = path / _INDEX
    if not index.is_file():
        raise ModelError(path, f"has a config.json but no weights (no {_WEIGHTS} or {_INDEX})")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(index, f"is no index of safetensors files: {_line(error)}") from error
    for name in names:
        if not (path / name).is_file():
            raise ModelError(path, f"the weights are incomplete: {name} is missing")
    return [path / name for name in names]


def _require_whole(file: Path) -> None:
    """Opening checks that the header is sound and the file is exactly as long as it says."""
    try:
        with safe_open(file, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(file, f"truncated or damaged weights: {_line(error)}") from error


def _tokenizer(path: Path) -> Any:
    """The folder's own; where there is none, transformers would invent an empty vocabulary."""
    if not any(path.glob("tokenizer*")) and not (path / "vocab.json").is_file():
        raise ModelError(path, "has no tokenizer (no tokenizer.json)")
    try:
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except OctavoError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for a damaged file
        raise ModelError(path, f"its tokenizer cannot be loaded: {_line(error)}") from error


def _require_all_tensors(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse what transformers would have initialised at random."""
    missing = sorted(found.get("missing_keys", ()))
    if missing:
        shown = ", ".join(missing[:_SHOWN_KEYS]) + (", ..." if len(missing) > _SHOWN_KEYS else "")
        raise ModelError(path, f"the weights lack {len(missing)} tensors: {shown}")


def _line(error: BaseException) -> str:
    """The first line of an error's message; transformers' run over many."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
