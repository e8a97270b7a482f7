"""Every field of every config that is exported: another value changes both numbers, or is refused.

And every other model that transformers builds is refused, those whose weights look the same too.
"""

import dataclasses
import json
from functools import cache

import numpy as np
import pytest
import transformers
from exported_models import build, difference, prompts, wanted_logits, weights_of
from transformers.activations import ACT2CLS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from octavo.errors import ConfigError, OctavoError, PlanError, UnsupportedField, UnsupportedModel
from octavo.integrations.onnx import Decoder
from octavo.integrations.onnx.activations import ACTIVATIONS
from octavo.integrations.onnx.families import FAMILIES

CLASSES = {
    name: "Gemma3Text" if name == "gemma3_text" else family.architecture.removesuffix("ForCausalLM")
    for name, family in FAMILIES.items()
}
WINDOWED = {"gemma2", "gemma3_text", "mistral", "phi3"}


def ropes(*types, **common):
    """Rope parameters of types, each with what it needs."""
    needs = {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 2.0},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 24},
        "longrope": {
            "factor": 4.0,
            "original_max_position_embeddings": 24,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
        },
        "proportional": {"partial_rotary_factor": 0.5},
    }
    return [{"rope_type": t, "rope_theta": 5000.0, **needs[t], **common} for t in types]


ALL_ROPES = [
    *ropes("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"),
    *ropes("default", "linear", partial_rotary_factor=0.5),
    *ropes("yarn", truncate=False),
    *ropes("yarn", attention_factor=0.7, beta_slow=2.0),
]
OTHERS = {
    "architectures": [["LlamaForSequenceClassification"]],
    "attention_bias": [True],
    "attention_dropout": [0.5],
    "attention_multiplier": [0.3],
    "attn_logit_softcapping": [1.0, None],
    "bos_token_id": [3],
    "chunk_size_feed_forward": [1],
    "dtype": ["float32"],
    "embd_pdrop": [0.5],
    "embedding_multiplier": [3.0],
    "eos_token_id": [3, [3, 4]],
    "final_logit_softcapping": [1.0, None],
    "head_dim": [32],
    "hidden_act": ["gelu", "relu", "laplace"],
    "hidden_activation": ["gelu", "relu", "laplace"],
    "hidden_size": [96],
    "id2label": [{0: "a", 1: "b"}],
    "initializer_range": [0.5],
    "intermediate_size": [40],
    "is_encoder_decoder": [True],
    "label2id": [{"a": 0}],
    "layer_types": [
        ["full_attention", "full_attention"],
        ["full_attention", "sliding_attention"],
        ["sliding_attention", "sliding_attention"],
    ],
    "logits_scaling": [3.0],
    "max_position_embeddings": [64],
    "max_window_layers": [1],
    "mlp_bias": [True],
    "num_attention_heads": [2],
    "num_hidden_layers": [1],
    "num_key_value_heads": [1, 4],
    "original_max_position_embeddings": [32],
    "output_hidden_states": [True],
    "pad_token_id": [3, None],
    "pretraining_tp": [2],
    "problem_type": ["regression"],
    "query_pre_attn_scalar": [50],
    "resid_pdrop": [0.5],
    "residual_multiplier": [0.4],
    "return_dict": [],
    "rms_norm_eps": [0.01],
    "rope_parameters": ALL_ROPES,
    "sliding_window": [7, None],
    "tie_word_embeddings": [True, False],
    "transformers_version": ["4.0"],
    "use_bidirectional_attention": [True],
    "use_cache": [False],
    "use_sliding_window": [True],
    "vocab_size": [61],
}
"""Field -> other values than the default."""
FOREIGN = {
    "alibi": True,
    "attention_chunk_size": 16,
    "clip_qkv": 0.5,
    "is_causal": False,
    "logit_scale": 0.5,
    "no_rope_layers": [1, 0, 1],
    "num_local_experts": 4,
    "partial_rotary_factor": 0.5,
    "quantization_config": {"quant_method": "gptq"},
    "rope_interleaved": True,
    "some_new_field": None,
}
"""Fields that none of these classes has, or that change its numbers."""


def base(name):
    """Few layers, and windows that show in the sequences that are run."""
    return {"num_hidden_layers": 2} | ({"sliding_window": 20} if name in WINDOWED else {})


@cache
def usual(name):
    """The family's model as it is, and its logits."""
    model = build(CLASSES[name], **base(name))
    return Decoder.from_config(model), wanted_logits(model, prompts())


def variants(name):
    """(field, value) for every field of the family's config class."""
    kind = getattr(transformers, f"{CLASSES[name]}Config")
    for field in dataclasses.fields(kind):
        few = field.name == "rope_parameters" and name not in ("llama", "gemma3_text", "phi3")
        for value in OTHERS[field.name][: 4 if few else None]:  # one code reads them all
            yield field.name, value


