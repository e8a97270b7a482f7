"""What attention used to take and get wrong: it is refused by name, before anything is written."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from octavo import Attention, Cache, LengthError, OctavoError, Plan, PlanError
from octavo.attention import backends
from octavo.attention.arrays import as_reals
from octavo.attention.operands import Inputs
from octavo.attention.operator import paged_attention_op
from octavo.attention.oracle import Attended, merge, paged_attention
from octavo.attention.rows import Rows
from octavo.cache.step import StateView

STRANGE = [
    np.zeros((1, 2, 4), complex),
    np.zeros((1, 2, 4), bool),
    np.zeros((1, 2, 4), object),
    np.full((1, 2, 4), "x"),
    np.zeros((1, 2, 4), "datetime64[s]"),
    np.ma.masked_array(np.zeros((1, 2, 4)), mask=True),
]


def decode(sinks=0):
    """A step of two rows, of which the second has lost pages behind its window."""
    groups = {"w": Attention(1, 1, 1, window=8, sink_tokens=sinks)}
    cache = Cache(Plan.from_pages(40, 4, groups), max_sequences=2)
    rows = [cache.admit(list(range(count))) for count in (6, 30)]
    for sequence in rows:
        while sequence.computed < sequence.length - 1:
            count = min(4, sequence.length - 1 - sequence.computed)
            cache.commit(cache.extend(sequence, count))
    return cache.extend(rows, [1, 1])


def call(step, backend, **options):
    """One answer over caches of ones."""
    arrays = [np.ones((2, 2, 4), np.float32), *[np.ones((40, 4, 1, 4), np.float32)] * 2]
    if backend.name != "oracle":
        import torch

        arrays = [torch.from_numpy(array.copy()) for array in arrays]
    return backend.load().paged_attention(*arrays, step, **options)


def working():
    """The backends that work here."""
    return [backend for backend in backends() if backend.missing is None]


@pytest.mark.parametrize(
    ("sinks", "options"),
    [
        (0, {}),
        (0, {"window": 13}),
        (2, {"window": 13, "sink_tokens": 2}),
        (0, {"window": 8, "sink_tokens": 1}),
        (2, {"window": 2**63 - 1}),
    ],
)
def test_dropped_pages_are_not_read_as_zeros(sinks, options):
    """Keys that a window has dropped and a query is asked to see: row and column are named."""
    step = decode(sinks=sinks)
    assert 0 in step.group().table[1, :5]

    for backend in working():
        assert np.allclose(call(step, backend, window=8, sink_tokens=sinks), 1)
        with pytest.raises(LengthError, match=r"page of row 1, column \d is 0.*dropped"):
            call(step, backend, **options)


@pytest.mark.parametrize("name", ["query", "key_cache", "value_cache", "sink_logits"])
@pytest.mark.parametrize("strange", STRANGE, ids=lambda array: str(array.dtype))
def test_oracle_takes_real_numbers_alone(name, strange):
    """Complex numbers, objects, strings, flags and masked arrays are refused."""
    step = decode()
    given = {"query": np.ones((2, 2, 4)), "key_cache": np.ones((40, 4, 1, 4))}
    given |= {"value_cache": given["key_cache"], "sink_logits": np.zeros(2)}
    given[name] = np.resize(strange, given[name].shape)
    if isinstance(strange, np.ma.MaskedArray):
        given[name] = np.ma.masked_array(np.zeros(given[name].shape), mask=True)
    with pytest.raises(PlanError, match=name):
        paged_attention(*(given.pop(n) for n in list(given)[:3]), step, window=8, **given)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sink_logits": np.array([0, np.nan])}, r"sink_logits\[1\] is nan"),
        ({"sink_logits": [np.inf, 0]}, r"sink_logits\[0\] is inf"),
        ({"causal": 0}, "causal is 0"),
        ({"causal": object()}, "causal is <object"),
        ({"return_lse": np.ones(2)}, "return_lse is array"),
        ({"dtype": "x"}, "dtype is 'x'"),
        ({"dtype": 0}, "dtype is 0"),
        ({"dtype": np.float16}, "dtype is 'float16'"),
        ({"order": np.array(["token", "head"])}, "order is array"),
        ({"order": ["token"]}, "order is "),
        ({"kv_dtype": np.array(["int8", "fp8"])}, "kv_dtype is array"),
        ({"kv_dtype": {}}, "kv_dtype is {}"),
        ({"group": ["w"]}, "group is "),
        ({"scale": 10**400}, "scale is 1000"),
        ({"scale": 10**5000}, "scale is 'a int'|scale is a int"),
        (
            {"scale": 1e300, "dtype": np.float32},
            "scale is 1e.300; it must be a number that",
        ),
        ({"softcap": 1e300, "dtype": np.float32}, "softcap is 1e.300"),
        ({"softcap": 1e-300, "dtype": np.float32}, "softcap is 1e-300"),
    ],
)
def test_oracle_options_are_checked(options, name):
    """Flags are bools, names strings, and numbers such as the compute type holds."""
    arrays = np.ones((2, 2, 4)), *[np.ones((40, 4, 1, 4))] * 2
    with pytest.raises(PlanError, match=name):
        paged_attention(*arrays, decode(), **{"window": 8, **options})


@pytest.mark.parametrize(
    "scale", [np.ones(1, bool), np.ones(1, complex), np.array([None]), np.array(["1"])]
)
def test_scales_of_quantised_caches_are_real(scale):
    """A quantisation scale that is an array holds real numbers."""
    cache = np.ones((40, 4, 1, 4), np.int8)
    options = {"kv_dtype": "int8", "key_scale": scale, "value_scale": 1.0, "window": 8}
    with pytest.raises(PlanError, match="scale of key_cache"):
        paged_attention(np.ones((2, 2, 4)), cache, cache, decode(), **options)


def test_numbers_of_every_kind_mean_what_a_float_does():
    """Fractions and NumPy's numbers are taken for what they are; the answer is plain float64."""
    arrays = np.ones((2, 2, 4)), *[np.random.default_rng(0).normal(size=(40, 4, 1, 4))] * 2
    plain = paged_attention(*arrays, decode(), window=8, scale=0.5, softcap=2.0)
    kinds = {"scale": Fraction(1, 2), "softcap": np.float32(2), "window": np.uint64(8)}

    np.testing.assert_array_equal(plain, paged_attention(*arrays, decode(), **kinds))


