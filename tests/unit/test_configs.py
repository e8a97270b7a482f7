"""From config.json to a spec, family by family."""

import dataclasses
import json

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from octavo import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs import DEFAULTS, FAMILIES, known_architectures
from octavo.model.configs.families import REMOTE, REQUIRED
from octavo.model.configs.names import NAMES, OWN_NAMES
from octavo.model.configs.nested import DECODING_ENCODERS, ENCODERS, PART_DEFAULTS, WRAPPERS
from octavo.model.configs.nested import PARTS as DECODERS

read = ModelSpec.from_config

BASE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
}


def layers(**fields):
    """The layers of a config: BASE with ``fields`` over it, None taking one away."""
    config = {name: value for name, value in (BASE | fields).items() if value is not None}
    return read(config).layers


def windows(**fields):
    """The window of each layer."""
    return [layer.window for layer in layers(**fields)]


def test_head_dim_is_taken_when_it_is_there():
    """head_dim wins over width / heads, which need not divide then."""
    assert 128 == layers(model_type="qwen3", head_dim=128, hidden_size=63)[0].k_dim
    assert 128 == layers(model_type="qwen3")[0].k_dim
    assert 16 == layers(model_type="qwen2")[0].k_dim


def test_gpt2_names():
    """n_layer, n_head and n_embd are read; without kv heads every head has its own."""
    config = {"model_type": "gpt2", "n_layer": 3, "n_head": 5, "n_embd": 40, "n_positions": 99}

    assert ModelSpec("gpt2", (Attention(5, 8, 8),) * 3, 99) == read(config)


def test_a_nested_decoder_is_read():
    """text_config holds the decoder of a vision-language model; vision layers do not count."""
    config = {
        "model_type": "gemma3",
        "vision_config": {"num_hidden_layers": 27},
        "text_config": BASE | {"num_hidden_layers": 2, "max_position_embeddings": 64},
    }

    assert 2 == len(read(config).layers)
    assert 64 == read(config).max_length


@pytest.mark.parametrize(
    ("fields", "length", "note"),
    [
        ({"max_context_length": 2048}, 2048, None),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072, "one thing"),
        ({"max_position_embeddings": 131072, "max_seq_len": 4096}, 131072, "one thing"),
    ],
)
def test_the_models_own_length_by_any_name(fields, length, note):
    """Two names that differ are said, whichever is read."""
    base = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}
    found = read(base | {"num_attention_heads": 4} | fields)

    assert length == found.max_length
    assert (note is not None) == any(note in said for said in found.notes if note)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"type": "linear", "factor": 4.0}, "16,384 with its rope_scaling (linear, factor 4)"),
        ({"rope_type": "dynamic", "factor": 2}, "--max-len 8192 (max_length=8192)"),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 2048}, "8,192 wi"),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}, None),
        ({"rope_type": "llama3", "factor": 8}, None),
        ({"type": "longrope", "short_factor": [1.0]}, None),
        ({"full_attention": {"rope_type": "linear", "factor": 8}}, None),
        ({"type": "dynamic", "alpha": 1000.0}, None),
        (3, "rope_scaling is 3 and no JSON object"),
        ({"type": "linear"}, "a factor of at least 1: it was passed over"),
        ({"type": "linear", "factor": "x"}, "a factor of at least 1: it was passed over"),
        ({"type": 3, "factor": 2}, "not a type, and a factor"),
    ],
)
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_the_length_with_rope_scaling_is_said(field, scaling, said):
    """As vLLM multiplies it; what is malformed is said as well."""
    base = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}
    more = {"num_attention_heads": 4, "max_position_embeddings": 4096, field: scaling}
    found = read(base | more)

    assert 4096 == found.max_length
    assert [] == list(found.notes) if said is None else said in " ".join(found.notes)


def test_max_length_may_be_null():
    """A file that says there is no bound gives an unbounded spec; silence gives the default."""
    base = BASE | {"model_type": "llama"}

    assert read(base | {"max_position_embeddings": None}).max_length is None
    assert 2048 == read(base).max_length


