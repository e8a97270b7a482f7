"""Models are loaded whole or refused with the reason."""

import json
import os
import shutil
from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from octavo.checkpoints import hub, loading
from octavo.checkpoints.gguf import convert
from octavo.checkpoints.loading import load
from octavo.errors import ConfigError, ModelError, OctavoError, UnknownArchitecture
from octavo.integrations.transformers.models import length_bound_rope
from octavo.model.spec import Attention

CONTEXT = 128
WIDTH, HEADS, KV_HEADS, LAYERS, INNER = 32, 4, 2, 2, 64
SPECIAL = ["<unk>", "<s>", "</s>"]
MERGES = ["h i", "1 2"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "hi", "12"]
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATE = "{{ messages[0].content }}"


@pytest.fixture(autouse=True)
def _quiet():
    """Keep transformers' own progress out of the test report."""
    transformers.logging.disable_progress_bar()


def _tokenizer():
    """One token a byte, and two merges."""
    merges = [tuple(merge.split()) for merge in MERGES]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=TEMPLATE, **ENDS
    )


def _model(family="Llama", **changes):
    """A tiny model with random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=1,
        eos_token_id=2,
        **changes,
    )
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny Llama with its tokenizer, saved once."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    _model().save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of it to damage."""
    return shutil.copytree(saved, tmp_path / "tiny")


def _logits(model):
    with torch.no_grad():
        return model(torch.arange(3, 20)[None]).logits


