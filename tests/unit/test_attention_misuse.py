"""Misuse of attention, in one table for its one front door: each is refused by name and value."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from octavo import Attention, Cache, LengthError, OctavoError, Plan, PlanError
from octavo.attention import Attended, Parameters, backend, backends
from octavo.attention.kernels.oracle import merge, paged_attention
from octavo.cache.step import StateView
from octavo.checks import as_reals
from octavo.errors import StepError
from octavo.index.rows import StepRows

WORKING = [each for each in backends() if each.missing is None]
TENSORS = [each.name for each in WORKING if each.name != "oracle"]


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


def fitting(**changed):
    """The arguments of a call that fits, some of them changed."""
    cache = np.ones((40, 4, 2, 4), np.float32)
    arguments = {"query": np.ones((2, 2, 4), np.float32), "key_cache": cache, "value_cache": cache}
    return arguments | {"step": decode(), "window": 8} | changed


def is_numbers(value):
    """Whether a value is a plain array of numbers."""
    return type(value) is np.ndarray and value.dtype.kind in "fi"


def call(name, arguments):
    """A backend's answer; arrays of NumPy become tensors for those that take tensors."""
    if name != "oracle":
        arguments = {
            key: torch.from_numpy(value.copy()) if is_numbers(value) else value
            for key, value in arguments.items()
        }
    return backend(name).load().paged_attention(**arguments)


SHAPES = [
    ({"query": np.zeros((3, 2, 4))}, "tokens of query is 3"),
    ({"query": np.zeros((2, 3, 4))}, "heads of query is 3"),
    ({"query": np.zeros((2, 2, 5))}, "k_dim of query is 5"),
    ({"query": np.zeros((2, 2))}, "axes of query is 2"),
    ({"value_cache": np.zeros((40, 4, 1, 4))}, "axis 2 of value_cache is 1"),
    ({"value_cache": np.zeros((40, 4, 4))}, "axes of value_cache is 3"),
    ({"sink_logits": np.zeros(3)}, "heads of sink_logits is 3"),
    ({"sink_logits": np.zeros((2, 2))}, "axes of sink_logits is 2"),
    ({"key_cache": np.zeros((40, 4))}, "axes of key_cache is 2"),
    ({"key_cache": np.zeros((40, 4, 0, 4))}, "kv_heads of key_cache is 0"),
    ({"key_cache": np.zeros((40, 0, 2, 4))}, "page_size.* is 0"),
    ({"query": np.zeros((2, 2, 0)), "key_cache": np.zeros((40, 4, 2, 0))}, "k_dim of key_cache"),
    ({"v_dim": 5}, "v_dim is 5; it must be 4"),
]
OPTIONS = [
    ({"order": "slot"}, "order is 'slot'"),
    ({"order": np.array(["token", "head"])}, "order is "),
    ({"order": ["token"]}, "order is "),
    ({"window": 0}, "window is 0"),
    ({"window": 2**63}, "window is 9223372036854775808"),
    ({"window": 2.5}, "window is 2.5"),
    ({"sink_tokens": -1}, "sink_tokens is -1"),
    ({"sink_tokens": 2**63}, "sink_tokens is 9223372036854775808"),
    ({"softcap": 0.0}, "softcap is 0.0"),
    ({"softcap": float("nan")}, "softcap is nan"),
    ({"softcap": "x"}, "softcap is 'x'"),
    ({"scale": float("inf")}, "scale is inf"),
    ({"scale": "x"}, "scale is 'x'"),
    ({"scale": True}, "scale is True"),
    ({"scale": 10**400}, "scale is 1000"),
    ({"scale": 10**5000}, "scale is an int of"),
    ({"causal": 0}, "causal is 0"),
    ({"causal": object()}, "causal is <object"),
    ({"return_lse": np.ones(2)}, "return_lse is "),
    ({"return_lse": None}, "return_lse is None"),
    ({"kv_dtype": "int2"}, "kv_dtype is 'int2'; it must be one of int8, fp8, int4"),
    ({"kv_dtype": np.array(["int8", "fp8"])}, "kv_dtype is "),
    ({"kv_dtype": {}}, "kv_dtype is {}"),
    ({"key_scale": 1.0}, "key_scale is 1.0; only quantised caches have one"),
    ({"value_scale": 1.0}, "value_scale is 1.0; only quantised caches have one"),
    ({"sink_logits": [np.inf, 0]}, r"sink_logits\[0\] is inf"),
    ({"sink_logits": "x"}, "sink_logits is 'str of str"),
    ({"group": ["w"]}, "group is "),
    ({"step": None}, "step is 'NoneType'"),
    ({"step": ()}, "step is 'tuple'"),
    ({"step": "step"}, "step is 'str'"),
]
LATENT = [
    ({}, "v_dim is None"),
    ({"v_dim": 5}, "v_dim is 5; it must be an int of at least 1 and at most 4"),
    ({"v_dim": 3}, "scale is None"),
    ({"v_dim": 4, "key_cache": np.zeros((40, 4, 1, 4))}, "axes of key_cache is 4"),
]


