"""Exported graphs: what ONNX and ONNX Runtime say of them, and what is refused."""

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as KernelMissing

from octavo.errors import LengthError, PlanError, UnsupportedModel
from octavo.integrations.onnx import Decoder, export_attention, export_decoder
from octavo.integrations.onnx.runners import PagedAttention
from octavo.model.spec import Attention, Latent, State

SIZES = {"vocab": 50, "hidden": 32, "layers": 2, "heads": 4, "mlp": 48, "max_length": 64}
DECODERS = {
    "separate": Decoder(**SIZES, kind=Attention(2, 16, 16)),
    "window": Decoder(**SIZES, kind=Attention(2, 16, 16, window=20)),
    "latent": Decoder(**SIZES, kind=Latent(24, 16), nope_dim=8, v_dim=12),
}
KERNEL = r"Could not find an implementation for PagedAttention\(1\)"
by_decoder = pytest.mark.parametrize("name", DECODERS)


def exported(name, dtype="fp16", operators="paged"):
    """A whole decoder."""
    decoder = DECODERS[name]
    return export_decoder(decoder, decoder.random_weights(), dtype=dtype, operators=operators)


def load(model):
    """A session of ONNX Runtime's CPU provider, of a model or its file; shapes must be as said."""
    strict = ort.SessionOptions()
    strict.add_session_config_entry("session.strict_shape_type_inference", "1")
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, strict, providers=["CPUExecutionProvider"])


def shapes(values):
    """Name -> shape of graph inputs or outputs."""
    return {
        value.name: [d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim]
        for value in values
    }


@by_decoder
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_only_the_kernel_is_missing(name, dtype):
    """The checker passes, and ONNX Runtime's types and shapes; the CPU has no kernel, no more."""
    model = export_attention(DECODERS[name], dtype=dtype)
    onnx.checker.check_model(model, full_check=True)

    with pytest.raises(KernelMissing, match=KERNEL):
        load(model)


@by_decoder
def test_only_the_kernel_is_missing_of_a_whole_decoder(name):
    """In fp16 every other node of a decoder has a CPU kernel."""
    model = exported(name)
    onnx.checker.check_model(model, full_check=True)

    with pytest.raises(KernelMissing, match=KERNEL):
        load(model)


@by_decoder
def test_whole_decoder_in_bf16(name):
    """In bf16 types and shapes pass too; of kernels the CPU lacks that of Gemm before."""
    model = exported(name, "bf16")
    onnx.checker.check_model(model, full_check=True)

    with pytest.raises(KernelMissing, match=r"Could not find an implementation for"):
        load(model)


@by_decoder
@pytest.mark.parametrize("operators", ["paged", "standard"])
def test_files(name, operators, tmp_path):
    """A saved model passes the checker, and loads as far as it would from memory."""
    path = str(tmp_path / "decoder.onnx")
    onnx.save(exported(name, operators=operators), path)
    onnx.checker.check_model(path, full_check=True)

    if operators == "standard":
        assert "logits" == load(path).get_outputs()[0].name
    else:
        with pytest.raises(KernelMissing, match=KERNEL):
            load(path)


def test_fp32_is_for_the_evaluator():
    """ONNX Runtime's schema of the operator has no fp32: it refuses the graph by type."""
    with pytest.raises(InvalidGraph, match=r"Type 'tensor\(float\)'.*PagedAttention"):
        load(export_attention(DECODERS["separate"], dtype="fp32"))


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@by_decoder
def test_standard_operators_load(name, dtype):
    """The export with standard operators has a CPU kernel for every node."""
    assert load(exported(name, dtype, "standard")).get_outputs()[0].name == "logits"


@by_decoder
def test_both_exports_have_the_same_interface(name):
    """A session binds either graph by the same names and shapes."""
    paged, standard = exported(name).graph, exported(name, operators="standard").graph

    assert shapes(paged.input) == shapes(standard.input)
    assert shapes(paged.output) == shapes(standard.output)


