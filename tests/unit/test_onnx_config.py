"""Decoders from config.json: files of today and older ones, and what is refused by its name."""

import ast
import json
from math import log, pi
from pathlib import Path

import numpy as np
import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import octavo
from octavo.errors import ConfigError, LengthError, PlanError, UnsupportedField, UnsupportedModel
from octavo.integrations.onnx import Decoder, PagedSession, Rotary, export_decoder
from octavo.integrations.onnx.families import FAMILIES, FIXED, INERT
from octavo.model.spec import Attention, Latent

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}


def tiny(name="llama", **fields):
    """A small config of a family."""
    return {"model_type": name, **TINY, **fields}


def frequencies(**fields):
    """Of the first layer of a small Llama, float64[8]."""
    return np.array(Decoder.from_config(tiny(**fields)).rotaries[0].frequencies)


def test_llama_3_1():
    """Sizes as published; long waves eight times as slow, short ones as they were."""
    decoder = Decoder.from_config(LLAMA | {"rope_scaling": LLAMA3})
    plain = Decoder.from_config(LLAMA).rotaries[0].frequencies
    found = decoder.rotaries[0].frequencies

    assert (128256, 4096, 32, 32, 14336, 131072) == tuple(
        getattr(decoder, name)
        for name in ("vocab", "hidden", "layers", "heads", "mlp", "max_length")
    )
    assert Attention(8, 128, 128) == decoder.kind
    assert (1e-5, False, "silu", ()) == (
        decoder.epsilon,
        decoder.tied,
        decoder.activation,
        decoder.biases,
    )
    assert (64, 1.0) == (len(found), decoder.rotaries[0].magnitude)
    waves = [2 * pi / each for each in plain]
    for wave, before, after in zip(waves, plain, found, strict=True):
        if wave < 8192 / 4:
            assert before == pytest.approx(after, rel=1e-12)
        elif wave > 8192:
            assert before / 8 == pytest.approx(after, rel=1e-12)
        else:
            assert before / 8 < after < before


def test_older_files_and_today_s():
    """rope_theta, rope_scaling and partial_rotary_factor of an older file are rope_parameters."""
    scaling = {"type": "linear", "factor": 2.0}
    today = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}

    assert Decoder.from_config(tiny(rope_theta=500.0, rope_scaling=scaling)) == (
        Decoder.from_config(tiny(**today))
    )
    assert np.allclose(frequencies(**today), frequencies(rope_theta=500.0) / 2)
    older = tiny("phi3", partial_rotary_factor=0.5)
    assert 8 == Decoder.from_config(older).rotaries[0].channels


def test_gemma_3_of_an_older_file():
    """Scaling and rope_theta are those of layers that see everything; others have their own."""
    file = tiny("gemma3_text", sliding_window=8, num_hidden_layers=6, rope_theta=900.0)
    file |= {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 70.0}
    decoder = Decoder.from_config(file)

    assert [8] * 5 + [None] == [kind.window for kind in decoder.kinds]
    assert {"window_8": (0, 1, 2, 3, 4), "full": (5,)} == decoder.groups
    slides, full = decoder.rotaries[0], decoder.rotaries[5]
    assert Rotary.plain(16, 70.0) == slides
    assert np.allclose(Rotary.plain(16, 900.0).frequencies, 8 * np.array(full.frequencies))


def test_gemma_3_whose_layers_are_listed():
    """What transformers keeps of a pattern beside the layers it gave says nothing more."""
    listed = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    decoder = Decoder.from_config(tiny("gemma3_text", _sliding_window_pattern=3, **listed))

    assert {"window_8": (0,), "full": (1,)} == decoder.groups


def test_windows_that_hold_every_position():
    """They are none, as in a plan of the decoder's spec: the graph reads what that plan has."""
    sizes = {"sliding_window": 4096, "max_position_embeddings": 96}
    decoder = Decoder.from_config(tiny("gemma2", **sizes, vocab_size=50, intermediate_size=48))
    plan = octavo.plan(decoder.spec, "1MiB", dtype="fp32", layout="component")
    model = export_decoder(decoder, decoder.random_weights(), dtype="fp32", operators="standard")
    cache, session = octavo.Cache(plan), PagedSession(model, plan)

    assert list(plan.groups) == list(decoder.groups) == ["full"]
    assert (20, 50) == session.run(cache.extend(cache.admit(range(20)), 20)).shape


def test_yarn_magnitude():
    """The attention factor is 0.1 ln(factor) + 1, or what the file says."""
    for given, wanted in (
        ({}, 0.1 * log(4) + 1),
        ({"attention_factor": 0.5}, 0.5),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * log(4) + 1) / (0.1 * log(4) + 1)),
        ({"factor": None}, 0.1 * log(96 / 24) + 1),
    ):
        file = tiny(rope_parameters=YARN | given, max_position_embeddings=96)
        rotary = Decoder.from_config(file).rotaries[0]
        cos, _ = rotary.tables(1)
        assert wanted == pytest.approx(rotary.magnitude)
        assert np.allclose(wanted, cos)


