"""write_decoder: graphs as files, weights beside them where they are large, genai_config.json."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import ConfigError, LengthError, PlanError
from octavo.integrations.onnx import Decoder, PagedSession, export_decoder, write_decoder
from octavo.integrations.onnx.export import LIMIT
from octavo.integrations.onnx.runners import start_runner
from octavo.model.spec import Attention, Latent

SIZES = {"vocab": 50, "hidden": 32, "layers": 2, "heads": 4, "mlp": 48, "max_length": 64}
FULL, SLIDES = Attention(2, 16, 16), Attention(2, 16, 16, window=20)
DECODERS = {
    "full": Decoder(**SIZES, kind=FULL),
    "mixed": Decoder(**SIZES, kind=(SLIDES, FULL)),
    "latent": Decoder(**SIZES, kind=Latent(24, 16), nope_dim=8, v_dim=12),
}
CONFIG = {
    "model_type": "llama",
    "vocab_size": 50,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
}


def names(folder):
    """The files of a folder."""
    return sorted(each.name for each in Path(folder).iterdir())


def logits(model, decoder, dtype="fp32", runtime="onnxruntime"):
    """Of a short prompt over pages."""
    plan = octavo.plan(decoder.spec, "256KiB", dtype=dtype, layout="component")
    cache, session = octavo.Cache(plan), PagedSession(model, plan, runtime=runtime)
    return session.run(cache.extend(cache.admit(range(30)), 30))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("operators", ["standard", "paged"])
def test_weights_beside_the_graph(name, operators, tmp_path):
    """Beyond the limit all but small constants lie in a file; both runtimes compute the same."""
    decoder = DECODERS[name]
    weights, runtime = decoder.random_weights(), "reference"
    options = {"dtype": "fp32", "operators": operators}
    path = write_decoder(tmp_path / "a" / "b", decoder, weights, limit=1000, **options)
    inside = export_decoder(decoder, weights, **options)
    outside = onnx.load(path, load_external_data=False)

    assert ["genai_config.json", "model.onnx", "model.onnx.data"] == names(path.parent)
    large = [each for each in outside.graph.initializer if each.external_data]
    assert {"model.onnx.data"} == {entry.value for e in large for entry in e.external_data[:1]}
    kept = sum(len(each.raw_data) for each in outside.graph.initializer)
    assert kept < 20000 < len(inside.SerializeToString())
    wanted = logits(inside, decoder, runtime=runtime)
    assert np.array_equal(wanted, logits(path, decoder, runtime=runtime))
    if operators == "standard":
        assert np.array_equal(logits(inside, decoder), logits(path, decoder))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_element_types_beside_the_graph(dtype, tmp_path):
    """Numbers of two bytes come back from the file as they were."""
    decoder = DECODERS["full"]
    weights, options = decoder.random_weights(), {"dtype": dtype, "operators": "standard"}
    path = write_decoder(tmp_path, decoder, weights, limit=0, **options)
    inside = export_decoder(decoder, weights, **options)

    found = {each.name: each for each in onnx.load(path).graph.initializer}
    for each in inside.graph.initializer:
        other = found[each.name]
        assert (each.dims, each.data_type) == (other.dims, other.data_type)
        one, two = (onnx.numpy_helper.to_array(tensor) for tensor in (each, other))
        assert one.tobytes() == two.tobytes()


def test_small_graphs_are_one_file(tmp_path):
    """Within the limit weights are in the graph, and a file of an earlier export goes."""
    decoder = DECODERS["full"]
    weights = decoder.random_weights()
    write_decoder(tmp_path, decoder, weights, limit=0)
    assert "model.onnx.data" in names(tmp_path)
    path = write_decoder(str(tmp_path), decoder, weights, dtype="fp32", operators="standard")

    assert ["genai_config.json", "model.onnx"] == names(tmp_path)
    assert logits(path, decoder).shape == (30, 50)


def test_an_export_cut_short_leaves_no_graph_beside_weights_of_another(tmp_path, monkeypatch):
    """Files are moved into place one by one: the graph is gone before the first, and comes last."""
    decoder = DECODERS["full"]
    weights = decoder.random_weights(0)
    write_decoder(tmp_path, decoder, weights, limit=0)
    moved = []

    def interrupted(self, target):
        if moved:
            raise KeyboardInterrupt
        moved.append(self.name)
        return Path(target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_decoder(tmp_path, decoder, weights, limit=0)

    assert ["model.onnx.data"] == moved
    assert "model.onnx" not in names(tmp_path)


def test_what_is_refused_writes_nothing(tmp_path):
    """Before a folder is made, or a file of an earlier export is touched."""
    decoder = DECODERS["full"]
    weights, folder = decoder.random_weights(), tmp_path / "new"
    for options, error, message in (
        ({"dtype": "int8"}, PlanError, "dtype is 'int8'"),
        ({"operators": "fused"}, PlanError, "operators is 'fused'"),
        ({"limit": LIMIT + 1}, LengthError, f"limit is {LIMIT + 1}"),
        ({"limit": -1}, LengthError, "limit is -1"),
        ({"config": 3}, ConfigError, "config is 'int'"),
        ({"config": {"eos_token_id": []}}, ConfigError, "eos_token_id is .*a token id"),
        ({"config": {"bos_token_id": "a"}}, ConfigError, "bos_token_id is 'a'; .*a token id"),
    ):
        with pytest.raises(error, match=message):
            write_decoder(folder, decoder, weights, **options)
    for place in (None, 3, b"new", "a\0b"):
        with pytest.raises(PlanError, match="folder is .*; it must be a path"):
            write_decoder(place, decoder, weights)
    with pytest.raises(PlanError, match="is missing"):
        write_decoder(folder, decoder, {})
    assert [] == names(tmp_path)


def test_a_damaged_graph():
    """A node that reads what is not there is told as a model that cannot be loaded."""
    decoder = DECODERS["full"]
    model = export_decoder(decoder, decoder.random_weights(), dtype="fp32", operators="standard")
    model.graph.node[-1].input[0] = "nowhere"
    plan = octavo.plan(decoder.spec, "256KiB", dtype="fp32")
    with pytest.raises(PlanError, match=r"model is .*; ONNX Runtime cannot load it: .*nowhere"):
        PagedSession(model, plan)


def test_graphs_too_large_for_a_protobuf():
    """In memory they are refused before anything is copied, and say what to call."""
    decoder = Decoder(**(SIZES | {"vocab": 2**24}), kind=FULL)
    weights = {name: np.broadcast_to(np.float32(0), s) for name, s in decoder.shapes().items()}
    del weights["lm_head.weight"]

    with pytest.raises(PlanError, match=r"bytes of the weights is \d+; .*write_decoder"):
        export_decoder(decoder, weights, dtype="fp32")


def test_genai_config(tmp_path):
    """Sizes, names of inputs and outputs, and special tokens, under onnxruntime-genai's names."""
    decoder = DECODERS["full"]
    write_decoder(tmp_path, decoder, decoder.random_weights(), config=CONFIG)
    found = json.loads((tmp_path / "genai_config.json").read_text())

    assert {"max_length": 64, "do_sample": False} == found["search"]
    model, described = found["model"], found["model"].pop("decoder")
    assert {
        "type": "llama",
        "vocab_size": 50,
        "context_length": 64,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "pad_token_id": 2,
    } == model
    assert {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": "model.onnx",
        "head_size": 16,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "inputs": {
            "input_ids": "input_ids",
            "block_table": "block_table",
            "cumulative_sequence_lengths": "cumulative_sequence_length",
            "past_sequence_lengths": "past_seqlens",
            "attention_metadata": "attention_metadata",
            "past_key_names": "key_cache.%d",
            "past_value_names": "value_cache.%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "key_cache_out.%d",
            "present_value_names": "value_cache_out.%d",
        },
    } == described


