"""Quantised storage: a scale of its own for every row, and no earlier byte ever changes."""

import numpy as np
import pytest
import torch

import octavo
from octavo import Attention, ModelSpec, PlanError
from octavo.attention.kernels.oracle import paged_attention
from octavo.storage import Storage

SPEC = ModelSpec("q", (Attention(3, 16, 8), Attention(3, 16, 8)), 64)
STEP = {"int8": 1 / 127, "int4": 1 / 7}
"""Between two stored numbers, over the largest."""


def made(dtype, scales=None, order="token", device="cpu"):
    """A storage of some pages of 4 tokens."""
    options = {"page_size": 4, "dtype": dtype, "scales": scales, "order": order}
    return Storage(octavo.plan(SPEC, 60_000, **options), device)


def random(tokens=6, seed=0):
    """Keys and values of a layer, rows of very different size; one row is zero."""
    torch.manual_seed(seed)
    size = 10.0 ** torch.linspace(-6, 6, tokens)[:, None, None]
    key, value = torch.randn(tokens, 3, 16) * size, torch.randn(tokens, 3, 8) * size
    key[2], value[2] = 0, 0
    return key, value


def assert_near(written, read, dtype, axes):
    """Each number is within half a step of what was written."""
    largest = written.abs().amax(axes, keepdim=True)
    if dtype in STEP:
        bound = largest * STEP[dtype] / 2
    else:
        mantissa, least = {"fp8": (3, 2.0**-9 / 448), "fp8_e5m2": (2, 2.0**-16 / 57344)}[dtype]
        bound = torch.maximum(written.abs() * 2.0 ** -(mantissa + 1), largest * least / 2)
    assert bool(((written - read).abs() <= bound * 1.0001 + 1e-37).all())


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("scales", ["token", "head"])
@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8", "fp8_e5m2"])
def test_values_are_read_back_within_half_a_step(dtype, scales, order):
    """Scales are one per token, or one per token and head; a row of zeros is zeros."""
    store, (key, value) = made(dtype, scales, order), random()
    store.write(1, key, value, np.array([5, 6, 7, 8, 11, 20]))
    pages, at = np.arange(1, 6), [1, 2, 3, 4, 7, 16]
    axes = -1 if scales == "head" else (-2, -1)
    for new, read in zip((key, value), store.gather(1, pages), strict=True):
        assert torch.float32 == read.dtype
        assert_near(new, read[at], dtype, axes)
        assert not read[at[2]].any()


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("scales", ["token", "head"])
@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8"])
def test_later_tokens_leave_earlier_bytes_alone(dtype, scales, order):
    """Larger tokens in the same page change their own bytes only."""
    store, (key, value) = made(dtype, scales, order), random()
    store.write(0, key, value, np.arange(4, 10))
    before = store.arena.clone()
    store.write(0, key * 1e3, value * 1e3, np.arange(10, 16))
    changed = store.arena != before
    store.arena[changed] = before[changed]

    assert torch.equal(before, store.arena)
    for now, was in zip(store.gather(0, np.array([1, 2]), 0, 6), (key, value), strict=True):
        assert_near(was, now, dtype, -1 if scales == "head" else (-2, -1))


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("scales", ["tensor", "token", "head"])
@pytest.mark.parametrize("dtype", ["int8", "fp8", "int4"])
def test_views_are_what_attention_takes(dtype, scales, order):
    """The oracle over a layer's view equals the oracle over what `gather` reads back."""
    store, (key, value) = made(dtype, scales, order), random()
    key, value = key.clamp(-1, 1), value.clamp(-1, 1)
    if scales == "tensor":
        store.set_scales(0, 1 / 100, 1 / 90)
    cache = octavo.Cache(octavo.Plan.from_pages(store.plan.num_pages, 4))
    step = cache.extend(cache.admit([1, 2, 3, 4, 5, 6]), 6)
    store.write(0, key, value, step.group().slots)
    query = np.random.default_rng(0).normal(size=(6, 6, 16))
    view = store.layer(0)
    as_numpy = [array_of(part) for part in view[:4]]
    got = paged_attention(
        query,
        *as_numpy[:2],
        step,
        order=order,
        key_scale=as_numpy[2],
        value_scale=as_numpy[3],
        kv_dtype=view.kv_dtype,
    )
    plain = [half.unflatten(0, (-1, 4)).numpy() for half in store.gather(0, np.arange(1, 3))]
    table = np.zeros((store.plan.num_pages, 4), np.int32)
    dense = [table_of(half, table) for half in plain]
    want = paged_attention(query, *dense, step, order="token")

    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def array_of(part):
    """A view as NumPy has it: fp8 as bytes; numbers stay."""
    if not isinstance(part, torch.Tensor):
        return part
    return (part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part).numpy()