def test_folder_gives_model_tokenizer_and_spec(saved):
    """A Hugging Face folder is loaded with the weights it holds."""
    loaded = load(saved, "fp32")

    assert torch.equal(_logits(_model()), _logits(loaded.model))
    assert (Attention(KV_HEADS, WIDTH // HEADS, WIDTH // HEADS),) * LAYERS == loaded.spec.layers
    assert CONTEXT == loaded.spec.max_length
    assert (2,) == loaded.stop_token_ids
    assert "hi" == loaded.tokenizer.decode(loaded.tokenizer("hi").input_ids)


@pytest.mark.parametrize(("name", "expected"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_weights_come_in_the_dtype_asked_for(saved, name, expected):
    """The dtype is octavo's name for it."""
    assert {expected} == {p.dtype for p in load(saved, name).model.parameters()}


@pytest.mark.parametrize(("name", "expected"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_by_default_weights_come_in_what_the_processor_is_fast_in(
    saved, name, expected, monkeypatch
):
    """The model says which type it became, in the word a plan takes."""
    monkeypatch.setattr(loading, "fast_dtype", lambda: name)
    loaded = load(saved)

    assert (name, expected) == (loaded.dtype, loaded.model.dtype)


def test_stop_tokens_of_the_generation_config_are_all_taken(folder):
    """A model may end its answers in several ways."""
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')

    assert (2, 5, 7) == load(folder).stop_token_ids


def test_sharded_weights(tmp_path):
    """Weights in several files are found through their index; a missing file is named."""
    _model().save_pretrained(tmp_path, max_shard_size="20KB")
    _tokenizer().save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))

    assert 1 < len(shards)
    assert torch.equal(_logits(_model()), _logits(load(tmp_path, "fp32").model))
    shards[-1].unlink()
    with pytest.raises(ModelError, match=f"weights are incomplete: {shards[-1].name} is missing"):
        load(tmp_path)


def test_folder_without_config(tmp_path):
    """Any other folder is no model."""
    with pytest.raises(ModelError, match="is no model folder: it has no config.json"):
        load(tmp_path)


def test_config_that_is_no_json(folder):
    """A damaged config is named."""
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="config.json"):
        load(folder)


def test_unknown_architecture(folder):
    """A model nobody has a reader for is refused before its weights are read."""
    (folder / "config.json").write_text('{"model_type": "abacus"}')
    with pytest.raises(UnknownArchitecture, match="abacus"):
        load(folder)


def test_config_without_weights(folder):
    """A config alone is no model: nothing is filled in at random."""
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="has a config.json but no weights"):
        load(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights(folder, keep):
    """A file cut anywhere is reported, also when only its last byte is gone."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    with pytest.raises(ModelError, match="truncated or damaged weights"):
        load(folder)


def test_weights_that_lack_tensors(folder):
    """A tensor that is not there is named, not drawn at random."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ModelError, match="lack 1 tensors: model.layers.1.self_attn.k_proj.weight"):
        load(folder)


def test_weights_of_another_shape(folder):
    """Weights that do not fit the config are refused in one line."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))

    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert "has shape [32, 64], its config asks for [32, 48]" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": ["b"]}}']
    + [json.dumps({"weight_map": {"a": name}}) for name in ("", "../tiny/model.safetensors")],
)
def test_index_that_is_none(folder, content):
    """A damaged index of shards, or one that leads out of the folder, is named."""
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match="is no index of safetensors files"):
        load(folder)


def test_weights_the_model_has_no_place_for(folder):
    """A config with fewer layers than the weights is refused; old buffers are let pass."""
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert LAYERS == len(load(folder).spec.layers)

    _change(folder / "config.json", num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"hold 9 tensors .* no place for: model.layers.1.input_"):
        load(folder)


def _refusal(path):
    """Why octavo does not load a model; empty where it does."""
    try:
        load(path)
    except OctavoError as error:
        return str(error)
    return ""


def _change(file, **fields):
    """Write fields of a JSON file anew."""
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


CODE = "from pathlib import Path\nPath({!r}).touch()\n"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_in_the_folder_is_never_run(folder, tmp_path, file, capsys, monkeypatch):
    """A folder that wants its own classes is refused or read without them; nobody is asked."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (folder / "evil.py").write_text(CODE.format(str(tmp_path / "ran")))
    names = {
        "AutoConfig": "evil.C",
        "AutoModelForCausalLM": "evil.M",
        "AutoTokenizer": ["evil.T"] * 2,
    }
    _change(folder / file, auto_map=names, tokenizer_class="EvilTokenizer")
    assert "\n" not in _refusal(folder)
    assert not (tmp_path / "ran").exists()
    assert "" == capsys.readouterr().out


@pytest.mark.parametrize(
    "fields",
    [
        {"hidden_act": "wobbly"},
        {"vocab_size": -1},
        {"vocab_size": "many"},
        {"rms_norm_eps": "small"},
        {"rope_parameters": {"rope_type": "wobbly"}},
        {"rope_parameters": 5},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        {"intermediate_size": None},
        {"tie_word_embeddings": []},
        {"pad_token_id": 10**9},
    ],
)
def test_config_that_breaks_transformers(folder, fields):
    """Whatever transformers raises for a config is one error of one line."""
    _change(folder / "config.json", **fields)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("token", ["</s>", [2, "</s>"], 2.5, True, -1, {"a": 1}])
def test_stop_tokens_that_are_none(folder, token):
    """A generation config whose stop tokens are no token ids is refused."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": token}))
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_pipes_are_not_waited_for(folder, name):
    """A pipe in the place of a file is refused."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelError, match="no regular file|no config.json"):
        load(folder)


@pytest.mark.parametrize("name", [5, None, "", b"tiny", ["tiny"]])
def test_what_is_no_name_is_refused(name):
    """A model is named by text or a path."""
    with pytest.raises(ModelError, match="is neither a known name"):
        load(name)


def test_named_model_is_checked_by_its_sums(saved, tmp_path, monkeypatch):
    """A file that kept its size but not its content is found before the model is used."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    [name] = hub.MODELS
    target = shutil.copytree(saved, hub.folder_of(name))
    hub._write_manifest(hub.MODELS[name], target)
    assert name == load(name).name

    weights = target / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    with pytest.raises(ModelError, match=r"model.safetensors has changed .* run `octavo pull"):
        load(name)


def test_missing_tokenizer(folder):
    """Weights alone cannot read a prompt."""
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match="has no tokenizer"):
        load(folder)


def test_damaged_tokenizer(folder):
    """A damaged tokenizer is one line."""
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
        load(folder)


def test_named_model_is_loaded_from_the_cache_folder(saved, tmp_path, monkeypatch):
    """A name means the folder it was pulled into."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    [name] = hub.MODELS
    target = shutil.copytree(saved, hub.folder_of(name))
    size = (target / "config.json").stat().st_size
    (target / hub.MANIFEST).write_text(json.dumps({"files": {"config.json": size}}))

    assert name == load(name).name


def _interleave(rows, heads):
    """The order of rows in which llama.cpp stores a Llama's queries and keys."""
    return rows.view(heads, 2, -1, WIDTH).transpose(1, 2).reshape(rows.shape)


def _write_gguf(path, model, *, skip=(), extra=None, quantised=None, **metadata):
    """A GGUF file of a tiny model, written as llama.cpp's converter does."""
    family = model.config.model_type
    architecture = {
        "llama": gguf.MODEL_ARCH.LLAMA,
        "qwen2": gguf.MODEL_ARCH.QWEN2,
        "qwen3": gguf.MODEL_ARCH.QWEN3,
    }[family]
    names = gguf.get_tensor_name_map(architecture, LAYERS)
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(metadata.get("heads", HEADS))
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model(metadata.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(metadata.get("pre", "gpt-2"))
    writer.add_token_list(metadata.get("tokens", TOKENS))
    normal = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL))
    writer.add_token_types(metadata.get("types", normal))
    if "scores" in metadata:
        writer.add_token_scores(metadata["scores"])
    else:
        writer.add_token_merges(metadata.get("merges", MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in metadata.get("keys", {}).items():
        add = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string"}
        getattr(writer, add.get(type(value), "add_array"))(key, value)
    for name, tensor in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        if name in skip or (model.config.tie_word_embeddings and stem == "lm_head"):
            continue
        rows = tensor
        if family == "llama" and stem.endswith("q_proj"):
            rows = _interleave(tensor, HEADS)
        if family == "llama" and stem.endswith("k_proj"):
            rows = _interleave(tensor, KV_HEADS)
        target = f"{names.get_name(stem)}.{kind}"
        if quantised and rows.dim() == 2:
            packed = gguf.quantize(rows.numpy(), quantised)
            writer.add_tensor(target, packed, raw_dtype=quantised)
        else:
            writer.add_tensor(target, rows.numpy())
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


FAMILIES = [
    ("Llama", {"tie_word_embeddings": True}),
    ("Llama", {"tie_word_embeddings": False}),
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_gguf_computes_what_its_model_computes(tmp_path, family, changes):
    """Every tensor of a GGUF file finds its place, rows and all."""
    model = _model(family, **changes)
    loaded = load(_write_gguf(tmp_path / "tiny.gguf", model), "fp32")

    assert torch.equal(_logits(model), _logits(loaded.model))
    assert CONTEXT == loaded.spec.max_length
    assert (2,) == loaded.stop_token_ids


def test_quantised_gguf(tmp_path):
    """Eight-bit blocks are dequantised: what is computed is near what the full weights give."""
    model = _model()
    kind = gguf.GGMLQuantizationType.Q8_0
    loaded = load(_write_gguf(tmp_path / "tiny.gguf", model, quantised=kind), "fp32")

    assert torch.allclose(_logits(model), _logits(loaded.model), atol=0.01)
    assert not torch.equal(_logits(model), _logits(loaded.model))


def test_gguf_tokenizer(tmp_path):
    """Vocabulary, merges, control tokens and chat template come out of the file."""
    tokenizer = load(_write_gguf(tmp_path / "tiny.gguf", _model())).tokenizer

    text = "hi 123 <s>x</s>"
    assert _tokenizer()(text).input_ids == tokenizer(text).input_ids
    assert TEMPLATE == tokenizer.chat_template
    assert "x" == tokenizer.decode(tokenizer("<s>x</s>").input_ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("pre", "expected"),
    [("gpt-2", ["12", "3"]), ("smollm", ["1", "2", "3"]), ("qwen2", ["1", "2", "3"])],
)
def test_gguf_text_is_cut_as_the_file_says(tmp_path, pre, expected):
    """Digits are merged only where the model's pre-tokenizer leaves them together."""
    path = _write_gguf(tmp_path / "tiny.gguf", _model(), pre=pre)

    assert expected == load(path).tokenizer.tokenize("123")


def test_converted_gguf_is_a_model_folder(tmp_path):
    """A converted file loads like any Hugging Face folder and computes the same."""
    model = _model(tie_word_embeddings=True)
    folder = tmp_path / "converted"
    convert(_write_gguf(tmp_path / "tiny.gguf", model), folder, torch.float32)
    loaded = load(folder, "fp32")

    assert torch.equal(_logits(model), _logits(loaded.model))
    assert (2,) == loaded.stop_token_ids
    assert TEMPLATE == loaded.tokenizer.chat_template


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": {"rope_freqs.weight": torch.ones(3)}}, "must be 4 numbers above 0"),
        ({"extra": {"rope_freqs.weight": torch.zeros(4)}}, "'rope_freqs.weight' holds .0.0, 0.0"),
        ({"extra": {"blk.0.ffn_gate_inp.weight": torch.ones(4)}}, "'blk.0.ffn_gate_inp.weight'"),
        ({"skip": ["model.norm.weight"]}, "lack 1 tensors: model.norm.weight"),
        ({"keys": {"llama.rope.scaling.type": "yarn"}}, "rope.scaling.type = 'yarn'"),
        ({"keys": {"llama.rope.scaling.factor": 2.0}}, r"rope.scaling.factor = 2.0 .*only 1.0"),
        ({"keys": {"llama.rope.scale_linear": 4.0}}, "rope.scale_linear = 4.0"),
        ({"keys": {"llama.rope.dimension_count": 4}}, r"rope.dimension_count = 4 .*only 8"),
        ({"keys": {"llama.rope.wobble": 1}}, "rope.wobble = 1"),
        ({"keys": {"llama.attention.sliding_window": 9}}, "attention.sliding_window = 9"),
        ({"keys": {"llama.attention.causal": False}}, "attention.causal = False"),
        ({"keys": {"llama.attention.value_length": 4}}, r"attention.value_length = 4 .*only 8"),
        ({"keys": {"llama.logit_scale": 0.5}}, "logit_scale = 0.5"),
        ({"keys": {"tokenizer.ggml.add_eos_token": True}}, "add_eos_token"),
        ({"tokens": [*TOKENS[:-1], "hi"]}, "261 tokens, 260 of them different"),
        ({"tokens": [*TOKENS, "more"]}, "262 tokens, 262 of them different, for 261 embeddings"),
        ({"tokenizer": "t5"}, "tokenizer 't5' .*known: gpt2, llama"),
        ({"tokenizer": "llama", "pre": "tekken", "scores": [0.0]}, "'tekken' .*known: default"),
        (
            {"tokenizer": "llama", "pre": "default", "scores": [0.0]},
            "261 tokens, 1 scores and 261 types",
        ),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken'"),
    ],
)
def test_gguf_that_is_not_understood_is_refused(tmp_path, options, message):
    """What would be read wrongly is not read; the message names it."""
    path = _write_gguf(tmp_path / "tiny.gguf", _model(), **options)
    with pytest.raises(ModelError, match=message):
        load(path)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 0},
        {"heads": 3},
        {"merges": ["a"]},
        {"merges": ["zz yy"]},
        {"keys": {"tokenizer.ggml.padding_token_id": 10**6}},
        {"keys": {"llama.vocab_size": [1, 2]}, "heads": 2**31},
        {"keys": {"tokenizer.ggml.eot_token_id": [1]}, "merges": ["h"]},
    ],
)
def test_damaged_gguf_metadata(tmp_path, options):
    """Numbers and texts that cannot be are one error of one line."""
    path = _write_gguf(tmp_path / "tiny.gguf", _model(), **options)
    with pytest.raises((ModelError, ConfigError)) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_gguf_with_flipped_bytes(tmp_path, seed):
    """A file whose header is damaged anywhere loads or is refused, and never crashes."""
    raw = bytearray(_write_gguf(tmp_path / "whole.gguf", _model()).read_bytes())
    random = np.random.default_rng(seed)
    for at in random.integers(4, 1500, 3):
        raw[at] = int(random.integers(256))
    path = tmp_path / "flipped.gguf"
    path.write_bytes(raw)
    assert "\n" not in _refusal(path)


