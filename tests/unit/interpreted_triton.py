"""Tests of the triton backend in Triton's interpreter, which must be asked for before an import.

`test_attention_triton.py` runs this file in a process of its own.
"""

import numpy as np
import pytest
import torch
from odd_numbers import RULES, odd_call, reference

import octavo
from octavo.attention import backend
from octavo.attention.kernels import oracle
from octavo.attention.kernels import triton as kernels
from octavo.testing.conformance.cases import FEATURES, Grid
from octavo.testing.conformance.check import check_case
from octavo.testing.conformance.kernel import Kernel

KERNEL = Kernel(kernels.paged_attention, None, torch.from_numpy, np.asarray)


def cases(page_size, scene, heads=((4, 2),), dims=((16, 16), (8, 24))):
    """The grid's cases of one page size and scene; the interpreter takes a second for some."""
    grid = Grid((page_size,), ("token", "head"), ("fp32",), heads, dims, (), FEATURES, 1)
    return [case for case in grid.cases() if case.scene == scene]


def name_of(case):
    """A case as a test's id."""
    return str(case).replace(", ", "-")


def query_and_caches(pages, spans, *, heads, kv_heads, page_size, seed):
    """A query for rows ``spans`` and their pages, float32; and the case itself."""
    rng = np.random.default_rng(seed)
    case = pages(spans, page_size, kv_heads, 16, 16, "token", rng)
    query = rng.standard_normal((int(case.step.query_start[-1]), heads, 16))
    arrays = (query, case.keys, case.values)
    return case, [torch.from_numpy(array.astype(np.float32)) for array in arrays]


def test_works_here_and_is_listed():
    """In the interpreter the backend works on a CPU, by name."""
    assert backend("triton").missing is None
    assert backend("triton").load() is kernels


@pytest.mark.parametrize("case", cases(3, "decode") + cases(16, "prefill", ((3, 1),)), ids=name_of)
def test_every_rule(case):
    """One decode or prefill by every rule equals the oracle, with NaN in unowned slots."""
    check_case(KERNEL, case, 5e-6)