def test_inputs_of_the_node():
    """Separate: 17 inputs of which QK norm, sinks and scales are left out; caches come back."""
    (node,) = [n for n in export_attention(DECODERS["window"]).graph.node if n.domain]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    assert 17 == len(node.input)
    assert ["query", "key", "value", "key_cache.0", "value_cache.0"] == node.input[:5]
    indices = ["cumulative_sequence_length", "past_seqlens", "block_table"]
    assert [*indices, "cos_cache", "sin_cache", "slot_mapping"] == node.input[5:11]
    assert [*[""] * 5, "attention_metadata"] == node.input[11:]
    assert ["key_cache_out.0", "value_cache_out.0"] == node.output[1:]
    assert (20, 1, 4, 2) == tuple(
        attributes[key] for key in ("local_window_size", "do_rotary", "num_heads", "kv_num_heads")
    )


def test_inputs_of_a_latent_node():
    """Latent: one cache, no value; rotation at the rope, values the latent, the scale said."""
    (node,) = [n for n in export_attention(DECODERS["latent"]).graph.node if n.domain]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    assert ["query", "key", "", "latent_cache.0", ""] == node.input[:5]
    assert ["latent_cache_out.0"] == node.output[1:]
    assert (b"LATENT", 24, 24) == tuple(
        attributes[key] for key in ("kv_cache_layout", "v_head_size", "rotary_offset")
    )
    assert 24**-0.5 == pytest.approx(attributes["scale"])  # of nope + rope, not of the row


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_padding_is_harmless(dtype):
    """Rows and tokens of padding change no real row's output and write nothing."""
    session = load(export_attention(DECODERS["separate"], dtype=dtype, operators="standard"))
    rng = np.random.default_rng(0)
    element = {"fp32": np.float32, "fp16": np.float16}[dtype]
    feeds = {
        name: rng.normal(size=(5, width)).astype(element)
        for name, width in (("query", 64), ("key", 32), ("value", 32))
    }
    caches = {
        name: np.full((4, 16, 2, 16), np.nan, element) for name in ("key_cache.0", "value_cache.0")
    }
    padded = feeds | caches | arrays([[2, 0], [0, 0], [0, 0]], [32, 33, 34, -1, -1], [0, 3, 3, 3])
    plain = {name: values[:3] for name, values in feeds.items()}
    plain = plain | caches | arrays([[2, 0]], [32, 33, 34], [0, 3])
    wide, keys, _ = session.run(None, padded)
    narrow, same, _ = session.run(None, plain)

    assert np.array_equal(narrow, wide[:3])
    assert np.isfinite(narrow).all()
    assert np.array_equal(keys, same, equal_nan=True)
    assert 3 == np.isfinite(keys).all(axis=(2, 3)).sum()


def test_padding_behind_the_last_position():
    """Tokens of padding have no positions: there may be more of them than the tables have left."""
    session = load(export_attention(DECODERS["separate"], dtype="fp32", operators="standard"))
    feeds = {n: np.ones((6, w), np.float32) for n, w in (("query", 64), ("key", 32), ("value", 32))}
    caches = {n: np.zeros((5, 16, 2, 16), np.float32) for n in ("key_cache.0", "value_cache.0")}
    index = arrays([[1, 2, 3, 4]], [78, 79, -1, -1, -1, -1], [0, 2])
    index["past_seqlens"][:] = 62
    found, *_ = session.run(None, feeds | caches | index)

    assert np.isfinite(found[:2]).all()


