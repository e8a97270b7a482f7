"""`export_decoder`, `write_decoder` and `export_attention`: decoders as ONNX models and files."""

import json
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import onnx

from octavo.checks import check_choice, check_int, check_path
from octavo.errors import PlanError
from octavo.integrations.onnx.caches import INDICES, IndexNames, index_names, shared_names
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.genai import check_genai, genai_config
from octavo.integrations.onnx.graph import ELEMENT_TYPES, DataFile, Graph, check_model
from octavo.integrations.onnx.layers import Attend, Layers
from octavo.integrations.onnx.paged import PagedNodes
from octavo.integrations.onnx.standard import StandardNodes
from octavo.integrations.onnx.weights import Weights
from octavo.model.spec import Latent

Operators = Literal["paged", "standard"]
Engine = Literal["octavo", "genai"]
_NODES: dict[str, Callable[[Graph, Decoder, IndexNames], Attend]] = {
    "paged": PagedNodes,
    "standard": StandardNodes,
}
LIMIT = 2**31 - 2**26
"""Bytes of weights and tables that one graph holds: a protobuf has less than 2 GiB, its nodes and
names included."""
_GRAPH, _DATA, _GENAI = "model.onnx", "model.onnx.data", "genai_config.json"


def export_decoder(
    decoder: Decoder, weights: Weights, *, dtype: str = "fp16", operators: Operators = "paged"
) -> onnx.ModelProto:
    """One step of a decoder over paged caches.

    Inputs: ``input_ids`` int32[tokens]; ``block_table`` int32[rows, width], ``slot_mapping``
    int32[tokens], ``cumulative_sequence_length`` int32[rows + 1], ``past_seqlens`` int32[rows] and
    ``attention_metadata`` int32[3] as `octavo.index.onnxruntime` emits them, where the layers make
    several groups for each, with its name behind a dot (``block_table.full``); and of each layer n
    ``key_cache.n`` and ``value_cache.n`` [pages, page_size, kv_heads, channels], or
    ``latent_cache.n`` [pages, page_size, 1, rank + rope]. Outputs: ``logits`` [tokens, vocab], and
    of each cache an output (``key_cache_out.n``) that is the input with the step's tokens written:
    give both the same memory. Where layers have a window, ``local_window_size`` of the nodes or
    ``metadata_props["octavo.window"]`` (of several groups ``octavo.window.{group}``) says so, for a
    session to compare with its plan.

    Args:
        decoder: sizes.
        weights: by name, as `Decoder.shapes` lists them.
        dtype: fp32, fp16 or bf16, of weights, caches and logits. ONNX Runtime's PagedAttention
            takes fp16 and bf16; onnx's reference evaluator all.
        operators: ``paged``: com.microsoft::PagedAttention nodes. ``standard``: ONNX's own, which
            ONNX Runtime's CPU provider has kernels for in fp32 and fp16.

    Raises:
        PlanError: weights that are not the decoder's, no such ``dtype`` or ``operators``; weights
            of more than `LIMIT` bytes, which `write_decoder` puts beside the graph; so many rotated
            channels that the operator does not take them.

    Cost: O(bytes of weights).
    """
    plain = decoder.plain_weights(weights)
    size = _bytes(decoder, plain, dtype)
    if size > LIMIT:
        right = f"a graph in memory holds at most {LIMIT} bytes: write_decoder writes larger ones"
        raise PlanError("bytes of the weights", size, right)
    model = _write(Graph(dtype), decoder, plain, operators, "octavo")
    check_model(model)
    return model