@pytest.mark.parametrize("case", [*cases(3, "mixed")[::8], cases(16, "mixed")[13]], ids=name_of)
def test_mixed_rows(case):
    """Decodes, prefills, chunks and rows that sit out in one call."""
    check_case(KERNEL, case, 5e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN that is there on purpose
@pytest.mark.parametrize("parts", [1, 16])
@pytest.mark.parametrize("where", ["query", "keys", "values"])
@pytest.mark.parametrize("rule", ["plain", "sinks"])
def test_what_is_not_finite(pages, monkeypatch, rule, where, parts):
    """NaN and inf count for who sees them, in one program or several, and for nobody else."""
    monkeypatch.setattr(kernels, "_processors", lambda device: parts)
    spans = [((600, 1), 511), ((600, 1), 20), ((600, 1), 590), ((500, 5), 501), ((0, 30), 12)]
    if parts > 1:
        spans = spans[:3]
    call = odd_call(pages, rule, where, "token", spans)
    arrays = [torch.from_numpy(each.astype(np.float32)) for each in call[1:4]]
    found = kernels.paged_attention(*arrays, call.step, return_lse=True, **RULES[rule])
    doubles = (array.double().numpy() for array in arrays)
    fields = dict(zip(("query", "keys", "values"), doubles, strict=True))

    for actual, right in zip(found, reference(call._replace(**fields)), strict=True):
        np.testing.assert_allclose(actual, right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rule", [{}, {"window": 590, "sink_tokens": 5}, {"sinks": True}])
def test_divided_keys_are_merged(pages, monkeypatch, rule):
    """Where a device has room, several programs share a row's keys; the result is the same."""
    monkeypatch.setattr(kernels, "_processors", lambda device: 16)
    launched = []
    merge = kernels._merge
    monkeypatch.setattr(kernels, "_merge", Watched(merge, launched))
    case, arrays = query_and_caches(
        pages, [(600, 1), (0, 1)], heads=2, kv_heads=1, page_size=16, seed=1
    )
    options = dict(rule)
    if options.pop("sinks", False):
        options["sink_logits"] = torch.tensor([0.5, -1.0])
    found = kernels.paged_attention(*arrays, case.step, return_lse=True, **options)
    named = {k: np.asarray(v) if k == "sink_logits" else v for k, v in options.items()}
    doubles = [array.double().numpy() for array in arrays]
    expected = oracle.paged_attention(*doubles, case.step, return_lse=True, **named)

    assert launched
    np.testing.assert_allclose(found.out, expected.out, atol=5e-6)
    np.testing.assert_allclose(found.lse, expected.lse, atol=5e-6)


class Watched:
    """A kernel that notes its launches."""

    def __init__(self, kernel, launched):
        self.kernel, self.launched = kernel, launched

    def __getitem__(self, grid):
        self.launched.append(grid)
        return self.kernel[grid]


def test_float16(pages):
    """In float16 the output is as near to the oracle's as the type allows, and of that type."""
    case, arrays = query_and_caches(
        pages, [(40, 1), (0, 9)], heads=2, kv_heads=1, page_size=16, seed=2
    )
    rounded = [array.half() for array in arrays]
    found = kernels.paged_attention(*rounded, case.step)
    doubles = [array.double().numpy() for array in rounded]
    expected = oracle.paged_attention(*doubles, case.step)

    assert found.dtype == torch.float16
    np.testing.assert_allclose(found.double(), expected, atol=5e-3)


def test_queries_without_keys(pages):
    """A query that sees no key gives exactly 0 and lse -inf."""
    case, arrays = query_and_caches(
        pages, [(4, 1), (-2, 3)], heads=2, kv_heads=2, page_size=4, seed=3
    )
    found = kernels.paged_attention(*arrays, case.step, return_lse=True)

    assert (found.out[1:3] == 0).all()
    assert torch.isneginf(found.lse[1:3]).all()
    assert torch.isfinite(found.out).all()


def test_prepared_step_serves_every_layer(pages):
    """A TritonStep made once gives what the step gives, for layers of other windows and heads."""
    case, arrays = query_and_caches(
        pages, [(9, 1), (3, 4)], heads=4, kv_heads=2, page_size=4, seed=4
    )
    prepared = kernels.prepare(case.step, page_size=4, device="cpu")
    for rule in ({}, {"window": 5}):
        for heads in (2, 4):
            mine = [arrays[0][:, :heads], *arrays[1:]]
            found = kernels.paged_attention(*mine, prepared, **rule)
            assert torch.equal(found, kernels.paged_attention(*mine, case.step, **rule))


def test_step_without_queries(pages):
    """Rows that all sit out give an empty output."""
    case, arrays = query_and_caches(pages, [(5, 0)], heads=2, kv_heads=1, page_size=4, seed=5)

    assert kernels.paged_attention(*arrays, case.step).shape == (0, 2, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "dtype of query is 'torch.float64'"),
        ({"dtype": torch.bfloat16}, "bfloat16 in the triton backend: Triton's interpreter"),
        ({"keys": torch.float16}, "dtype of key_cache is 'torch.float16'; the query's"),
        ({"few": True}, "page of key_cache"),
        ({"turned": True}, "strides of key_cache"),
        ({"kv_dtype": "int8"}, "kv_dtype int8: the triton backend reads no quantised"),
    ],
)
def test_refusals_name_what_is_wrong(pages, change, message):
    """What the kernel would misread is refused before it runs."""
    case, arrays = query_and_caches(pages, [(0, 5)], heads=2, kv_heads=1, page_size=4, seed=6)
    step, options = case.step, {}
    if "dtype" in change:
        arrays = [array.to(change["dtype"]) for array in arrays]
    if "keys" in change:
        arrays[1] = arrays[1].to(change["keys"])
    if "few" in change:
        arrays[1:] = [array[:1] for array in arrays[1:]]
    if "turned" in change:
        arrays[1] = arrays[1].transpose(1, 3).contiguous().transpose(1, 3)
    options = {name: change[name] for name in ("kv_dtype",) if name in change}

    with pytest.raises(octavo.OctavoError, match=message):
        kernels.paged_attention(*arrays, step, **options)