HOSTED = sorted(set(FAMILIES) - set(REMOTE))
"""Families that transformers has."""


def of_the_class(family, field):
    """The default of ``field`` in the class of transformers; KeyError where it has no such one."""
    made = CONFIG_MAPPING[family]
    names = {**NAMES, **OWN_NAMES.get(family, {})}.get(field, (field,))
    own = {item.name: item for item in dataclasses.fields(made)}
    name = made.attribute_map.get(field, next((n for n in names if n in own), field))
    own = own[name]
    if own.default_factory is not dataclasses.MISSING:
        return own.default_factory()
    return None if own.default is dataclasses.MISSING else own.default


NOT_READ = {
    *("bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "moonshine"),
    *("nllb-moe", "pegasus", "plbart", "speech_to_text", "trocr", "whisper", "bigbird_pegasus"),
    *("fsmt", "led", "mvp", "pegasus_x", "pp_formulanet_text", "prophetnet", "seamless_m4t"),
    *("seamless_m4t_v2", "speecht5"),
}
"""Families whose class calls the encoder's fields by the common names; the decoder's are read."""
RULES = {
    ("bailing_hybrid", "max_position_embeddings"): 262144,
    ("led", "max_position_embeddings"): 1024,
    ("pix2struct_text_model", "num_decoder_layers"): None,
    ("speecht5", "max_position_embeddings"): 4000,
    ("deepseek_v3", "num_nextn_predict_layers"): 1,
    ("gemma4_text", "global_head_dim"): 512,
    ("gemma4_unified_text", "global_head_dim"): 512,
    ("glm4_moe", "num_nextn_predict_layers"): 1,
    ("gpt_neo", "attention_types"): [[["global", "local"], 12]],
    ("kimi_linear", "max_position_embeddings"): 1048576,
    ("longcat_flash", "num_hidden_layers"): 28,
    ("mamba2", "num_attention_heads"): None,
    ("mpt", "max_position_embeddings"): 2048,
    ("speech_to_text", "max_position_embeddings"): 1024,
    ("whisper", "max_position_embeddings"): 448,
}
"""Defaults that transformers does not keep in a field of that name but in code or another one."""


@pytest.mark.parametrize("family", HOSTED)
def test_defaults_are_those_of_transformers(family):
    """Each row of the table holds what the class in transformers takes for absent fields."""
    for field, value in DEFAULTS[family].items():
        if (family, field) in RULES:
            assert RULES[family, field] == value
            continue
        try:
            other = of_the_class(family, field)
        except KeyError:
            assert value is None, field
            continue
        other = list(other) if isinstance(other, tuple) else other
        encoders = family in NOT_READ or (field == "head_dim" and "d_kv" in DEFAULTS[family])
        assert value == other or (value is None and encoders), field


def whole_and_part(family):
    """What a file must say, and the whole that the class in transformers makes of it."""
    names, part = CONFIG_MAPPING[family].attribute_map, {}
    for field in ("num_hidden_layers", "hidden_size"):
        value = DEFAULTS[family][field]
        if value is not None:
            part[names.get(field, field)] = value
    part |= {name: DEFAULTS[family][name] for name in REQUIRED[2:] if name in DEFAULTS[family]}
    if family == "prophetnet":
        part = {"hidden_size": 1024, "num_decoder_layers": 12}
    if family == "longcat_flash":
        part = {"num_layers": 28, "hidden_size": 6144}
    if family == "nemotron_h":
        part |= {"hybrid_override_pattern": "MEM*-ME"}
    return part, CONFIG_MAPPING[family](**part).to_dict()


UNEVEN = {"glm4_moe", "glm4v_moe_text", "qwen3_omni_moe_text"}
"""Families whose class divides width by heads and forgets the rest."""


@pytest.mark.parametrize("family", sorted(set(HOSTED) - UNEVEN))
def test_the_least_a_file_may_say(family):
    """Layers and width alone give the spec of the whole config that transformers makes of them."""
    part, whole = whole_and_part(family)

    assert read(whole | {"model_type": family}) == read(part | {"model_type": family})


@pytest.mark.parametrize("family", sorted(UNEVEN))
def test_uneven_heads_are_refused(family):
    """Where width / heads leaves a rest, the file must name head_dim."""
    config = {"model_type": family, "num_hidden_layers": 4}
    width = DEFAULTS[family]["hidden_size"]

    with pytest.raises(ConfigError, match="hidden_size"):
        read(config | {"hidden_size": width})
    assert 128 == read(config | {"hidden_size": width, "head_dim": 128}).layers[0].k_dim


@pytest.mark.parametrize("family", sorted(WRAPPERS))
def test_nested_decoders_are_those_of_transformers(family):
    """A model of images or sound whose nest names no family has the decoder its class has."""
    inner = WRAPPERS[family]
    own = {"hidden_size": 1536, "num_hidden_layers": 10, "num_attention_heads": 8}
    own |= {"num_key_value_heads": 4, "max_position_embeddings": 64}
    own |= {"decoder_layers": 4} if inner in ("bart", "pp_formulanet_text") else {}
    pattern = {"hybrid_override_pattern": "M*M*M*M*M*"}
    own |= pattern if inner == "nemotron_h" else {}
    own |= {"attn_type_list": [0, 1] * 5} if inner == "minimax_text_01" else {}
    own |= {"num_kv_shared_layers": 2} if inner == "gemma3n_text" else {}
    own |= {"cross_attention_layers": [1]} if family == "mllama" else {}
    depth = {"audio_decoder_config": own | {"num_codebooks": 2}}
    found = read({"model_type": family, "text_config": own, **depth})

    assert inner in FAMILIES
    usual = PART_DEFAULTS.get(family, {})
    assert read({**usual, **own, "model_type": inner}).layers == found.layers
    if family in CONFIG_MAPPING:
        assert inner == CONFIG_MAPPING[family]().get_text_config(decoder=True).model_type


LISTED = {"mllama", "nemo_speechlm", "nemotron_h_omni"}
"""Models of images or sound whose lists of layers have no default for other numbers of them."""


@pytest.mark.parametrize("family", sorted(set(WRAPPERS) & set(CONFIG_MAPPING) - LISTED))
def test_what_a_nested_part_leaves_out_is_what_its_whole_takes(family):
    """A part of its layers' number alone is the decoder that the whole's class makes of it."""
    made = CONFIG_MAPPING[family]
    base = made().to_dict()
    part = next((name for name in DECODERS if isinstance(base.get(name), dict)), None)
    if part is None or family == "qwen2_5_omni":  # its decoder is a part of that part
        return
    given = {"model_type": family, part: {"num_hidden_layers": 12}}
    try:
        whole = made.from_dict(json.loads(json.dumps(given))).to_dict()
    except (StrictDataclassError, ValueError, KeyError):
        return  # the class wants more of that part

    def told(config):
        try:
            return read(config | {"model_type": family})
        except ConfigError as error:
            return error.field

    assert told(whole) == told(given)


PARTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "max_position_embeddings": 99,
    "sliding_window": 7,
}
OTHER_NAMES = {"n_head", "n_heads", "num_heads", "attention_heads"}
PLAIN = sorted(
    family
    for family in HOSTED
    if FAMILIES[family].read.__module__.endswith((".dense", ".windowed"))
    and FAMILIES[family].read.__name__
    not in ("unshared", "unshared_wide", "gemma4", "falcon", "gpt_neo")
    and not OTHER_NAMES & set(CONFIG_MAPPING[family].attribute_map.values())
    and family
    not in (  # whose classes set some of these anew, or demand others beside them
        *("deepseek_ocr2_text", "jetmoe", "cosmos3_edge_text", "gradium_phonon_tts", "pocket_tts"),
        "unlimited_ocr_text",
    )
)
"""Families of attention alone whose class has the common names."""


