"""Speech models over codebooks: a backbone with one position a frame, and a decoder in depth.

The decoder in depth starts anew for every frame and goes over its codebooks, so its cache holds as
many positions as there are codebooks.
"""

from octavo.model.configs.dense import full
from octavo.model.configs.fields import Fields
from octavo.model.configs.registry import ModelLayers
from octavo.model.layers import Attention, Layer

_CSM_DEPTH = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": None,
    "num_codebooks": 32,
}


def csm(fields: Fields) -> list[Layer]:
    """The backbone, a plain decoder; the decoder in depth is beside it."""
    return full(fields)


def csm_depth(fields: Fields) -> ModelLayers:
    """The decoder of ``depth_decoder_config``, over the codebooks of a frame."""
    inner = fields.inner("depth_decoder_config", _CSM_DEPTH)
    return ModelLayers("csm_depth_decoder", tuple(full(inner)), inner.count("num_codebooks"))


def moshi_depth(fields: Fields) -> ModelLayers:
    """The decoder of ``depth_decoder_config``, over the codebooks of a frame."""
    usual = {"num_hidden_layers": 6, "hidden_size": 1024, "num_attention_heads": 16}
    inner = fields.inner("depth_decoder_config", usual)
    inner.ignore("sliding_window")
    books = inner.count("num_codebooks", default=fields.count("num_codebooks", default=8))
    return ModelLayers("moshi_depth", tuple(full(inner)), books)


_PREDICTOR = {
    "num_hidden_layers": 5,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def predictor_depth(fields: Fields) -> ModelLayers:
    """The code predictor of a talker, over the code groups of a frame."""
    part = "talker_config" if fields.get("talker_config") is not None else ""
    talker = fields.inner(part) if part else fields
    inner = talker.inner("code_predictor_config", _PREDICTOR)
    groups = inner.count("num_code_groups", default=talker.count("num_code_groups", default=32))
    return ModelLayers("code_predictor", tuple(full(inner)), groups)


def fish(fields: Fields) -> list[Layer]:
    """The slow transformer; ``n_local_heads`` are its key/value heads, -1 as many as heads."""
    every = fields.get("n_local_heads") in (None, -1)
    heads = fields.heads if every else fields.kv_heads("n_local_heads")
    dim = fields.head_dim()
    return [Attention(heads, dim, dim)] * fields.layers


def fish_depth(fields: Fields) -> ModelLayers:
    """The fast transformer of ``audio_decoder_config``, over the codebooks of a frame."""
    inner = fields.inner("audio_decoder_config")
    return ModelLayers("fish_fast", tuple(fish(inner)), inner.count("num_codebooks"))


def dual_ar_depth(fields: Fields) -> ModelLayers:
    """The fast transformer by ``fast_`` fields, each as the slow one's where it is left out."""
    slow = {name: fields.get(name) for name in ("dim", "n_head", "n_local_heads", "head_dim")}
    given = {name: fields.get(f"fast_{name}", value) for name, value in slow.items()}
    inner = Fields({"n_layer": fields.layer_count("n_fast_layer"), **given}, {})
    return ModelLayers("fish_fast", tuple(fish(inner)), fields.count("num_codebooks"))
