"""What onnxruntime-genai is told of an exported decoder: its ``genai_config.json``.

Field names are those of its ``src/config.h`` in August 2026. It has one pair of lengths and two
block tables at most, for layers that see everything and for those with a window.
"""

from typing import Any

from octavo.errors import ConfigError, PlanError
from octavo.integrations.onnx.caches import IndexNames
from octavo.integrations.onnx.config import read_fields
from octavo.integrations.onnx.decoder import Decoder
from octavo.model.lifetimes import FULL, lifetime_of
from octavo.model.spec import Attention, Latent

_BATCH = 16  # requests of a batch, its own default
_CHUNK = 256  # tokens of a prefill chunk: with windows it keeps that and the window, in a ring
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_INPUTS = {
    "block_table": "block_table",
    "cumulative_sequence_lengths": "cumulative_sequence_length",
    "past_sequence_lengths": "past_seqlens",
    "attention_metadata": "attention_metadata",
}
"""Its name of an index input, and that of `octavo.index.onnxruntime`."""


def check_genai(decoder: Decoder) -> None:
    """Whether its engine can run a decoder. O(layers).

    Raises:
        PlanError: latent layers, or windows of several widths: it has caches of keys and values,
            and two block tables.
    """
    kinds = {decoder.kinds[layers[0]] for layers in decoder.groups.values()}
    slides = [kind for kind in kinds if lifetime_of(kind) != FULL]
    if len(slides) > 1 or not all(isinstance(kind, Attention) for kind in kinds):
        right = "onnxruntime-genai runs layers that see everything and layers of one window"
        raise PlanError("groups", list(decoder.groups), right)


def genai_config(
    decoder: Decoder, config: object, filename: str, names: IndexNames, operators: str
) -> dict[str, Any]:
    """The content of ``genai_config.json`` beside a graph. O(layers).

    Args:
        decoder: that of the graph.
        config: the model's, or None, as of `write_decoder`.
        filename: of the graph.
        names: of its index inputs.
        operators: of its attention; standard ones run on a CPU, with pages for one sequence of the
            greatest length and one for each other request.

    Raises:
        ConfigError: ``config`` is none, or a special token of it is no int.
    """
    fields = {} if config is None else read_fields(config)
    tokens = {name: fields[name] for name in _TOKENS if fields.get(name) is not None}
    for name, given in tokens.items():
        listed = given if isinstance(given, list) else [given]
        if not listed or any(type(each) is not int for each in listed):
            raise ConfigError(name, given, "it must be a token id, or a list of them")
    if "eos_token_id" in tokens and "pad_token_id" not in tokens:
        last = tokens["eos_token_id"]
        tokens["pad_token_id"] = last[0] if isinstance(last, list) else last
    kv_heads, channels = decoder.row
    described: dict[str, Any] = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": filename,
        "head_size": channels,
        "hidden_size": decoder.hidden,
        "inputs": {
            "input_ids": "input_ids",
            **_index_inputs(decoder, names),
            **_caches(decoder, ""),
        },
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
    search: dict[str, Any] = {"max_length": decoder.max_length, "do_sample": False}
    if names[next(iter(names))]["slot_mapping"]:
        return {"model": model, "search": search}
    if "sliding_window" in described:
        search["chunk_size"] = _CHUNK
    batching = _batching(decoder, operators)
    return {"model": model, "search": search, "engine": {"dynamic_batching": batching}}


def _batching(decoder: Decoder, operators: str) -> dict[str, int]:
    """Pages; a GPU says how many fit, a CPU does not."""
    if operators == "paged":
        return {"block_size": 256, "max_batch_size": _BATCH}
    pages = -(-decoder.max_length // 16) + _BATCH
    return {"block_size": 16, "num_blocks": pages, "max_batch_size": _BATCH}


def _index_inputs(decoder: Decoder, names: IndexNames) -> dict[str, str]:
    """Index inputs under its names: those of full layers, or of the first group."""
    kinds = {group: decoder.kinds[layers[0]] for group, layers in decoder.groups.items()}
    full = [group for group, kind in kinds.items() if lifetime_of(kind) == FULL]
    first = next(iter(full or kinds))
    found = {ours: names[first][name] for ours, name in _INPUTS.items()}
    others = [names[group]["block_table"] for group in kinds if group != first]
    return found | ({"block_table_windowed": others[0]} if len(others) == 1 else {})


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