def test_llama_bpe(tmp_path):
    """Llama 3's text begins with its start token, and a word that is a token is not merged."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*SPECIAL, *alphabet, "hi", "whole"]
    options = {"pre": "llama-bpe", "tokens": tokens, "merges": ["h i"]}
    found = load(_write_gguf(tmp_path / "a.gguf", _model(), **options)).tokenizer
    off = {"keys": {"tokenizer.ggml.add_bos_token": False}}
    bare = load(_write_gguf(tmp_path / "b.gguf", _model(), **options, **off)).tokenizer

    assert ["<s>", "whole"] == found.convert_ids_to_tokens(found("whole").input_ids)
    assert ["hi"] == bare.convert_ids_to_tokens(bare("hi").input_ids)


def test_llama_3_frequencies_of_a_gguf(tmp_path):
    """What llama.cpp's converter stores for them is what the model computed with."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "original_max_position_embeddings": 32}
    model = _model(rope_parameters=rope | scaling)
    plain = 1e4 ** -(torch.arange(0, 8, 2) / 8)
    freqs = {"rope_freqs.weight": plain / model.model.rotary_emb.inv_freq}
    path = _write_gguf(tmp_path / "tiny.gguf", model, extra=freqs)
    loaded = load(path, "fp32")
    convert(path, tmp_path / "converted", torch.float32)

    assert 1 < len(set(freqs["rope_freqs.weight"].tolist()))
    assert torch.allclose(_logits(model), _logits(loaded.model), atol=1e-6)
    assert not torch.allclose(_logits(_model()), _logits(loaded.model), atol=1e-5)
    assert torch.equal(_logits(load(tmp_path / "converted", "fp32").model), _logits(loaded.model))
    assert length_bound_rope(loaded.model.config, 10 * CONTEXT) is None


