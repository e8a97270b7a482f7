"""The C kernel against the oracle where its own cuts lie: tiles, parts, rows, element types."""

import numpy as np
import pytest
import torch

from octavo.attention import cpu, oracle
from octavo.errors import LengthError, PlanError, StepError, UnsupportedModel

SPANS = [(0, 1), (15, 1), (16, 1), (0, 17), (2, 0), (16, 32), (-1, 1), (-2, 5), (700, 1), (1500, 2)]


@pytest.fixture
def threads():
    """Sets torch's threads for one test: ``threads(n)``."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def arrays(case, heads, dtype, rng):
    """Query, keys and values of a case as tensors."""
    tokens, k_dim = int(case.step.query_start[-1]), case.keys.shape[-1]
    query = rng.standard_normal((tokens, heads, k_dim))
    return [torch.from_numpy(array).to(dtype) for array in (query, case.keys, case.values)]


def agree(found, tensors, step, **options):
    """Whether Attended in float32 or bfloat16 is the oracle's, as near as the type allows."""
    if options.get("sink_logits") is not None:
        options["sink_logits"] = options["sink_logits"].numpy()
    tensors = [None if tensor is None else tensor.double().numpy() for tensor in tensors]
    expected = oracle.paged_attention(*tensors, step, return_lse=True, **options)
    error = 1e-5 if found.out.dtype == torch.float32 else 2e-2

    assert np.isfinite(expected.out).all()
    np.testing.assert_allclose(found.out.double().numpy(), expected.out, rtol=error, atol=error)
    np.testing.assert_allclose(found.lse.double().numpy(), expected.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "k_dim", "v_dim"),
    [(9, 3, 64, 64), (4, 1, 32, 48), (8, 1, 16, 16), (2, 2, 5, 7), (40, 2, 24, 8)],
)
def test_equals_oracle(pages, heads, kv_heads, k_dim, v_dim, order, dtype):
    """Few rows in place and many over copies, dims of any size, parts and tiles, NaN all around."""
    rng = np.random.default_rng(heads)
    for rule in [{}, {"window": 40, "sink_tokens": 3}, {"causal": False, "softcap": 3.0}]:
        case = pages(SPANS, 16, kv_heads, k_dim, v_dim, order, rng)
        tensors = arrays(case, heads, dtype, rng)
        options = {"order": order, "sink_logits": torch.from_numpy(rng.standard_normal(heads))}
        found = cpu.paged_attention(*tensors, case.step, return_lse=True, **options, **rule)

        agree(found, tensors, case.step, **options, **rule)


@pytest.mark.parametrize(("heads", "width", "v_dim"), [(2, 40, 32), (16, 72, 64), (3, 9, 4)])
def test_latent_rows(pages, heads, width, v_dim):
    """Latent attention reads one row a token, whatever the number of heads."""
    rng = np.random.default_rng(width)
    case = pages(SPANS, 16, 1, width, 1, "token", rng)
    query, keys, _ = arrays(case, heads, torch.float32, rng)
    tensors, options = (query, keys[:, :, 0].contiguous(), None), {"v_dim": v_dim, "scale": 0.2}
    found = cpu.paged_attention(*tensors, case.step, return_lse=True, **options)

    agree(found, tensors, case.step, **options)


def test_strided_queries_and_pages(pages):
    """Queries as a model has them and pages apart from each other are read where they lie."""
    rng = np.random.default_rng(1)
    case = pages(SPANS, 16, 2, 32, 32, "head", rng)
    query, keys, values = arrays(case, 4, torch.float32, rng)
    arena = torch.full((len(keys), 2, *keys.shape[1:]), float("nan"))
    arena[:, 0], arena[:, 1] = keys, values
    apart = (query.transpose(0, 1).contiguous().transpose(0, 1), arena[:, 0], arena[:, 1])
    found = cpu.paged_attention(*apart, case.step, order="head", return_lse=True)

    agree(found, (query, keys, values), case.step, order="head")


@pytest.mark.parametrize("heads", [3, 30])
def test_result_is_the_same_alone_and_with_any_threads(pages, threads, heads):
    """A sequence's result is the same to the bit alone, beside others and with more threads."""
    rng = np.random.default_rng(2)
    case = pages([(3000, 1), (5, 1), (1100, 40)], 16, 1, 16, 16, "head", rng)
    tensors = arrays(case, heads, torch.float32, rng)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(cpu.paged_attention(*tensors, case.step, order="head"))
    alone = pages([(3000, 1)], 16, 1, 16, 16, "head", np.random.default_rng(2)).step
    alone.group().table[:] = case.step.group().table[:1, : alone.group().table.shape[1]]
    lone = cpu.paged_attention(tensors[0][:1], *tensors[1:], alone, order="head")

    assert all(torch.equal(results[0], result) for result in results[1:])
    assert torch.equal(results[0][:1], lone)


