"""The C kernel against the oracle where its own cuts lie: tiles, parts, rows, element types."""

import numpy as np
import pytest
import torch

from octavo.attention.kernels import cpu, oracle
from octavo.attention.parameters import Parameters
from octavo.attention.sizes import LayerArrays

SPANS = [(0, 1), (15, 1), (16, 1), (0, 17), (2, 0), (16, 32), (-1, 1), (-2, 5), (700, 1), (1500, 2)]


@pytest.fixture
def threads():
    """Sets torch's threads for one test: ``threads(n)``."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=[True, False], ids=["tiles", "no tiles"])
def tiles(request, monkeypatch):
    """Whether bf16 is multiplied by tiles: not where Linux or the processor refuses them."""
    can = request.param and cpu.has_tiles()
    monkeypatch.setattr(cpu, "has_tiles", lambda: can)
    return can


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
def test_equals_oracle(pages, heads, kv_heads, k_dim, v_dim, order, dtype, tiles):
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
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_is_the_same_alone_and_with_any_threads(pages, threads, heads, dtype):
    """A sequence's result is the same to the bit alone, beside others and with more threads."""
    rng = np.random.default_rng(2)
    case = pages([(3000, 1), (5, 1), (1100, 40)], 16, 1, 32, 32, "head", rng)
    tensors = arrays(case, heads, dtype, rng)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(cpu.paged_attention(*tensors, case.step, order="head"))
    alone = pages([(3000, 1)], 16, 1, 32, 32, "head", np.random.default_rng(2)).step
    alone.group().table[:] = case.step.group().table[:1, : alone.group().table.shape[1]]
    lone = cpu.paged_attention(tensors[0][:1], *tensors[1:], alone, order="head")

    assert all(torch.equal(results[0], result) for result in results[1:])
    assert torch.equal(results[0][:1], lone)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_tiles_give_what_single_numbers_give(pages, monkeypatch, bad):
    """By tiles outputs are those without, within a rounding, also where values are no numbers."""
    rng = np.random.default_rng(4)
    case = pages([(70, 90), (0, 33)], 16, 2, 64, 80, "head", rng)
    page = int(case.step.group().table[0, 7])
    case.values[page, 1, 5, 3] = bad  # at 117, which queries from the 47th on see
    tensors = arrays(case, 6, torch.bfloat16, rng)
    found = cpu.paged_attention(*tensors, case.step, order="head")
    monkeypatch.setattr(cpu, "has_tiles", lambda: False)
    expected = cpu.paged_attention(*tensors, case.step, order="head")

    assert [True] * 47 + [False] * 43 == expected[:90].isfinite().flatten(1).all(1).tolist()
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-4, equal_nan=True)


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


def test_negated_sinks(pages):
    """A negated view of sink logits counts as what it shows."""
    rng = np.random.default_rng(9)
    case = pages([(7, 1)], 4, 1, 8, 8, "head", rng)
    tensors, sinks = arrays(case, 2, torch.float32, rng), torch.ones(2)
    plain = cpu.paged_attention(*tensors, case.step, order="head", sink_logits=-sinks)
    negated = torch._neg_view(sinks)
    found = cpu.paged_attention(*tensors, case.step, order="head", sink_logits=negated)

    assert torch.equal(plain, found)


