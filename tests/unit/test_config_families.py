"""Every model that generates: read, or refused with a reason of its own; files people have."""

import copy
import inspect
import json
from pathlib import Path

import pytest
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import octavo
from octavo import Attention, Compressed, Cross, Latent, ModelSpec, Shared, State
from octavo.errors import ConfigError, UnknownArchitecture
from octavo.model.configs.names import NAMES
from octavo.model.configs.nested import DECODING_ENCODERS, ENCODERS, REFUSED
from octavo.planner import sizes

read = ModelSpec.from_config
CONFIGS = Path(__file__).parents[1] / "data/configs"
EXPECTED, SIZES = (
    yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("expected", "sizes")
)


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_bytes_of_files(name):
    """A published file is planned to the byte, and nothing of it is left unread."""
    row, spec = EXPECTED[name], read(CONFIGS / f"{name}.json")
    plan = octavo.plan(spec, "4TiB")
    found = {
        "bytes_per_token": plan.bytes_per_token,
        "beyond_windows": sizes.bytes_per_token_beyond_windows(plan),
        "fixed_bytes_per_sequence": sizes.fixed_bytes_per_sequence(plan),
    }
    wide = octavo.plan(spec, "4TiB", indexer_dtype="bf16").bytes_per_token
    found["with_bf16_indexer"] = wide
    if "with_one_mtp_layer" in row:
        found["with_one_mtp_layer"] = octavo.plan(spec.with_mtp(1), "4TiB").bytes_per_token
    told = set(row) - {"of"}

    assert {key: row[key] for key in told} == {key: found[key] for key in told}
    assert not [note for note in spec.notes if "not read" in note]


@pytest.mark.parametrize("name", SIZES)
def test_bytes_of_published_sizes(name):
    """Models of which only the sizes are here: to the byte too, and nothing is left unread."""
    row = SIZES[name]
    spec = read(row["config"])
    plan = octavo.plan(spec, "8TiB", page_size=1, max_length=min(spec.max_length or 4096, 4096))
    found = {
        "bytes_per_token": plan.bytes_per_token,
        "beyond_windows": sizes.bytes_per_token_beyond_windows(plan),
        "fixed_bytes_per_sequence": sizes.fixed_bytes_per_sequence(plan),
    }

    assert {key: row[key] for key in found if key in row} == {
        key: found[key] for key in found if key in row
    }
    assert not [note for note in spec.notes if "not read" in note]


def test_prediction_layers_of_files():
    """As many as the file says by any name, each of the kind the family gives it."""
    mtp = {name: read(CONFIGS / f"{name}.json").mtp for name in EXPECTED}

    assert (Latent(512, 64, 128),) == mtp["GLM-5.2"]
    assert (State((), rows=(128, 512)),) == mtp["DeepSeek-V4-Flash"]
    assert (Latent(512, 64),) == mtp["Ling-3.0-tiny"]
    assert (Attention(8, 128, 128),) == mtp["MiMo-7B-Base"]
    assert 1 == len(mtp["EXAONE-4.5-33B"])
    assert (Attention(4, 128, 128, indexer=128),) * 7 == mtp["MiniMax-M3"]  # modules of a layer


def test_layers_of_deepseek_v4():
    """A ratio of 0 is a window alone, of 4 a row with an indexer's key, of 128 a row alone."""
    layers = read(CONFIGS / "DeepSeek-V4-Flash.json").layers
    rows = [next(iter(octavo.model.layers.kinds_in(item))) for item in layers]

    assert 2 == sum(isinstance(kind, State) for kind in rows)
    assert 21 == rows.count(Compressed(4, 448, 64, 128))
    assert 20 == rows.count(Compressed(128, 448, 64))


def test_windows_of_dots3():
    """Their sizes come by fields of their own, or by layer, where what is left out is as in all."""
    shape = {"model_type": "dots3_note_text", "num_hidden_layers": 3, "kv_lora_rank": 24}
    shape |= {"qk_rope_head_dim": 8, "sliding_window": 16}
    by_layer = {"per_layer_config": {"2": {"head_dim": 24}}}

    assert Latent(1024, 64, window=16) == read(shape).layers[2]
    assert Latent(24, 8, window=16) == read(shape | by_layer).layers[2]
    assert Latent(48, 64, window=16) == read(shape | {"swa_kv_lora_rank": 48}).layers[2]


