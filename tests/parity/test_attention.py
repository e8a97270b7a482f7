"""Every backend against the oracle: the conformance suite, and what only torch has."""

from functools import wraps

import numpy as np
import pytest
import torch

import octavo
import octavo.index
from octavo.attention import backends
from octavo.attention.kernels import oracle
from octavo.attention.kernels import torch as backend
from octavo.integrations.onnx.op.operands import Inputs
from octavo.integrations.onnx.op.operator import paged_attention_op
from octavo.testing import check_kernel

ON_CPUS = [each for each in backends() if not each.devices or "cpu" in each.devices]
BRIDGES = {(): {}, ("torch",): {"to": torch.from_numpy}}
"""How backends take arrays, by what they require."""


def with_fp8_tensors(attend):
    """A torch backend that takes fp8 caches as the bytes that NumPy has."""

    @wraps(attend)
    def called(query, key_cache, value_cache, step, **options):
        caches = [key_cache, value_cache]
        if options.get("kv_dtype") == "fp8":
            caches = [cache.view(torch.float8_e4m3fn) for cache in caches]
        return attend(query, *caches, step, **options)

    return called


def as_float_type(dtype):
    """Converts arrays of floats to tensors of ``dtype``, others as they are."""

    def convert(array):
        tensor = torch.from_numpy(array)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return convert


@pytest.fixture(autouse=True)
def _one_thread():
    """Small arrays on one thread: several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("backend", ON_CPUS, ids=lambda backend: backend.name)
def test_backends_conform(backend):
    """Every backend of a CPU equals the oracle over the whole grid, in each order it takes."""
    attend = backend.load().paged_attention
    rounds = 1 if backend.name in ("oracle", "flex") else 3  # these are slow
    bridge = BRIDGES[backend.requires]
    if backend.requires == ("torch",):
        attend = with_fp8_tensors(attend)
    dtypes = [name for name in ("fp32", "fp64") if name in (backend.dtypes or (name,))]
    report = check_kernel(attend, orders=backend.orders, dtypes=dtypes, rounds=rounds, **bridge)

    assert () == report.left_out
    assert bool(backend.kv_dtypes) != bool(report.refused), str(report)
    assert report.cases >= 340 * rounds, str(report)


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp32", 4e-6), ("fp16", 2e-3), ("bf16", 2e-2)])
def test_torch_in_model_dtypes(dtype, tolerance):
    """In the dtypes models run in, results are as near to the oracle's as the dtype allows."""
    native = getattr(torch, octavo.model.dtypes.dtype(dtype).torch_name)
    report = check_kernel(
        with_fp8_tensors(backend.paged_attention),
        to=as_float_type(native),
        back=lambda tensor: tensor.to(torch.float64).numpy(),
        without=("return_lse",),  # float32 or wider in any dtype
        page_sizes=(16,),
        dtypes=(dtype,),
        heads=((9, 3), (8, 1)),
        dims=((64, 64),),
        tolerance=tolerance,
    )

    assert {dtype} == set(report.errors)


def spans(page_size):
    """Rows (past, count): prefills and decodes around page multiples, chunks, rows that sit out."""
    size = page_size
    lengths = sorted({1, max(1, size - 1), size, size + 1, 2 * size, 3 * size + 1})
    decodes = [(length, 1) for length in lengths]
    return [
        *decodes[:3],
        (0, size + 1),
        (2 * size, 0),
        (size, 2 * size),
        (0, 0),
        (2 * size + 1, size),
        *decodes[3:],
        (0, 1),
        (50, 3),
    ]


def both(pages, dtype, rule, *, heads, order, rng, return_lse=True, step=None):
    """Oracle's and backend's results for one random query."""
    tokens, k_dim = int(pages.step.query_start[-1]), pages.keys.shape[3]
    query = torch.from_numpy(rng.standard_normal((tokens, heads, k_dim))).to(dtype)
    keys, values = (torch.from_numpy(a).to(dtype) for a in (pages.keys, pages.values))
    rule = dict(rule)
    sinks = torch.from_numpy(rng.standard_normal(heads)) if rule.pop("sinks", False) else None
    found = backend.paged_attention(
        query,
        keys,
        values,
        pages.step if step is None else step,
        order=order,
        sink_logits=sinks,
        return_lse=return_lse,
        **rule,
    )
    expected = oracle.paged_attention(
        query.double().numpy(),
        keys.double().numpy(),
        values.double().numpy(),
        pages.step,
        order=order,
        sink_logits=None if sinks is None else sinks.numpy(),
        return_lse=True,
        **rule,
    )
    return expected, found


def as_onnx_node(
    query,
    key_cache,
    value_cache,
    at,
    *,
    scale=None,
    causal=True,
    softcap=None,
    window=None,
    sink_logits=None,
    v_dim=None,
):
    """com.microsoft::PagedAttention over caches that are written already."""
    tokens, heads, k_dim = query.shape
    if value_cache is None:
        key_cache = key_cache[:, :, None]
    kv_heads = key_cache.shape[2]
    new = np.zeros((tokens, kv_heads * k_dim), query.dtype)
    inputs = Inputs(
        query.reshape(tokens, -1),
        new,
        None if value_cache is None else new,
        key_cache,
        value_cache,
        at.cumulative_sequence_length,
        at.past_seqlens,
        at.block_table,
        slot_mapping=np.full_like(at.slot_mapping, -1),
        head_sink=sink_logits,
    )
    output = paged_attention_op(
        *inputs,
        dtype=np.float64,
        num_heads=heads,
        kv_num_heads=kv_heads,
        scale=scale or 0.0,
        softcap=softcap or 0.0,
        local_window_size=window or -1,
        is_causal=int(causal),
        kv_cache_layout="LATENT" if value_cache is None else "SEPARATE",
        v_head_size=v_dim or 0,
    ).output
    return output.reshape(tokens, heads, -1)


