"""Metadata of GGUF files as llama.cpp's converter writes it: layers of published models."""

import json
from pathlib import Path

import gguf
import pytest

from octavo import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs.gguf_layers import PERIODS, PLAIN, REFUSED, STATES
from octavo.model.configs.weights import weights_beside

read = ModelSpec.from_config
PUBLISHED = Path(__file__).parents[1] / "cases/data/configs"
BASE = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
KV = BASE | {"attention.head_count_kv": 2, "context_length": 99}


def write_gguf(path, architecture, fields):
    """A GGUF file of metadata alone."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for key, value in fields.items():
        add = {list: writer.add_array, bool: writer.add_bool}.get(type(value), writer.add_uint32)
        add(f"{architecture}.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_key_that_stands_twice(tmp_path):
    """Nobody knows which is meant; the key is named with both values."""
    path = write_gguf(tmp_path / "model.gguf", "llama", KV | {"block_couns": 16})
    path.write_bytes(path.read_bytes().replace(b"block_couns", b"block_count"))

    with pytest.raises(
        ConfigError, match=r"llama.block_count is 16; it stands twice .* first as 4"
    ):
        read(path)


@pytest.fixture
def layers(tmp_path):
    """The spec of a file that a test writes."""

    def made(architecture, fields):
        return read(write_gguf(tmp_path / "model.gguf", architecture, fields))

    return made


def heads(layers, width, heads, kv_heads, dim=None):
    """The keys that every architecture with attention has."""
    own = {"attention.key_length": dim, "attention.value_length": dim} if dim else {}
    sizes = {"block_count": layers, "embedding_length": width, "attention.head_count": heads}
    return sizes | {"attention.head_count_kv": kv_heads, "context_length": 4096} | own


def mixer(inner, state, rank, groups=None, kernel=4):
    """The keys of a Mamba mixer."""
    own = {"ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}
    return own | {"ssm.conv_kernel": kernel} | ({"ssm.group_count": groups} if groups else {})


def latent(layers, width, heads_, rank=512, rope=64):
    """The keys of DeepSeek's attention: one head, of which keys and values are what it stores."""
    own = {"attention.kv_lora_rank": rank, "rope.dimension_count": rope}
    lengths = {"key_length": rank + rope, "value_length": rank, "key_length_mla": 192}
    own |= {f"attention.{name}": size for name, size in lengths.items()}
    return heads(layers, width, heads_, 1) | own


JAMBA = [8 * (layer % 8 == 4) for layer in range(32)]
FILES = {
    "DeepSeek-V2-Lite": ("deepseek2", latent(27, 2048, 16)),
    "DeepSeek-V3": ("deepseek2", latent(61, 7168, 128)),
    "Falcon-H1-7B": ("falcon-h1", heads(44, 3072, 12, 2, 128) | mixer(3072, 256, 24, 1)),
    "GLM-4.5-Air": ("glm4moe", heads(47, 4096, 96, 8, 128) | {"nextn_predict_layers": 1}),
    "GPT2-XL": ("gpt2", heads(48, 1600, 25, 25)),
    "Gemma-2-9B": ("gemma2", heads(42, 3584, 16, 8, 256) | {"attention.sliding_window": 4096}),
    "Gemma-3-27B": ("gemma3", heads(62, 5376, 32, 16, 128) | {"attention.sliding_window": 1024}),
    "Jamba-v0.1": ("jamba", heads(32, 4096, 32, JAMBA) | mixer(8192, 16, 256)),
    "Llama-3.1-70B": ("llama", heads(80, 8192, 64, 8, 128)),
    "Phi-3-mini-4k": ("phi3", heads(32, 3072, 32, 32) | {"attention.sliding_window": 2047}),
    "Qwen3-0.6B": ("qwen3", heads(28, 1024, 16, 8, 128)),
    "Qwen3-Next-80B-A3B": (
        "qwen3next",
        heads(48, 2048, 16, 2, 256) | mixer(4096, 128, 32, 16) | {"full_attention_interval": 4},
    ),
    "SmolLM2-135M-Instruct": ("llama", heads(30, 576, 9, 3)),
    "gpt-oss-20b": ("gpt-oss", heads(24, 2880, 64, 8, 64) | {"attention.sliding_window": 128}),
}