def test_a_file_saved_again_is_the_same_model():
    """What transformers writes of a published file is the same spec."""
    saved = json.loads((CONFIGS / "paligemma_resaved.json").read_text(encoding="utf-8"))
    text = {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256}

    assert read({"model_type": "paligemma", "text_config": text | heads}) == read(saved)


PUBLISHED = [
    *sorted((CONFIGS.parents[1] / "cases/data/configs").glob("*.json")),
    *(CONFIGS / f"{name}.json" for name in EXPECTED),
]
KNOWN_TO_TRANSFORMERS = [
    file
    for file in PUBLISHED
    if json.loads(file.read_text(encoding="utf-8"))["model_type"] in CONFIG_MAPPING
    and file.stem not in ("AFM-4.5B-params", "mlx-llama-kv")  # it takes Meta's names for nothing
]


@pytest.mark.parametrize("file", KNOWN_TO_TRANSFORMERS, ids=lambda file: file.stem)
def test_files_saved_again_by_transformers(file):
    """Whatever transformers adds to a published file, it is the same spec, and all is read."""
    config = json.loads(file.read_text(encoding="utf-8"))
    saved = CONFIG_MAPPING[config["model_type"]].from_dict(config).to_json_string(use_diff=False)
    spec = read(json.loads(saved))

    assert read(file) == spec
    assert not [note for note in spec.notes if "not read" in note]


SAVED = [name for name in SIZES if SIZES[name]["config"]["model_type"] in CONFIG_MAPPING]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", SAVED)
def test_sizes_saved_again_by_transformers(name, whole):
    """With all fields and with those alone that differ, what is saved is the same spec."""
    config = SIZES[name]["config"]
    try:
        made = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config))
    except StrictDataclassError:
        return  # the class wants fields of the encoder too
    spec = read(json.loads(made.to_json_string(use_diff=not whole)))

    assert read(config) == spec
    assert not [note for note in spec.notes if "not read" in note]


# -- every model of transformers -------------------------------------------------------------------

MAPPINGS = [
    name
    for name in dir(modeling_auto)
    if name.startswith("MODEL_FOR_")
    and name.endswith("_MAPPING_NAMES")
    and any(
        word in name
        for word in ("CAUSAL_LM", "IMAGE_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ", "TEXT_TO_")
    )
]
GENERATE = sorted({name for each in MAPPINGS for name in getattr(modeling_auto, each)})
UNEVEN = {"glm4_moe", "glm4v_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker"}
"""Models whose class divides width by heads and forgets the rest: their heads are refused."""


def test_there_are_many_of_them():
    """The walk below goes over what the installed transformers can generate with."""
    assert len(GENERATE) > 300


@pytest.mark.parametrize("name", GENERATE)
def test_every_model_is_read_or_refused_for_its_own_reason(name):
    """What the class makes when nothing is said is read; else the error says why it is not."""
    refused = name in REFUSED or name in ENCODERS
    config = {"model_type": name}
    if not refused:
        config |= CONFIG_MAPPING[name]().to_dict() | config
    if refused or name in UNEVEN:
        with pytest.raises(ConfigError) as caught:
            read(config)
        assert not isinstance(caught.value, UnknownArchitecture)
        assert caught.value.field == ("model_type" if refused else "hidden_size")
        return
    spec = read(config)
    plan = octavo.plan(spec, "8TiB", max_length=min(spec.max_length or 512, 512))

    assert plan.usable_pages > 1


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refusals_have_a_reason(name):
    """The reason is in the error, which is none of an unknown name."""
    with pytest.raises(ConfigError) as caught:
        read({"model_type": name})

    assert REFUSED[name] in str(caught.value)
    assert not isinstance(caught.value, UnknownArchitecture)


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_encoders_decode_where_their_classes_do(name):
    """A family decodes where its config has is_decoder and its model fills past_key_values."""
    config = Path(inspect.getfile(CONFIG_MAPPING[name]))
    model = config.with_name(config.name.replace("configuration_", "modeling_"))
    decodes = hasattr(CONFIG_MAPPING[name](), "is_decoder") and "past_key_values" in (
        model.read_text(encoding="utf-8")
    )

    assert decodes == (name in DECODING_ENCODERS)