@pytest.mark.parametrize(("change", "message"), SHAPES + OPTIONS)
def test_every_backend_refuses_what_does_not_fit(change, message):
    """An argument that does not fit is named with its value, by every backend alike."""
    given = {
        name: value.astype(np.float32) if is_numbers(value) else value
        for name, value in change.items()
    }
    for each in WORKING:
        with pytest.raises(OctavoError, match=message):
            call(each.name, fitting(**given))


@pytest.mark.parametrize(("change", "message"), LATENT)
def test_latent_attention_needs_its_widths(change, message):
    """Latent attention needs its width of values, and a scale where they are narrower."""
    arguments = fitting(key_cache=np.zeros((40, 4, 4), np.float32), value_cache=None) | change
    for each in WORKING:
        if "key_cache" in change:
            arguments["key_cache"] = change["key_cache"].astype(np.float32)
        with pytest.raises(OctavoError, match=message):
            call(each.name, arguments)


def quantised(**changed):
    """The arguments of a call over int8 caches."""
    scales = {"kv_dtype": "int8", "key_scale": 1.0, "value_scale": 1.0}
    cache = np.zeros((40, 4, 2, 4), np.int8)
    return fitting(key_cache=cache, value_cache=cache, **scales) | changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_dtype": "fp8"}, "dtype of key_cache is '(torch.)?int8'"),
        ({"key_scale": 0}, "key_scale is 0; it must be a finite number above 0"),
        ({"key_scale": [1.0]}, "key_scale is "),
        ({"value_scale": np.array([1.0, np.nan])}, "scale of value_cache"),
        ({"key_scale": np.ones(3)}, r"key_scale is 'of shape \(3,\)'"),
        ({"v_dim": 5}, "v_dim is 5; it must be 4"),
        ({"value_cache": None, "v_dim": 4}, "axes of key_cache is 4"),
    ],
)
def test_quantisation_that_does_not_fit(change, message):
    """Element types and scales that do not fit are named."""
    for name in ("oracle", "torch"):
        with pytest.raises(OctavoError, match=message):
            call(name, quantised(**change))


@pytest.mark.parametrize("name", ["oracle", "torch"])
def test_a_quantised_cache_without_scales_warns(name):
    """Stored elements are then taken as they are, and a warning says so."""
    with pytest.warns(RuntimeWarning, match="key_scale is None: stored int8"):
        call(name, quantised(key_scale=None))


def test_latent_rows_have_one_scale():
    """Without a value cache, key_scale serves both."""
    rows = np.zeros((40, 4, 4), np.int8)
    arguments = quantised(key_cache=rows, value_cache=None, v_dim=4)
    with pytest.raises(PlanError, match="value_scale is 1.0; without value_cache"):
        call("oracle", arguments)


@pytest.mark.parametrize("scale", [np.ones(2, bool), np.ones(2, complex), np.array([None] * 2)])
def test_scales_of_quantised_caches_are_real(scale):
    """A quantisation scale that is an array holds real numbers."""
    with pytest.raises(PlanError, match="scale of key_cache"):
        call("oracle", quantised(key_scale=scale))


STRANGE = [
    np.zeros(1, complex),
    np.zeros(1, bool),
    np.zeros(1, object),
    np.full(1, "x"),
    np.zeros(1, "datetime64[s]"),
    np.ma.masked_array(np.zeros(1), mask=True),
]


@pytest.mark.parametrize("name", ["query", "key_cache", "value_cache", "sink_logits"])
@pytest.mark.parametrize("strange", STRANGE, ids=lambda array: str(array.dtype))
def test_oracle_takes_real_numbers_alone(name, strange):
    """Complex numbers, objects, strings, flags and masked arrays are refused."""
    given = fitting(sink_logits=np.zeros(2))
    given[name] = np.resize(strange, given[name].shape)
    if isinstance(strange, np.ma.MaskedArray):
        given[name] = np.ma.masked_array(np.zeros(given[name].shape), mask=True)
    with pytest.raises(PlanError, match=name):
        paged_attention(**given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sink_logits": np.array([0, np.nan])}, r"sink_logits\[1\] is nan"),
        ({"dtype": "x"}, "dtype is 'x'"),
        ({"dtype": 0}, "dtype is 0"),
        ({"dtype": np.float16}, "dtype is 'float16'"),
        ({"scale": 1e300, "dtype": np.float32}, "scale is 1e.300; it must be a number that"),
        ({"softcap": 1e300, "dtype": np.float32}, "softcap is 1e.300"),
        ({"softcap": 1e-300, "dtype": np.float32}, "softcap is 1e-300"),
    ],
)
def test_oracle_computes_with_what_its_type_holds(change, message):
    """Sink logits are finite, and numbers such as float32 holds where that is computed in."""
    with pytest.raises(PlanError, match=message):
        paged_attention(**fitting(**change))


