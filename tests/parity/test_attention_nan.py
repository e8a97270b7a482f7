"""NaN and infinities in queries, keys and values: one rule, whichever backend attends."""

import numpy as np
import pytest
import torch
from odd_numbers import BORDERS, DIM, HEADS, KV_HEADS, PAGE, RULES, odd_call, reference

from octavo.attention import Attended, backend
from octavo.attention.kernels import cpu, oracle
from octavo.attention.kernels import torch as in_torch

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
ERRORS = {"fp64": 1e-10, "fp32": 2e-5, "bf16": 3e-2}
CASES = ["oracle-fp64", "torch-fp32", "torch-bf16", "cpu-fp32", "cpu-bf16", "flex-fp32"]


@pytest.mark.parametrize("where", ["query", "keys", "values"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("return_lse", [True, False])
def test_what_is_not_finite(pages, case, rule, where, return_lse):
    """What a query sees counts as arithmetic has it, at every border; what it does not, never."""
    name, dtype = case.split("-")
    call = odd_call(pages, rule, where, "head" if len(rule + where) % 2 else "token")
    arrays = [torch.from_numpy(each).to(DTYPES[dtype]) for each in call[1:4]]
    expected = reference(call._replace(**rounded(arrays)))
    if name == "oracle":
        arrays = [each.numpy() for each in arrays]
    options = {"order": call.order, "return_lse": return_lse, **RULES[rule]}
    found = backend(name).load().paged_attention(*arrays, call.step, **options)

    for actual, right in zip(found if return_lse else [found], expected, strict=False):
        wide = np.asarray(torch.as_tensor(actual).double())
        np.testing.assert_allclose(wide, right, rtol=ERRORS[dtype], atol=ERRORS[dtype])


def rounded(arrays):
    """Query, keys and values in the numbers that their type holds."""
    return dict(zip(("query", "keys", "values"), (a.double().numpy() for a in arrays), strict=True))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_long_context(pages, dtype, threads):
    """One decode alone, whose parts are threads' own: NaN in any part is NaN of the whole."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for border in BORDERS:
            call = odd_call(pages, "plain", "keys", "token", [((1100, 1), border)])
            arrays = [torch.from_numpy(each).to(dtype) for each in call[1:4]]
            found = cpu.paged_attention(*arrays, call.step, return_lse=True)

            assert torch.isnan(found.out[0, :2]).all()
            assert torch.isnan(found.lse[0, :2]).all()
            assert torch.isfinite(found.out[0, 2:]).all()
            assert torch.isfinite(found.lse[0, 2:]).all()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_nan_of_every_payload(pages, bits, softcap):
    """The kernel computes with bits, and no bits of a NaN become a number."""
    rng = np.random.default_rng(0)
    case = pages([(700, 1), (20, 30)], PAGE, 1, DIM, DIM, "token", rng)
    query, keys, values = (
        torch.from_numpy(each.astype(np.float32))
        for each in (rng.standard_normal((31, 1, DIM)), case.keys, case.values)
    )
    for row in case.step.group().table:
        keys[row[0], 3] = torch.full((DIM,), bits, dtype=torch.int32).view(torch.float32)
    found = cpu.paged_attention(query, keys, values, case.step, return_lse=True, softcap=softcap)

    assert torch.isnan(found.out).all()
    assert torch.isnan(found.lse).all()


@pytest.mark.parametrize("name", ["oracle", "torch", "cpu", "flex"])
@pytest.mark.parametrize("position", [2, 511, 512, 513, 600])
def test_latent_rows(pages, name, position):
    """One row is key and value: who sees it is NaN in every head, who does not is as before."""
    rng = np.random.default_rng(1)
    case = pages([(601, 1), (599, 3), (0, 20)], PAGE, 1, 24, 1, "token", rng)
    rows, query = case.keys[:, :, 0].copy(), rng.standard_normal((24, 3, 24))
    options = {"v_dim": 16, "scale": 0.2, "window": 80}
    before = oracle.paged_attention(query, rows, None, case.step, **options)
    table = case.step.group().table
    rows[table[0, position // PAGE], position % PAGE, 20] = np.nan
    arrays = [query, rows]
    if name != "oracle":
        arrays = [torch.from_numpy(each.astype(np.float32)) for each in arrays]
    found = backend(name).load().paged_attention(*arrays, None, case.step, **options)
    found = np.asarray(found)

    assert (np.isnan(found[0]).all(), np.isnan(found[0]).any()) == (position > 521,) * 2
    np.testing.assert_allclose(found[1:], before[1:], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("sinks", [None, [0.5]])
def test_merged_parts(sinks):
    """A part that is NaN makes the whole NaN; one without keys counts for nothing, NaN or not."""
    one = Attended(np.ones((2, 1, 3)), np.zeros((2, 1)))
    odd = Attended(np.full((2, 1, 3), np.nan), np.array([[np.nan], [-np.inf]]))
    found = oracle.merge([one, odd], sinks)

    assert np.isnan(found.out[0]).all()
    assert np.isnan(found.lse[0])
    np.testing.assert_array_equal(found.out[1], oracle.merge([one], sinks).out[1])
    assert 0 == found.lse[1]


@pytest.mark.parametrize("attend", [oracle.paged_attention, in_torch.paged_attention])
@pytest.mark.parametrize("where", ["byte", "scale"])
def test_quantised_caches(pages, attend, where):
    """fp8 has a NaN, and a row's scale may be one: each is that row's number, seen or not."""
    rng = np.random.default_rng(2)
    case = pages([(40, 1), (10, 20)], PAGE, KV_HEADS, DIM, DIM, "token", rng)
    stored = rng.integers(0, 120, case.keys.shape).astype(np.uint8)
    scales = np.full(stored.shape[:-1], 0.01, np.float32)
    query = rng.standard_normal((21, HEADS, DIM)).astype(np.float32)
    options = {"kv_dtype": "fp8", "window": 12}

    def answer(stored, scales):
        arrays, given = [query, stored, stored], [scales, scales]
        if attend is in_torch.paged_attention:
            arrays, given = (list(map(torch.from_numpy, each)) for each in (arrays, given))
            arrays[1:] = [each.view(torch.float8_e4m3fn) for each in arrays[1:]]
        scale = {"key_scale": given[0], "value_scale": given[1]}
        return np.asarray(attend(*arrays, case.step, **options, **scale))

    before = answer(stored, scales)
    odd, table = (stored.copy(), scales.copy()), case.step.group().table
    for row, position in ((0, 20), (1, 17)):  # behind the window; seen by some queries
        place = table[row, position // PAGE], position % PAGE, 0
        if where == "byte":
            odd[0][place] = 127
        else:
            odd[1][place] = np.nan
    found, right = answer(*odd), before.copy()
    right[1 + 7 : 1 + 19, :2] = np.nan  # positions 17..28 of row 1

    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)