def test_steps_and_groups_are_checked():
    """What is no step, and a group that keeps no tokens, are refused by every backend."""
    step = decode()
    states = StateView(np.zeros((2, 1)), np.zeros((2, 1, 1)), np.zeros(2, bool))
    mixed = replace(step, groups={**step.groups, "s": states})
    for backend in working():
        with pytest.raises(PlanError, match="group is 's'; attention reads groups that keep"):
            call(mixed, backend, group="s")
    for wrong in (None, 3, (), "step"):
        with pytest.raises(PlanError, match="step is"):
            call(wrong, backends()[-1])


FAR = 2**31 - 1


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"query_start": [0, 1000, 2]}, "query tokens of row 1 is -998"),
        ({"query_start": [0, -1000, 2]}, "query tokens of row 0 is -1000"),
        ({"query_start": [-5000, 1, 2]}, "query_start of row 0 is -5000"),
        ({"query_start": [0, FAR, -2]}, "query tokens of row 1 is -2147483649"),
        ({"query_start": np.zeros(0, np.int32)}, "elements of query_start is 0"),
        ({"query_start": [0.0, 1.0, 2.0]}, "query_start is array"),
        ({"context": [6]}, "rows of context is 1; it must be 2"),
        ({"context": [6, -5]}, "context of row 1 is -5"),
        ({"context": [6, FAR]}, "columns of the page table is"),
        ({"base": [0]}, "rows of base is 1"),
        ({"base": [0, -16]}, "base of row 1 is -16"),
        ({"base": [0, 3]}, "base of row 1 is 3; .*a multiple of the page size 4"),
        ({"base": [0, 10_000]}, "context - base of row 1 is -"),
        ({"base": [-FAR - 1, 0]}, "base of row 0 is -2147483648"),
        ({"table": [[1, 2, 3, 4, 5, 6, 7, 8]]}, "rows of table is 1"),
        ({"table": [1, 2]}, "axes of page table is 1"),
        ({"table": [[2**33] * 9] * 2}, "page is 8589934592; .*row 0, column 0"),
        ({"table": [[1] * 9, [1, -1] + [1] * 7]}, "page is -1; .*row 1, column 1"),
    ],
)
def test_arrays_of_a_step_are_checked(changed, said):
    """A step changed by hand never reaches a kernel: what is wrong is named with its row."""
    step = decode()
    arrays = {name: np.array(value) for name, value in changed.items()}
    fields = {name: array for name, array in arrays.items() if name in ("base", "table")}
    lengths = {name: array for name, array in arrays.items() if name not in fields}
    wrong = replace(step, **lengths, groups={"w": step.group()._replace(**fields)})

    with pytest.raises((LengthError, PlanError), match=said):
        Rows(wrong, page_size=4)


