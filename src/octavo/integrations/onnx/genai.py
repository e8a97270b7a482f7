"""What onnxruntime-genai is told of an exported decoder: its ``genai_config.json``.

Field names are those of its ``src/config.h`` in August 2026. It has one pair of lengths and two
block tables at most, for layers that see everything and for those with a window.
"""

from typing import Any

from octavo.integrations.onnx.caches import index_names
from octavo.integrations.onnx.config import read_fields
from octavo.integrations.onnx.decoder import Decoder
from octavo.model.lifetimes import FULL, lifetime_of
from octavo.model.spec import Attention, Latent

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_INPUTS = {
    "block_table": "block_table",
    "cumulative_sequence_lengths": "cumulative_sequence_length",
    "past_sequence_lengths": "past_seqlens",
    "attention_metadata": "attention_metadata",
}
"""Its name of an index input, and that of `octavo.index.onnxruntime`."""


def genai_config(decoder: Decoder, config: object, filename: str) -> dict[str, Any]:
    """The content of ``genai_config.json`` beside a graph. O(layers).

    Args:
        decoder: that of the graph.
        config: the model's, or None, as of `write_decoder`.
        filename: of the graph.

    Raises:
        ConfigError: ``config`` is none.
    """
    fields = {} if config is None else read_fields(config)
    tokens = {name: fields[name] for name in _TOKENS if fields.get(name) is not None}
    if "eos_token_id" in tokens and "pad_token_id" not in tokens:
        last = tokens["eos_token_id"]
        tokens["pad_token_id"] = last[0] if isinstance(last, list) else last
    kv_heads, channels = decoder.row
    described: dict[str, Any] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": filename,
        "head_size": channels,
        "hidden_size": decoder.hidden,
        "inputs": {"input_ids": "input_ids", **_index_inputs(decoder), **_caches(decoder, "")},
        "outputs": {"logits": "logits", **_caches(decoder, "_out")},
        "num_attention_heads": decoder.heads,
        "num_hidden_layers": decoder.layers,
        "num_key_value_heads": kv_heads,
    }
    windows = {kind.window for kind in decoder.kinds if isinstance(kind, Attention)} - {None}
    if len(windows) == 1:
        described["sliding_window"] = _window(decoder, windows.pop())
    model = {
        "type": str(fields.get("model_type", "decoder")),
        "vocab_size": decoder.vocab,
        "context_length": decoder.max_length,
        **tokens,
        "decoder": described,
    }
    return {"model": model, "search": {"max_length": decoder.max_length, "do_sample": False}}


def _index_inputs(decoder: Decoder) -> dict[str, str]:
    """Index inputs under its names: those of full layers, or of the first group."""
    names, groups = index_names(decoder.groups), decoder.groups
    kinds = {group: decoder.kinds[layers[0]] for group, layers in groups.items()}
    full = [group for group, kind in kinds.items() if lifetime_of(kind) == FULL]
    first = next(iter(full or groups))
    found = {ours: names[first][name] for ours, name in _INPUTS.items()}
    for group in groups:
        if group != first:
            found["block_table_windowed"] = names[group]["block_table"]
    return found


def _caches(decoder: Decoder, end: str) -> dict[str, str]:
    """Patterns of the caches' names, of inputs or of outputs."""
    when = "present" if end else "past"
    if isinstance(decoder.kind, Latent):
        return {f"{when}_names": f"latent_cache{end}.%d"}
    return {f"{when}_{part}_names": f"{part}_cache{end}.%d" for part in ("key", "value")}


def _window(decoder: Decoder, size: int | None) -> dict[str, Any]:
    slides = [
        layer
        for layer, kind in enumerate(decoder.kinds)
        if isinstance(kind, Attention) and kind.window is not None
    ]
    return {
        "window_size": size,
        "slide_key_value_cache": False,
        "slide_inputs": False,
        "layers": slides,
    }
