"""A model's config as the fields of a `Decoder`: each of its fields is mapped, or refused by name.

Knows configs of transformers, its models and ``config.json``; transformers itself is not imported.
"""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from octavo.errors import ConfigError, UnsupportedField, UnsupportedModel
from octavo.integrations.onnx.activations import ACTIVATIONS
from octavo.integrations.onnx.families import FAMILIES, FIXED, INERT, Family
from octavo.integrations.onnx.rotary import Rotary, read_rotary
from octavo.model.configs import FAMILIES as READERS
from octavo.model.configs import load_config
from octavo.model.spec import Attention, Layer, ModelSpec

Values = Mapping[str, Any]
"""Fields of a config, its family's defaults where it leaves them out; null is null."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_LEGACY_GELU = {"gelu": "gelu_pytorch_tanh"}  # what files of Gemma mean


def read_decoder(config: object) -> dict[str, Any]:
    """The fields of a `Decoder` for a config; arguments and errors as `Decoder.from_config`.

    Cost: O(fields + layers).
    """
    given = read_fields(config)
    name = given.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedField("model_type", name, _why_not(given))
    _check_source(config, family)
    _check_fields(given, family)
    fields = {**READERS[str(name)].defaults, **family.defaults, **given}
    kinds = _attention_layers(given, fields)
    found = {
        "vocab": _count(fields, "vocab_size"),
        "hidden": _count(fields, "hidden_size"),
        "layers": _count(fields, "num_hidden_layers"),
        "heads": _count(fields, "num_attention_heads"),
        "mlp": _count(fields, "intermediate_size"),
        "kind": kinds if len(set(kinds)) > 1 else kinds[0],
        "max_length": _count(fields, "max_position_embeddings"),
        "epsilon": _number(fields, "rms_norm_eps"),
        "rotary": _rotaries(given, family, fields, kinds),
        "activation": _activation(str(name), family, fields),
        "biases": _biases(family, fields),
        "tied": _flag(fields, "tie_word_embeddings"),
    }
    return found | _scales(str(name), family, fields) | dict(family.traits)


def _why_not(given: Values) -> str:
    """What keeps a family from being exported, where its fields say it, and what is."""
    experts = next((field for field in _EXPERTS if given.get(field)), None)
    why = f"it has {experts}, and no such feed-forward is exported; " if experts else ""
    return f"{why}octavo exports {', '.join(FAMILIES)}"


def read_fields(config: object) -> dict[str, Any]:
    """The fields of a config, by name, of a config object without those that are left as they are.

    Raises:
        ConfigError: no config; not readable, not JSON.
    """
    if isinstance(config, Mapping):
        return dict(config)
    if isinstance(config, str | PathLike):
        return dict(load_config(config))
    held: Any = config if hasattr(config, "to_dict") else getattr(config, "config", None)
    if not hasattr(held, "to_dict"):
        right = "it must be a config, a model of transformers, or what a config.json holds"
        raise ConfigError("config", type(config).__name__, right)
    fields: dict[str, Any] = held.to_dict()
    family = FAMILIES.get(str(fields.get("model_type")))
    if family is None:
        return fields
    usual: dict[str, Any] = type(held)().to_dict()
    known = INERT | set(FIXED) | family.mapped
    return {
        name: value
        for name, value in fields.items()
        if name in known or name not in usual or usual[name] != value
    }


def _check_source(config: object, family: Family) -> None:
    """Whether a model, or a config object, is of transformers' own class for the family."""
    if isinstance(config, Mapping | str | PathLike):
        return
    kind = type(config)
    if not kind.__module__.startswith("transformers."):
        raise UnsupportedModel(kind.__qualname__, "its code is not transformers' own")
    if not hasattr(config, "to_dict") and kind.__name__ != family.architecture:
        raise UnsupportedModel(
            kind.__qualname__, f"of this family octavo exports {family.architecture}"
        )


def _check_fields(given: Mapping[str, Any], family: Family) -> None:
    """Refuse the first field that is neither mapped, nor as it must be, nor without effect."""
    for name, value in given.items():
        if name not in family.mapped and name not in INERT:
            _check_unmapped(name, value, family)
    _check_part("partial_rotary_factor", given.get("partial_rotary_factor"), family)
    for name, other in family.same.items():
        value, wanted = given.get(name), given.get(other, family.defaults.get(other))
        listed = other == "sliding_window_pattern" and given.get("layer_types") is not None
        if value is not None and value != wanted and not listed:
            raise UnsupportedField(name, value, f"{other} is {wanted!r}, and is what is read")


def _check_unmapped(name: str, value: object, family: Family) -> None:
    if name == "architectures":
        listed = value if isinstance(value, list | tuple) else (value,)
        if value is not None and family.architecture not in listed:
            right = f"of this family octavo exports {family.architecture}"
            raise UnsupportedField(name, value, right)
    elif name not in FIXED:
        raise UnsupportedField(
            name, value, "octavo does not know this field, and never passes one over"
        )
    elif value not in FIXED[name]:
        right = f"{family.architecture} is exported with {FIXED[name][0]} alone"
        raise UnsupportedField(name, value, right)


def _check_part(name: str, part: object, family: Family) -> None:
    """Refuse a part of a head where the family's class rotates the whole."""
    if not family.partial and part not in (None, 1):
        raise UnsupportedField(name, part, f"{family.architecture} rotates whole heads")