@pytest.mark.parametrize("name", sorted(DECODING_ENCODERS))
def test_an_encoder_that_decodes_keeps_a_cache(name):
    """With is_decoder a model of an encoder's family keeps keys and values of every head."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}

    assert (Attention(4, 16, 16),) * 2 == read(
        {"model_type": name, "is_decoder": True} | sizes
    ).layers
    with pytest.raises(ConfigError, match="keeps no cache"):
        read({"model_type": name} | sizes)
    crossed = {"model_type": name, "is_decoder": True, "add_cross_attention": True} | sizes
    assert ((Attention(4, 16, 16), Cross(4, 16, 16)),) * 2 == read(crossed).layers


def test_a_second_decoder_is_noted():
    """Qwen 2.5 Omni's talker keeps a cache beside the thinker's; not where no speech is made."""
    config = CONFIG_MAPPING["qwen2_5_omni"]().to_dict() | {"model_type": "qwen2_5_omni"}
    told = "talker_config is a second decoder, left out here: "

    assert (f"{told}from_config(config['talker_config']) reads it",) == read(config).notes
    assert 28 == len(read(config["talker_config"]).layers)
    assert () == read(config | {"enable_audio_output": False}).notes


# -- kinds -----------------------------------------------------------------------------------------

BASE = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
KV = BASE | {"num_key_value_heads": 2}


def layers(**fields):
    """The layers of a small config."""
    return read(KV | fields).layers


def test_pruned_blocks():
    """Blocks without attention keep nothing; others by heads of their own, and their window."""
    attention = [{"no_op": True}, {"replace_with_linear": True}, {"n_heads_in_group": 4}]
    attention += [{"n_heads_in_group": 2, "window_length": 8, "num_sink_tokens": 1}]
    found = layers(model_type="nemotron-nas", block_configs=[{"attention": a} for a in attention])

    assert ((), (), Attention(1, 16, 16), Attention(2, 16, 16, window=8, sink_tokens=1)) == found
    heads = [{"attention": {"n_heads_in_group": None, "num_key_value_heads": 2}}] * 4
    assert (Attention(2, 16, 16),) * 4 == layers(model_type="nemotron-nas", block_configs=heads)
    with pytest.raises(ConfigError, match="must list all 4 layers"):
        layers(model_type="nemotron-nas", block_configs=[])
    assert [1, 4, 2, 1] == [
        kind.kv_heads
        for kind in layers(model_type="deci", num_key_value_heads_per_layer=[1, 4, 2, 1])
    ]


def test_layers_that_run_several_times():
    """Every run of a layer keeps keys and values of its own."""
    loops = {"n_input_layers": 1, "n_output_layers": 1, "n_recurrent_loops": 3}
    blocks = ["full_attention", "mlp"] * 4
    double = {"num_hidden_layers": 8, "n_input_layers": 2, "n_output_layers": 2}

    assert 4 + 2 * 2 == len(layers(model_type="dory", **loops))
    assert 4 == len(layers(model_type="dory", **loops, recurrent_kv_cache_mode="last_loop"))
    assert 4 + 2 * 2 == len(
        layers(model_type="dory", **loops | double, layer_types=blocks, n_recurrent_layers=4)
    )
    assert 4 * 2 * 4 == len(layers(model_type="hrm_text", head_dim=16))
    assert 4 == len(layers(model_type="hrm_text", head_dim=16, num_layers_per_stack=1))


def test_layers_that_read_another_layers_latents():
    """kv_source_layers names the layer whose latents are read; an indexer's keys are one's own."""
    sources = {"model_type": "mistral_large4_text", "kv_source_layers": [0, 0, 2, 2]}
    types = ["full", "shared", "full", "full"]
    found = layers(**sources, indexer_types=types, no_rope_layers=[1, 1, 0, 0])
    spec = read(KV | sources | {"indexer_types": types, "no_rope_layers": [1, 1, 0, 0]})

    assert (Latent(512, 64, 128), Shared(0), Latent(512, 0, 128)) == found[:3]
    assert (Shared(2), Latent(0, indexer=128)) == found[3]
    assert 2 * (512 + 64 + 512) + 3 * 132 == octavo.plan(spec, "1GiB").bytes_per_token
    with pytest.raises(ConfigError, match="kv_source_layers"):
        layers(model_type="mistral_large4_text", kv_source_layers=[0, 0, 1, 3])


def test_talkers_and_code_predictors():
    """A talker keeps a position a frame; its code predictor runs over the groups of a frame."""
    talker = {
        "model_type": "qwen3_omni_moe_talker",
        "text_config": KV | {"model_type": "qwen3_omni_moe_talker_text"},
        "code_predictor_config": KV | {"num_code_groups": 16, "head_dim": 8},
    }
    spec = read(talker)

    assert (Attention(2, 16, 16),) * 4 == spec.layers
    assert ((Attention(2, 8, 8),) * 4, 16) == (spec.depth.layers, spec.depth.max_length)


def test_n_gram_histories():
    """Layers over n-grams keep what their convolution saw and the last ids beside their own."""
    found = layers(
        model_type="qwen4_exp_text",
        num_key_value_heads=2,
        ple_layer_ids=[0, 3],
        indexer_kv_heads=1,
        indexer_head_dim=16,
        head_dim=16,
        hc_count=2,
    )

    assert ((9, 128), (2, 2)) == (found[0].rows, found[0].buffer)
    assert Attention(2, 16, 16, indexer=16) == found[3][0]


def test_inputs_beside_windows():
    """T5Gemma's layers attend to the input, every other through a window of its own tokens."""
    text = KV | {"head_dim": 16, "sliding_window": 8}
    found = read({"model_type": "t5gemma", "encoder": text, "decoder": text}).layers

    assert (Attention(2, 16, 16, window=8), Cross(2, 16, 16)) == found[0]
    assert (Attention(2, 16, 16), Cross(2, 16, 16)) == found[1]