def test_gemma_1_means_the_approximation():
    """hidden_act gelu of its official files is gelu_pytorch_tanh, as its class reads it."""
    assert "gelu_pytorch_tanh" == Decoder.from_config(tiny("gemma", hidden_act="gelu")).activation
    assert "gelu" == Decoder.from_config(tiny(hidden_act="gelu")).activation


def test_null_says_that_there_is_none():
    """A cap of null is none, not that of the class; so is a window of null."""
    gemma = Decoder.from_config(tiny("gemma2", final_logit_softcapping=None, head_dim=16))

    assert (50.0, None) == (gemma.score_cap, gemma.logit_cap)
    assert Attention(4, 16, 16) == Decoder.from_config(tiny("mistral", sliding_window=None)).kind


def test_paths(tmp_path):
    """The file, or the folder it lies in."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))

    for place in (tmp_path, str(tmp_path), tmp_path / "config.json"):
        assert Decoder.from_config(LLAMA) == Decoder.from_config(place)


def test_layers_are_those_of_the_spec():
    """What each layer keeps is what ModelSpec.from_config says of the same file."""
    for name in FAMILIES:
        file = tiny(name, num_hidden_layers=6, max_position_embeddings=512)
        if "sliding_window" in FAMILIES[name].defaults:
            file |= {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 3}
            file = {key: v for key, v in file.items() if key in FAMILIES[name].mapped}
        spec = octavo.ModelSpec.from_config(file)
        assert (spec.layers, 512) == (Decoder.from_config(file).spec.layers, spec.max_length)


REFUSED = [
    ({"model_type": None}, "model_type", "is None; octavo exports gemma, gemma2"),
    ({"model_type": "olmo"}, "model_type", "is 'olmo'; octavo exports"),
    (
        {"model_type": "gpt_oss", "num_local_experts": 32},
        "model_type",
        "it has num_local_experts, and no such feed-forward is exported; octavo exports",
    ),
    ({"model_type": ["llama"]}, "model_type", "is .'llama'.; octavo exports"),
    ({"architectures": ["LlamaForTokenClassification"]}, "architectures", "LlamaForCausalLM"),
    ({"architectures": 3}, "architectures", "LlamaForCausalLM"),
    ({"hidden_act": "xielu"}, "hidden_act", "is 'xielu'; octavo exports silu"),
    ({"hidden_act": None}, "hidden_act", "is None"),
    ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type", "is 'longrope'"),
    ({"rope_scaling": {"type": "su"}}, "rope_scaling.rope_type", "is 'su'; computed here are"),
    (
        {"rope_parameters": {"rope_type": "default", "factor": 8.0}},
        "rope_parameters.factor",
        "is 8.0; rope type default has no such parameter",
    ),
    ({"rope_parameters": {"mrope_section": [1]}}, "rope_parameters.mrope_section", "default has"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "rotates whole heads"),
    (
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor",
        "rotates whole heads",
    ),
    ({"quantization_config": {"bits": 4}}, "quantization_config", "exported with None alone"),
    ({"is_causal": None}, "is_causal", "exported with True alone"),
    ({"sliding_window": 20}, "sliding_window", "does not know this field"),
    ({"embedding_multiplier": 1.0}, "embedding_multiplier", "does not know this field"),
    ({"model_type": "qwen2", "attention_bias": True}, "attention_bias", "with False alone"),
    ({"model_type": "phi3", "rope_scaling": YARN}, "rope_scaling.rope_type", "with default"),
    ({"model_type": "gemma2", "hidden_act": "silu"}, "hidden_act", "hidden_activation is 'gelu"),
    (
        {"model_type": "gemma2", "sliding_window_size": 5},
        "sliding_window_size",
        "sliding_window is",
    ),
    (
        {"model_type": "gemma3_text", "attn_logit_softcapping": 50.0},
        "attn_logit_softcapping",
        "exported with None alone",
    ),
    (
        {"model_type": "gemma3_text", "rope_parameters": {"rope_type": "default"}},
        "rope_parameters.rope_type",
        "its keys must be full_attention, sliding_attention",
    ),
    (
        {"model_type": "gemma3_text", "rope_scaling": {"type": "linear", "factor": 8.0}},
        "rope_scaling.type",
        "passes it over; it reads rope_type",
    ),
    (
        {"model_type": "gemma3_text", "_sliding_window_pattern": 2},
        "_sliding_window_pattern",
        "is 2; sliding_window_pattern is 6, and is what is read",
    ),
    (
        {"model_type": "gemma3_text", "rope_scaling": YARN | {"truncate": False}},
        "rope_parameters.full_attention.truncate",
        "passes it over",
    ),
]


@pytest.mark.parametrize(("changed", "field", "message"), REFUSED)
def test_fields_that_would_change_the_numbers(changed, field, message):
    """Refused by name and value, as a wrong config and as a model that is not supported."""
    with pytest.raises(UnsupportedField, match=message) as caught:
        Decoder.from_config(tiny() | changed)
    assert field == caught.value.field == caught.value.what
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, UnsupportedModel)


WRONG = [
    ({"num_hidden_layers": None}, "num_hidden_layers", "is required"),
    ({"attention_bias": None}, "attention_bias", "true or false"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
    ({"rms_norm_eps": 0}, "rms_norm_eps", "a finite number above 0"),
    ({"rope_theta": None}, "rope_parameters.rope_theta", "a finite number above 0"),
    (
        {"model_type": "gemma3_text", "rope_theta": None},
        "rope_parameters.full_attention.rope_theta",
        "a finite number above 0",
    ),
    (
        {"model_type": "gemma3_text", "rope_local_base_freq": 0},
        "rope_parameters.sliding_attention.rope_theta",
        "a finite number above 0",
    ),
    ({"rope_theta": 1}, "rope_parameters.rope_theta", "above 1"),
    ({"rope_parameters": []}, None, None),
    ({"rope_parameters": [1]}, "rope_parameters", "a JSON object"),
    ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor", "is None; .*above 0"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1}}, "rope_parameters.high_freq_factor", "1.0"),
    ({"rope_scaling": YARN | {"truncate": 1}}, "rope_scaling.truncate", "true or false"),
    (
        {"model_type": "phi3", "partial_rotary_factor": 0.2},
        "rope_parameters.partial_rotary_factor",
        "an even number of the 16 channels",
    ),
    ({"model_type": "qwen2", "layer_types": 3}, "layer_types", "list"),
    ({"vocab_size": True}, "vocab_size", "an int of at least 1"),
    ({"max_position_embeddings": None}, "max_position_embeddings", "an int of at least 1"),
    ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling", "above 0"),
    ({"model_type": "gemma2", "query_pre_attn_scalar": "8"}, "query_pre_attn_scalar", "above 0"),
    (
        {"model_type": "gemma2", "layer_types": ["sliding_attention"] * 2, "sliding_window": None},
        "sliding_window",
        "layers that slide",
    ),
]


@pytest.mark.parametrize(("changed", "field", "message"), WRONG)
def test_fields_that_are_wrong(changed, field, message):
    """A field of the wrong kind is refused by name; what counts as left out is not."""
    if field is None:
        assert Decoder.from_config(tiny()) == Decoder.from_config(tiny() | changed)
        return
    with pytest.raises(ConfigError, match=message) as caught:
        Decoder.from_config(tiny() | changed)
    assert field == caught.value.field


@pytest.mark.parametrize("config", [None, 7, object(), [("model_type", "llama")]])
def test_what_is_no_config(config):
    """Refused by its type."""
    with pytest.raises(ConfigError, match=f"config is '{type(config).__name__}'; it must be a con"):
        Decoder.from_config(config)


def test_sizes_the_operator_does_not_take():
    """Heads whose channels are no multiple of 16, as by hand."""
    with pytest.raises(PlanError, match="k_dim is 24; .*a multiple of 16"):
        Decoder.from_config(tiny(head_dim=24))


def test_fields_without_effect_are_listed_once():
    """No field is two things; what draws tokens is as transformers lists it."""
    drawing = set(transformers.GenerationConfig._get_default_generation_params())

    assert drawing <= INERT
    assert not INERT & set(FIXED)
    for family in FAMILIES.values():
        assert not INERT & family.mapped


def read_by(name):
    """The config fields that a family's code in transformers reads."""
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name])
    module = Path(__import__(kind.__module__, fromlist=["x"]).__file__)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "self.config"):
            yield node.attr
        call = ast.unparse(node) if isinstance(node, ast.Call) else ""
        if call.startswith(("getattr(config,", "getattr(self.config,")):
            yield node.args[1].value


