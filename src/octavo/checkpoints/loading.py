"""From a name or a path to a model ready to run: weights, tokenizer, config and ModelSpec.

Reads Hugging Face folders (``config.json`` and safetensors), GGUF files and the named models of
``hub``. Only local files are looked at, and everything is checked that transformers would let pass:
a tensor that is missing from the files is refused rather than filled with random numbers, one that
the model has no place for rather than left out. Code that comes with a model is never run. Does not
download, plan or run.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from octavo.checkpoints import hub
from octavo.checkpoints.failures import reading
from octavo.checkpoints.processor import fast_dtype
from octavo.errors import ModelError
from octavo.model.configs import load_config
from octavo.model.dtypes import DType
from octavo.model.dtypes import dtype as dtype_of
from octavo.model.spec import ModelSpec

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SHOWN_KEYS = 3
_BUFFERS = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias)")
"""Tensors that old files hold and every model computes by itself."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory.

    Attributes:
        name: the name or path it was loaded by.
        model: the transformers model, in evaluation mode.
        tokenizer: its transformers tokenizer.
        config: the content of its config.json.
        spec: what each layer keeps.
    """

    name: str
    model: Any = field(repr=False)  # what it prints fills a screen
    tokenizer: Any = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    spec: ModelSpec = field(repr=False)

    @property
    def dtype(self) -> str:
        """Element type of the weights, in octavo's name: what a plan for this model takes."""
        return dtype_of(self.model.dtype).name

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, by the generation config and the tokenizer; ascending."""
        declared = self.model.generation_config.eos_token_id
        ids = set(declared if isinstance(declared, (list, tuple)) else [declared])
        ids.add(self.tokenizer.eos_token_id)
        return tuple(sorted(i for i in ids if i is not None))


def load(name_or_path: str | Path, dtype: str | DType = "auto") -> LoadedModel:
    """Load a model from a folder, a GGUF file, or by the name it was pulled under.

    Args:
        name_or_path: a name of ``hub.MODELS``, a Hugging Face folder or a ``.gguf`` file.
        dtype: element type of the weights: ``bf16``, ``fp16`` or ``fp32``; ``auto``: ``bf16``
            where the processor has instructions for it, else ``fp32``. `LoadedModel.dtype` says
            which it became.

    Raises:
        ModelError: not found, not pulled or changed since, no model, damaged or incomplete weights,
            weights the model has no place for, a model that needs code of its own.
        ConfigError: the config lacks a field or holds a wrong value.
        UnknownArchitecture: no reader for this architecture.

    Cost: reads every weight once, and once more for the checksums of a model that was pulled by
    name: half a second for 260 MiB.
    """
    kind = getattr(torch, dtype_of(fast_dtype() if dtype == "auto" else dtype).torch_name)
    path = hub.find(name_or_path)
    if name_or_path in hub.MODELS:
        hub.require_sound(str(name_or_path))
    if path.is_dir():
        return _load_folder(str(name_or_path), path, kind)
    return _load_gguf(str(name_or_path), path, kind)


def _load_folder(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    """Check what can be checked cheaply, then have transformers read the folder."""
    if not (path / "config.json").is_file():
        raise ModelError(name, "is no model folder: it has no config.json")
    config = load_config(path)
    spec = ModelSpec.from_config(config)
    _require_files(path)
    for file in _weight_files(path):
        with reading(file, "truncated or damaged weights"), safe_open(file, framework="pt"):
            pass  # opening checks the header, and that the file is exactly as long as it says
    tokenizer = _tokenizer(path)
    with reading(path, "transformers cannot load it"):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused by name below
            output_loading_info=True,
        )
    _require_exactly(path, found)
    _require_stop_tokens(path, model)
    return LoadedModel(name, model, tokenizer, config, spec)


def _load_gguf(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    """Read the file into memory and hand its tensors to the transformers class."""
    from octavo.checkpoints import gguf

    file = gguf.read(path, dtype)
    config = file.config.to_dict()
    spec = ModelSpec.from_config(config)
    with reading(path, "its tensors do not fit its config"):
        model, found = getattr(transformers, file.model_class).from_pretrained(
            None,
            config=file.config,
            state_dict=file.tensors,
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    _require_exactly(path, found)
    return LoadedModel(name, model, file.tokenizer, config, spec)


def _require_files(path: Path) -> None:
    """Refuse pipes and devices, which would be waited for."""
    for entry in path.iterdir():
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise ModelError(entry, "is no regular file")


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder, all of them there."""
    if (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    index = path / _INDEX
    if not index.is_file():
        raise ModelError(path, f"has a config.json but no weights (no {_WEIGHTS} or {_INDEX})")
    with reading(index, "is no index of safetensors files"):
        names = list(dict.fromkeys(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name:
            raise ModelError(index, f"is no index of safetensors files: {name!r} is no file name")
        if not (path / name).is_file():
            raise ModelError(path, f"the weights are incomplete: {name} is missing")
    return [path / name for name in names]


def _tokenizer(path: Path) -> Any:
    """The folder's own; where there is none, transformers would invent an empty vocabulary."""
    if not any(path.glob("tokenizer*")) and not (path / "vocab.json").is_file():
        raise ModelError(path, "has no tokenizer (no tokenizer.json)")
    with reading(path, "its tokenizer cannot be loaded"):
        return transformers.AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )


def _require_exactly(path: Path, found: Mapping[str, Any]) -> None:
    """Refuse what transformers would have initialised at random, or left out."""
    for name, there, wanted in sorted(found.get("mismatched_keys", ())):
        shapes = f"{list(there)}, its config asks for {list(wanted)}"
        raise ModelError(path, f"the weights do not fit: {name} has shape {shapes}")
    extra = {name for name in found.get("unexpected_keys", ()) if not _BUFFERS.fullmatch(name)}
    for names, what in (
        (sorted(found.get("missing_keys", ())), "the weights lack {} tensors: {}"),
        (sorted(extra), "the weights hold {} tensors that the model has no place for: {}"),
    ):
        if names:
            shown = ", ".join(names[:_SHOWN_KEYS]) + (", ..." if len(names) > _SHOWN_KEYS else "")
            raise ModelError(path, what.format(len(names), shown))


def _require_stop_tokens(path: Path, model: Any) -> None:
    """What ends an answer must be token ids: a text there would never come."""
    declared = getattr(model.generation_config, "eos_token_id", None)
    for token in declared if isinstance(declared, list) else [declared]:
        if token is not None and (type(token) is not int or token < 0):
            why = f"eos_token_id is {declared!r}; it must be a token id or a list of them"
            raise ModelError(path / "generation_config.json", why)
