"""Latent attention in the oracle, and the merging of results over parts of the keys."""

import numpy as np
import pytest

from octavo.attention.kernels.oracle import Attended, merge, paged_attention
from octavo.cache.step import Step
from octavo.errors import LengthError


@pytest.mark.parametrize(
    ("heads", "latent", "rope", "nope", "value"), [(2, 16, 8, 8, 8), (2, 512, 64, 128, 128)]
)
def test_absorbed_equals_decomposed(pages, heads, latent, rope, nope, value):
    """Attention over latent rows, projections absorbed, is that over the keys they stand for."""
    rng = np.random.default_rng(latent)
    case = pages([(0, 19), (33, 1), (15, 3)], 16, 1, latent + rope, 1, "token", rng)
    up_key = rng.standard_normal((heads, nope, latent)) / np.sqrt(latent)
    up_value = rng.standard_normal((heads, value, latent)) / np.sqrt(latent)
    tokens, scale = int(case.step.query_start[-1]), 1 / np.sqrt(nope + rope)
    plain, rotary = (rng.standard_normal((tokens, heads, size)) for size in (nope, rope))

    rows = case.keys[:, :, 0]  # [pages, page_size, latent + rope]
    absorbed = np.concatenate((np.einsum("thn,hnl->thl", plain, up_key), rotary), axis=-1)
    mixed = paged_attention(
        absorbed.astype(np.float32),
        rows.astype(np.float32),
        None,
        case.step,
        v_dim=latent,
        scale=scale,
        dtype=np.float32,
    )
    found = np.einsum("thl,hvl->thv", mixed, up_value)

    compressed, shared = rows[..., None, :latent], rows[..., None, latent:]
    shared = np.broadcast_to(shared, (*shared.shape[:2], heads, rope))
    keys = np.concatenate((np.einsum("hnl,pokl->pohn", up_key, compressed), shared), axis=-1)
    values = np.einsum("hvl,pokl->pohv", up_value, compressed)
    query = np.concatenate((plain, rotary), axis=-1)
    expected = paged_attention(query, keys, values, case.step, scale=scale)

    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("order", ["token", "head"])
def test_values_are_the_beginning_of_keys(pages, order):
    """Without a value cache every head reads one row a token, the value its first elements."""
    rng = np.random.default_rng(5)
    case = pages([(4, 3), (0, 6)], 4, 1, 12, 1, "token", rng)
    query = rng.standard_normal((9, 3, 12))
    expected = paged_attention(query, case.keys, case.keys[..., :7], case.step, scale=0.4)
    rows = case.keys[:, :, 0]
    found = paged_attention(query, rows, None, case.step, v_dim=7, scale=0.4, order=order)

    np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize("sinks", [False, True])
def test_merge_of_disjoint_keys(pages, sinks):
    """Results over parts of the keys merge to the result over all; a sink takes part once."""
    rng = np.random.default_rng(6)
    case = pages([(8, 3)], 4, 2, 5, 5, "token", rng)
    query, caches = rng.standard_normal((3, 2, 5)), (case.keys, case.values)
    sink_logits = rng.standard_normal(2) if sinks else None
    expected = paged_attention(
        query, *caches, case.step, causal=False, sink_logits=sink_logits, return_lse=True
    )
    parts = [
        paged_attention(query, *caches, _cut(case.step, *span), causal=False, return_lse=True)
        for span in [(0, 4), (4, 4), (4, 8), (8, 11)]
    ]
    found = merge(parts, sink_logits)

    np.testing.assert_allclose(found.out, expected.out, rtol=1e-12)
    np.testing.assert_allclose(found.lse, expected.lse, rtol=1e-12)


def _cut(step, start, stop):
    """The step with positions start..stop-1 of its row as the only keys; a page begins there."""
    view, context = step.group(), np.array([stop], np.int32)
    view = view._replace(table=view.table[:, start // 4 :], base=view.base + start)
    return Step(query_start=step.query_start, context=context, groups={"full": view})


def test_merge_of_nothing():
    """Where no part saw a key the result is 0 and -inf; no parts are refused, other shapes too."""
    blind = Attended(np.zeros((1, 2, 3)), np.full((1, 2), -np.inf))
    merged = merge([blind, blind], np.zeros(2))

    assert not merged.out.any()
    assert np.isneginf(merged.lse).all()
    for parts, sinks in [([], None), ([blind, blind._replace(out=blind.out[:, :1])], None)]:
        with pytest.raises(LengthError, match="parts"):
            merge(parts, sinks)
    with pytest.raises(LengthError, match="sink_logits"):
        merge([blind], np.zeros(3))
