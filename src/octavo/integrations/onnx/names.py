"""Names of a graph's inputs and outputs: what a session binds, whoever wrote the graph."""

from octavo.integrations.onnx.decoder import Decoder
from octavo.model.spec import Latent

INDICES: dict[str, tuple[int | str, ...]] = {
    "block_table": ("rows", "width"),
    "slot_mapping": ("tokens",),
    "cumulative_sequence_length": ("bounds",),
    "past_seqlens": ("rows",),
    "attention_metadata": (3,),
}
"""Index inputs, int32, and their axes; `octavo.index.onnxruntime` gives them under these names.

There are rows + 1 bounds.
"""


def cache_name(component: str, layer: int) -> str:
    """Input that holds one component (key, value, latent) of a layer's pages."""
    return f"{component}_cache.{layer}"


def output_of(cache: str) -> str:
    """Output that is the cache input ``cache`` with the step's tokens written."""
    name, _, layer = cache.rpartition(".")
    return f"{name}_out.{layer}"


def cache_names(decoder: Decoder, layer: int) -> tuple[str, ...]:
    """Cache inputs of a layer of ``decoder``."""
    parts = ("latent",) if isinstance(decoder.kind, Latent) else ("key", "value")
    return tuple(cache_name(part, layer) for part in parts)


def output_names(decoder: Decoder, layer: int) -> tuple[str, ...]:
    """Cache outputs of a layer of ``decoder``."""
    return tuple(map(output_of, cache_names(decoder, layer)))