def test_repeated_layers_are_checked_once(pages):
    """Of layers that are alike the call is filled once; queries may have other strides."""
    rng = np.random.default_rng(11)
    case = pages(SPANS, 16, 2, 16, 8, "head", rng)
    prepared = cpu.prepare(case.step, page_size=16)
    layers = [arrays(case, 4, torch.float32, rng) for _ in range(2)]
    layers[1][1:] = [layers[1][1] + 1, layers[1][2] * 2]
    layers[1][0] = layers[1][0].transpose(0, 1).contiguous().transpose(0, 1)
    run = prepared.repeated(prepared.check(LayerArrays(*layers[0]), Parameters(order="head")))

    for layer in layers:
        expected = cpu.paged_attention(*layer, case.step, order="head")
        assert torch.equal(expected, run(LayerArrays(*layer)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("order", ["token", "head"])
def test_new_rows_are_put_where_they_are_read(order, dtype):
    """Tokens of one row or one column go to their pages, whatever their strides; nothing else."""
    torch.manual_seed(1)
    pages, offsets = torch.tensor([3, 1, 3]), torch.tensor([0, 2, 3])
    put = cpu.RowPut(pages, offsets, order)
    layers = torch.randn(2, 2, 3, 5, 2, 8, dtype=dtype)[:, :, :1, ::2].transpose(3, 4)
    for turned in (lambda e: e, lambda e: e.transpose(0, 2), torch.Tensor.contiguous):
        run = None
        for new in layers:  # of two that are alike
            zeros = torch.zeros(2, 5, 4, 2, 8, dtype=dtype)
            caches = list(zeros if order == "token" else zeros.transpose(2, 3).contiguous())
            expected = zeros.clone()
            expected[:, pages, offsets] = new[:, 0].transpose(1, 2)
            given = turned(new[0]), turned(new[1])
            run = run or put.repeated(given, caches)
            run(given, caches)
            for kept, cache in zip(expected, caches, strict=True):
                assert torch.equal(kept, cache if order == "token" else cache.transpose(1, 2))


@pytest.mark.parametrize(
    "new",
    [
        torch.zeros(1, 2, 4, 8),
        torch.zeros(1, 3, 3, 8),
        torch.zeros(1, 2, 3, 9),
        torch.zeros(3, 2, 3, 8),
        torch.zeros(1, 2, 3, 8, dtype=torch.float64),
        torch.zeros(1, 2, 8, 3).transpose(2, 3),
        torch.zeros(1, 2, 3, 8, device="meta"),
    ],
)
def test_rows_of_another_shape_are_not_put(new):
    """Other tokens, heads, dims, types, strides and devices are for the storage."""
    put = cpu.RowPut(torch.ones(3, dtype=torch.int64), torch.arange(3), "head")

    right, cache = torch.zeros(1, 2, 3, 8), torch.zeros(2, 2, 4, 8)
    assert put.repeated((right, right), (cache, cache)) is not None
    assert put.repeated((new, right), (cache, cache)) is None
    assert put.repeated((right, new), (cache, cache)) is None


@pytest.mark.parametrize("sinks", [False, True])
def test_calls_are_made_again_for_another_step(pages, sinks):
    """Of a step of as many tokens, with what lies in the arrays by then."""
    rng = np.random.default_rng(12)
    first, second = (pages(spans, 16, 2, 16, 8, "head", rng) for spans in ([(20, 2)], [(3, 1)] * 2))
    cases = [(case, arrays(case, 4, torch.float32, rng)) for case in (first, second)]
    more = {"sink_logits": torch.ones(4)} if sinks else {}
    query, out = torch.empty(2, 4, 16), torch.empty(2, 4, 8)
    for (case, tensors), (other, others) in (cases, cases[::-1]):
        prepared = cpu.prepare(case.step, page_size=16)
        given = LayerArrays(query, *tensors[1:])
        again = prepared.again(prepared.check(given, Parameters(order="head", **more)), out)
        for each, its in ((case, tensors), (other, [others[0], *tensors[1:]])):
            if each is other and len(tensors[1]) < len(others[1]):
                continue  # its pages are not there
            query.copy_(its[0])
            again(cpu.prepare(each.step, page_size=16))
            expected = cpu.paged_attention(*its, each.step, order="head", **more)
            assert torch.equal(expected.nan_to_num(), out.nan_to_num())


def test_rows_are_put_again_where_another_step_has_them():
    """What lies in the tensors by then, at the other step's places."""
    first = cpu.RowPut(torch.tensor([1, 0]), torch.tensor([2, 3]), "head")
    second = cpu.RowPut(torch.tensor([0, 2]), torch.tensor([1, 0]), "head")
    new, cache = torch.zeros(1, 2, 2, 8), torch.zeros(3, 2, 4, 8)
    again = first.again((new, new), (cache, cache))
    assert first.again((new, new[..., :4]), (cache, cache)) is None

    again(first)
    new.copy_(torch.randn(1, 2, 2, 8))
    again(second)

    expected = torch.zeros(3, 2, 4, 8)
    expected[[0, 2], :, [1, 0]] = new[0].transpose(0, 1)
    assert torch.equal(expected, cache)