@pytest.mark.parametrize("name", FAMILIES)
def test_everything_its_code_reads_is_known(name):
    """Of what is without effect the code reads dropout and the padding token alone."""
    ours = {"_attn_implementation", "get_text_config"}  # how transformers attends, and where
    vision = {"text_config", "vision_config", "image_token_id", "mm_tokens_per_image"}
    found = set(read_by(name)) - ours - (vision if name == "gemma3_text" else set())

    assert {"hidden_size", "rms_norm_eps", "rope_parameters"} <= found
    assert found - FAMILIES[name].mapped - set(FIXED) <= INERT
    assert found & INERT <= {"attention_dropout", "resid_pdrop", "pad_token_id"}


SIZES = {"vocab": 50, "hidden": 32, "layers": 2, "heads": 4, "mlp": 48, "max_length": 64}
KIND = Attention(2, 16, 16)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"kind": (KIND,)}, PlanError, "kind is .*; a tuple holds one for each of 2 layers"),
        (
            {"kind": (KIND, Latent(24, 16))},
            PlanError,
            "kind is Latent.*; each must be an Attention",
        ),
        ({"kind": (KIND, Attention(4, 16, 16))}, PlanError, "differ in their window alone"),
        ({"kind": (KIND, Attention(2, 16, 16, 8, sink_tokens=1))}, PlanError, "window alone"),
        ({"kind": Attention(2, 16, 16, 8, sink_tokens=1)}, UnsupportedModel, "no sinks"),
        ({"rotary": (Rotary.plain(16),)}, PlanError, "rotary is .*one for each of 2 layers"),
        ({"rotary": Rotary.plain(32)}, PlanError, "rotary is 32; heads have 16 channels"),
        ({"rotary": 3}, PlanError, "rotary is 3; it must be a Rotary"),
        ({"activation": "xielu"}, PlanError, "activation is 'xielu'"),
        ({"biases": ("qkv",)}, PlanError, "biases is 'qkv'"),
        ({"score_scale": 0.0}, PlanError, "score_scale is 0.0"),
        ({"score_cap": -1.0}, PlanError, "score_cap is -1.0"),
        ({"logit_cap": float("inf")}, PlanError, "logit_cap is inf"),
        ({"norm_offset": float("nan")}, PlanError, "norm_offset is nan"),
        ({"residual_scale": 0}, PlanError, "residual_scale is 0"),
        (
            {"kind": Latent(24, 16), "nope_dim": 8, "v_dim": 12, "qk_norm": True},
            UnsupportedModel,
            "no biases, QK norm",
        ),
        (
            {"kind": Latent(24, 16), "nope_dim": 8, "v_dim": 12, "rotary": Rotary.plain(8)},
            PlanError,
            "rotary is 8; heads have 16",
        ),
        ({"vocab": 2.5}, LengthError, "vocab is 2.5"),
    ],
)
def test_decoders_by_hand(changed, error, message):
    """What cannot be exported is refused when the decoder is described."""
    with pytest.raises(error, match=message):
        Decoder(**(SIZES | {"kind": KIND} | changed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(((),), "frequencies is 0.0"), (((1.0, -1.0),), "is -1.0"), (((1.0,), 0), "magnitude is 0")],
)
def test_rotaries_by_hand(arguments, message):
    """Frequencies and the magnitude are finite numbers above 0."""
    with pytest.raises(PlanError, match=message):
        Rotary(*arguments)