def write_decoder(
    folder: str | PathLike[str],
    decoder: Decoder,
    weights: Weights,
    *,
    dtype: str = "fp16",
    operators: Operators = "paged",
    config: object = None,
    engine: Engine = "octavo",
    limit: int = LIMIT,
) -> Path:
    """`export_decoder` as files, of any size: ``model.onnx`` and ``genai_config.json``.

    Weights and tables of more than ``limit`` bytes go to ``model.onnx.data`` beside the graph, one
    after the other, so that no more than one of them is held twice.

    Args:
        folder: made where it is not there; what it holds under these names is replaced, once all
            is written.
        decoder, weights, dtype, operators: as of `export_decoder`.
        config: that of the model, as `Decoder.from_config` takes it: for the type and the special
            tokens in ``genai_config.json``; None: type ``decoder``, and no tokens.
        engine: who feeds the graph. ``octavo``: as `export_decoder` says. ``genai``:
            onnxruntime-genai's own, which gives one set of lengths to all groups, ids of 64 bits
            and no slots, so that tokens go where the block table says.
        limit: bytes that the graph itself may hold, at most `LIMIT`.

    Returns:
        The path of the graph, which `PagedSession` takes.

    Raises:
        PlanError: as of `export_decoder`, but for the size; no path; no such ``engine``, or a
            decoder that it does not run. Nothing is written then.
        ConfigError: ``config`` is none.
        LengthError: no such ``limit``.
        OSError: the files cannot be written.

    Cost: O(bytes of weights).
    """
    place = check_path("folder", folder)
    check_int("limit", limit, 0, LIMIT)
    plain = decoder.plain_weights(weights)
    beside = _bytes(decoder, plain, dtype) > limit
    _check_operators(operators)
    names = _names(decoder, engine)
    described = genai_config(decoder, config, _GRAPH, names, operators)
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place, prefix=".export-") as name:
        made = Path(name)
        if beside:
            with DataFile(made / _DATA) as data:
                model = _write(Graph(dtype, data), decoder, plain, operators, engine)
        else:
            model = _write(Graph(dtype), decoder, plain, operators, engine)
        (made / _GRAPH).write_bytes(model.SerializeToString())
        check_model(made / _GRAPH)
        (made / _GENAI).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        (place / _GRAPH).unlink(missing_ok=True)  # cut short, there is none, not one of two exports
        for file in (_DATA, _GENAI, _GRAPH):
            if (made / file).exists():
                (made / file).replace(place / file)
    if not beside:
        (place / _DATA).unlink(missing_ok=True)
    return place / _GRAPH


def export_attention(
    decoder: Decoder, *, dtype: str = "fp16", operators: Operators = "paged"
) -> onnx.ModelProto:
    """The attention of one layer alone, the first, for a graph or a test of one's own: no weights.

    Inputs: ``query`` [tokens, heads * channels], ``key`` and ``value`` [tokens, kv_heads *
    channels], not rotated (of a latent kind ``key`` is the row [latent | rope] and there is no
    ``value``), ``sinks`` [heads] where the layer has them; index inputs and caches as of
    `export_decoder`, of layer 0. Outputs: ``output`` [tokens, heads * channels of a value] and the
    caches.

    Args:
        decoder: sizes; others than those of the attention do not matter.
        dtype: fp32, fp16 or bf16.
        operators: ``paged`` or ``standard``.

    Raises:
        PlanError: no such ``dtype`` or ``operators``; rotated channels as of `export_decoder`.

    Cost: O(positions of the rotary tables).
    """
    graph, (kv_heads, channels) = Graph(dtype), decoder.row
    output = graph.output("output", "tokens", decoder.heads * decoder.output_channels)
    first = replace(decoder, layers=1, kind=decoder.kinds[0], rotary=decoder.rotaries[0])
    attend = _attend(graph, first, operators, "octavo")
    query = graph.input("query", "tokens", decoder.heads * channels)
    key = graph.input("key", "tokens", kv_heads * channels)
    latent = isinstance(decoder.kind, Latent)
    value = "" if latent else graph.input("value", "tokens", kv_heads * channels)
    sinks = graph.input("sinks", decoder.heads) if decoder.sink_logits else ""
    graph.op("Identity", attend(0, query, key, value, sinks), output=output)
    model = graph.model("attention")
    check_model(model)
    return model


def _bytes(decoder: Decoder, weights: Weights, dtype: str) -> int:
    """Bytes of the weights and rotary tables in ``dtype``. O(weights)."""
    if dtype not in ELEMENT_TYPES:
        raise PlanError("dtype", dtype, f"it must be one of {', '.join(ELEMENT_TYPES)}")
    tables = decoder.max_length * sum(rotary.channels for rotary in set(decoder.rotaries))
    elements = sum(values.size for values in weights.values()) + tables
    return elements * (4 if dtype == "fp32" else 2)


def _write(
    graph: Graph, decoder: Decoder, weights: Weights, operators: str, engine: str
) -> onnx.ModelProto:
    input_ids = graph.index("input_ids", "tokens", wide=engine == "genai")
    logits = graph.output("logits", "tokens", decoder.vocab)
    attend = _attend(graph, decoder, operators, engine)
    Layers(graph, decoder, weights, attend).write(input_ids, logits)
    return graph.model("decoder")


def _attend(graph: Graph, decoder: Decoder, operators: str, engine: str) -> Attend:
    _check_operators(operators)
    names = _names(decoder, engine)
    fields = [(own, name) for group in names.values() for name, own in group.items() if own]
    for own, name in dict(fields).items():
        graph.index(own, *INDICES[name])
    return _NODES[operators](graph, decoder, names)


def _names(decoder: Decoder, engine: str) -> IndexNames:
    if check_choice("engine", engine, ("octavo", "genai")) == "octavo":
        return index_names(decoder.groups)
    check_genai(decoder)
    return shared_names(decoder.groups)


def _check_operators(operators: str) -> None:
    if operators not in _NODES:
        raise PlanError("operators", operators, f"it must be one of {', '.join(_NODES)}")