def plain(kind):
    """A kind as a file of any format can say it."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return tuple(
        State(item.recurrent, item.conv) if isinstance(item, State) else item for item in kinds
    )


@pytest.mark.parametrize("model", FILES)
def test_layers_of_published_models(layers, model):
    """A file converted for llama.cpp is the model of its config.json."""
    config = read(PUBLISHED / f"{model}.json")
    spec = layers(*FILES[model])

    assert list(map(plain, config.layers)) == list(map(plain, spec.layers))
    assert () == spec.notes


def test_sizes_and_weights(tmp_path):
    """The name and length are the file's; its weights are its size."""
    path = write_gguf(tmp_path / "a.gguf", "llama", KV)

    assert ModelSpec("llama", (Attention(2, 16, 16),) * 4, 99) == read(path)
    assert path.stat().st_size == weights_beside(path).bytes


def test_a_folder_of_one_model(tmp_path):
    """The GGUF file of a folder is read, the first part of several; of two models none is."""
    write_gguf(tmp_path / "m-00001-of-00002.gguf", "llama", KV)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(b"")
    (tmp_path / "mmproj-m.gguf").write_bytes(b"")

    assert (Attention(2, 16, 16),) * 4 == read(tmp_path).layers
    write_gguf(tmp_path / "other.gguf", "llama", KV)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read(tmp_path)


def test_heads_by_block(layers):
    """Lists hold the heads of each block; of other sizes are values, and blocks without heads."""
    uneven = layers("openelm", BASE | {"attention.head_count_kv": [1, 2, 2, 4]})
    deci = layers("deci", BASE | {"attention.head_count_kv": [0, 2, 0, 1]})
    values = layers("llama", KV | {"attention.key_length": 24, "attention.value_length": 8})

    assert [1, 2, 2, 4] == [kind.kv_heads for kind in uneven.layers]
    assert ((), Attention(2, 16, 16), (), Attention(1, 16, 16)) == deci.layers
    assert {Attention(2, 24, 8)} == set(values.layers)


def test_windows(layers):
    """By the file's list, its period, the first of a period, or by architecture in chunks."""
    window, pattern = "attention.sliding_window", "attention.sliding_window_pattern"

    def told(name, **more):
        kinds = layers(name, KV | {window: 8} | more).layers
        return [kind.window or kind.chunk for kind in kinds]

    assert [8, None, None, 8] == told("step35", **{pattern: [True, False, False, True]})
    assert [8, None, 8, None] == told("gemma3", **{pattern: 2})
    assert [None, 8, 8, 8] == told("smallthinker")
    assert [8, 8, 8, None] == told("llama4") == told("cohere2")
    assert [None] * 4 == told("llama4", **{window: 0}) == told("gemma3", **{window: 0})
    assert {8192, None} == {kind.chunk for kind in layers("llama4", KV).layers}
    assert {4096, None} == {kind.window for kind in layers("gemma2", KV).layers}
    with pytest.raises(ConfigError, match="sliding_window_pattern"):
        told("gemma4")
    unread = layers("llama", KV | {window: 8})
    assert {None} == {kind.window for kind in unread.layers}
    assert any(window in note for note in unread.notes)


def test_blocks_that_share(layers):
    """Gemma's last blocks read earlier ones; blocks that slide have heads of their own size."""
    shared = {"attention.shared_kv_layers": 2, "attention.sliding_window": 8}
    sizes = {"key_length": 32, "value_length": 32, "key_length_swa": 16, "value_length_swa": 16}
    own = {f"attention.{name}": size for name, size in sizes.items()}
    pattern = {"attention.sliding_window_pattern": [True, False, True, False]}
    gemma4 = layers("gemma4", KV | shared | own | pattern).layers
    gemma3n = layers("gemma3n", KV | {"block_count": 30, "attention.sliding_window": 8}).layers

    assert (Attention(2, 16, 16, window=8), Attention(2, 32, 32), Shared(0), Shared(1)) == gemma4
    assert 10 == sum(isinstance(kind, Shared) for kind in gemma3n)


