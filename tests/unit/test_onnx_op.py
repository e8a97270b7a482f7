"""The op com.microsoft::PagedAttention in NumPy: against the oracle, and what it refuses."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from octavo.attention.kernels.oracle import paged_attention
from octavo.attention.stored import decode, encode
from octavo.errors import LengthError, OctavoError, PlanError
from octavo.index import LatentGeometry
from octavo.integrations.onnx.op.operands import Inputs
from octavo.integrations.onnx.op.operator import paged_attention_op

HEADS, KV_HEADS, SIZE, PAGE = 4, 2, 16, 16
SPANS = [(5, 1), (0, 20), (0, 0), (31, 3), (16, 1)]


def angles(positions=64, half=8):
    """cos and sin of the usual angles, [positions, half]."""
    turns = np.arange(positions)[:, None] / 10000 ** (np.arange(half) / half)
    return np.cos(turns), np.sin(turns)


def turned(rows, positions, interleaved=False, offset=0, half=8):
    """Rows [T, heads, dim] rotated pair by pair, as complex numbers."""
    cos, sin = angles(half=half)
    turns = (cos + 1j * sin)[positions]
    out = rows.copy()
    for pair in range(half):
        first = offset + (2 * pair if interleaved else pair)
        second = first + 1 if interleaved else first + half
        number = (rows[..., first] + 1j * rows[..., second]) * turns[:, None, pair]
        out[..., first], out[..., second] = number.real, number.imag
    return out


class Batch:
    """A step over scattered pages as the op's inputs, all in float64.

    The caches hold the past; the new tokens' keys and values are beside them.
    """

    def __init__(self, pages, seed=0, spans=SPANS, latent=0):
        rng = np.random.default_rng(seed)
        kv_heads, size = (1, latent) if latent else (KV_HEADS, SIZE)
        self.case = pages(spans, PAGE, kv_heads, size, size, "token", rng)
        self.step = step = self.case.step
        self.slots = step.group().slots
        place = np.divmod(self.slots, PAGE)
        self.key, self.value = (cache[place] for cache in (self.case.keys, self.case.values))
        caches = [self.case.keys.copy(), self.case.values.copy()]
        for cache in caches:
            cache[place] = np.nan
        tokens = len(self.slots)
        self.query = rng.standard_normal((tokens, HEADS, size))
        self.positions = step.positions
        self.inputs = Inputs(
            query=self.query.reshape(tokens, -1),
            key=self.key.reshape(tokens, -1),
            value=None if latent else self.value.reshape(tokens, -1),
            key_cache=caches[0],
            value_cache=None if latent else caches[1],
            cumulative_sequence_length=step.query_start,
            past_seqlens=step.past,
            block_table=step.group().table,
            slot_mapping=self.slots,
        )

    def run(self, attributes=(), dtype=np.float64, **changed):
        """The op over these inputs, some of them replaced."""
        sizes = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}
        inputs = self.inputs._replace(**changed)
        return paged_attention_op(*inputs, dtype=dtype, **sizes | dict(attributes))


@pytest.fixture
def batch(pages):
    """A batch of five sequences."""
    return Batch(pages)


@pytest.mark.parametrize(
    ("attributes", "options"),
    [
        ({}, {}),
        ({"scale": 0.3, "softcap": 2.0}, {"scale": 0.3, "softcap": 2.0}),
        ({"local_window_size": 4}, {"window": 4}),
        ({"is_causal": 0}, {"causal": False}),
        ({"is_causal": 0, "local_window_size": 3}, {"causal": False, "window": 3}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_writes_then_attends_like_the_oracle(batch, attributes, options, packed):
    """Keys and values land in their slots, and the output is the oracle's over the whole cache."""
    new = {}
    if packed:
        joined = np.concatenate((batch.query, batch.key, batch.value), axis=1)
        new = {"query": joined.reshape(len(joined), -1), "key": None, "value": None}
    found = batch.run(attributes, **new)
    expected = paged_attention(
        batch.query, batch.case.keys, batch.case.values, batch.step, **options
    )

    np.testing.assert_allclose(found.output, expected.reshape(len(expected), -1), rtol=1e-10)
    assert found.key_cache is batch.inputs.key_cache
    np.testing.assert_array_equal(found.key_cache, batch.case.keys)
    np.testing.assert_array_equal(found.value_cache, batch.case.values)


