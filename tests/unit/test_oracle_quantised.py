"""The oracle over quantised caches: bytes, scales of every shape, and what is refused."""

import ml_dtypes
import numpy as np
import pytest

from octavo.attention.kernels.oracle import paged_attention
from octavo.attention.stored import StoredPages, decode, encode

KINDS = ["int8", "fp8", "int4"]


def slots(count, page_size):
    """Pages and offsets of the first slots behind the null page."""
    return np.divmod(np.arange(page_size, page_size + count), page_size)


def empty(shape, kind):
    """A zeroed cache of ``shape``, its last axis halved for int4."""
    if kind == "int4":
        shape = (*shape[:-1], -(-shape[-1] // 2))
    return np.zeros(shape, np.int8 if kind == "int8" else np.uint8)


def test_fp8_is_e4m3fn():
    """All 256 bytes stand for what ml_dtypes says, and 20,000 numbers are rounded as it does."""
    bytes_ = np.arange(256, dtype=np.uint8)
    expected = bytes_.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(expected, decode(bytes_, "fp8", 256))

    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(20_000) * 2.0 ** rng.integers(-12, 9, 20_000)
    numbers = np.clip(np.concatenate([numbers, (expected[:126] + expected[1:127]) / 2]), -448, 448)
    nearest = numbers.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(nearest, encode(numbers.astype(np.float32), "fp8"))


def test_fp8_ends():
    """Beyond 448 is 448, not NaN; NaN stays NaN; zero keeps its sign."""
    encoded = encode(np.array([1e9, -1e9, np.nan, 0.0, -0.0]), "fp8")

    assert [0x7E, 0xFE, 0x7F, 0x00, 0x80] == encoded.tolist()


def test_int4_is_biased_and_packed_low_half_first():
    """Element 2i, plus 8, is the lower half of byte i; an odd one ends beside a zero."""
    assert [0x10, 0x8F] == encode(np.array([-8.0, -7.0, 7.0]), "int4").tolist()
    assert [0xD7] == encode(np.array([-1.2, 5.4]), "int4").tolist()
    assert [-8, -7, 7] == decode(np.array([0x10, 0x8F], np.uint8), "int4", 3).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_stored_element_survives(kind):
    """What is stored is stored again as the same bytes."""
    stored = np.arange(256, dtype=np.uint8)
    stored = stored.view(np.int8) if kind == "int8" else stored
    again = encode(decode(stored, kind, 512 if kind == "int4" else 256), kind)

    assert (stored == again).sum() >= (255 if kind == "fp8" else 256)  # a NaN has a sign, no value


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(8, 8), (7, 5)])
def test_scales_of_every_shape(pages, kind, order, dims):
    """A number, one per head, a channel, or a token and head: all as if the numbers were kept."""
    rng = np.random.default_rng(3)
    case = pages([(5, 1), (0, 9), (0, 0), (8, 4)], 4, 2, *dims, order, rng)
    plain = [np.nan_to_num(cache) for cache in (case.keys, case.values)]
    query = rng.standard_normal((14, 4, dims[0]))
    shapes = [(), (2,), None, plain[0].shape[:-1]]
    for shape in shapes:
        stores, numbers, scales = [], [], []
        for cache, dim in zip(plain, dims, strict=True):
            scale = rng.uniform(0.2, 0.9, (2, dim) if shape is None else shape)
            stored = encode(cache / _spread(scale, order), kind)
            numbers.append(decode(stored, kind, dim) * _spread(scale, order))
            stores.append(stored)
            scales.append(float(scale) if shape == () else scale)
        expected = paged_attention(query, *numbers, case.step, order=order)
        found = paged_attention(
            query,
            *stores,
            case.step,
            order=order,
            kv_dtype=kind,
            key_scale=scales[0],
            value_scale=scales[1],
            v_dim=dims[1],
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def _spread(scale, order):
    """A scale that broadcasts over a cache in ``order``."""
    if scale.ndim == 3:
        return scale[..., None]
    heads = scale[:, None] if scale.ndim == 1 else scale
    return heads if order == "token" or scale.ndim == 0 else heads[:, None]


def test_unowned_scales_may_be_nan(pages):
    """With a scale a token, those of slots nobody owns are never read."""
    rng = np.random.default_rng(4)
    case = pages([(3, 2)], 4, 1, 6, 6, "token", rng)
    owned = ~np.isnan(case.keys).any(axis=3)
    scales = np.where(owned, 0.5, np.nan)
    stored = encode(np.nan_to_num(case.keys) * 10, "int8")
    out = paged_attention(
        rng.standard_normal((2, 1, 6)),
        stored,
        stored,
        case.step,
        kv_dtype="int8",
        key_scale=scales,
        value_scale=scales,
    )

    assert np.isfinite(out).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 3, 64, 80, 96])
def test_round_trip_within_half_a_step(kind, dim):
    """What is written comes back within half a step of its scale, for every row length."""
    rng = np.random.default_rng(dim)
    cache, numbers = empty((3, 4, 2, dim), kind), rng.uniform(-1, 1, (8, 2, dim))
    scale = {"int8": 1 / 127, "fp8": 1 / 448, "int4": 1 / 7}[kind]
    store = StoredPages("cache", cache, "token", dim, kind, scale)
    store.write(*slots(8, 4), numbers)
    error = np.abs(store.read(*slots(8, 4)) - numbers)

    bound = np.abs(numbers) / 16 + scale * 2**-10 if kind == "fp8" else scale / 2
    assert (error <= bound * (1 + 1e-12)).all()