@pytest.mark.parametrize("absent", [*PARTS, None, "all"])
@pytest.mark.parametrize("use", [False, True])
@pytest.mark.parametrize("family", PLAIN)
def test_what_a_file_leaves_out_is_what_transformers_takes(family, absent, use):
    """A partial config gives the spec of the whole one that transformers makes of it."""
    given = {n: v for n, v in PARTS.items() if absent not in (n, "all")}
    given |= {"hidden_size": 174720, "num_hidden_layers": 10}
    given |= {"num_kv_shared_layers": 3} if family == "gemma3n_text" else {}
    if "max_window_layers" in DEFAULTS[family]:
        given |= {"use_sliding_window": use, "max_window_layers": 3}
    if absent in ("all", "num_attention_heads"):
        given["num_key_value_heads"] = DEFAULTS[family]["num_attention_heads"] // 2
    elif absent == "num_key_value_heads" and 32 % (DEFAULTS[family][absent] or 1):
        given["num_attention_heads"] = DEFAULTS[family][absent] * 4
    whole = transformers.AutoConfig.for_model(family, **given).to_dict()
    found = read(given | {"model_type": family})

    assert read(whole | {"model_type": family}) == found
    assert whole["max_position_embeddings"] == found.max_length


def test_published_gemma3_leaves_out_its_heads():
    """The decoder of a published Gemma 3 config names no heads: its class's are taken."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    found = read({"model_type": "gemma3", "text_config": text | {"sliding_window": 1024}})

    assert Attention(4, 256, 256, window=1024) == found.layers[0]
    assert Attention(4, 256, 256) == found.layers[5]
    assert 131072 == found.max_length


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_hidden_layers": 2**14 + 1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers"),
        ({"head_dim": 2**31}, "head_dim"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_no_model_is(fields, field):
    """Counts beyond every model, and attention that looks ahead, are refused by name."""
    with pytest.raises(ConfigError) as caught:
        layers(model_type="gemma3_text", **fields)

    assert field == caught.value.field


def test_smollm3_with_windows():
    """Windows, where they are used, are in the layers without position codes."""
    use = {"model_type": "smollm3", "use_sliding_window": True}

    assert [None, None, None, 8] == windows(**use, sliding_window=8)
    assert [8, None, None, 8] == windows(**use, sliding_window=8, no_rope_layers=[0, 1, 1, 0])
    assert [None] * 4 == windows(**use)
    assert [None] * 4 == windows(model_type="smollm3", sliding_window=8)


def test_windows_by_family():
    """Which layers slide follows each family's own rule."""
    assert [8] * 4 == windows(model_type="mistral", sliding_window=8)
    assert [8, None, 8, None] == windows(model_type="gemma2", sliding_window=8)
    assert [8, 8, 8, 8] == windows(model_type="gemma3_text", sliding_window=8)
    assert [8, None] * 2 == windows(
        model_type="gemma3_text", sliding_window=8, sliding_window_pattern=2
    )
    assert [None] * 4 == windows(model_type="llama", sliding_window=8)
    assert [4096] * 4 == windows(model_type="mistral")
    null = BASE | {"model_type": "mistral", "sliding_window": None}
    assert [None] * 4 == [layer.window for layer in read(null).layers]