def test_slots_follow_from_the_table(batch):
    """Without a slot mapping the block table says where keys go; a page it lacks is not written."""
    expected = batch.run(key_cache=batch.inputs.key_cache.copy()).output
    found = batch.run(slot_mapping=None)
    np.testing.assert_array_equal(expected, found.output)
    np.testing.assert_array_equal(found.key_cache, batch.case.keys)

    table, before = batch.inputs.block_table.copy(), found.key_cache.copy()
    table[4, 1] = -1  # where the new token of the last row belongs
    blind = batch.run(slot_mapping=None, block_table=table, key=batch.inputs.key + 1).key_cache
    page = batch.inputs.block_table[4, 1]
    np.testing.assert_array_equal(blind[page], before[page])


def test_skipped_slots_write_nothing(batch):
    """A slot of -1 leaves the cache as it is; the token sees what was there before."""
    batch.run()
    before = batch.inputs.key_cache.copy()
    found = batch.run(slot_mapping=np.full_like(batch.slots, -1), key=batch.inputs.key * 7)

    np.testing.assert_array_equal(before, found.key_cache)
    expected = paged_attention(batch.query, batch.case.keys, batch.case.values, batch.step)
    np.testing.assert_allclose(found.output, expected.reshape(len(expected), -1), rtol=1e-10)


def test_unmapped_pages_are_not_seen(batch):
    """Pages of -1 outside the window change nothing; no page left: exactly 0."""
    window = {"local_window_size": 3}
    expected = batch.run(window).output
    table = batch.inputs.block_table.copy()
    table[3, 0] = -1  # positions 0..15 of a row that stands at 31
    np.testing.assert_array_equal(expected, batch.run(window, block_table=table).output)

    table[3] = -1
    found = batch.run(slot_mapping=np.full_like(batch.slots, -1), block_table=table).output
    assert not found[21:24].any()
    assert found[:21].any(axis=1).all()


def test_sinks_take_weight(batch):
    """A head's sink is in its denominator alone."""
    sinks = np.array([0.5, -1.0, 2.0, 0.0])
    found = batch.run(head_sink=sinks)
    expected = paged_attention(
        batch.query, batch.case.keys, batch.case.values, batch.step, sink_logits=sinks
    )

    np.testing.assert_allclose(found.output, expected.reshape(len(expected), -1), rtol=1e-10)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("norm", [False, True])
def test_norm_then_rotation(batch, interleaved, norm):
    """Queries and keys are normalised, then rotated, and so they are cached."""
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 2, (2, SIZE))
    query, key = batch.query, batch.key
    if norm:
        query, key = (
            rows / np.sqrt((rows**2).mean(axis=2, keepdims=True) + 1e-4) * weight
            for rows, weight in zip((query, key), weights, strict=True)
        )
    query, key = (turned(rows, batch.positions, interleaved) for rows in (query, key))
    batch.case.keys[np.divmod(batch.slots, PAGE)] = key
    cos, sin = angles()
    found = batch.run(
        {"do_rotary": 1, "rotary_interleaved": interleaved, "qk_norm_epsilon": 1e-4},
        cos_cache=cos,
        sin_cache=sin,
        q_norm_weight=weights[0] if norm else None,
        k_norm_weight=weights[1] if norm else None,
    )
    expected = paged_attention(query, batch.case.keys, batch.case.values, batch.step)

    np.testing.assert_allclose(found.key_cache, batch.case.keys, rtol=1e-10)
    np.testing.assert_allclose(found.output, expected.reshape(len(expected), -1), rtol=1e-9)


def test_latent_rotates_its_end(pages):
    """One cache: a row is the key, its beginning the value; the rotary part starts at an offset."""
    batch = Batch(pages, latent=48)
    query, key = (turned(rows, batch.positions, offset=32) for rows in (batch.query, batch.key))
    batch.case.keys[np.divmod(batch.slots, PAGE)] = key
    cos, sin = angles()
    attributes = {
        "kv_cache_layout": "LATENT",
        "kv_num_heads": 1,
        "v_head_size": 32,
        "scale": 0.25,
        "do_rotary": 1,
        "rotary_offset": 32,
    }
    found = batch.run(attributes, cos_cache=cos, sin_cache=sin)
    rows = batch.case.keys[:, :, 0]
    expected = paged_attention(query, rows, None, batch.step, v_dim=32, scale=0.25)

    assert found.value_cache is None
    np.testing.assert_allclose(found.key_cache, batch.case.keys, rtol=1e-10)
    np.testing.assert_allclose(found.output, expected.reshape(len(expected), -1), rtol=1e-9)