def test_prepared_step_serves_layers_of_other_shapes(pages):
    """A CpuStep made once serves layers of other heads, dims, windows and dtypes."""
    rng = np.random.default_rng(3)
    first, second = (
        pages(SPANS, 16, n, 8 * n, 8, "head", np.random.default_rng(4)) for n in (1, 2)
    )
    prepared = cpu.CpuStep(first.step, page_size=16)
    for case, dtype, rule in [
        (first, torch.float32, {}),
        (second, torch.bfloat16, {"window": 7}),
        (first, torch.float32, {"softcap": 2.0}),
    ]:
        tensors = arrays(case, 4, dtype, rng)
        found = cpu.paged_attention(*tensors, prepared, order="head", return_lse=True, **rule)

        agree(found, tensors, first.step, order="head", **rule)


def test_step_without_queries(pages):
    """A step in which every row sits out gives no rows."""
    case = pages([(3, 0), (0, 0)], 4, 1, 8, 8, "head", np.random.default_rng(5))
    tensors = [torch.zeros(0, 2, 8), *(torch.from_numpy(a).float() for a in case[1:])]

    assert (0, 2, 8) == tuple(cpu.paged_attention(*tensors, case.step, order="head").shape)


@pytest.mark.parametrize(
    ("page", "columns", "message"),
    [(9, None, "page is 9"), (-1, None, "page is -1"), (1, 1, "columns of the page table is 1")],
)
def test_wrong_page_tables_are_refused(pages, page, columns, message):
    """A page that is not there, and a table too narrow for a context, never reach the kernel."""
    rng = np.random.default_rng(6)
    case = pages([(7, 1)], 4, 1, 8, 8, "head", rng)
    query, keys, values = arrays(case, 2, torch.float32, rng)
    view = case.step.group()
    table = view.table[:, :columns].copy()
    table[0, 0] = page
    case.step.groups["full"] = view._replace(table=table)

    with pytest.raises(LengthError, match=message):
        cpu.paged_attention(query, keys[:9], values[:9], case.step, order="head")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.float64}, PlanError, "dtype of query is 'torch.float64'"),
        ({"key_cache": torch.bfloat16}, PlanError, "dtype of key_cache is 'torch.bfloat16'"),
        ({"value_cache": "meta"}, PlanError, "device of value_cache is 'meta'"),
        ({"kv_dtype": "int8"}, UnsupportedModel, "reads no quantised caches"),
        ({"group": "full", "prepared": 4}, PlanError, "a CpuStep is made for its group"),
        ({"prepared": 8}, LengthError, "page_size of key_cache is 4"),
        ({"strided": "key_cache"}, PlanError, "strides of key_cache"),
        ({"query": "meta"}, PlanError, "device of query is 'meta'"),
        ({"given": {"key_cache": None}}, PlanError, "key_cache is 'NoneType'"),
        ({"given": {"step": None}}, PlanError, "step is 'NoneType'"),
        (
            {"given": {"sink_logits": torch.zeros(2, device="meta")}},
            PlanError,
            "device of sink_logits",
        ),
        ({"given": {"sink_logits": np.zeros(2)}}, PlanError, "sink_logits is 'ndarray'"),
        ({"given": {"query": torch._neg_view(torch.ones(1, 2, 8))}}, PlanError, "a negated view"),
        ({"given": {"query": torch.ones(1, 2, 8).to_sparse()}}, PlanError, "layout of query"),
        (
            {"given": {"query": torch.ones(1, 2, 8, requires_grad=True)}},
            StepError,
            "query requires a gradient",
        ),
    ],
)
def test_refuses_what_the_kernel_would_misread(pages, change, error, message):
    """Types, devices and strides it has no code for are refused by name."""
    rng = np.random.default_rng(7)
    case = pages([(7, 1)], 4, 1, 8, 8, "head", rng)
    names = ("query", "key_cache", "value_cache")
    arguments = dict(zip(names, arrays(case, 2, torch.float32, rng), strict=True))
    for name in set(change) & set(names):
        arguments[name] = arguments[name].to(change[name])
    arguments |= {name: change[name] for name in ("kv_dtype", "group") if name in change}
    arguments["step"] = case.step
    if "prepared" in change:
        arguments["step"] = cpu.CpuStep(case.step, page_size=change["prepared"])
    if "strided" in change:
        spread = arguments[change["strided"]].repeat_interleave(2, -1)
        arguments[change["strided"]] = spread[..., ::2]
    arguments |= change.get("given", {})

    with pytest.raises(error, match=message):
        cpu.paged_attention(order="head", **arguments)


def test_negated_sinks_and_inputs_under_no_grad(pages):
    """A negated view of sink logits counts as what it shows; without autograd nothing is lost."""
    rng = np.random.default_rng(9)
    case = pages([(7, 1)], 4, 1, 8, 8, "head", rng)
    tensors, sinks = arrays(case, 2, torch.float32, rng), torch.ones(2)
    plain = cpu.paged_attention(*tensors, case.step, order="head", sink_logits=-sinks)
    tensors[0].requires_grad_()
    with torch.no_grad():
        negated = torch._neg_view(sinks)
        found = cpu.paged_attention(*tensors, case.step, order="head", sink_logits=negated)

    assert torch.equal(plain, found)


def test_other_devices_are_refused(pages):
    """A step cannot be prepared for a device whose memory the kernel cannot read."""
    case = pages([(7, 1)], 4, 1, 8, 8, "head", np.random.default_rng(8))

    with pytest.raises(PlanError, match="device is 'cuda:0'"):
        cpu.CpuStep(case.step, page_size=4, device="cuda:0")