def test_layer_types_win_over_the_rule():
    """layer_types, where the file has them, say which layers slide."""
    types = ["full_attention", "sliding_attention", "full_attention", "full_attention"]

    assert [None, 8, None, None] == windows(
        model_type="gemma2", sliding_window=8, layer_types=types
    )


def test_qwen_slides_only_when_told_to():
    """sliding_window is ignored unless use_sliding_window; then it begins at max_window_layers."""
    fields = {"model_type": "qwen2", "sliding_window": 8, "max_window_layers": 3}

    assert [None] * 4 == windows(**fields, use_sliding_window=False)
    assert [None] * 4 == windows(**fields)
    assert [None, None, None, 8] == windows(**fields, use_sliding_window=True)


def test_gpt_oss_has_sink_logits_in_every_layer():
    """Alternating windows, and a learned sink logit in full layers too."""
    found = layers(model_type="gpt_oss", sliding_window=8)

    assert [8, None, 8, None] == [layer.window for layer in found]
    assert all(layer.sink_logits for layer in found)
    assert {0} == {layer.sink_tokens for layer in found}


@pytest.mark.parametrize("family", ["rwkv9", None, 7, ["llama"]])
def test_unknown_architectures_are_refused(family):
    """The error lists the known ones and the field that was looked for; nothing is guessed."""
    with pytest.raises(UnknownArchitecture) as caught:
        read(BASE | {"model_type": family})

    assert ("model_type", family) == (caught.value.field, caught.value.architecture)
    assert known_architectures() == sorted(caught.value.known)
    missing = "it is missing; " if family is None else ""
    start = f"config field model_type is {family!r}; {missing}known architectures are: "
    assert str(caught.value).startswith(start)
    assert "ModelSpec(name, layers=(octavo.Attention(...), ...))" in str(caught.value)