def node(**changed):
    """One token of the op in float32."""
    cache = np.zeros((2, 16, 1, 8), np.float32)
    inputs = {
        "query": np.ones((1, 8), np.float32),
        "key": np.ones((1, 8), np.float32),
        "value": np.ones((1, 8), np.float32),
        "key_cache": cache,
        "value_cache": cache.copy(),
        "cumulative_sequence_length": np.array([0, 1], np.int32),
        "past_seqlens": np.zeros(1, np.int32),
        "block_table": np.ones((1, 1), np.int32),
    }
    return Inputs(**inputs | changed)


def quantised(kind, **changed):
    """The same over quantised caches."""
    scale = np.ones(1, np.float32)
    caches = [np.zeros((2, 16, 1, 8), kind) for _ in range(2)]
    return node(key_cache=caches[0], value_cache=caches[1], k_scale=scale, v_scale=scale, **changed)


SIZES = {"num_heads": 1, "kv_num_heads": 1}
QUANTISED = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (node(), {"local_window_size": 2**63}, "local_window_size is 9223372036854775808"),
        (node(), {"local_window_size": 2**70}, "local_window_size is "),
        (node(), {"scale": 10**400}, "scale is 1000"),
        (node(), {"scale": 1e300}, "scale is 1e.300; it must be a number that float32 holds"),
        (node(), {"softcap": 1e300}, "softcap is 1e.300"),
        (node(), {"softcap": 1e-300}, "softcap is 1e-300"),
        (node(), {"qk_norm_epsilon": 10**400}, "qk_norm_epsilon is 1000"),
        (node(), {"kv_cache_layout": np.array(["LATENT", "SEPARATE"])}, "kv_cache_layout is array"),
        (node(), {"k_quant_type": []}, "k_quant_type is "),
        (node(), {"k_cache_dtype": np.array(["", ""])}, "k_cache_dtype is array"),
        (node(), {"num_heads": np.ones(2)}, "num_heads is array"),
        (node(), {"dtype": "x"}, "dtype is 'x'"),
        (node(query=np.ma.masked_array(np.ones((1, 8), np.float32))), {}, "query is 'MaskedArray'"),
        (node(query=np.ones((1, 8), complex)), {}, "dtype of query is 'complex128'"),
        (node(key=np.ones((1, 8), object)), {}, "dtype of key is 'object'"),
        (node(head_sink=np.array([np.nan], np.float32)), {}, r"head_sink\[0\] is nan"),
        *(
            (quantised(np.int8, **{name: np.full((1, 8), wrong, np.float32)}), QUANTISED, message)
            for name, message in (("key", "numbers for key_cache"), ("value", "for value_cache"))
            for wrong in (np.nan, np.inf)
        ),
    ],
)
def test_op_refuses_before_it_writes(inputs, attributes, message):
    """Whatever the op cannot compute with is named, and both caches stay as they were."""
    caches = inputs.key_cache, inputs.value_cache
    before = [cache.tobytes() for cache in caches]
    with pytest.raises((PlanError, LengthError), match=message) as caught:
        paged_attention_op(*inputs, **SIZES | attributes)

    assert isinstance(caught.value, OctavoError)
    assert before == [cache.tobytes() for cache in caches]


