"""From config.json to a spec, family by family."""

import pytest
import transformers

from octavo import Attention, ModelSpec
from octavo.configs import DEFAULTS, FAMILIES, read_spec
from octavo.errors import ConfigError, UnknownArchitecture

BASE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
}


def layers(**fields):
    """The layers of a config: BASE with ``fields`` over it, None taking one away."""
    config = {name: value for name, value in (BASE | fields).items() if value is not None}
    return read_spec(config).layers


def windows(**fields):
    """The window of each layer."""
    return [layer.window for layer in layers(**fields)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_reads_the_common_fields(family):
    """Heads, dims and the number of layers come from the fields all families share."""
    found = layers(model_type=family, head_dim=16)

    assert 4 == len(found)
    assert {(2, 16, 16)} == {(layer.kv_heads, layer.k_dim, layer.v_dim) for layer in found}


def test_head_dim_is_taken_when_it_is_there():
    """head_dim wins over width / heads, which need not divide then."""
    assert 128 == layers(model_type="qwen3", head_dim=128, hidden_size=63)[0].k_dim
    assert 128 == layers(model_type="qwen3")[0].k_dim
    assert 16 == layers(model_type="qwen2")[0].k_dim


def test_gpt2_names():
    """n_layer, n_head and n_embd are read; without kv heads every head has its own."""
    config = {"model_type": "gpt2", "n_layer": 3, "n_head": 5, "n_embd": 40, "n_positions": 99}

    assert ModelSpec("gpt2", (Attention(5, 8, 8),) * 3, 99) == read_spec(config)


def test_a_nested_decoder_is_read():
    """text_config holds the decoder of a vision-language model; vision layers do not count."""
    config = {
        "model_type": "gemma3",
        "vision_config": {"num_hidden_layers": 27},
        "text_config": BASE | {"num_hidden_layers": 2, "max_position_embeddings": 64},
    }

    assert 2 == len(read_spec(config).layers)
    assert 64 == read_spec(config).max_length


def test_max_length_may_be_null():
    """A file that says there is no bound gives an unbounded spec; silence gives the default."""
    base = BASE | {"model_type": "llama"}

    assert read_spec(base | {"max_position_embeddings": None}).max_length is None
    assert 2048 == read_spec(base).max_length


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_defaults_are_those_of_transformers(family):
    """Each family's table holds what the class in transformers takes for absent fields."""
    config = transformers.AutoConfig.for_model(family).get_text_config()
    made = {
        "heads": config.num_attention_heads,
        "kv_heads": getattr(config, "num_key_value_heads", None),
        "head_dim": getattr(config, "head_dim", None),
        "window": type(config).__dict__.get("sliding_window"),
        "max_length": config.max_position_embeddings,
    }
    derived = DEFAULTS[family]._replace(
        kv_heads=DEFAULTS[family].kv_heads
        or (config.num_attention_heads if family != "gpt2" else None),
        head_dim=DEFAULTS[family].head_dim or made["head_dim"],
    )

    assert made == derived._asdict()


PARTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "max_position_embeddings": 99,
    "sliding_window": 7,
}


@pytest.mark.parametrize("absent", [*PARTS, None, "all"])
@pytest.mark.parametrize("use", [False, True])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"gpt2", "smollm3"}))
def test_what_a_file_leaves_out_is_what_transformers_takes(family, absent, use):
    """A partial config gives the spec of the whole one that transformers makes of it."""
    given = {n: v for n, v in PARTS.items() if absent not in (n, "all")}
    given |= {"hidden_size": 768, "num_hidden_layers": 6}
    if family.startswith("qwen"):
        given |= {"use_sliding_window": use, "max_window_layers": 3}
    text = "gemma3_text" if family == "gemma3" else family
    whole = transformers.AutoConfig.for_model(text, **given)

    assert read_spec(whole.to_dict() | {"model_type": family}) == read_spec(
        given | {"model_type": family}
    )
    assert whole.max_position_embeddings == read_spec(given | {"model_type": family}).max_length


def test_published_gemma3_leaves_out_its_heads():
    """The decoder of a published Gemma 3 config names no heads: its class's are taken."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}
    found = read_spec({"model_type": "gemma3", "text_config": text | {"sliding_window": 1024}})

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
    """Windows of a family that are not read are refused, not left out."""
    with pytest.raises(ConfigError, match="use_sliding_window"):
        layers(model_type="smollm3", use_sliding_window=True, sliding_window=8)
    assert [None] * 4 == windows(model_type="smollm3", use_sliding_window=True)


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
    assert [None] * 4 == [layer.window for layer in read_spec(null).layers]


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
        read_spec(BASE | {"model_type": family})

    assert ("model_type", family) == (caught.value.field, caught.value.architecture)
    assert tuple(sorted(FAMILIES)) == caught.value.known
    assert f"config field model_type is {family!r}; known architectures are: gemma, gemma2" in str(
        caught.value
    )


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
        ({"hidden_size": None}, "hidden_size", "is None; one of hidden_size, n_embd, d_model is"),
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
        ({"text_config": 5}, "text_config", "is 5; it must be a JSON object"),
        ({"max_position_embeddings": 0}, "max_position_embeddings", "is 0; it must be an int"),
    ],
)
def test_wrong_fields_are_named(fields, field, message):
    """The error names the field, its value and what would be right."""
    with pytest.raises(ConfigError) as caught:
        layers(model_type="mistral", **fields)

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