def test_the_names_most_like_an_unknown_one_come_first():
    """A slip or a new version is answered with its neighbours."""
    with pytest.raises(UnknownArchitecture, match="known architectures are: mistral"):
        read(BASE | {"model_type": "mistrall"})
    with pytest.raises(UnknownArchitecture, match="known architectures are: qwen3_5, qwen"):
        read(BASE | {"model_type": "Qwen3.5"})


def test_unknown_wrapper_of_a_decoder_with_a_name():
    """A known decoder in an unknown model is not taken for the whole, but pointed out."""
    config = {"model_type": "brand_new_vl", "text_config": BASE | {"model_type": "llama"}}

    with pytest.raises(UnknownArchitecture, match=r"from_config\(config\['text_config'\]\) reads"):
        read(config)
    assert 4 == len(read(config["text_config"]).layers)


@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_encoders_keep_nothing(family):
    """A model that generates nothing is told apart from one that is not known.

    ``is_decoder`` is advised where the family can decode, and makes nothing of the others.
    """
    with pytest.raises(ConfigError, match="keeps no cache") as caught:
        read(BASE | {"model_type": family})

    assert not isinstance(caught.value, UnknownArchitecture)
    assert (family in DECODING_ENCODERS) == ("is_decoder" in str(caught.value))
    decoder = BASE | {"model_type": family, "is_decoder": True}
    if family in DECODING_ENCODERS:
        assert 4 == len(read(decoder).layers)
        return
    with pytest.raises(ConfigError, match="keeps no cache"):
        read(decoder)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        (
            {"num_hidden_layers": None},
            "num_hidden_layers",
            "is None; one of num_hidden_layers, n_layer, n_layers, num_layers is required",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "is 0; it must be an int of at least 1"),
        (
            {"num_hidden_layers": "4"},
            "num_hidden_layers",
            "is '4'; it must be an int of at least 1",
        ),
        ({"num_hidden_layers": True}, "num_hidden_layers", "is True; it must be an int"),
        ({"num_attention_heads": 4.0}, "num_attention_heads", "is 4.0; it must be an int"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "is 3; it must divide 4 heads"),
        ({"num_key_value_heads": 8}, "num_key_value_heads", "is 8; it must divide 4 heads"),
        ({"hidden_size": 63}, "hidden_size", "is 63; it must divide by the 4 heads"),
        (
            {"hidden_size": None},
            "hidden_size",
            "is None; one of hidden_size, n_embd, d_model",
        ),
        ({"head_dim": -1}, "head_dim", "is -1; it must be an int of at least 1"),
        ({"sliding_window": 0}, "sliding_window", "is 0; it must be an int of at least 1"),
        (
            {"sliding_window": 8, "layer_types": ["full_attention"]},
            "layer_types",
            "is ['full_attention']; it must list all 4 layers",
        ),
        (
            {"sliding_window": 8, "layer_types": ["full_attention"] * 3 + ["mamba"]},
            "layer_types",
            "is 'mamba'; each must be full_attention or sliding_attention",
        ),
        (
            {"model_type": "gemma3", "text_config": 5},
            "text_config",
            "is 5; it must be a JSON object",
        ),
        ({"max_position_embeddings": 0}, "max_position_embeddings", "is 0; it must be an int"),
    ],
)
def test_wrong_fields_are_named(fields, field, message):
    """The error names the field, its value and what would be right."""
    with pytest.raises(ConfigError) as caught:
        layers(**{"model_type": "mistral"} | fields)

    assert field == caught.value.field
    assert f"config field {field} {message}" in str(caught.value)


