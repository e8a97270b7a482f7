"""One thing under its many names, null, what was not read, and decoders inside other parts."""

import json

import pytest
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

import octavo
from octavo import Attention, Latent, ModelSpec, State
from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs import DEFAULTS, FAMILIES
from octavo.model.configs.names import NAMES, OWN_NAMES, null_says_none
from octavo.model.configs.nested import WRAPPERS

read = ModelSpec.from_config

BASE = {"hidden_size": 256, "num_attention_heads": 8, "num_hidden_layers": 4}
HOSTED = sorted(set(FAMILIES) & set(CONFIG_MAPPING_NAMES))


@pytest.mark.parametrize("name", NAMES["num_key_value_heads"])
def test_every_name_of_key_value_heads_counts(name):
    """A file that says its key/value heads by another name has as many."""
    assert {2} == {layer.kv_heads for layer in read(BASE | {"model_type": "llama", name: 2}).layers}


@pytest.mark.parametrize("name", NAMES["head_dim"])
def test_every_name_of_the_head_counts(name):
    """A file that says how wide a head is by another name has heads as wide."""
    assert {24} == {layer.k_dim for layer in read(BASE | {"model_type": "llama", name: 24}).layers}


VALUES = {
    "num_hidden_layers": 6,
    "hidden_size": 1536,
    "num_attention_heads": 24,
    "num_key_value_heads": 6,
    "head_dim": 96,
    "max_position_embeddings": 777,
    "sliding_window": 33,
    "num_nextn_predict_layers": 2,
}


def aliases():
    """(family, common name, own name) of the attribute_map of every class that has a reader."""
    for family in HOSTED:
        for name, own in CONFIG_MAPPING[family].attribute_map.items():
            for common in (name, own):
                if common in VALUES:
                    yield family, common, name, own


@pytest.mark.parametrize(("family", "common", "name", "own"), list(aliases()))
def test_both_names_of_a_class_are_one(family, common, name, own):
    """Whichever of two names transformers takes for one thing, the layers are the same."""
    heads = DEFAULTS[family].get("num_attention_heads") or 16
    config = {"model_type": family, "num_hidden_layers": 8, "hidden_size": 64 * heads}
    name_of = {"moonshine": "decoder_num_hidden_layers"}.get(family, "decoder_layers")
    config |= {name_of: 4} if name_of in DEFAULTS[family] else {}
    config |= {"layer_types": None, "num_kv_shared_layers": 0}
    if family in ("nemotron_h", "zamba2"):
        config |= {"hybrid_override_pattern": "M*M*M*", "layers_block_type": ["hybrid"] * 6}
        config["num_hidden_layers"] = 6
    others = {*NAMES.get(common, ()), *OWN_NAMES.get(family, {}).get(common, ()), name, own}
    config = {field: value for field, value in config.items() if field not in others}

    def told(field):
        try:
            return read(config | {field: VALUES[common]})
        except ConfigError as error:
            return type(error)

    assert told(name) == told(own)


def test_a_whole_file_in_other_names():
    """Files of Meta and of mlx are read by all of their names, none of them in part."""
    meta = {"dim": 2560, "n_layers": 36, "n_heads": 20, "n_kv_heads": 4, "model_type": "arcee"}
    bloom = {"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}
    mamba = {"model_type": "mamba", "d_model": 64, "n_layer": 3, "d_inner": 96, "d_state": 8}

    assert (Attention(4, 128, 128),) * 36 == read(meta).layers
    assert (Attention(16, 64, 64),) * 24 == read(bloom).layers
    assert (State((96, 8), (96, 1)),) * 3 == read(mamba | {"d_conv": 2}).layers


def test_a_name_that_a_family_has_for_something_else():
    """Mamba 2's heads and Falcon's are read by the family's own names."""
    mamba = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 1, "state_size": 4}
    sizes = {"nheads": 8, "headdim": 16, "ngroups": 2, "expand": 2, "d_conv": 4}
    falcon = BASE | {"model_type": "falcon", "new_decoder_architecture": True, "n_head_kv": 4}

    assert (State((8, 16, 4), (144, 3)),) == read(mamba | sizes).layers
    assert {4} == {layer.kv_heads for layer in read(falcon).layers}


def test_two_values_of_one_thing_are_noted():
    """The first name counts, and the plan says that the file has another value."""
    spec = read(BASE | {"model_type": "llama", "num_key_value_heads": 2, "n_kv_heads": 4})

    assert {2} == {layer.kv_heads for layer in spec.layers}
    assert any("n_kv_heads is 4" in note for note in spec.notes)