def test_op_attributes_are_read_as_numbers():
    """Fractions, and ints of any width, mean what Python's numbers do."""
    kinds = {"scale": Fraction(1, 2), "softcap": Fraction(2), "local_window_size": 2**63 - 1}
    plain = paged_attention_op(*node(), **SIZES, scale=0.5, softcap=2.0)
    found = paged_attention_op(*node(), **kinds, num_heads=np.uint8(1), kv_num_heads=np.int64(1))

    np.testing.assert_array_equal(plain.output, found.output)


OUT, LSE = np.zeros((2, 3, 4)), np.zeros((2, 3))


@pytest.mark.parametrize(
    ("parts", "sinks"),
    [
        (None, None),
        (3, None),
        (iter([]), None),
        ([None], None),
        ([OUT], None),
        (Attended(OUT, LSE), None),
        ([(OUT[0], LSE)], None),
        ([(OUT[:, :1], LSE)], None),
        ([(OUT, LSE[0])], None),
        ([(OUT, LSE[..., None])], None),
        ([(OUT[0], LSE[0])], None),
        ([(OUT, LSE), (OUT[:1], LSE[:1])], None),
        ([(OUT.astype(complex), LSE)], None),
        ([(OUT, LSE.astype(complex))], None),
        ([(OUT, None)], None),
        ([("out", "lse")], None),
        ([(OUT, LSE)], 1.0),
        ([(OUT, LSE)], np.zeros((2, 3))),
        ([(OUT, LSE)], [1.0, 2.0]),
        ([(OUT, LSE)], [np.nan, 0, 0]),
        ([(OUT, LSE)], np.zeros(3, complex)),
    ],
)
def test_merge_refuses_what_is_no_result(parts, sinks):
    """Parts are pairs of real arrays of one shape, sinks finite numbers, one a head."""
    with pytest.raises((PlanError, LengthError), match="part|sink_logits"):
        merge(parts, sinks)


def test_merge_takes_what_is_plain():
    """Iterators, tuples and lists are taken as what they hold; half precision is widened."""
    rng = np.random.default_rng(0)
    parts = [Attended(rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3))) for _ in range(3)]
    expected = merge(parts, np.arange(3.0))
    found = merge(((out.tolist(), lse.tolist()) for out, lse in parts), [0, 1, 2])

    np.testing.assert_array_equal(expected.out, found.out)
    half = merge([Attended(*(array.astype(np.float16) for array in part)) for part in parts])
    assert np.float32 == half.out.dtype


def test_parts_without_keys_contribute_nothing():
    """Where a part's lse is -inf its out may be anything, NaN too."""
    seen, blind = Attended(OUT + 1, LSE), Attended(OUT * np.nan, LSE - np.inf)

    assert 1 == merge([blind, seen]).out.min() == merge([seen, blind]).out.max()
    assert not merge([blind, blind]).out.any()


def test_reals_are_views():
    """An array of numbers is itself, and lists become one."""
    array = np.arange(3, dtype=np.int8)

    assert as_reals("x", array) is array
    assert [1.5, 2] == as_reals("x", [1.5, 2]).tolist()
    for wrong in (None, [[1], [1, 2]], "1", iter([1]), {1}):
        with pytest.raises(PlanError, match="x is"):
            as_reals("x", wrong)