READ = [
    (TENSORS, "key_cache", lambda a: None, "key_cache is 'NoneType'; it must be a torch.Tensor"),
    (TENSORS, "sink_logits", lambda a: np.zeros(2).data, "sink_logits is "),
    (TENSORS, "sink_logits", lambda a: torch.zeros(2, device="meta"), "device of sink_logits"),
    (TENSORS, "value_cache", lambda a: torch.from_numpy(a).to("meta"), "device of value_cache is"),
    (["cpu"], "query", lambda a: torch.from_numpy(a).to("meta"), "device of query is 'meta'"),
    (["cpu"], "query", lambda a: a.astype(float), "dtype of query is 'torch.float64'"),
    (TENSORS, "query", lambda a: a.astype(int), "dtype of query is 'torch.int64'"),
    (TENSORS, "key_cache", lambda a: a.astype(np.float16), "dtype of key_cache is .*the query's"),
    (TENSORS, "value_cache", lambda a: a.astype(np.float16), "dtype of value_cache is"),
    (
        ["cpu"],
        "key_cache",
        lambda a: torch.from_numpy(a).repeat(1, 1, 1, 2)[..., ::2],
        "strides of",
    ),
    (["cpu"], "query", lambda a: torch._neg_view(torch.ones(2, 2, 4)), "a negated view"),
    (["cpu"], "query", lambda a: torch.from_numpy(a).to_sparse(), "layout of query"),
    (["cpu"], "kv_dtype", lambda a: "int8", "kv_dtype int8: the cpu backend reads no quantised"),
    (["flex"], "kv_dtype", lambda a: "fp8", "kv_dtype fp8: the flex backend reads no quantised"),
    (["cpu"], "scale", lambda a: 1e300, "scale is 1e.300; it must be a number that float32"),
]


@pytest.mark.parametrize(("names", "argument", "change", "message"), READ)
def test_tensors_that_would_be_misread(names, argument, change, message):
    """Types, devices and strides that a backend has no code for are refused by name."""
    given = fitting()
    wrong = change(given.get(argument))
    for name in names:
        with pytest.raises(OctavoError, match=message):
            call(name, given | {argument: wrong})


def test_the_c_kernel_is_not_differentiated_through():
    """There is no backward: autograd must not record the call."""
    query = torch.ones(2, 2, 4, requires_grad=True)
    with pytest.raises(StepError, match="query requires a gradient"):
        call("cpu", fitting(query=query))
    with torch.no_grad():
        call("cpu", fitting(query=query))


@pytest.mark.parametrize("each", WORKING, ids=lambda each: each.name)
def test_a_prepared_step_is_of_its_backend_group_and_page_size(each):
    """A step prepared for another size or backend, or given a group again, is refused."""
    module, given = each.load(), fitting(window=None)
    cache = Cache(Plan.from_pages(40, 4))
    step = cache.extend(cache.admit([1, 2]), 2)
    for prepared, more, message in (
        (module.prepare(step, page_size=8), {}, "page_size of key_cache is 4"),
        (module.prepare(step, page_size=4), {"group": "full"}, "is made for its group"),
        (StepRows(step, page_size=4), {}, "step is 'StepRows'"),
    ):
        with pytest.raises(OctavoError, match=message):
            call(each.name, given | {"step": prepared} | more)


def test_the_c_kernel_is_prepared_for_a_cpu():
    """A step cannot be prepared for a device with memory that the kernel cannot read."""
    with pytest.raises(PlanError, match="device is 'cuda:0'"):
        backend("cpu").load().prepare(decode(), page_size=4, device="cuda:0")


