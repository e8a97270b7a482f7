"""The oracle against ONNX's standard Attention, opsets 23 and 24, on ONNX Runtime's CPU."""

import numpy as np
import pytest

from octavo.attention.kernels.oracle import paged_attention

PAGES = [1, 3, 16]
OPTIONS = [
    {},
    {"softcap": 1.5},
    {"scale": 0.6},
    {"causal": False},
    {"causal": False, "softcap": 2.0, "scale": 0.2},
]


def spans(page_size):
    """Rows (past, count) around multiples of the page."""
    size = page_size
    lengths = sorted({1, max(1, size - 1), size, size + 1, 2 * size, 2 * size + 1})
    return [*((length, 1) for length in lengths), (0, size + 1), (size, 2 * size), (size + 1, 2)]


def rows(pages, keys_or_values, row):
    """The live keys or values of one row, [kv_heads, context, dim]."""
    size = keys_or_values.shape[1]
    at = np.arange(int(pages.step.context[row]))
    page = pages.step.group().table[row, at // size]
    return keys_or_values[page, at % size].swapaxes(0, 1).astype(np.float32)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize("page_size", PAGES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (3, 1), (8, 2)])
def test_grid(pages, run_node, opset, page_size, heads, kv_heads):
    """Each row of a step equals one sequence with its past, for every kind of score."""
    rng = np.random.default_rng(heads)
    case = pages(spans(page_size), page_size, kv_heads, 8, 12, "token", rng)
    query = rng.standard_normal((int(case.step.query_start[-1]), heads, 8))
    for options in OPTIONS:
        out = paged_attention(query, case.keys, case.values, case.step, **options)
        for row in range(len(case.step.context)):
            found = _attention(run_node, case, query, row, opset, dict(options))
            start, stop = case.step.query_start[row : row + 2]
            np.testing.assert_allclose(out[start:stop], found, rtol=1e-4, atol=5e-6)


def _attention(run_node, case, query, row, opset, options):
    """Attention of one row as ONNX Runtime computes it, [count, heads, v_dim]."""
    start, stop = case.step.query_start[row : row + 2]
    past = int(case.step.past[row])
    keys, values = (rows(case, cache, row)[None] for cache in (case.keys, case.values))
    inputs = {
        "Q": query[None, start:stop].swapaxes(1, 2).astype(np.float32),
        "K": keys[:, :, past:],
        "V": values[:, :, past:],
        "attn_mask": None,
        "past_key": keys[:, :, :past] if past else None,
        "past_value": values[:, :, :past] if past else None,
    }
    outputs = ("Y", "present_key", "present_value") if past else ("Y",)
    causal = int(options.pop("causal", True))
    found = run_node(
        "Attention",
        inputs,
        dict.fromkeys(outputs, np.float32),
        opset=opset,
        is_causal=causal,
        **options,
    )
    return found[0][0].swapaxes(0, 1)


@pytest.mark.parametrize(("count", "causal"), [(1, True), (3, True), (3, False)])
def test_ragged_batch(pages, run_node, count, causal):
    """Opset 24 takes rows of unequal length at once: ``nonpad_kv_seqlen`` is the context."""
    rng = np.random.default_rng(count)
    case = pages([(5, count), (16, count), (29, count)], 16, 2, 8, 8, "token", rng)
    query = rng.standard_normal((3 * count, 4, 8))
    longest = case.step.max_context
    padded = np.zeros((2, 3, 2, longest, 8), np.float32)
    for row, context in enumerate(case.step.context):
        for part, cache in enumerate((case.keys, case.values)):
            padded[part, row, :, :context] = rows(case, cache, row)
    inputs = {
        "Q": query.reshape(3, count, 4, 8).swapaxes(1, 2).astype(np.float32),
        "K": padded[0],
        "V": padded[1],
        "attn_mask": None,
        "past_key": None,
        "past_value": None,
        "nonpad_kv_seqlen": case.step.context.astype(np.int64),
    }
    found = run_node("Attention", inputs, {"Y": np.float32}, is_causal=int(causal))[0]
    expected = paged_attention(query, case.keys, case.values, case.step, causal=causal)

    found = found.swapaxes(1, 2).reshape(3 * count, 4, 8)
    np.testing.assert_allclose(expected, found, rtol=1e-4, atol=5e-6)