@by_decoder
def test_operator_in_the_reference_evaluator(name):
    """The oracle as the operator, and standard operators on ONNX Runtime, give the same numbers."""
    decoder, rng = DECODERS[name], np.random.default_rng(0)
    paged = export_attention(decoder, dtype="fp32")
    standard = export_attention(decoder, dtype="fp32", operators="standard")
    feeds = arrays([[2, 1], [3, 0]], [32, 33, -1, 48, 49], [0, 3, 5]) | {
        value.name: rng.normal(size=sizes(value, {"tokens": 5, "pages": 4, "page_size": 16}))
        for value in paged.graph.input
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    feeds["past_seqlens"][:] = 14, 3
    feeds = {n: v if v.dtype == np.int32 else v.astype(np.float32) for n, v in feeds.items()}
    wanted = load(standard).run(None, feeds)
    found = ReferenceEvaluator(paged, new_ops=[PagedAttention]).run(None, feeds)

    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 1e-5


def sizes(value, known):
    """Shape of a graph input, its named axes as ``known``."""
    return [known.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim]


def arrays(table, slots, bounds):
    """Index inputs of rows with nothing before."""
    found = {
        "block_table": table,
        "slot_mapping": slots,
        "cumulative_sequence_length": bounds,
        "past_seqlens": [0] * len(table),
        "attention_metadata": [3, 3, 3],
    }
    return {name: np.array(values, np.int32) for name, values in found.items()}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        (
            {"heads": 3},
            LengthError,
            "heads is 3; .* at least 2 .*multiple of the 2 key/value heads",
        ),
        ({"vocab": 0}, LengthError, "vocab is 0; it must be an int of at least 1"),
        ({"layers": 1.5}, LengthError, "layers is 1.5"),
        ({"theta": float("nan")}, PlanError, "theta is nan; it must be a finite number above 0"),
        ({"epsilon": 0}, PlanError, "epsilon is 0; it must be a finite number above 0"),
        ({"kind": Attention(2, 16, 32)}, PlanError, "v_dim is 32; .*that of keys, 16"),
        ({"kind": Attention(2, 24, 24)}, PlanError, "k_dim is 24; .*a multiple of 16"),
        ({"kind": Attention(2, 16, 16, chunk=16)}, UnsupportedModel, "no chunks and no sinks"),
        ({"kind": State(1)}, PlanError, "kind is .*; it must be an Attention or a Latent"),
        ({"kind": Latent(24, 16)}, LengthError, "nope_dim is 0"),
        ({"kind": Latent(24, 8), "nope_dim": 8, "v_dim": 8}, LengthError, "rope is 8"),
        ({"kind": Latent(20, 16), "nope_dim": 8, "v_dim": 8}, PlanError, "latent is 36"),
        ({"kind": Latent(24, 16, 8), "nope_dim": 8, "v_dim": 8}, UnsupportedModel, "no indexer"),
    ],
)
def test_sizes_the_operator_cannot_take(changed, error, message):
    """Refused when the decoder is described, with the size and the rule."""
    with pytest.raises(error, match=message):
        Decoder(**(SIZES | {"kind": Attention(2, 16, 16)} | changed))


def without(name):
    """Takes a weight out."""
    return lambda weights: weights.pop(name)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("model.norm.weight"), "model.norm.weight of shape \\(32,\\) is missing"),
        (lambda w: w.update({"extra": w["model.norm.weight"]}), "no weight of that name"),
        (
            lambda w: w.update({"model.norm.weight": np.ones(31)}),
            "model.norm.weight is \\(31,\\); its shape must be \\(32,\\)",
        ),
        (
            lambda w: w.update({"model.norm.weight": np.ones(32, complex)}),
            "model.norm.weight is 'complex128'; it must be a NumPy array of floats",
        ),
    ],
)
def test_weights_of_another_decoder(spoil, message):
    """Refused by name, with the shape that is right."""
    weights = DECODERS["separate"].random_weights()
    spoil(weights)

    with pytest.raises(PlanError, match=message):
        export_decoder(DECODERS["separate"], weights)


def test_tied_embedding():
    """Without a head of its own the embedding gives the logits."""
    decoder = DECODERS["separate"]
    weights = decoder.random_weights()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    both = [export_decoder(decoder, weights, dtype="fp32", operators="standard")]
    del weights["lm_head.weight"]
    both.append(export_decoder(decoder, weights, dtype="fp32", operators="standard"))
    pages = [np.zeros((3, 16, 2, 16), np.float32) for _ in range(4)]
    names = [f"{part}_cache.{layer}" for layer, part in itertools.product((0, 1), ("key", "value"))]
    feeds = dict(zip(names, pages, strict=True)) | arrays([[1]], [16, 17, 18], [0, 3])
    feeds["input_ids"] = np.array([4, 5, 6], np.int32)
    first, second = (load(model).run(["logits"], feeds)[0] for model in both)

    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of fp32, fp16, bf16"),
        ({"operators": "fused"}, "operators is 'fused'; it must be one of paged, standard"),
    ],
)
def test_exports_there_are_not(wanted, message):
    """An element type or a set of operators that is not there is refused by name."""
    with pytest.raises(PlanError, match=message):
        export_attention(DECODERS["separate"], **wanted)