@pytest.mark.parametrize(
    ("sinks", "options"),
    [
        (0, {"window": None}),
        (0, {"window": 13}),
        (2, {"window": 13, "sink_tokens": 2}),
        (0, {"window": 8, "sink_tokens": 1}),
        (2, {"window": 2**63 - 1}),
    ],
)
def test_dropped_pages_are_not_read_as_zeros(sinks, options):
    """Keys that a window has dropped and a query would see: row and column are named."""
    step = decode(sinks=sinks)
    assert 0 in step.group().table[1, :5]

    for each in WORKING:
        fine = call(each.name, fitting(step=step, sink_tokens=sinks))
        assert np.allclose(fine, 1)
        with pytest.raises(LengthError, match=r"page of row 1, column \d is 0.*dropped"):
            call(each.name, fitting(step=step, **options))


def test_groups_that_keep_no_tokens_are_refused():
    """Attention reads groups with a key for every token."""
    step = decode()
    states = StateView(np.zeros((2, 1)), np.zeros((2, 1, 1)), np.zeros(2, bool))
    mixed = step.replace(groups={**step.groups, "s": states})
    for each in WORKING:
        with pytest.raises(PlanError, match="group is 's'; attention reads groups that keep"):
            call(each.name, fitting(step=mixed, group="s"))


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
        ({"past": [5, -2]}, "past of row 1 is -2; it must be"),
        ({"past": [5]}, "rows of past is 1; it must be 2"),
        ({"past": [5.5, 5.5]}, "past is array"),
        ({"counts": [1, -1]}, "counts of row 1 is -1; it must be 1 .query_start says so"),
        ({"context": [6, FAR]}, "columns of the page table is"),
        ({"base": [0]}, "rows of base is 1"),
        ({"base": [0, -16]}, "base of row 1 is -16"),
        ({"base": [0, 3]}, "base of row 1 is 3; .*a multiple of the page size 4"),
        ({"base": [0, 10_000]}, "context - base of row 1 is -"),
        ({"base": [-FAR - 1, 0]}, "base of row 0 is -2147483648"),
        ({"table": [[1, 2, 3, 4, 5, 6, 7, 8]]}, "rows of table is 1"),
        ({"table": [1, 2]}, "axes of page table is 1"),
        ({"table": [[1], [2]]}, "columns of the page table is 1"),
        ({"table": [[2**33] * 9] * 2}, "page is 8589934592; .*row 0, column 0"),
        ({"table": [[1] * 9, [1, -1] + [1] * 7]}, "page is -1; .*row 1, column 1"),
        ({"table": [[1] * 9, [99] * 9]}, "page is 99; .*a page of key_cache"),
    ],
)
def test_arrays_of_a_step_are_checked(changed, said):
    """A step changed by hand never reaches a kernel: what is wrong is named with its row."""
    step = decode()
    arrays = {name: np.array(value) for name, value in changed.items()}
    fields = {name: array for name, array in arrays.items() if name in ("base", "table")}
    lengths = {name: array for name, array in arrays.items() if name not in fields}
    wrong = step.replace(**lengths, groups={"w": step.group()._replace(**fields)})

    for each in WORKING:
        with pytest.raises((LengthError, PlanError), match=said):
            call(each.name, fitting(step=wrong))


@pytest.mark.parametrize("name", ["query_start", "context"])
def test_arrays_that_a_step_lacks(name):
    """A step that was put together without one is refused by its name."""
    wrong = decode().replace(**{name: None})
    for each in WORKING:
        with pytest.raises(PlanError, match=f"{name} is None; it must be a NumPy array of ints"):
            call(each.name, fitting(step=wrong))


def test_numbers_of_every_kind_mean_what_a_float_does():
    """Fractions and NumPy's numbers are taken for what they are; the answer is plain float64."""
    arrays = {"key_cache": np.random.default_rng(0).normal(size=(40, 4, 2, 4))}
    plain = paged_attention(**fitting(**arrays, scale=0.5, softcap=2.0))
    kinds = {"scale": Fraction(1, 2), "softcap": np.float32(2), "window": np.uint64(8)}

    np.testing.assert_array_equal(plain, paged_attention(**fitting(**arrays, **kinds)))


@pytest.mark.parametrize("each", WORKING, ids=lambda each: each.name)
def test_prepare_and_run_are_one_call_in_two(each):
    """Parameters made once and a step prepared once give what the one call gives."""
    given = fitting(scale=0.5, softcap=2.0)
    arrays = [given.pop(name) for name in ("query", "key_cache", "value_cache")]
    if each.name != "oracle":
        arrays = [torch.from_numpy(array.copy()) for array in arrays]
    prepared = each.load().prepare(given.pop("step"), page_size=4)
    found = prepared.run(*arrays, Parameters(**given), return_lse=True)
    expected = each.load().paged_attention(*arrays, prepared, return_lse=True, **given)

    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


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
    """Parts are pairs of real arrays of one shape, sinks finite numbers, one per head."""
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