def test_layer_types_are_read_without_a_window():
    """A layer type no reader knows is refused even where no window is set."""
    with pytest.raises(ConfigError):
        layers(model_type="mistral", layer_types=["full_attention"] * 3 + ["mamba"])


@pytest.mark.parametrize("first", ["3", -1, 2.5])
def test_max_window_layers_is_checked(first):
    """A max_window_layers that is no int of at least 0 is named, not stumbled over."""
    with pytest.raises(ConfigError) as caught:
        layers(
            model_type="qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=first
        )

    assert ("max_window_layers", first) == (caught.value.field, caught.value.value)


def refused(**fields):
    """The error for a config: BASE with ``fields`` over it."""
    with pytest.raises(ConfigError) as caught:
        read(BASE | fields)
    return caught.value.field, caught.value.value


def test_contradictions_are_named():
    """Lists of another length, layers that do not exist, sizes that do not fit: all by name."""
    slide = ["sliding_attention"] * 4
    shared = {"num_kv_shared_layers": 4}

    assert ("sliding_window", None) == refused(
        model_type="mistral", sliding_window=None, layer_types=slide
    )
    assert ("use_sliding_window", False) == refused(
        model_type="qwen2", use_sliding_window=False, sliding_window=8, layer_types=slide
    )
    assert ("use_sliding_window", "yes") == refused(model_type="qwen3", use_sliding_window="yes")
    assert ("no_rope_layers", [1, 0]) == refused(model_type="llama4_text", no_rope_layers=[1, 0])
    assert ("num_kv_shared_layers", 4) == refused(model_type="gemma3n_text", **shared)
    assert ("num_kv_shared_layers", 4) == refused(model_type="gemma4_text", **shared)
    assert ("num_kv_shared_layers", 1) == refused(
        model_type="gemma3n_text",
        num_kv_shared_layers=1,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    )
    assert ("attn_layer_indices", 4) == refused(model_type="bamba", attn_layer_indices=[1, 4])
    assert ("attn_layer_indices", 7) == refused(model_type="bamba", attn_layer_indices=7)
    assert ("mamba_d_head", 8) == refused(model_type="bamba", mamba_d_head=8)
    assert ("attn_layer_offset", 8) == refused(model_type="jamba", attn_layer_offset=8)
    assert ("mamba_d_state", -1) == refused(model_type="jamba", mamba_d_state=-1)
    assert ("num_hidden_layers", 4) == refused(
        model_type="nemotron_h", hybrid_override_pattern="M*M"
    )
    assert ("hybrid_override_pattern", "M*xM") == refused(
        model_type="nemotron_h", hybrid_override_pattern="M*xM"
    )
    assert ("hybrid_override_pattern", None) == refused(model_type="nemotron_h")
    assert ("kv_lora_rank", 0) == refused(model_type="deepseek_v3", kv_lora_rank=0)
    assert ("indexer_types", ["full"]) == refused(model_type="glm_moe_dsa", indexer_types=["full"])
    assert ("num_kv_heads", 3) == refused(
        model_type="falcon", new_decoder_architecture=True, num_kv_heads=3
    )
    assert ("cross_attention_layers", 9) == refused(
        model_type="mllama_text_model", cross_attention_layers=[9]
    )
    assert ("decoder_layers", 2**15) == refused(
        model_type="whisper", decoder_layers=2**15, decoder_attention_heads=4
    )
    assert ("full_attn_idxs", -1) == refused(model_type="lfm2", full_attn_idxs=[-1])
    assert ("block_types", ["mlp"]) == refused(model_type="recurrent_gemma", block_types=["mlp"])
    assert ("layers_block_type", None) == refused(model_type="zamba2")
    assert ("attention_types", ["global", "local"]) == refused(
        model_type="gpt_neo", attention_types=[[["global", "local"], 1]]
    )
    assert ("sliding_window_pattern", "LX") == refused(
        model_type="exaone4", sliding_window_pattern="LX"
    )
    assert ("add_cross_attention", True) == refused(model_type="gpt2", add_cross_attention=True)
    assert ("num_nextn_predict_layers", 10**9) == refused(
        model_type="deepseek_v3", num_nextn_predict_layers=10**9
    )
    assert ("attn_type_list", [1, 0, 2, 1]) == refused(
        model_type="minimax_text_01", attn_type_list=[1, 0, 2, 1]
    )
    assert ("kda_layers", [1, 2]) == refused(
        model_type="kimi_linear", linear_attn_config={"full_attn_layers": [4], "kda_layers": [1, 2]}
    )
    assert ("num_key_value_heads", 3) == refused(
        model_type="gemma4_text", per_layer_config={"3": {"num_key_value_heads": 3}}
    )
    assert ("num_key_value_heads", 3) == refused(
        model_type="gemma4_text", num_global_key_value_heads=3, attention_k_eq_v=True
    )
    assert ("num_attention_heads", 4) == refused(model_type="mimo_v2_flash", num_key_value_heads=4)
    assert ("per_layer_config", {"9": {}}) == refused(
        model_type="gemma4_text", per_layer_config={"9": {}}
    )


