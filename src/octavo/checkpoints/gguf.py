"""GGUF files, read whole into a Hugging Face config, weights and tokenizer, or refused.

Only what is understood to the last tensor is read: an architecture, a tensor, a rope scaling or a
tokenizer that is not in the tables here is refused by name, and so is a number of the architecture
that nothing here reads, because a model that is nearly right answers in nonsense. Quantised tensors
are dequantised by the ``gguf`` package. Llama, Qwen 2 and Qwen 3 files are read, Llama 3.1's slowed
rotations and tokenizers of either kind among them. Knows nothing of pages or of downloads.
"""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from octavo.checkpoints.failures import reading
from octavo.checkpoints.gguf_tokenizers import special_ids, tokenizer_of
from octavo.errors import ModelError


class Architecture(NamedTuple):
    """A GGUF architecture in transformers; ``permuted``: its query and key rows interleave."""

    model_type: str
    model_class: str
    permuted: bool


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", False),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", False),
}
"""The architectures that can be read, by the name in the file."""

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"  # what each rotation is slowed by, as in Llama 3.1
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")

_READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.freq_base",
    "vocab_size",  # that of the embedding counts
}
"""Keys of an architecture that are read, whatever they hold."""

_NEUTRAL = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scale_linear": 1.0,
    "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none",
}
"""Keys that are understood while they hold what changes nothing."""


class GGUFModel(NamedTuple):
    """A GGUF file read whole.

    Attributes:
        config: the transformers config.
        tensors: weights by transformers name, in the dtype wanted.
        tokenizer: a transformers fast tokenizer, with the chat template where the file has one.
        model_class: name of the transformers class.
    """

    config: Any
    tensors: dict[str, torch.Tensor]
    tokenizer: Any
    model_class: str


def read(path: Path, dtype: torch.dtype) -> GGUFModel:
    """Read a GGUF file. O(parameters) time and memory.

    Raises:
        ModelError: not GGUF, truncated, or something in it is not understood.
    """
    with reading(path, "no GGUF file, or a truncated or damaged one"):
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        architecture = _architecture(path, fields)
        config = _config(path, fields, architecture, reader.tensors)
        tensors = {
            _name(path, tensor.name): _tensor(tensor, config, architecture).to(dtype)
            for tensor in reader.tensors
            if tensor.name != _ROPE_FREQS  # it is in the config
        }
        longest = config.max_position_embeddings
        tokenizer = tokenizer_of(path, fields, config.vocab_size, longest)
    return GGUFModel(config, tensors, tokenizer, architecture.model_class)


def convert(path: Path, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a GGUF file as a Hugging Face folder: config, weights, tokenizer, generation config.

    Raises:
        ModelError: as ``read``.
        OSError: the folder exists or cannot be written.
    """
    model = read(path, dtype)
    folder.mkdir()
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    transformers.GenerationConfig.from_model_config(model.config).save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    try:
        save_file(model.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    except Exception as error:  # its own error type, which is no OSError
        raise OSError(f"cannot write the weights: {error}") from error


def _architecture(path: Path, fields: dict[str, Any]) -> Architecture:
    name = fields.get("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(path, f"GGUF architecture {name!r} is not known; known: {known}")
    return ARCHITECTURES[name]


def _config(
    path: Path, fields: dict[str, Any], architecture: Architecture, tensors: list[Any]
) -> Any:
    """The transformers config of the file's metadata."""
    prefix = f"{fields['general.architecture']}."
    own = {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}
    shapes = {tensor.name: tensor.shape for tensor in tensors}  # innermost dimension first
    freqs = next((tensor.data for tensor in tensors if tensor.name == _ROPE_FREQS), None)
    if len(shapes) != len(tensors):
        raise ModelError(path, "two tensors of a GGUF file have the same name")
    heads, width = own["attention.head_count"], own["embedding_length"]
    head_dim = own.get("attention.key_length") or width // heads
    same = {"rope.dimension_count": head_dim, "attention.value_length": head_dim}
    _refuse_unknown(path, own, _NEUTRAL | same)
    ids = special_ids(fields)
    return transformers.AutoConfig.for_model(
        architecture.model_type,
        architectures=[architecture.model_class],
        vocab_size=int(shapes["token_embd.weight"][-1]),
        hidden_size=width,
        intermediate_size=own["feed_forward_length"],
        num_hidden_layers=own["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=own.get("attention.head_count_kv") or heads,
        head_dim=head_dim,
        max_position_embeddings=own["context_length"],
        rms_norm_eps=_decimal(own["attention.layer_norm_rms_epsilon"]),
        rope_parameters=_rope(path, own, head_dim, freqs),
        tie_word_embeddings="output.weight" not in shapes,
        bos_token_id=ids["bos"],
        eos_token_id=ids["eos"],
        pad_token_id=ids["padding"],
    )


def _rope(path: Path, own: dict[str, Any], head_dim: int, freqs: Any) -> dict[str, Any]:
    """How positions are encoded: ``freqs`` divides the frequency of each pair of dimensions.

    Llama 3.1's scaling is stored as these numbers alone. transformers has one kind that takes them
    as they are, with others for long texts; here they are the same.
    """
    theta = _decimal(own.get("rope.freq_base", 1e4))
    if freqs is None:
        return {"rope_type": "default", "rope_theta": theta}
    factors = [_decimal(each) for each in freqs]
    if len(factors) != head_dim // 2 or not all(0 < each < math.inf for each in factors):
        right = f"it must be {head_dim // 2} numbers above 0"
        raise ModelError(path, f"tensor {_ROPE_FREQS!r} holds {factors}; {right}")
    return {
        "rope_type": "longrope",
        "rope_theta": theta,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": own["context_length"],
    }


def _refuse_unknown(path: Path, own: dict[str, Any], neutral: dict[str, Any]) -> None:
    """Refuse an architecture's keys that are neither read nor ``neutral``."""
    for key, value in own.items():
        if key not in _READ and (key not in neutral or value != neutral[key]):
            only = f" (only {neutral[key]!r})" if key in neutral else ""
            raise ModelError(path, f"{key} = {value!r} in a GGUF file is not understood{only}")


def _decimal(value: float) -> float:
    """The decimal number whose float32 was stored: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _name(path: Path, name: str) -> str:
    """transformers' name of a tensor."""
    if found := _LAYER.fullmatch(name):
        layer, part, kind = found.groups()
        if part in _INNER:
            return f"model.layers.{layer}.{_INNER[part]}.{kind}"
    part, _, kind = name.rpartition(".")
    if part not in _OUTER or kind != "weight":
        raise ModelError(path, f"tensor {name!r} is not understood")
    return f"{_OUTER[part]}.weight"


def _tensor(tensor: Any, config: Any, architecture: Architecture) -> torch.Tensor:
    """One dequantised tensor in fp32, its rows in transformers' order."""
    values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if architecture.permuted and ".attn_q." in tensor.name:
        values = _halves(values, config.num_attention_heads)
    if architecture.permuted and ".attn_k." in tensor.name:
        values = _halves(values, config.num_key_value_heads)
    return torch.from_numpy(np.ascontiguousarray(values))


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order, which interleaves the two halves that transformers' rope pairs."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # (heads, dim / 2, 2, ...)
    return pairs.swapaxes(1, 2).reshape(rows.shape)