def test_a_page_may_stand_twice_in_a_row(batch):
    """Its keys are read at both places: as if a copy of the page stood there."""
    table, (keys, values) = batch.inputs.block_table.copy(), (batch.case.keys, batch.case.values)
    page, other = table[3, :2]
    keys[other], values[other] = keys[page], values[page]
    given = {
        "key_cache": keys,
        "value_cache": values,
        "slot_mapping": np.full_like(batch.slots, -1),
    }
    expected = batch.run(**given).output
    table[3, 1] = page

    np.testing.assert_array_equal(expected, batch.run(**given, block_table=table).output)


def test_latent_elements_lie_where_the_geometry_says(pages):
    """Each element of a new row is at `LatentGeometry.element` of its slot, in the flat cache."""
    batch = Batch(pages, latent=48)
    geometry = LatentGeometry(latent=48, rotary=16, v_head_size=32, rotary_offset=32, page_size=16)
    attributes = {"kv_cache_layout": "LATENT", "kv_num_heads": 1, "v_head_size": 32, "scale": 1.0}
    flat = batch.run(attributes).key_cache.ravel()
    for channel in (0, 31, 32, 47):
        at = geometry.validate().element(batch.slots, channel)
        np.testing.assert_array_equal(batch.key[:, 0, channel], flat[at])