def test_genai_config_of_windows_and_latents(tmp_path):
    """A second block table and the layers that slide; one cache a layer of a latent kind."""
    mixed, latent = DECODERS["mixed"], DECODERS["latent"]
    write_decoder(tmp_path, mixed, mixed.random_weights())
    found = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    inputs = found["decoder"]["inputs"]

    assert ("decoder", False) == (found["type"], "bos_token_id" in found)
    assert ("block_table.full", "block_table.window_20") == (
        inputs["block_table"],
        inputs["block_table_windowed"],
    )
    window = {"window_size": 20, "slide_key_value_cache": False, "slide_inputs": False}
    assert window | {"layers": [0]} == found["decoder"]["sliding_window"]
    graph = onnx.load(tmp_path / "model.onnx").graph
    bound = {value.name for value in graph.input}
    assert {each.replace("%d", "0") for each in inputs.values()} <= bound
    write_decoder(tmp_path, latent, latent.random_weights())
    found = json.loads((tmp_path / "genai_config.json").read_text())["model"]["decoder"]
    assert "latent_cache.%d" == found["inputs"]["past_names"]
    assert "latent_cache_out.%d" == found["outputs"]["present_names"]


def fed_by_genai(path, counts, tables, past, ids):
    """The inputs of one step, under the names that the file beside the graph gives."""
    inputs = json.loads((path.parent / "genai_config.json").read_text())["model"]["decoder"][
        "inputs"
    ]
    bounds = np.cumsum([0, *counts])
    values = {
        "input_ids": np.array(ids, np.int64),
        "cumulative_sequence_lengths": bounds,
        "past_sequence_lengths": past,
        "attention_metadata": [max(counts), 64, 64],
        "block_table": tables[0],
        "block_table_windowed": tables[1],
    }
    return {
        inputs[name]: each if name == "input_ids" else np.array(each, np.int32)
        for name, each in values.items()
        if name in inputs
    }