def test_heads_of_their_own_and_tied_ones():
    """Untied needs lm_head.weight; tied takes one that is equal to the embedding, and no other."""
    untied, tied = (Decoder(**SIZES, kind=KIND, tied=flag) for flag in (False, True))
    weights = untied.random_weights()
    other = dict(weights)
    del other["lm_head.weight"]
    with pytest.raises(PlanError, match=r"lm_head.weight of shape \(50, 32\) is missing"):
        export_decoder(untied, other)
    with pytest.raises(PlanError, match="lm_head.weight is .*the config says that they are tied"):
        export_decoder(tied, weights)
    other["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    names = [each.name for each in export_decoder(tied, other).graph.initializer]
    assert "lm_head.weight" not in names
    assert "lm_head.weight" not in tied.random_weights()


def test_weights_that_a_decoder_lacks():
    """Biases, norms of heads and sinks are weights by name: refused where missing or foreign."""
    plain = Decoder(**SIZES, kind=KIND)
    rich = Decoder(
        **SIZES,
        kind=Attention(2, 16, 16, sink_logits=True),
        biases=("q_proj", "down_proj"),
        qk_norm=True,
        post_norms=True,
    )
    own = set(rich.shapes()) - set(plain.shapes())
    assert {name.partition("layers.0.")[2] for name in own if "layers.0." in name} == {
        "self_attn.q_proj.bias",
        "mlp.down_proj.bias",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "self_attn.sinks",
        "pre_feedforward_layernorm.weight",
        "post_feedforward_layernorm.weight",
    }
    for name in sorted(own)[:7]:
        weights = rich.random_weights()
        with pytest.raises(PlanError, match="this decoder has no weight of that name"):
            plain.check_weights(weights)
        del weights[name]
        with pytest.raises(PlanError, match=f"{name} of shape .* is missing"):
            rich.check_weights(weights)