def verdict(name, field, value):
    """How a config with one field changed is exported: refused, built by nobody, or how far off."""
    given = {"rope_parameters": dict(value)} if field == "rope_parameters" else {field: value}
    if field == "rope_parameters" and name == "gemma3_text":
        given = {field: {"full_attention": dict(value), "sliding_attention": dict(value)}}
    try:
        model = build(CLASSES[name], **base(name) | given)
        wanted = wanted_logits(model, prompts())
    except Exception:  # noqa: BLE001  (transformers refuses it, in its own ways)
        return None
    try:
        decoder = Decoder.from_config(model)
    except (ConfigError, PlanError) as error:
        return error
    plain = json.loads(model.config.to_json_string(use_diff=False))
    assert decoder == Decoder.from_config(plain)
    if decoder != usual(name)[0]:
        return difference(model, decoder)
    return float(np.abs(wanted - usual(name)[1]).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_is_mapped_or_refused(name):
    """Any other value of any field gives what transformers gives, or an error that names it."""
    exported = 0
    for field, value in variants(name):
        found = verdict(name, field, value)
        if isinstance(found, OctavoError):
            assert field in found.field, (field, value, found)
        elif found is not None:
            assert found < 1e-4, (field, value, found)
            exported += 1

    assert exported >= 20


@pytest.mark.parametrize("name", ACT2CLS)
def test_every_activation(name):
    """Each activation that transformers knows gives its numbers, or is refused by name."""
    model = build("Llama", hidden_act=name)
    if name in ACTIVATIONS:
        assert difference(model) < 1e-4
        return
    with pytest.raises(
        UnsupportedField, match=f"config field hidden_act is '{name}'; octavo exports"
    ):
        Decoder.from_config(model)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("field", FOREIGN)
def test_fields_of_other_models(name, field):
    """A field the family does not have is refused by name: in a file, and on a config object."""
    config = getattr(transformers, f"{CLASSES[name]}Config")()
    file = json.loads(config.to_json_string()) | {field: FOREIGN[field]}
    if field == "partial_rotary_factor" and name == "phi3":
        del file["rope_parameters"]  # which say it themselves
        assert 48 == Decoder.from_config(file).rotaries[0].channels  # of 96: the family has it
        return
    with pytest.raises(UnsupportedField, match=f"config field {field} is ") as caught:
        Decoder.from_config(file)
    assert (field, FOREIGN[field]) == (caught.value.field, caught.value.value)
    if FOREIGN[field] is not None:
        setattr(config, field, FOREIGN[field])
        with pytest.raises(UnsupportedField, match=f"config field {field} is "):
            Decoder.from_config(config)


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_of_the_class(name):
    """A file that leaves everything out is read as the class reads it; none needs its defaults."""
    config = getattr(transformers, f"{CLASSES[name]}Config")()
    sizes = {key: getattr(config, key) for key in ("num_hidden_layers", "hidden_size")}

    assert Decoder.from_config({"model_type": name, **sizes}) == Decoder.from_config(config)


def test_every_other_model_is_refused():
    """Of all causal models that transformers builds only these families are exported."""
    refused = set()
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if name in FAMILIES:
            continue
        kind = CONFIG_MAPPING[name]
        with pytest.raises(UnsupportedField, match="config field model_type is"):
            Decoder.from_config({"model_type": kind.model_type})
        refused.add(name)

    assert len(refused) > 150


LOOK_ALIKES = {
    "Arcee": {},
    "Cohere": {},
    "Cohere2": {},
    "Cwm": {},
    "Ernie4_5": {},
    "Exaone4": {},
    "Glm": {},
    "Helium": {},
    "Ministral": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "Ministral3": {},
    "Olmo": {},
    "Olmo2": {},
    "Olmo3": {},
    "SeedOss": {},
    "SmolLM3": {},
    "VaultGemma": {},
}
"""Families whose weights have the names of Llama's, all or in part, and other code."""


@pytest.mark.parametrize("family", LOOK_ALIKES)
def test_models_whose_weights_look_the_same(family):
    """A model of other code over the same names is refused by its type, whatever its weights."""
    model = build(family, **LOOK_ALIKES[family])
    known = {*build("Gemma2").state_dict(), *build("Qwen3").state_dict(), *FUSED}
    known |= {name.replace(".weight", ".bias") for name in known}
    assert set(weights_of(model)) <= known

    for config in (model, model.config, json.loads(model.config.to_json_string())):
        with pytest.raises(UnsupportedField, match="config field model_type is"):
            Decoder.from_config(config)


FUSED = [f"model.layers.{layer}.mlp.gate_up_proj.weight" for layer in range(3)]


def test_models_that_are_not_causal_lms():
    """A classifier, a bare decoder and a class of one's own are refused by their class."""
    config = build("Llama").config

    class Own(transformers.LlamaConfig):
        model_type = "llama"

    class OwnModel(transformers.LlamaForCausalLM):
        pass

    for held, message in (
        (
            transformers.LlamaModel(config),
            "LlamaModel: of this family octavo exports LlamaForCausalLM",
        ),
        (OwnModel(config), "OwnModel: its code is not transformers' own"),
        (Own(), "Own: its code is not transformers' own"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            Decoder.from_config(held)