def test_shared_layers_read_the_last_of_their_type():
    """Gemma 3n's last layers keep nothing; each reads the last earlier layer of its own type."""
    types = ["sliding_attention", "full_attention"] * 3
    found = layers(
        model_type="gemma3n_text",
        num_hidden_layers=6,
        layer_types=types,
        num_kv_shared_layers=3,
        sliding_window=8,
    )

    assert [8, None, 8] == [layer.window for layer in found[:3]]
    assert (Shared(1), Shared(2), Shared(1)) == found[3:]


def test_gemma4_files_name_heads_by_layer_or_by_type():
    """Heads of full layers come from per_layer_config, or from the global fields where K is V."""
    fields = {"model_type": "gemma4_text", "sliding_window": 8, "num_kv_shared_layers": 0}
    types = ["sliding_attention"] * 3 + ["full_attention"]
    same = {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
    by_layer = {"per_layer_config": {"03": {"head_dim": 64, "num_key_value_heads": 4}}}

    assert Attention(1, 512, 512) == layers(**fields, layer_types=types, **same)[3]
    assert Attention(2, 512, 512) == layers(**fields, num_global_key_value_heads=1)[3]
    assert Attention(4, 64, 64) == layers(**fields, layer_types=types, **by_layer)[3]
    assert Attention(2, 256, 256, window=8) == layers(**fields, **by_layer)[0]


def test_heads_of_families_of_their_own():
    """Where key/value heads are not where others have them."""
    gpt = {"n_layer": 1, "n_head": 4, "n_embd": 64}
    falcon = {"model_type": "falcon", "num_kv_heads": 2}

    assert 1 == layers(model_type="gpt_bigcode", **gpt)[0].kv_heads
    assert 4 == layers(model_type="gpt_bigcode", multi_query=False)[0].kv_heads
    assert 1 == layers(**falcon)[0].kv_heads
    assert 2 == layers(**falcon, new_decoder_architecture=True)[0].kv_heads
    assert 2 == layers(**falcon, multi_query=False)[0].kv_heads
    assert 4 == layers(model_type="opt")[0].kv_heads
    assert 1 == layers(model_type="dbrx")[0].kv_heads
    assert 2 == layers(model_type="dbrx", attn_config={"kv_n_heads": 2})[0].kv_heads
    assert (
        Attention(2, 32, 32)
        == layers(
            model_type="chatglm",
            multi_query_attention=True,
            multi_query_group_num=2,
            kv_channels=32,
        )[0]
    )


def test_latent_layers_do_not_count_heads():
    """num_key_value_heads of a latent file counts what nothing keeps."""
    assert (Latent(512, 64),) * 4 == layers(model_type="kimi_k2", num_key_value_heads=64)
    assert {16} == {
        layer.k_dim for layer in layers(model_type="deepseek_v2", use_mla=False, kv_lora_rank=None)
    }
    assert (Latent(512, 64),) * 8 == layers(model_type="longcat_flash")
    picks = layers(model_type="glm_moe_dsa", index_topk_pattern="FSFS")
    assert [128, 0, 128, 0] == [layer.indexer for layer in picks]


def test_layers_that_keep_nothing_are_there():
    """Nemotron-H counts feed-forwards as layers: they are empty, and others keep their places."""
    found = read(
        {
            "model_type": "nemotron_h",
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "hybrid_override_pattern": "M-*E",
            "num_nextn_predict_layers": 2,
        }
    )

    assert [State, tuple, Attention, tuple] == [type(layer) for layer in found.layers]
    assert (Attention(2, 128, 128), ()) * 2 == found.mtp


def test_falcon_mamba_says_its_inner_width():
    """The published file has expand 16 beside an intermediate_size of twice the width."""
    found = read(
        {
            "model_type": "falcon_mamba",
            "hidden_size": 4096,
            "num_hidden_layers": 64,
            "expand": 16,
            "intermediate_size": 8192,
            "state_size": 16,
        }
    )

    assert (State((8192, 16), (8192, 3)),) * 64 == found.layers


def test_qwen35_predicts_with_attention():
    """The prediction layer attends though three of four layers keep a state."""
    found = read(BASE | {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1})

    assert (Attention(2, 256, 256),) == found.mtp
    assert State((32, 128, 128), (8192, 3)) == found.layers[0]


def test_encoder_decoders_keep_both():
    """Own tokens and the encoded input, side by side; T5's heads have a width of their own."""
    t5 = read({"model_type": "t5", "d_model": 512, "num_layers": 6, "num_decoder_layers": 2})
    image = layers(model_type="mllama_text_model", cross_attention_layers=[1])

    assert ((Attention(8, 64, 64), Cross(8, 64, 64)),) * 2 == t5.layers
    assert t5.max_length is None
    assert [Attention, Cross, Attention, Attention] == [type(layer) for layer in image]


def test_older_fish_speech_has_fast_fields():
    """The fast transformer takes the slow one's sizes unless its fast_ fields say otherwise."""
    found = read(
        {
            "model_type": "dual_ar",
            "dim": 64,
            "n_layer": 3,
            "n_head": 4,
            "n_local_heads": -1,
            "n_fast_layer": 2,
            "fast_n_local_heads": 2,
            "num_codebooks": 8,
        }
    )

    assert (Attention(4, 16, 16),) * 3 == found.layers
    assert ModelSpec("fish_fast", (Attention(2, 16, 16),) * 2, 8) == found.depth


def test_a_nested_decoder_may_leave_out_its_size():
    """LLaVA 1.5 names its decoder and no more: 32 layers of 32 heads."""
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}

    assert (Attention(32, 128, 128),) * 32 == read(
        {"model_type": "llava", "text_config": text}
    ).layers


def test_decoders_outside_the_nest():
    """Older Qwen2-VL files have the decoder's fields outside; InternVL's nest is llm_config."""
    llm = BASE | {"model_type": "internlm2"}
    omni = {"thinker_config": {"model_type": "qwen2_5_omni_thinker", "text_config": BASE}}

    assert (Attention(2, 16, 16),) * 4 == layers(model_type="qwen2_vl")
    assert 4 == len(read({"model_type": "internvl_chat", "llm_config": llm}).layers)
    assert 4 == len(read({"model_type": "qwen2_5_omni"} | omni).layers)