@pytest.mark.parametrize("quant_type", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("kind", ["int8", "fp8", "int4"])
def test_quantised_caches(batch, kind, quant_type):
    """New keys and values are rounded to the cache's element type, and read back from it."""
    rng, tokens = np.random.default_rng(2), len(batch.slots)
    shape = (1,) if quant_type == "PER_TENSOR" else (KV_HEADS, 1, SIZE)
    scales = [rng.uniform(0.1, 0.5, shape).astype(np.float32) for _ in "kv"]
    place, stores, numbers = np.divmod(batch.slots, PAGE), [], []
    for cache, scale in zip((batch.case.keys, batch.case.values), scales, strict=True):
        spread = scale if scale.size == 1 else scale[:, 0]
        stored = encode(np.nan_to_num(cache) * (1 / spread.astype(float)), kind)
        numbers.append(decode(stored, kind, SIZE) * spread)
        stored = stored.copy()
        stored[place] = 0
        stores.append(stored.view(ml_dtypes.float8_e4m3fn) if kind == "fp8" else stored)
    attributes = {"k_quant_type": quant_type, "v_quant_type": quant_type}
    if kind == "int4":
        attributes |= {"k_cache_dtype": "int4", "v_cache_dtype": "int4"}
    found = batch.run(
        attributes,
        key_cache=stores[0],
        value_cache=stores[1],
        k_scale=scales[0],
        v_scale=scales[1],
    )
    expected = paged_attention(batch.query, *numbers, batch.step)

    np.testing.assert_allclose(found.output, expected.reshape(tokens, -1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_types_of_models(batch, name):
    """Half and single precision in give the same type out, as near as it allows."""
    kind = np.dtype(getattr(ml_dtypes, name, name))
    fields = ("query", "key", "value", "key_cache", "value_cache")
    halves = {field: getattr(batch.inputs, field).astype(kind) for field in fields}
    found = batch.run(dtype=np.float32, **halves)
    exact = batch.run().output

    assert found.output.dtype == found.key_cache.dtype == kind
    bound = {"float16": 5e-3, "bfloat16": 5e-2, "float32": 1e-5}[name]
    np.testing.assert_allclose(found.output.astype(float), exact, rtol=bound, atol=bound)


def test_no_tokens(batch):
    """A step in which every row sits out has an empty output."""
    rows = len(SPANS)
    nothing = {field: np.zeros((0, width)) for field, width in (("query", 64), ("key", 32))}
    found = batch.run(
        **nothing,
        value=np.zeros((0, 32)),
        slot_mapping=np.zeros(0, np.int32),
        cumulative_sequence_length=np.zeros(rows + 1, np.int32),
    )

    assert (0, HEADS * SIZE) == found.output.shape


def _changed(array, at, value):
    """A copy with one entry changed."""
    array = array.copy()
    array[at] = value
    return array


REFUSED = [
    ({"num_heads": 3}, lambda i: {}, "num_heads is 3"),
    ({"kv_num_heads": 0}, lambda i: {}, "kv_num_heads is 0"),
    ({"local_window_size": 0}, lambda i: {}, "local_window_size is 0"),
    ({"softcap": -1.0}, lambda i: {}, "softcap is -1.0"),
    ({"softcap": "x"}, lambda i: {}, "softcap is 'x'"),
    ({"qk_norm_epsilon": None}, lambda i: {}, "qk_norm_epsilon is None"),
    ({"scale": np.nan}, lambda i: {}, "scale is nan"),
    ({"is_causal": 2}, lambda i: {}, "is_causal is 2"),
    ({"qk_norm_epsilon": 0.0}, lambda i: {}, "qk_norm_epsilon is 0.0"),
    ({"kv_cache_layout": "PAGED"}, lambda i: {}, "kv_cache_layout is 'PAGED'"),
    ({"k_quant_type": "PER_TOKEN"}, lambda i: {}, "k_quant_type is 'PER_TOKEN'"),
    ({"k_cache_dtype": "int8"}, lambda i: {}, "k_cache_dtype is 'int8'; the cache holds float64"),
    ({"k_cache_dtype": np.array(["", ""])}, lambda i: {}, "k_cache_dtype is array"),
    ({"kv_cache_layout": np.array(["LATENT"] * 2)}, lambda i: {}, "kv_cache_layout is array"),
    ({"k_quant_type": []}, lambda i: {}, "k_quant_type is "),
    ({"local_window_size": 2**63}, lambda i: {}, "local_window_size is 9223372036854775808"),
    ({"scale": 10**400}, lambda i: {}, "scale is .*it must be a finite number"),
    (
        {"qk_norm_epsilon": 10**400},
        lambda i: {},
        "qk_norm_epsilon is .*it must be a finite number above 0",
    ),
    ({"num_heads": np.ones(2)}, lambda i: {}, "num_heads is array"),
    ({"smooth_softmax": 1}, lambda i: {}, "attribute is 'smooth_softmax'"),
    ({"v_head_size": 8}, lambda i: {}, "v_head_size is 8"),
    ({"rotary_offset": 4}, lambda i: {}, "rotary_offset is 4"),
    ({"do_rotary": 1}, lambda i: {}, "cos_cache is None"),
    ({}, lambda i: {"value": None}, "value is None; key and value are given together"),
    ({}, lambda i: {"value_cache": None}, "value_cache is None; this input is required"),
    ({}, lambda i: {"past_seqlens": None}, "past_seqlens is None"),
    ({}, lambda i: {"query": np.ma.masked_array(i.query)}, "query is 'MaskedArray'"),
    ({}, lambda i: {"query": i.query.astype(complex)}, "dtype of query is 'complex128'"),
    ({}, lambda i: {"key": i.key.astype(object)}, "dtype of key is 'object'"),
    ({}, lambda i: {"head_sink": np.full(HEADS, np.nan)}, r"head_sink\[0\] is nan"),
    ({}, lambda i: {"query": i.query[:, :-3]}, "shape of query"),
    ({}, lambda i: {"query": i.query[:, :16]}, "head_size is 4"),
    ({}, lambda i: {"key": i.key[:-1]}, "shape of key"),
    ({}, lambda i: {"key": i.key.astype(np.float32)}, "dtype of key is 'float32'"),
    ({}, lambda i: {"query": i.query.astype(int)}, "dtype of query is 'int64'"),
    ({}, lambda i: {"key": i.key.tolist()}, "key is 'list'; it must be a NumPy array"),
    ({}, lambda i: {"key_cache": i.key_cache[:, :8]}, "page_size of key_cache is 8"),
    ({}, lambda i: {"key_cache": i.key_cache[0]}, "shape of key_cache"),
    ({}, lambda i: {"value_cache": i.value_cache[:-1]}, "shape of value_cache"),
    ({}, lambda i: {"key_cache": i.key_cache.swapaxes(0, 1).copy().swapaxes(0, 1)}, "contiguous"),
    ({}, lambda i: {"key_cache": np.zeros(i.key_cache.shape, np.int8)}, "k_quant_type is 'NONE'"),
    ({}, lambda i: {"key_cache": np.zeros(i.key_cache.shape, np.uint8)}, "k_cache_dtype is ''"),
    (
        {},
        lambda i: {"key_cache": np.zeros(i.key_cache.shape, np.int32)},
        "dtype of k cache is 'int32'",
    ),
    ({}, lambda i: {"k_scale": np.ones(1, np.float32)}, "k_scale is 'given'"),
    ({"k_quant_type": "PER_TENSOR"}, lambda i: {}, "a cache of float64 is not quantised"),
    ({}, lambda i: {"past_seqlens": i.past_seqlens[:-1]}, "shape of past_seqlens"),
    ({}, lambda i: {"past_seqlens": i.past_seqlens.astype(np.int64)}, "dtype of past_seqlens"),
    ({}, lambda i: {"past_seqlens": _changed(i.past_seqlens, 1, -1)}, r"past_seqlens\[1\] is -1"),
    ({}, lambda i: {"past_seqlens": _changed(i.past_seqlens, 1, 29)}, r"new tokens\[1\] is 49"),
    ({}, lambda i: {"block_table": i.block_table[:-1]}, "shape of block_table"),
    ({}, lambda i: {"block_table": _changed(i.block_table, (2, 1), 99)}, r"block_table\[2, 1\]"),
    ({}, lambda i: {"block_table": _changed(i.block_table, (0, 0), -2)}, r"block_table\[0, 0\]"),
    ({}, lambda i: {"slot_mapping": i.slot_mapping[:-1]}, "shape of slot_mapping"),
    (
        {},
        lambda i: {"slot_mapping": _changed(i.slot_mapping, 7, 9999)},
        r"slot_mapping\[7\] is 9999",
    ),
    (
        {},
        lambda i: {"slot_mapping": _changed(i.slot_mapping, 7, i.slot_mapping[3])},
        r"slot of token 7 is \d+; .*token 3 is written there too",
    ),
    (
        {},
        lambda i: {
            "slot_mapping": None,
            "block_table": _changed(i.block_table, (4, 1), i.block_table[3, 2]),
        },
        "slot of token 24 is .*token 22 is written there too",
    ),
    ({}, lambda i: {"value_cache": i.key_cache}, "value_cache is .of key_cache"),
    ({}, lambda i: {"head_sink": np.zeros(3)}, "shape of head_sink"),
    ({}, lambda i: {"q_norm_weight": np.ones(SIZE)}, "k_norm_weight is None"),
    ({}, lambda i: {"cos_cache": np.ones((64, 8))}, "sin_cache is None"),
    ({}, lambda i: {"attention_metadata": np.array([1], np.int32)}, "shape of attention_metadata"),
    (
        {},
        lambda i: {"attention_metadata": np.array([1, -1], np.int32)},
        "attention_metadata.1. is -1",
    ),
]


@pytest.mark.parametrize(("attributes", "change", "message"), REFUSED)
def test_refuses_before_writing(batch, attributes, change, message):
    """What ONNX Runtime refuses, or leaves undefined, is named, and the caches stay as they are."""
    before = [cache.tobytes() for cache in (batch.inputs.key_cache, batch.inputs.value_cache)]
    with pytest.raises((PlanError, LengthError), match=message) as caught:
        batch.run(attributes, **change(batch.inputs))

    assert isinstance(caught.value, OctavoError)
    after = [cache.tobytes() for cache in (batch.inputs.key_cache, batch.inputs.value_cache)]
    assert before == after


@pytest.mark.parametrize(
    ("attributes", "dtype", "message"),
    [
        ({"scale": 1e300}, np.float32, "scale is 1e.300; it must be a number that float32 holds"),
        ({"softcap": 1e300}, np.float32, "softcap is 1e.300"),
        ({"softcap": 1e-300}, np.float32, "softcap is 1e-300"),
        ({}, "x", "dtype is 'x'"),
    ],
)
def test_refuses_numbers_beyond_what_is_computed_in(batch, attributes, dtype, message):
    """Numbers are such as the computed type holds, which is float32 or float64."""
    with pytest.raises(PlanError, match=message):
        batch.run(attributes, dtype=dtype)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "message"), [("key", "numbers for key_cache"), ("value", "for value_cache")]
)
def test_quantised_caches_refuse_what_they_cannot_store(batch, name, message, wrong):
    """NaN and infinities are refused before either cache is written."""
    caches = {
        f"{each}_cache": np.zeros(batch.inputs.key_cache.shape, np.int8)
        for each in ("key", "value")
    }
    scales = {f"{each}_scale": np.ones(1, np.float32) for each in "kv"}
    kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    numbers = {name: np.full_like(batch.inputs.key, wrong)}
    with pytest.raises(PlanError, match=message):
        batch.run(kinds, **caches, **scales, **numbers)

    assert not any(cache.any() for cache in caches.values())


def test_attributes_are_read_as_numbers(batch):
    """Fractions, and ints of any width, mean what Python's numbers do."""
    kinds = {"scale": Fraction(1, 2), "softcap": Fraction(2), "local_window_size": 2**63 - 1}
    kinds |= {"num_heads": np.uint8(HEADS), "kv_num_heads": np.int64(KV_HEADS)}
    plain = batch.run({"scale": 0.5, "softcap": 2.0})

    np.testing.assert_array_equal(plain.output, batch.run(kinds).output)


@pytest.mark.parametrize(
    ("starts", "shown"),
    [([0, 1, 21, 20, 24, 25], "20, 24"), ([1, 1, 21, 21, 24, 25], "1, 1"), ([0, 5], "0, 5")],
)
def test_refuses_lengths_that_do_not_add_up(batch, starts, shown):
    """Cumulative lengths run from 0 to the tokens there are and never fall."""
    with pytest.raises(LengthError, match=f"cumulative_sequence_length.*{shown}|past_seqlens"):
        batch.run(cumulative_sequence_length=np.array(starts, np.int32))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((64, 7), "shape of cos_cache"),
        ((64, 16), "at most 8"),
        ((33, 8), r"past_seqlens \+ new tokens\[3\] is 34"),
    ],
)
def test_refuses_rotary_tables(batch, table, message):
    """Rotary tables have a multiple of 8 angles, within a head, for every position."""
    with pytest.raises(LengthError, match=message):
        batch.run({"do_rotary": 1}, cos_cache=np.ones(table), sin_cache=np.ones(table))