def _attention_layers(given: Mapping[str, Any], fields: Values) -> tuple[Attention, ...]:
    """What each layer keeps, as `ModelSpec.from_config` reads it."""
    layers = tuple(map(_attention, ModelSpec.from_config(dict(given)).layers))
    if fields.get("sliding_window") is None and "sliding_attention" in (
        fields.get("layer_types") or ()
    ):
        raise ConfigError("sliding_window", None, "there are layers that slide")
    return layers


def _attention(layer: Layer) -> Attention:
    assert isinstance(layer, Attention)  # of every family in the table
    return layer


def _activation(name: str, family: Family, fields: Values) -> str:
    given = fields.get(family.activation)
    found = _LEGACY_GELU.get(given, given) if name == "gemma" and isinstance(given, str) else given
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise UnsupportedField(family.activation, given, f"octavo exports {', '.join(ACTIVATIONS)}")
    return found


def _biases(family: Family, fields: Values) -> tuple[str, ...]:
    by_flag = [maps for flag, maps in family.by_flag.items() if _flag(fields, flag)]
    return (*family.biased, *(name for maps in by_flag for name in maps))


def _scales(name: str, family: Family, fields: Values) -> dict[str, float | None]:
    """Factors and caps."""
    found: dict[str, float | None] = {}
    for field, (target, divides) in family.scales.items():
        value = _number(fields, field)
        found[target] = 1 / value if divides else value
    if name.startswith("gemma"):
        found["embedding_scale"] = _count(fields, "hidden_size") ** 0.5
    if "query_pre_attn_scalar" in family.defaults:
        found["score_scale"] = _number(fields, "query_pre_attn_scalar") ** -0.5
    caps = {"attn_logit_softcapping": "score_cap", "final_logit_softcapping": "logit_cap"}
    for field, target in caps.items():
        if field in family.defaults:
            found[target] = None if fields.get(field) is None else _number(fields, field)
    return found


def _count(fields: Values, name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(name, value, "it must be an int of at least 1")
    return value


def _number(fields: Values, name: str) -> float:
    value: Any = fields.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < float("inf"):
        raise ConfigError(name, value, "it must be a finite number above 0")
    return float(value)


def _flag(fields: Values, name: str) -> bool:
    value = fields.get(name)
    if not isinstance(value, bool):
        raise ConfigError(name, value, "it must be true or false")
    return value


def _rotaries(
    given: Mapping[str, Any], family: Family, fields: Values, kinds: tuple[Attention, ...]
) -> Rotary | tuple[Rotary, ...]:
    """The rotary positions of all layers, or of each where a family has them by type of layer."""
    dim, longest = kinds[0].k_dim, _count(fields, "max_position_embeddings")
    if "" in family.thetas:
        name = "rope_scaling" if given.get("rope_scaling") else "rope_parameters"
        parameters = _parameters(given, family)
        _check_type(parameters, family, name)
        return read_rotary(parameters, dim, longest, name)
    by_type = {
        kind: read_rotary(parameters, dim, longest, f"rope_parameters.{kind}")
        for kind, parameters in _nested_parameters(given, family).items()
    }
    found = tuple(
        by_type["full_attention" if kind.window is None else "sliding_attention"] for kind in kinds
    )
    return found if len(set(found)) > 1 else found[0]


def _part(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(name, value, "it must be a JSON object")
    return dict(value)


def _parameters(given: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Rope parameters as transformers 5 keeps them, from an older file too."""
    scaling = given.get("rope_scaling")
    name = "rope_scaling" if scaling else "rope_parameters"
    found = _part(name, given.get(name) or {})
    found.setdefault("rope_theta", given.get("rope_theta", family.thetas[""]))
    if given.get("partial_rotary_factor") is not None:
        found.setdefault("partial_rotary_factor", given["partial_rotary_factor"])
    before = "original_max_position_embeddings"
    if before in given and found.get("rope_type", found.get("type")) in ("llama3", "yarn"):
        found[before] = given[before]
    return found


def _check_type(parameters: Mapping[str, Any], family: Family, name: str) -> None:
    """Refuse what the family's class does not know, or would pass over."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if family.rope_types and kind not in family.rope_types:
        right = f"{family.architecture} is exported with {', '.join(family.rope_types)}"
        raise UnsupportedField(f"{name}.rope_type", kind, right)
    part = parameters.get("partial_rotary_factor")
    _check_part(f"{name}.partial_rotary_factor", part, family)


def _nested_parameters(given: Mapping[str, Any], family: Family) -> dict[str, dict[str, Any]]:
    """The same by type of layer (Gemma 3): scaling in an older file is that of full layers."""
    held = _part("rope_parameters", given.get("rope_parameters") or {})
    for kind, value in held.items():
        if kind not in family.thetas:
            right = f"its keys must be {', '.join(family.thetas)}"
            raise UnsupportedField(f"rope_parameters.{kind}", value, right)
    found = {kind: _part(f"rope_parameters.{kind}", held.get(kind) or {}) for kind in family.thetas}
    scaling = _part("rope_scaling", given.get("rope_scaling") or {})
    if not held and "rope_type" not in scaling and scaling.get("type", "default") != "default":
        why = f"{family.architecture} passes it over; it reads rope_type"
        raise UnsupportedField("rope_scaling.type", scaling["type"], why)
    found["full_attention"] |= scaling
    older = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
    for kind, parameters in found.items():
        parameters.setdefault("rope_theta", given.get(older[kind], family.thetas[kind]))
        _check_type(parameters, family, f"rope_parameters.{kind}")
        if parameters.get("truncate") is False:
            why = f"{family.architecture} passes it over"
            raise UnsupportedField(f"rope_parameters.{kind}.truncate", False, why)
    return found