def test_states(layers):
    """Mixers, short convolutions, Kimi's and RWKV's matrices, in the blocks that keep them."""
    mamba1 = State((128, 16), (128, 3))
    mamba2 = State((8, 16, 32), (128 + 2 * 2 * 32, 3), 2, 64)
    some = BASE | {"attention.head_count_kv": [0, 2, 0, 0]}
    feeds = {"feed_forward_length": [0, 0, 96, 0]}
    kimi = {"kda.head_dim": 16, "ssm.conv_kernel": 4, "attention.kv_lora_rank": 24}
    kimi |= {"rope.dimension_count": 8}
    alone = {"block_count": 4, "embedding_length": 64}

    assert (mamba1,) * 4 == layers("mamba", alone | mixer(128, 16, 4)).layers
    assert (mamba2,) * 4 == layers("mamba2", alone | mixer(128, 32, 8, 2)).layers
    for name in ("granitehybrid", "plamo2"):
        found = layers(name, some | mixer(128, 32, 8, 2)).layers
        assert (mamba2, Attention(2, 16, 16), mamba2, mamba2) == found
    nemotron = layers("nemotron_h", some | feeds | mixer(128, 32, 8, 2)).layers
    assert (mamba2, Attention(2, 16, 16), (), mamba2) == nemotron
    lfm2 = layers("lfm2", some | {"shortconv.l_cache": 3}).layers
    assert (State((), (64, 2)), Attention(2, 16, 16)) == lfm2[:2]
    delta = State((4, 16, 16), (192, 3))
    assert (delta, Latent(24, 8), delta, delta) == layers("kimi-linear", some | kimi).layers
    rwkv = layers("rwkv7", alone | {"wkv.head_size": 16, "attention.head_count": 0}).layers
    assert (State((4, 16, 16), (128, 1)),) * 4 == rwkv
    listed = {"attention.recurrent_layers": [True, False, True, False]}
    qwen = layers("qwen35", KV | listed | mixer(128, 32, 8, 2)).layers
    assert [State, Attention] * 2 == list(map(type, qwen))


def test_prediction_layers_and_indexers(layers):
    """Blocks count prediction layers, which attend; an indexer's key stands beside the latent."""
    own = mixer(128, 32, 8, 2) | {"nextn_predict_layers": 1, "block_count": 5}
    qwen = layers("qwen35moe", KV | own)
    indexer = {"attention.indexer.key_length": 16, "attention.indexer.head_count": 4}
    indexed = layers("deepseek32", latent(3, 64, 4) | indexer)

    assert [State] * 3 + [Attention] == list(map(type, qwen.layers))
    assert (Attention(2, 16, 16),) == qwen.mtp
    assert {Latent(512, 64, 16)} == set(indexed.layers)


def test_decoders_with_an_input(layers):
    """T5's decoder blocks attend to the input too."""
    found = layers("t5", KV | {"decoder_block_count": 2, "attention.key_length": 8}).layers

    assert 2 == len(found)
    assert {(Attention(2, 8, 16), Cross(2, 8, 16))} == set(found)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"attention.head_count_kv": [1, 2]}, "attention.head_count_kv"),
        ({"block_count": 0}, "block_count"),
        ({"nextn_predict_layers": 4}, "nextn_predict_layers"),
        ({"embedding_length": 65}, "embedding_length"),
        ({"attention.causal": False}, "attention.causal"),
    ],
)
def test_wrong_metadata_is_named(layers, more, field):
    """A key that is missing, of the wrong length or of no decoder is refused by name."""
    with pytest.raises(ConfigError) as caught:
        layers("llama", KV | more)

    assert field == caught.value.field


def test_what_is_refused(tmp_path, layers):
    """Damaged files, unknown architectures, encoders; each architecture of gguf has an answer."""
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00")
    with pytest.raises(ConfigError, match="no GGUF file"):
        read(tmp_path / "cut.gguf")
    with pytest.raises(UnknownArchitecture, match="brand-new"):
        layers("brand-new", KV)
    with pytest.raises(ConfigError, match="keeps no cache"):
        layers("nomic-bert", KV)
    known = PLAIN | STATES | set(PERIODS) | set(REFUSED)

    assert set(gguf.constants.MODEL_ARCH_NAMES.values()) <= known
    assert not PLAIN & (STATES | set(PERIODS))
    assert not set(REFUSED) & (PLAIN | STATES | set(PERIODS))


def test_metadata_given_as_it_is():
    """What a GGUF reader gives may be handed over without a file."""
    metadata = json.loads(json.dumps({"general.architecture": "llama"} | KV))

    assert (Attention(2, 16, 16),) * 4 == read(metadata).layers