# -- null ------------------------------------------------------------------------------------------

NULLABLE = [
    (family, field)
    for family in HOSTED
    for field, value in DEFAULTS[family].items()
    if value is not None
]


@pytest.mark.parametrize(("family", "field"), NULLABLE)
def test_null_is_what_the_class_makes_of_it(family, field):
    """A field that is null is left out, unless null says in transformers that there is none."""
    if field == "max_position_embeddings":
        return  # null says that there is no bound
    made = CONFIG_MAPPING[family]
    names = {**NAMES, **OWN_NAMES.get(family, {})}.get(field, (field,))
    own = made.attribute_map.get(field, next((n for n in names if hasattr(made, n)), field))
    try:
        value = getattr(made(**{own: None}), own)
    except StrictDataclassError:  # the class refuses null
        assert not null_says_none(field, family)
    except (TypeError, ZeroDivisionError):
        pass  # the class stumbles over it
    else:
        assert null_says_none(field, family) or value in (None, DEFAULTS[family][field])


def test_null_heads_and_widths():
    """Null key/value heads of a family with a default are what its class takes."""
    base = {"hidden_size": 4096, "num_hidden_layers": 2, "num_key_value_heads": None}

    assert 32 == read(base | {"model_type": "bamba", "attn_layer_indices": [0]}).layers[0].kv_heads
    assert 8 == read(base | {"model_type": "mistral"}).layers[0].kv_heads
    assert 128 == read(base | {"model_type": "qwen3", "head_dim": None}).layers[0].k_dim
    assert 4096 == read(base | {"model_type": "llama"}).layers[0].kv_heads * 128
    assert (Latent(512, 64),) * 2 == read(
        base | {"model_type": "deepseek_v3", "kv_lora_rank": None}
    ).layers


# -- what was not read -----------------------------------------------------------------------------


def test_a_size_that_was_not_read_is_noted():
    """The plan says it, as text and as data; words that are no size of a cache are not told."""
    config = BASE | {"model_type": "llama", "kv_head_groups": 2, "attn": {"heads_of_keys": 3}}
    config |= {"hybrid_layers": [1, 0] * 4}
    plan = octavo.plan(read(config | {"vocab_size": 9, "intermediate_size": 8}), "1GiB")
    told = [note for note in plan.to_dict()["notes"] if "not read" in note]

    assert [
        "kv_head_groups is 2 in the file and was not read",
        "attn.heads_of_keys is 3 in the file and was not read",
        "hybrid_layers is [1, 0, 1, 0, 1, 0, ...] in the file and was not read",
    ] == told
    assert all(note in plan.explain() for note in told)


@pytest.mark.parametrize(
    "name",
    [
        *("key_size", "value_size", "attention_key_size", "latent_dim", "max_window"),
        *("attention_window", "local_attention_window", "mtp_heads"),
    ],
)
def test_sizes_by_names_that_nobody_reads(name):
    """Widths, windows and prediction layers by unknown names are noted; feed-forwards are not."""
    spec = read(BASE | {"model_type": "mistral", "sliding_window": None, name: 128})

    assert (f"{name} is 128 in the file and was not read",) == spec.notes
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "hidden_dim": 14336}
    assert () == read(params).notes


@pytest.mark.parametrize("name", NAMES["num_nextn_predict_layers"])
@pytest.mark.parametrize("family", ["mimo", "qwen3_next", "step3p5"])
def test_prediction_layers_by_any_of_their_names(family, name):
    """They are read by each; where two names differ the first counts, and that is noted."""
    config = BASE | {"model_type": family, "num_key_value_heads": 4}
    first = NAMES["num_nextn_predict_layers"][0]

    assert 2 == len(read(config | {name: 2}).mtp)
    if name != first:
        notes = read(config | {first: 0, name: 2}).notes
        assert any(f"{name} is 2" in note for note in notes)


def test_what_a_family_has_no_use_for_is_noted():
    """Key/value heads where every head has its own, and lists of blocks that nobody reads."""
    gpt2 = read(BASE | {"model_type": "gpt2", "num_key_value_heads": 2})
    blocks = read(BASE | {"model_type": "llama", "block_configs": [{"attention": {}}] * 4})

    assert ("num_key_value_heads is 2 in the file and was not read",) == gpt2.notes
    assert ("block_configs is a list of 4 objects in the file and was not read",) == blocks.notes
    whisper = {"model_type": "whisper", "d_model": 64, "decoder_layers": 2, "num_hidden_layers": 4}
    assert () == read(whisper | {"decoder_attention_heads": 4}).notes