PIECES = ["▁", *"abcdeh", "▁a", "ab", "abc", "bc", "▁abc", "aa", "▁▁", "cab", "ed"]
SPM = {
    "tokenizer": "llama",
    "pre": "default",
    "tokens": [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "<sep>", *PIECES],
    "types": [2, 3, 3, *[6] * 256, 4, *[1] * len(PIECES)],
    "scores": [0.0] * 260 + [-1000.0] * 7 + [-float(i) for i in range(len(PIECES) - 7)],
}


def _best_pairs_first(text):
    """SentencePiece's rule, in its plainest form."""
    scores = dict(zip(SPM["tokens"], SPM["scores"], strict=True))
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(scores.get(a + b), -i) for i, (a, b) in enumerate(pairwise(parts))]
        best = max((pair for pair in pairs if pair[0] is not None), default=None)
        if best is None:
            return parts
        parts[-best[1] : 2 - best[1]] = ["".join(parts[-best[1] : 2 - best[1]])]


def _spm_tokenizer(path, **keys):
    config = _model().config
    config.vocab_size = len(SPM["tokens"])
    model = transformers.LlamaForCausalLM(config)
    return load(_write_gguf(path, model, **SPM, keys=keys)).tokenizer


def test_sentencepiece_merges_the_best_pair_first(tmp_path):
    """A text begins with the start token and a space, and comes back without them."""
    tokenizer = _spm_tokenizer(tmp_path / "tiny.gguf")
    random = np.random.default_rng(0)

    for length in range(1, 60):
        text = "".join(random.choice(list("abcdeh  "), length))
        ids = tokenizer(text).input_ids
        assert ["<s>", *_best_pairs_first(" " + text)] == tokenizer.convert_ids_to_tokens(ids)
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