def test_older_names_of_families():
    """The first Falcons, and decoders by the names their own files have."""
    first = {"model_type": "RefinedWeb", "n_head": 8, "n_layer": 2, "n_head_kv": 4}

    assert {4} == {kind.kv_heads for kind in read(first | {"hidden_size": 64}).layers}
    assert 1 == layers(model_type="RefinedWebModel", multi_query=True)[0].kv_heads
    assert layers(model_type="exaone4_5_text") == layers(model_type="exaone4")


# -- families whose code comes with the files ------------------------------------------------------


def test_layers_that_share_keys_across():
    """Hunyuan's groups of layers read their first one's keys; AFM's last layers one layer's."""
    hunyuan = layers(model_type="hunyuan", use_cla=True)
    afm = layers(model_type="afm7", hidden_dim=64, num_kv_reuse_layers=2)

    assert (Attention(2, 16, 16), Shared(0), Attention(2, 16, 16), Shared(2)) == hunyuan
    assert (Shared(1), Shared(1)) == afm[2:]
    assert {Attention} == set(map(type, layers(model_type="hunyuan")))


def test_heads_by_lists_and_groups():
    """OpenELM lists heads by layer; PLaMo says how many query heads go to one."""
    elm = {"model_type": "openelm", "num_transformer_layers": 2, "model_dim": 64, "head_dim": 8}
    spec = read(elm | {"num_kv_heads": [1, 2], "num_query_heads": [4, 8]})

    assert (Attention(1, 8, 8), Attention(2, 8, 8)) == spec.layers
    assert {2} == {kind.kv_heads for kind in layers(model_type="plamo", n_shared_head=2)}
    with pytest.raises(ConfigError, match="num_kv_heads"):
        read(elm | {"num_kv_heads": [1]})


def test_states_and_windows_of_remote_families():
    """Ring's linear layers, IQuest's loops, Baichuan-M1's convolutions, RWKV-7's matrices."""
    ring = layers(model_type="bailing_moe_linear", num_hidden_layers=5, layer_group_size=2)
    loops = layers(model_type="iquestloopcoder", head_dim=16, loop_num=3)
    swa = {"sliding_window": 8, "sliding_window_layers": [1], "num_swa_key_value_heads": 1}
    m1 = layers(model_type="baichuan_m1", **swa)

    assert [State, Attention, State, Attention, Attention] == [type(kind) for kind in ring]
    assert [None] * 4 + [64] * 8 == [kind.window for kind in loops]
    assert (Attention(2, 16, 16), State((), (64, 1))) == m1[0]
    assert (Attention(1, 16, 16, window=8), State((), (32, 1))) == m1[1]
    assert State((4, 16, 16), (128, 1)) == layers(model_type="rwkv7", head_dim=16)[0]
    assert State((), buffer=(3, 2)) == layers(model_type="longcat_flash_ngram")[0][1]


def test_heads_that_are_shared_by_a_name():
    """MPT's kinds of attention, CodeShell's groups, Step 3's and Refact's one head."""

    def heads(**fields):
        return {kind.kv_heads for kind in layers(**fields)}

    mpt = {"model_type": "mpt", "num_key_value_heads": None}
    grouped = {"attn_type": "grouped_query_attention", "kv_n_heads": 2}

    assert {4} == heads(**mpt) == heads(**mpt, attn_config={"attn_type": "multihead_attention"})
    assert {1} == heads(**mpt, attn_config={"attn_type": "multiquery_attention"})
    assert {2} == heads(**mpt, attn_config=grouped)
    with pytest.raises(ConfigError, match="attn_type"):
        heads(**mpt, attn_config={"attn_type": "other"})
    assert {2} == heads(model_type="codeshell", group_query_attention=True)
    assert {4} == heads(model_type="codeshell", group_query_attention=False)
    assert {1} == heads(model_type="step3_text", num_attention_groups=1)
    assert {1} == heads(model_type="gpt_refact", multi_query=True)
    step = layers(model_type="step3_vl", text_config=KV | {"max_position_embedding": 77})
    assert (Attention(1, 256, 256),) * 4 == step