@pytest.mark.parametrize("family", sorted({*HOSTED, *WRAPPERS} & set(CONFIG_MAPPING_NAMES)))
def test_nothing_of_a_class_is_unread(family):
    """What transformers writes of a family is read, or is no size: no note cries wolf."""
    try:
        spec = read(CONFIG_MAPPING[family]().to_dict() | {"model_type": family})
    except ConfigError:
        return  # heads that do not divide: refused by name elsewhere

    assert [] == [note for note in spec.notes if "not read" in note or "one thing" in note]


@pytest.mark.parametrize(
    "asked",
    [
        {"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}},
        {"quantization_config": {"kv_cache_quant_algo": "FP8"}},
        {"kv_cache_dtype": "fp8_e4m3"},
    ],
)
def test_a_file_that_asks_for_a_small_cache(asked):
    """The plan says that the file asks for it, and how to count it."""
    notes = read(BASE | {"model_type": "llama"} | asked).notes

    assert 1 == len(notes)
    assert "asks for a cache in fp8" in notes[0]
    nested = {"model_type": "llava", "text_config": BASE | asked}
    assert notes == read(nested).notes
    assert () == read(BASE | {"model_type": "llama", "quantization_config": {"bits": 4}}).notes


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "int"}}, "int8: --dtype int8"),
        ({"kv_cache_quant_algo": "NVFP4"}, "nvfp4: no element type here is that"),
        ({"quantization": {"kv_cache_quant_algo": "FP8"}}, "fp8: --dtype fp8"),
        ({"kv_cache_quant_config": {"*k_proj": {"output_tensors": {"dtype": "fp8_e4m3"}}}}, "fp8"),
        ({"export": {"kv_cache_group": ["*k_proj"]}}, "a quantised cache: --dtype fp8"),
        ({"kv_cache_quantization": {"bits": 4}}, "int4: --dtype int4"),
    ],
)
def test_a_small_cache_in_every_form(asked, words):
    """Quantisers say it in forms of their own; what to do depends on the element type."""
    notes = read(BASE | {"model_type": "llama", "quantization_config": asked}).notes

    assert 1 == len(notes)
    assert words in notes[0]


def test_a_small_cache_asked_for_beside_the_config(tmp_path):
    """ModelOpt says it in a file of its own; one that is no JSON says nothing."""
    config = BASE | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"kv_cache_quant_algo": "FP8"}}))

    assert "kv_cache_quant_algo asks for a cache in fp8" in read(tmp_path).notes[0]
    beside.write_text("{")
    assert () == read(tmp_path).notes


# -- parts -----------------------------------------------------------------------------------------


def test_parts_without_a_name():
    """A part that names no family has its architecture's, else its parent's, at any depth."""
    kv = BASE | {"num_key_value_heads": 2}
    omni = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": kv}}
    qwen = {
        "model_type": "internvl_chat",
        "llm_config": kv | {"architectures": ["Qwen2ForCausalLM"]},
    }

    assert (Attention(2, 32, 32),) * 4 == read(omni).layers
    assert (Attention(2, 32, 32),) * 4 == read(qwen).layers
    assert 4 == len(read({"model_type": "qwen2_vl", "text_config": {}, **kv}).layers)


def test_prompts_that_look_ahead():
    """PaliGemma's prompt comes in one step, which the plan says; elsewhere it is refused."""
    text = BASE | {"model_type": "gemma", "num_key_value_heads": 8}
    plain = read({"model_type": "paligemma", "text_config": text})
    saved = read(
        {"model_type": "paligemma", "text_config": text | {"use_bidirectional_attention": True}}
    )

    assert plain == saved
    assert any("in one step" in note for note in saved.notes)
    with pytest.raises(ConfigError, match="use_bidirectional_attention"):
        read(text | {"use_bidirectional_attention": True})


def test_advice_on_parts_is_true():
    """A part is pointed out only where it can be read."""
    with pytest.raises(UnknownArchitecture) as caught:
        read({"model_type": "brand_new", "text_config": {"model_type": "llama"}})

    assert "from_config" not in str(caught.value)