@pytest.mark.parametrize(
    ("scale", "error", "message"),
    [
        (np.array([np.nan], np.float32), PlanError, "k_scale is .nan."),
        (np.array([0], np.float32), PlanError, "k_scale is .0.0."),
        (np.ones(2, np.float32), LengthError, "shape of k_scale"),
        (np.ones(1), PlanError, "dtype of k_scale is 'float64'"),
        (None, PlanError, "k_scale is None"),
    ],
)
def test_refuses_scales(batch, scale, error, message):
    """A quantised cache has a finite scale above 0 of the shape its kind asks for."""
    cache = np.zeros(batch.inputs.key_cache.shape, np.int8)
    with pytest.raises(error, match=message):
        batch.run(
            {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},
            key_cache=cache,
            value_cache=cache.copy(),
            k_scale=scale,
            v_scale=np.ones(1, np.float32),
        )


@pytest.mark.parametrize(
    ("attributes", "change", "message"),
    [
        ({"scale": 0.0}, {}, "scale is 0.0; a number, as values of 32"),
        ({"v_head_size": 49}, {}, "v_head_size is 49"),
        ({"kv_num_heads": 2}, {}, "shape of key"),
        ({}, {"key": None}, "key is None"),
        ({}, {"head_sink": np.zeros(4)}, "head_sink is 'given'; LATENT has no such input"),
        ({"v_quant_type": "PER_TENSOR"}, {}, "v_quant_type is 'PER_TENSOR'"),
    ],
)
def test_refuses_latent(pages, attributes, change, message):
    """LATENT has one cache, one key head, and a scale wherever values are narrower than keys."""
    latent = {"kv_cache_layout": "LATENT", "kv_num_heads": 1, "v_head_size": 32, "scale": 0.25}
    with pytest.raises((PlanError, LengthError), match=message):
        Batch(pages, latent=48).run(latent | attributes, **change)