def test_further_remote_families():
    """Ouro's loops, openPangu's names of latents, PLaMo 2's mixers, a file of another's name."""
    pangu = {"attention_kv_lora_dim": 32, "attention_qk_rope_dim": 8, "attention_v_dim": 16}
    plamo = layers(model_type="plamo2", hidden_size_per_head=16, mamba_num_heads=8)
    grok = {"model_type": "git", "architectures": ["Grok1ForCausalLM"]}

    assert 12 == len(layers(model_type="ouro", total_ut_steps=3))
    assert {Latent(32, 8)} == set(layers(model_type="pangu_ultra_moe", **pangu))
    assert () == read(KV | pangu | {"model_type": "pangu_ultra_moe"}).notes
    state = State((8, 16, 64), (128, 3))
    assert (state, Attention(2, 16, 16)) * 2 == plamo
    assert {2} == {kind.kv_heads for kind in layers(**grok)}


def test_states_beside_other_attention():
    """Solar Open 2 and GigaChat 3.5: Kimi's or gated delta states, beside heads or latents."""
    kda = State((4, 16, 16), (192, 3))
    solar = {"model_type": "solar_open2", "head_dim": 16}
    delta = {f"linear_{name}": 2 for name in ("num_key_heads", "num_value_heads")}
    delta |= {"linear_key_head_dim": 8, "linear_value_head_dim": 16}
    giga = {"model_type": "gigachat3_5", "kv_lora_rank": 32, "qk_rope_head_dim": 8} | delta
    mixed = layers(**giga, full_attention_layers=[1])

    assert (Attention(2, 16, 16), kda, kda, kda) == layers(**solar)
    assert (kda, Attention(2, 16, 16)) * 2 == layers(**solar, gqa_layers=[1, 3])
    assert State((2, 8, 16), (64, 3)) == mixed[0]
    assert Latent(32, 8) == mixed[1]
    assert (Latent(32, 8),) * 4 == layers(**giga, layer_types=["full_attention"] * 4)
    slides = layers(
        model_type="smallthinker", sliding_window_size=8, sliding_window_layout=[0, 1, 1, 1]
    )
    assert [None, 8, 8, 8] == [kind.window for kind in slides]


def test_older_rates_of_deepseek_v4():
    """Files saved by the first releases say each rate by itself."""
    sizes = {"head_dim": 64, "index_head_dim": 16, "sliding_window": 8, "num_key_value_heads": 1}
    types = ["compressed_sparse_attention", "heavily_compressed_attention"] * 2
    found = layers(
        model_type="deepseek_v4",
        layer_types=types,
        compress_rate_csa=2,
        compress_rate_hca=6,
        **sizes,
    )

    assert [Compressed(2, 56, 8, 16), Compressed(6, 56, 8)] == [kinds[0] for kinds in found[:2]]


def test_layers_of_mimo_v2():
    """Files say which layers slide and their heads; a window's size leaves the query out."""
    swa = {"swa_num_key_value_heads": 4, "swa_head_dim": 24, "swa_v_head_dim": 8}
    sizes = {"head_dim": 24, "v_head_dim": 16, "sliding_window": 8, "sliding_window_size": 8}
    found = layers(model_type="mimo_v2", hybrid_layer_pattern=[0, 1, 1, 0], **swa, **sizes)

    assert Attention(2, 24, 16) == found[0] == found[3]
    assert Attention(4, 24, 8, window=9, sink_logits=True) == found[1]
    ahead = {"num_nextn_predict_layers": 2, "hybrid_layer_pattern": [0, 1, 1, 0]}
    mtp = read(KV | {"model_type": "mimo_v2"} | ahead | swa | sizes).mtp
    assert (Attention(4, 24, 8, window=9, sink_logits=True),) * 2 == mtp
    with pytest.raises(ConfigError, match="hybrid_layer_pattern"):
        layers(model_type="mimo_v2_flash", hybrid_layer_pattern=[0, 2, 1, 0], **sizes)


