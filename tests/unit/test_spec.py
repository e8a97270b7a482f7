"""Layer kinds and model specs."""

import json
import os

import pytest

from octavo import Attention, ModelSpec
from octavo.errors import ConfigError, LengthError
from octavo.model.configs import load_config


def test_attention_counts_keys_and_values_apart():
    """A layer whose values are narrower than its keys keeps that much less."""
    assert 320 == Attention(1, 192, 128).elements_per_token
    assert 8 * 256 == Attention(8, 128, 128).elements_per_token


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_heads": 0},
        {"k_dim": -1},
        {"v_dim": 1.0},
        {"window": 0},
        {"sink_tokens": -1},
        {"kv_heads": True},
    ],
)
def test_attention_refuses_impossible_shapes(fields):
    """A field that is no int of its range raises LengthError naming it."""
    good = {"kv_heads": 1, "k_dim": 8, "v_dim": 8}
    with pytest.raises(LengthError) as caught:
        Attention(**good | fields)

    assert next(iter(fields.items())) == (caught.value.name, caught.value.value)


def test_spec_needs_a_layer():
    """A model without layers is refused."""
    with pytest.raises(ConfigError) as caught:
        ModelSpec("none", ())

    assert {"field": "layers", "value": ()} == vars(caught.value)


@pytest.mark.parametrize("length", [0, -1, 1.5])
def test_spec_needs_a_length_above_zero(length):
    """max_length is None or an int of at least 1."""
    with pytest.raises(LengthError) as caught:
        ModelSpec("bad", (Attention(1, 8, 8),), length)

    assert ("max_length", length) == (caught.value.name, caught.value.value)


def test_specs_are_values():
    """Equal fields make equal, hashable specs."""
    one, other = (ModelSpec("m", (Attention(1, 8, 8),), 64) for _ in range(2))

    assert one == other
    assert 1 == len({one, other})


def test_from_config_takes_file_folder_and_content(tmp_path):
    """The file, its folder (as path or text) and the parsed content give the same spec."""
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    expected = ModelSpec("llama", (Attention(2, 16, 16),) * 2, 128)

    assert expected == ModelSpec.from_config(config)
    assert expected == ModelSpec.from_config(file)
    assert expected == ModelSpec.from_config(tmp_path)
    assert expected == ModelSpec.from_config(str(tmp_path))
    assert config == load_config(file)


def test_a_missing_config_is_named(tmp_path):
    """A folder without config.json raises ConfigError, and so does a file that is not there."""
    with pytest.raises(ConfigError) as caught:
        ModelSpec.from_config(tmp_path)

    assert {"field": "path", "value": str(tmp_path)} == vars(caught.value)
    assert "the folder has no config.json" in str(caught.value)

    with pytest.raises(ConfigError) as caught:
        ModelSpec.from_config(tmp_path / "config.json")

    assert {"field": "path", "value": str(tmp_path / "config.json")} == vars(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a JSON file"),
        (b"{", "not a JSON file"),
        (b"\xff\xfe{}", "not a JSON file"),
        (b"[1]", "a config is a JSON object"),
        (b"null", "a config is a JSON object"),
        (b"[" * 100_000, "not a JSON file"),
    ],
)
def test_damaged_configs_are_refused(tmp_path, content, message):
    """Text that is no JSON object raises ConfigError and nothing else."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)

    assert message in str(caught.value)
    assert str(file) == caught.value.value


@pytest.mark.parametrize("layers", [("a",), [Attention(1, 2, 2)], (None,), "ab", ()])
def test_layers_are_a_tuple_of_kinds(layers):
    """A spec of anything else is refused, naming the field."""
    with pytest.raises(ConfigError, match="config field layers is"):
        ModelSpec("wrong", layers)


@pytest.mark.parametrize("path", [5, None, "", ["config.json"], b"config.json"])
def test_what_is_no_path_is_refused(path):
    """A config is a mapping, or the path of a file or folder."""
    with pytest.raises(ConfigError, match="path is"):
        ModelSpec.from_config(path)


def test_only_regular_files_of_a_sane_size_are_read(tmp_path):
    """A device, a pipe and a file of more than 64 MiB are refused without being read."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 * 2**20 + 1)

    for path in ("/dev/zero", tmp_path / "pipe", tmp_path / "large"):
        with pytest.raises(ConfigError, match="must be a regular file of at most 67108864 bytes"):
            ModelSpec.from_config(path)
    for path in (tmp_path / "loop", "x" * 300, "a\0b"):
        with pytest.raises(ConfigError, match="path is"):
            ModelSpec.from_config(path)


def test_a_key_that_stands_twice(tmp_path):
    """Which of them holds would be a guess."""
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "hidden_size": 8, "hidden_size": 16}', "utf-8")
    with pytest.raises(ConfigError, match="hidden_size is 16; it stands twice"):
        ModelSpec.from_config(file)


def test_long_values_are_not_quoted_whole():
    """A message stays one line that can be read."""
    with pytest.raises(ConfigError) as caught:
        ModelSpec.from_config({"model_type": "llama", "hidden_size": "x" * 10_000})
    assert len(str(caught.value)) < 300
