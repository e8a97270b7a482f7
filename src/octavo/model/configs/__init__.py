"""Readers of Hugging Face configs: a table of families, a small reader for each.

The number of layers and the width must be there; anything else that a file leaves out takes the
default of the family's class in transformers, and nothing else is ever assumed. A decoder nested
beside encoders may leave out these two as well, since transformers writes only what differs there.
"""

from collections.abc import Mapping
from typing import Any

from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs.dense import full
from octavo.model.configs.families import DEFAULTS, DEPTHS, ENCODER_AS_DECODER, FAMILIES, REQUIRED
from octavo.model.configs.fields import Fields
from octavo.model.configs.file import load_config
from octavo.model.configs.gguf_file import ARCHITECTURE
from octavo.model.configs.gguf_layers import read_gguf
from octavo.model.configs.names import NAMES
from octavo.model.configs.nested import (
    DECODING_ENCODERS,
    PREFIXES,
    WRAPPERS,
    find_decoder,
    inner_name,
    other_parts,
)
from octavo.model.configs.notes import cache_type, scaled_length, unread_sizes
from octavo.model.configs.registry import BY_HAND, ModelLayers, nearest_first
from octavo.model.layers import Attention, Cross, kinds_in

__all__ = [
    "DEFAULTS",
    "FAMILIES",
    "ModelLayers",
    "known_architectures",
    "load_config",
    "read_config",
]


_PARAMS = {"dim", "n_layers", "n_heads", "norm_eps"}
_ONE_STEP = "tokens of a prompt see each other: a prompt is computed in one step"


def known_architectures() -> list[str]:
    """Every ``model_type`` that can be read, those that nest a decoder too. O(families)."""
    return sorted({*FAMILIES, *WRAPPERS})


def read_config(config: Mapping[str, Any]) -> ModelLayers:
    """What the decoder of a config keeps, layer by layer.

    Raises:
        UnknownArchitecture: ``model_type`` has no reader here.
        ConfigError: a field is missing or wrong, or the model keeps no cache.

    Cost: O(layers).
    """
    if ARCHITECTURE in config:
        return read_gguf(config)
    config = _named(config)
    name, given, nested = find_decoder(config)
    family = None
    if isinstance(name, str):
        family = ENCODER_AS_DECODER if name in DECODING_ENCODERS else FAMILIES.get(name)
    if family is None:
        raise _unknown(config, name)
    required = () if nested else REQUIRED
    defaults = {field: value for field, value in family.defaults.items() if field not in required}
    fields = Fields(given, defaults, str(name))
    layers = family.read(fields)
    crossed = any(isinstance(kind, Cross) for layer in layers for kind in kinds_in(layer))
    if fields.flag("add_cross_attention") and not crossed:
        raise ConfigError("add_cross_attention", value=True, right="that is not read here")
    mtp = family.mtp(fields, layers)
    model = str(config["model_type"])
    whole = fields if given is config else Fields(config, {})
    depth = DEPTHS[model](whole) if model in DEPTHS else None
    longest = fields.max_length()
    scaling = fields.get("rope_scaling", fields.get("rope_parameters"))
    longer = [] if str(name).startswith("gemma3") else scaled_length(scaling, longest)
    usual = {field for field, value in family.defaults.items() if value is not None}
    sizes = (*NAMES["num_hidden_layers"], *NAMES["hidden_size"])  # no more than what is read says
    unread = unread_sizes(fields.unread(), usual.union(sizes))
    prefix = [_ONE_STEP] if model in PREFIXES else []
    small = cache_type(config) or cache_type(given)
    beside = _left_out(config) if nested else []
    notes = (*prefix, *small, *longer, *beside, *fields.contradictions(), *unread)
    return ModelLayers(model, tuple(layers), longest, mtp, depth, notes)


def _left_out(config: Mapping[str, Any]) -> list[str]:
    """A sentence for each further decoder that stands beside the one that was read."""
    if config.get("enable_audio_output") is False:  # no speech is made, by no talker
        return []
    return [
        f"{name} is a second decoder, left out here: from_config(config[{name!r}]) reads it"
        for name in other_parts(config)
        if _reads(config[name])
    ]


def _named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config with the family that a file without a name is of; parts it nests laid open."""
    mixer, name = config.get("ssm_cfg"), config.get("model_type")
    if isinstance(mixer, Mapping):
        return {"model_type": "mamba_ssm", **mixer, **config}
    if name == "mamba" and {"dim", "n_layers", "n_groups"} <= set(config):  # Mistral's file
        return {**config, "model_type": "mamba_ssm", "layer": "Mamba2"}
    listed = config.get("architectures")
    if isinstance(listed, list) and listed and str(listed[0]).startswith("Grok1"):
        return {**config, "model_type": "grok-1"}  # its files say another family
    if name in (None, "transformer") and set(config) >= _PARAMS:
        return {**config, "model_type": "params"}
    return config


def _unknown(config: Mapping[str, Any], name: object) -> UnknownArchitecture:
    """The error for an architecture without a reader: the names like it first, and a way out."""
    part = inner_name(config)
    inside = ""
    if part and _reads(config[part]):
        inside = f"ModelSpec.from_config(config[{part!r}]) reads its decoder, or "
    advice = inside + BY_HAND + _plain(config)
    return UnknownArchitecture(
        name, nearest_first(name, known_architectures()), "model_type", advice
    )


def _plain(config: Mapping[str, Any]) -> str:
    """What a plain decoder of the config's sizes would be by hand; empty where it has none."""
    try:
        layers = full(Fields(config, {}))
    except ConfigError:
        return ""
    kind = layers[0]
    assert isinstance(kind, Attention)
    sizes = f"({kind.kv_heads}, {kind.k_dim}, {kind.v_dim})"
    where = "where every layer keeps every token"
    return f", as (octavo.Attention{sizes},) * {len(layers)} {where}"


def _reads(part: Mapping[str, Any]) -> bool:
    try:
        read_config(part)
    except ConfigError:
        return False
    return True