def test_files_that_name_no_family(tmp_path):
    """Meta's and Mistral's params.json, and mamba-ssm's files, are known by their fields."""
    meta = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5}
    ssm = {"d_model": 64, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2", "headdim": 16}}
    (tmp_path / "params.json").write_text(json.dumps(meta), encoding="utf-8")

    assert (Attention(2, 16, 16),) * 2 == read(tmp_path).layers
    assert {8} == {kind.window for kind in read(meta | {"sliding_window": 8}).layers}
    latent = {"kv_lora_rank": 32, "qk_rope_head_dim": 8}
    assert (Latent(32, 8),) * 2 == read(meta | latent).layers
    assert (State((8, 16, 128), (384, 3)),) * 2 == read(ssm).layers
    assert (State((128, 16), (128, 3)),) * 2 == read(ssm | {"ssm_cfg": {}}).layers
    attention = {"num_heads": 4, "head_dim": 8, "d_conv": 4}
    mixed = read(ssm | {"attn_layer_idx": [1], "attn_cfg": attention}).layers
    assert (Attention(4, 8, 8), State((), (96, 3))) == mixed[1]
    assert State((8, 16, 128), (384, 3)) == mixed[0]
    with pytest.raises(UnknownArchitecture):
        read({"dim": 64, "n_layers": 2, "n_heads": 4})


def test_windows_chunks_and_images_of_params_json():
    """Mistral's windows in turn, Llama 4's chunks, layers of Llama 3.2 that attend to images."""
    meta = {"dim": 64, "n_layers": 8, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5}
    turns = read(meta | {"_sliding_window": [None, 32, 32, 32], "max_seq_len": 99}).layers
    chunks = read(meta | {"attention_chunk_size": 16, "nope_layer_interval": 4}).layers
    images = read(meta | {"vision_num_cross_attention_layers": 2, "vision_chunk_size": 560})
    nulls = {"kv_lora_rank": None, "qk_rope_head_dim": None, "sliding_window": None}
    codestral = {"dim": 64, "n_layers": 1, "n_groups": 2, "model_type": "mamba"}

    assert [None, 32, 32, 32] * 2 == [kind.window for kind in turns]
    assert [16, 16, 16, None] * 2 == [kind.chunk for kind in chunks]
    assert [3, 7] == [at for at, layer in enumerate(images.layers) if isinstance(layer, tuple)]
    assert Cross(2, 16, 16) == images.layers[3][1]
    assert () == images.notes
    assert (Attention(2, 16, 16),) * 8 == read(meta | nulls).layers
    assert read(meta).layers == read(meta | {"model_type": "transformer"}).layers
    assert (State((2, 64, 128), (128 + 2 * 2 * 128, 3)),) == read(codestral).layers
    for field in ({"sliding_window": [8] * 3}, {"vision_num_cross_attention_layers": 9}):
        with pytest.raises(ConfigError, match=next(iter(field))):
            read(meta | field)


def test_modules_of_prediction_layers():
    """MiniMax counts modules; by other names families count layers."""
    assert 3 == len(read(KV | {"model_type": "minimax_m2", "num_mtp_modules": 3}).mtp)
    assert 2 == len(read(KV | {"model_type": "mimo", "num_mtp_layers": 2}).mtp)


@pytest.mark.parametrize("name", NAMES["num_nextn_predict_layers"])
def test_every_name_of_prediction_layers_counts(name):
    """A file that counts its prediction layers by another name has as many."""
    assert 2 == len(read(KV | {"model_type": "mimo", name: 2}).mtp)
    assert (Attention(2, 16, 16),) * 2 == read(KV | {"model_type": "mimo", name: 2}).mtp


def test_prediction_layers_beside_the_decoders_part():
    """Inkling's files say them beside the decoder's part, each that slides by its number."""
    text = KV | {"model_type": "inkling_text", "swa_num_key_value_heads": 4, "head_dim": 16}
    mtp = {"num_nextn_predict_layers": 2, "local_layer_ids": [1]}
    spec = read({"model_type": "inkling_mm_model", "text_config": text, "mtp_config": mtp})

    assert [None, 512] == [layer[0].window for layer in spec.mtp]


def test_advice_names_the_layers_of_a_plain_decoder():
    """What to give by hand is spelt out from the file, for a decoder that keeps every token."""
    with pytest.raises(UnknownArchitecture, match=r"\(octavo.Attention\(2, 16, 16\),\) \* 4"):
        read(KV | {"model_type": "brand_new"})