def test_sentencepiece_tokens_that_are_matched_whole(tmp_path):
    """Behind a control or user-defined token text begins anew; other characters are bytes."""
    tokenizer = _spm_tokenizer(tmp_path / "tiny.gguf")

    shown = ["<s>", "▁abc", "<sep>", "▁", "b", "</s>", "▁", "<0xC3>", "<0xA9>"]
    ids = tokenizer("abc<sep>b</s>é").input_ids
    assert shown == tokenizer.convert_ids_to_tokens(ids)
    assert 0 == tokenizer.unk_token_id


def test_sentencepiece_without_a_first_space(tmp_path):
    """A file may say that no space is put before a text, and no start token."""
    off = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = _spm_tokenizer(tmp_path / "tiny.gguf", **off)

    assert ["abc", "▁abc"] == tokenizer.tokenize("abc abc")
    assert " abc" == tokenizer.decode(tokenizer(" abc").input_ids)


def test_unknown_gguf_architecture(tmp_path):
    """The architectures that can be read are listed."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "abacus")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="'abacus' is not known; known: llama, qwen2, qwen3"):
        load(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.9, 1.0])
def test_truncated_gguf(tmp_path, part):
    """A file cut anywhere is one line, also when only its last bytes are gone."""
    whole = _write_gguf(tmp_path / "whole.gguf", _model()).read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int((len(whole) - 64) * part)])
    with pytest.raises(ModelError, match="truncated or damaged") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_file_that_is_no_gguf(tmp_path):
    """A name alone makes no model."""
    (tmp_path / "poem.gguf").write_text("Shall I compare thee to a summer's day?" * 20)
    with pytest.raises(ModelError, match="no GGUF file"):
        load(tmp_path / "poem.gguf")
