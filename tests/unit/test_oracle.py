"""The oracle against formulas written out by hand."""

import numpy as np
import pytest

from octavo.attention import backends
from octavo.attention.kernels.oracle import paged_attention, visible
from octavo.cache.step import GroupView, Step

ON_CPUS = [each for each in backends() if not each.devices or "cpu" in each.devices]


def one_row(past, count, table, page_size):
    """A step of a single row with the given page table."""
    context = past + count
    slots = [table[i // page_size] * page_size + i % page_size for i in range(past, context)]
    ints = {
        "counts": [count],
        "input_ids": [0] * count,
        "positions": range(past, context),
        "query_start": [0, count],
        "past": [past],
        "context": [context],
        "last": [count - 1],
    }
    arrays = {name: np.array(value, np.int32) for name, value in ints.items()}
    view = GroupView(np.array(slots, np.int32), np.array([table], np.int32), np.zeros(1, np.int32))
    return Step(sequences=(), wants_token=np.array([True]), groups={"full": view}, **arrays)


def test_formula_of_one_query():
    """One head, one query: weights are the softmax of scaled products, the lse their log sum."""
    keys, values = np.zeros((3, 2, 1, 2)), np.zeros((3, 2, 1, 1))
    keys[2, 0, 0], keys[2, 1, 0], keys[1, 0, 0] = (1, 0), (0, 2), (3, 1)
    values[2, 0, 0], values[2, 1, 0], values[1, 0, 0] = 1, 10, 100
    query = np.array([[[2.0, 1.0]]])
    scores = np.array([2, 2, 7]) * 0.5
    out, lse = paged_attention(
        query, keys, values, one_row(2, 1, [2, 1], 2), scale=0.5, return_lse=True
    )
    weights = np.exp(scores) / np.exp(scores).sum()

    assert pytest.approx(weights @ [1, 10, 100]) == out.item()
    assert pytest.approx(np.log(np.exp(scores).sum())) == lse.item()


def test_scale_defaults_to_root_of_dim():
    """Without a scale, scores are divided by the square root of the key's dimension."""
    rng = np.random.default_rng(0)
    query, cache = rng.standard_normal((1, 1, 9)), rng.standard_normal((2, 4, 1, 9))
    step = one_row(3, 1, [1], 4)
    expected = paged_attention(query, cache, cache, step, scale=1 / 3)

    np.testing.assert_array_equal(expected, paged_attention(query, cache, cache, step))


@pytest.mark.parametrize(
    ("window", "sinks", "expected"),
    [
        (None, 0, [1, 1, 1, 1, 1, 0]),
        (1, 0, [0, 0, 0, 0, 1, 0]),
        (3, 0, [0, 0, 1, 1, 1, 0]),
        (2, 1, [1, 0, 0, 1, 1, 0]),
    ],
)
def test_window_counts_the_query(window, sinks, expected):
    """A window of W is W keys, the query's own among them, beside the sink tokens."""
    seen = visible(np.array([4]), np.arange(6), causal=True, window=window, sink_tokens=sinks)

    assert expected == seen[0].astype(int).tolist()


def test_causal_is_bottom_right():
    """The last query of a chunk sees the whole context, the one before it one key less."""
    keys = np.zeros((2, 4, 1, 1))
    values = np.arange(8.0).reshape(2, 4, 1, 1)
    out = paged_attention(np.zeros((2, 1, 1)), keys, values, one_row(2, 2, [1], 4))

    assert [5.0, 5.5] == out.ravel().tolist()


def test_sink_logit_is_only_in_the_denominator():
    """A sink logit takes weight from the keys, adds nothing, and is not part of the lse."""
    keys, values = np.zeros((2, 4, 1, 1)), np.ones((2, 4, 1, 1))
    step, query = one_row(2, 1, [1], 4), np.zeros((1, 1, 1))
    out, lse = paged_attention(
        query, keys, values, step, sink_logits=np.array([np.log(5)]), return_lse=True
    )

    assert pytest.approx(3 / 8) == out.item()
    assert pytest.approx(np.log(3)) == lse.item()


def test_softcap_bounds_scores():
    """Scores are squashed to softcap * tanh(score / softcap) before the softmax."""
    keys, values = np.zeros((2, 2, 1, 1)), np.array([0.0, 1.0] * 2).reshape(2, 2, 1, 1)
    keys[1, 1] = 1000.0
    out = paged_attention(
        np.ones((1, 1, 1)), keys, values, one_row(1, 1, [1], 2), scale=1, softcap=2.0
    )

    assert pytest.approx(np.exp(2) / (1 + np.exp(2))) == out.item()


def test_heads_share_keys_in_groups():
    """Query heads 0 and 1 read key/value head 0, heads 2 and 3 head 1."""
    values = np.zeros((2, 1, 2, 1))
    values[1, 0] = [[3], [7]]
    keys = np.zeros_like(values)
    out = paged_attention(np.zeros((1, 4, 1)), keys, values, one_row(0, 1, [1], 1))

    assert [3, 3, 7, 7] == out.ravel().tolist()


@pytest.mark.parametrize("dropped", [0, 1])
def test_pages_behind_a_window_are_not_read(dropped):
    """What a window no longer sees may hold anything, or have no page at all."""
    cache = np.zeros((4, 4, 1, 2))
    cache[0], cache[1] = np.inf, np.nan
    step = one_row(8, 1, [dropped, 2, 3], 4)
    out = paged_attention(np.zeros((1, 1, 2)), cache, cache, step, window=5)

    assert not out.any()


def test_single_precision():
    """Computed in float32 on wish: as near as float32 is."""
    rng = np.random.default_rng(1)
    query, cache = rng.standard_normal((1, 4, 8)), rng.standard_normal((3, 4, 2, 8))
    step, sinks = one_row(6, 1, [2, 1], 4), np.zeros(4)
    options = {"sink_logits": sinks, "return_lse": True}
    exact = paged_attention(query, cache, cache, step, **options)
    single = paged_attention(query, cache, cache, step, dtype=np.float32, **options)

    for one, other in zip(exact, single, strict=True):
        assert (np.float64, np.float32) == (one.dtype, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_backends_are_listed():
    """The oracle comes last, every backend has the function and says which orders it takes."""
    found = backends()

    assert "oracle" == found[-1].name
    assert all(callable(backend.load().paged_attention) for backend in ON_CPUS)
    assert all(set(backend.orders) <= {"token", "head"} for backend in found)