def test_onnx_operator_conforms():
    """ONNX Runtime's op, as octavo computes it, gives the same from its own index arrays."""
    report = check_kernel(
        as_onnx_node,
        index=octavo.index.onnxruntime,
        page_sizes=(16,),
        dims=((16, 16),),
        without=("strided",),
    )

    assert not report.refused
    lacks = ("keyless", "kv_dtype", "order", "return_lse", "sink_tokens", "strided")
    assert lacks == report.left_out


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("rule", [{}, {"softcap": 3.0}, {"window": 2}, {"sinks": True}])
def test_queries_without_keys(pages, order, rule):
    """A query that sees no key gives exactly 0 and lse -inf, beside others that see some."""
    rng = np.random.default_rng(2)
    case = pages([(-1, 1), (4, 1), (-2, 5), (-3, 3)], 4, 2, 8, 8, order, rng)
    blind = [0, 2, 3, 7, 8, 9]
    for return_lse in (True, False):
        expected, found = both(
            case, torch.float64, rule, heads=4, order=order, rng=rng, return_lse=return_lse
        )
        out = found.out if return_lse else found

        assert (out[blind] == 0).all()
        assert (expected.out[blind] == 0).all()
        assert np.isneginf(expected.lse[blind]).all()
        np.testing.assert_allclose(out.numpy(), expected.out, rtol=1e-10, atol=1e-12)
        if return_lse:
            assert torch.isneginf(found.lse[blind]).all()


@pytest.mark.parametrize("rule", [{}, {"window": 300}, {"window": 100, "sink_tokens": 5}])
def test_long_chunks_are_cut_into_blocks(pages, rule):
    """Chunks of more queries than a masked tile takes give the same as the oracle."""
    rng = np.random.default_rng(3)
    case = pages([(0, 600), (70, 530), (511, 1)], 16, 1, 4, 4, "head", rng)
    expected, found = both(
        case, torch.float64, rule, heads=2, order="head", rng=rng, return_lse=False
    )

    np.testing.assert_allclose(found.numpy(), expected.out, rtol=1e-10, atol=1e-12)


def test_prepared_step_is_the_same(pages):
    """A TorchStep made once serves layers of different windows and heads like the step itself."""
    rng = np.random.default_rng(4)
    spread = spans(16)
    case = pages(spread, 16, 2, 8, 8, "head", rng)
    prepared = backend.TorchStep(case.step, page_size=16)
    for rule in [{}, {"window": 5}, {}, {"softcap": 2.0}]:
        expected, found = both(
            case,
            torch.float64,
            rule,
            heads=4,
            order="head",
            rng=rng,
            return_lse=False,
            step=prepared,
        )

        np.testing.assert_allclose(found.numpy(), expected.out, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", ["token", "head"])
def test_strided_views(pages, order):
    """Pages that do not lie next to each other, as in a shared arena, give the same."""
    rng = np.random.default_rng(5)
    case = pages(spans(3), 3, 2, 8, 8, order, rng)
    for gap in (3 * 8, 5):
        query = torch.from_numpy(rng.standard_normal((int(case.step.query_start[-1]), 4, 8)))
        apart = []
        for array in (case.keys, case.values):
            inner = array[0].size
            arena = torch.full((array.shape[0] * (inner + gap),), float("nan")).double()
            view = arena.as_strided(
                array.shape, (inner + gap, *(n // 8 for n in array.strides[1:]))
            )
            view.copy_(torch.from_numpy(array))
            apart.append(view)
        expected = oracle.paged_attention(
            query.numpy(), case.keys, case.values, case.step, order=order
        )
        found = backend.paged_attention(query, *apart, case.step, order=order)

        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("window", [None, 9])
def test_positions_counted_from_base(pages, window):
    """A table that begins at a later position reads the keys from there on."""
    rng = np.random.default_rng(6)
    case = pages([(30, 4), (22, 1)], 4, 1, 4, 4, "token", rng)
    view = case.step.group()
    late = view._replace(table=view.table[:, 3:].copy(), base=np.full(2, 12, np.int32))
    case.step.groups["late"] = late
    query = rng.standard_normal((5, 1, 4))
    rules = {"window": window} if window else {}
    expected = oracle.paged_attention(
        query, case.keys, case.values, case.step, group="late", **rules
    )
    found = backend.paged_attention(
        torch.from_numpy(query),
        torch.from_numpy(case.keys),
        torch.from_numpy(case.values),
        case.step,
        group="late",
        **rules,
    )

    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)
    if window:
        whole = oracle.paged_attention(query, case.keys, case.values, case.step, **rules)
        np.testing.assert_allclose(expected, whole, rtol=1e-12)


def test_largest_window_is_none(pages):
    """A window of 2**63 - 1 keys sees what no window sees."""
    rng = np.random.default_rng(7)
    case = pages(spans(4), 4, 2, 8, 8, "token", rng)
    query = rng.standard_normal((int(case.step.query_start[-1]), 4, 8))
    arrays = [torch.from_numpy(array) for array in (query, case.keys, case.values)]
    rule = {"window": 2**63 - 1}

    assert torch.equal(
        backend.paged_attention(*arrays, case.step),
        backend.paged_attention(*arrays, case.step, **rule),
    )
    np.testing.assert_array_equal(
        oracle.paged_attention(query, case.keys, case.values, case.step),
        oracle.paged_attention(query, case.keys, case.values, case.step, **rule),
    )