def table_of(half, like):
    """[pages, 4, heads, dim] with ``half`` from page 1 on."""
    full = np.zeros((*like.shape, *half.shape[2:]), np.float64)
    full[1 : 1 + len(half)] = half
    return full


@pytest.mark.parametrize("dtype", ["int8", "fp8", "int4"])
@pytest.mark.parametrize("scales", ["tensor", "token", "head"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["key", "value"])
def test_refuses_what_is_not_finite(name, wrong, scales, dtype):
    """One NaN or infinite number is refused by name, and nothing has been written."""
    store, both = made(dtype, scales), dict(zip(("key", "value"), random(), strict=True))
    if scales == "tensor":
        store.set_scales(0, 1.0, 1.0)
    both[name][3, 1, 4] = wrong
    with pytest.raises(PlanError, match=f"{name} is 'NaN or infinite'"):
        store.write(0, both["key"], both["value"], np.arange(4, 10))
    assert not store.arena.any()

    skipped = np.array([4, 5, 6, -1, 7, 8])
    store.write(0, both["key"], both["value"], skipped)
    assert store.arena.any()


def test_one_scale_for_all():
    """Scales that are given stay, saturate what is beyond, and are needed before a write."""
    store, key = made("int8", "tensor"), torch.full((1, 3, 16), 500.0)
    key[0, 0, 0] = 1.26
    with pytest.raises(PlanError, match="key_scale is None"):
        store.write(0, key, key[..., :8], np.array([4]))
    store.set_scales(0, 0.5, 2)
    store.write(0, key, key[..., :8], np.array([4]))
    read, _ = store.gather(0, np.array([1]), 0, 1)

    assert [1.5, 63.5] == read.unique().tolist()
    assert (0.5, 2.0, "int8") == store.layer(0)[2:]
    with pytest.raises(PlanError, match="has its scales already"):
        store.set_scales(0, 1, 1)


def test_fp8_without_scales_saturates():
    """Numbers beyond the largest fp8 become it; the view has no scales."""
    store = made("fp8", "none")
    store.write(0, torch.full((1, 3, 16), 1e4), torch.full((1, 3, 8), -0.3), np.array([4]))

    assert {448.0} == set(store.gather(0, np.array([1]), 0, 1)[0].flatten().tolist())
    assert (None, None, "fp8") == store.layer(0)[2:]


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), 0, -1, None, "1", True])
@pytest.mark.parametrize("name", ["key", "value"])
def test_refuses_scales_that_are_no_number_above_zero(name, scale):
    """NaN, infinite, zero and negative scales are refused by name, and none is kept."""
    store = made("int8", "tensor")
    given = {"key": 1.0, "value": 1.0} | {name: scale}
    with pytest.raises(PlanError, match=f"{name}_scale is"):
        store.set_scales(0, **given)
    assert (None, None) == store.layer(0)[2:4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_takes_any_floats(dtype):
    """Quantised storage takes keys of any float type, and refuses integers."""
    store = made("int8")
    key = torch.ones(1, 3, 16, dtype=dtype)
    store.write(0, key, key[..., :8], np.array([4]))

    torch.testing.assert_close(torch.ones(1, 3, 16), store.gather(0, np.array([1]), 0, 1)[0])
    with pytest.raises(PlanError, match="dtype of key is 'torch.int8'"):
        store.write(0, key.to(torch.int8), key[..., :8], np.array([4]))