@pytest.mark.parametrize("name", ["full", "mixed", "window"])
@pytest.mark.parametrize("operators", ["standard", "paged"])
def test_graph_fed_by_genai(name, operators, tmp_path):
    """One set of lengths, ids of 64 bits, no slots: the logits of octavo's own graph.

    Layers with a window read a ring of pages that its table repeats.
    """
    decoder = (DECODERS | {"window": Decoder(**SIZES, kind=SLIDES)})[name]
    weights, options = decoder.random_weights(), {"dtype": "fp32", "operators": operators}
    path = write_decoder(tmp_path, decoder, weights, engine="genai", **options)
    runner = start_runner("reference" if operators == "paged" else "onnxruntime", path)
    caches = {
        f"{part}_cache.{layer}": np.zeros((9, 16, 2, 16), np.float32)
        for layer in range(2)
        for part in ("key", "value")
    }
    tables = [[[4, 2, 8, 1], [5, 3, 0, 0]], [[4, 2, 8, 4], [5, 3, 5, 3]]]  # three pages, and two
    ids = np.random.default_rng(0).integers(0, 50, (2, 60))
    found = [[], []]
    for past, counts in (
        ([0, 0], [20, 3]),
        ([20, 3], [12, 1]),
        ([32, 4], [1, 9]),
        ([33, 13], [18, 1]),
    ):
        flat = [ids[row, past[row] : past[row] + counts[row]] for row in (0, 1)]
        feeds = fed_by_genai(path, counts, tables, past, np.concatenate(flat))
        logits = runner.run(feeds, caches)
        found[0].append(logits[: counts[0]])
        found[1].append(logits[counts[0] :])

    plan = octavo.plan(decoder.spec, "256KiB", dtype="fp32", layout="component")
    model = export_decoder(decoder, weights, dtype="fp32", operators="standard")
    cache, session = octavo.Cache(plan), PagedSession(model, plan)
    rows = [cache.admit(ids[0, :51]), cache.admit(ids[1, :14])]
    step = cache.extend(rows, [51, 14])
    wanted = np.split(session.run(step), [51])
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(np.concatenate(one) - other).max() < 2e-5


def test_engine_section_of_genai(tmp_path):
    """Its engine is told of pages: as many as fit on a GPU, on a CPU those of one sequence."""
    decoder = DECODERS["mixed"]
    weights = decoder.random_weights()
    for operators, batching in (
        ("paged", {"block_size": 256, "max_batch_size": 16}),
        ("standard", {"block_size": 16, "num_blocks": 20, "max_batch_size": 16}),
    ):
        path = write_decoder(tmp_path, decoder, weights, operators=operators, engine="genai")
        found = json.loads((path.parent / "genai_config.json").read_text())
        assert {"dynamic_batching": batching} == found["engine"]
        assert 256 == found["search"]["chunk_size"]
        graph = onnx.load(path).graph
        kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        inputs = set(found["model"]["decoder"]["inputs"].values())
        assert onnx.TensorProto.INT64 == kinds["input_ids"]
        assert inputs - {"key_cache.%d", "value_cache.%d"} == {
            n for n in kinds if "_cache." not in n
        }


def test_decoders_that_genai_does_not_run(tmp_path):
    """Latent rows and windows of two widths are refused, and an engine that is not there."""
    two = Decoder(**SIZES, kind=(SLIDES, Attention(2, 16, 16, window=9)))
    for decoder in (DECODERS["latent"], two):
        with pytest.raises(PlanError, match=r"groups is \[.*\]; onnxruntime-genai runs layers"):
            write_decoder(tmp_path, decoder, decoder.random_weights(), engine="genai")
    with pytest.raises(PlanError, match="engine is 'vllm'; it must be one of octavo, genai"):
        write_decoder(tmp_path, two, two.random_weights(), engine="vllm")
    assert [] == names(tmp_path)


def test_sessions_of_paths_that_are_none(tmp_path):
    """A file that is not there, or holds no model, is refused by its path."""
    plan = octavo.plan(DECODERS["full"].spec, "64KiB", dtype="fp32")
    (tmp_path / "text.onnx").write_text("not a model")
    for name in ("none.onnx", "text.onnx"):
        with pytest.raises(PlanError, match=f"model is '.*{name}'; no model can be read there"):
            PagedSession(tmp_path / name, plan)
    write_decoder(tmp_path, DECODERS["full"], DECODERS["full"].random_weights(), limit=0)
    data, half = (
        tmp_path / "model.onnx.data",
        octavo.plan(DECODERS["full"].spec, "64KiB", dtype="fp16"),
    )
    size = data.stat().st_size
    for length, message in (
        (size - 1, rf"must hold {size} bytes, not {size - 1}"),
        (None, "bytes$"),
    ):
        data.unlink() if length is None else data.write_bytes(bytes(length))
        for runtime in ("onnxruntime", "reference"):
            with pytest.raises(
                PlanError, match=rf"model is '.*'; model.onnx.data beside it .*{message}"
            ):
                PagedSession(tmp_path / "model.onnx", half, runtime=runtime)
