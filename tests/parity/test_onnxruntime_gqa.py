"""The op in NumPy against ONNX Runtime's GroupQueryAttention on CPU, in float32.

That op keeps one sequence's keys in a row where PagedAttention scatters them over pages; what it
computes is the same.
"""

from itertools import product

import numpy as np
import pytest

from octavo.attention.stored import encode
from octavo.errors import LengthError
from octavo.integrations.onnx.op.operands import Inputs
from octavo.integrations.onnx.op.operator import paged_attention_op

PAGE = 16
SPANS = [(0, 1), (0, 16), (0, 33), (15, 1), (16, 1), (31, 3), (20, 17)]
ONE = np.zeros(1, np.int32)


class Sequence:
    """One sequence's past and new tokens, in a row and in pages that lie anywhere."""

    def __init__(self, past, count, *, heads=4, kv_heads=2, size=16, seed=0):
        rng = np.random.default_rng(seed)
        self.sizes = {"num_heads": heads, "kv_num_heads": kv_heads}
        self.past, self.count, self.size, self.rng = past, count, size, rng
        normal = rng.standard_normal
        self.query = normal((count, heads * size), np.float32)
        self.key, self.value = normal((2, count, kv_heads * size), np.float32)
        self.pasts = list(normal((2, kv_heads, past, size), np.float32))
        pages = -(-(past + count) // PAGE)
        self.table = rng.permutation(np.arange(1, pages + 1, dtype=np.int32))[None]
        self.scales, self.kind = [None, None], None

    def quantise(self, kind, quant_type):
        """Keep the past in another element type, with scales of this granularity."""
        heads, self.kind = self.sizes["kv_num_heads"], kind
        shape = (1,) if quant_type == "PER_TENSOR" else (heads, 1, self.size)
        step = 1 / 2 if kind == "int4" else 1 / 40
        self.scales = [(self.rng.uniform(0.7, 1, shape) * step).astype(np.float32) for _ in "kv"]
        self.pasts = [encode(p / s, kind) for p, s in zip(self.pasts, self.scales, strict=True)]

    def paged(self):
        """The caches as pages, with the past in place."""
        at = np.arange(self.past)
        place, caches = (self.table[0][at // PAGE], at % PAGE), []
        for past in self.pasts:
            pages = np.zeros((self.table.size + 1, PAGE, len(past), past.shape[2]), past.dtype)
            pages[place] = past.swapaxes(0, 1)
            caches.append(pages)
        return caches


def gqa(run_node, sequence, extra, attributes):
    """Output [count, heads * size] and the caches [tokens, kv_heads, size] of ONNX Runtime."""
    total, kept = sequence.past + sequence.count, sequence.pasts[0].dtype
    inputs = {
        "query": sequence.query[None],
        "key": sequence.key[None],
        "value": sequence.value[None],
        "past_key": sequence.pasts[0][None],
        "past_value": sequence.pasts[1][None],
        "seqlens_k": ONE + total - 1,
        "total_sequence_length": ONE + total,
        "cos_cache": extra.get("cos_cache"),
        "sin_cache": extra.get("sin_cache"),
        "position_ids": None,
        "attention_bias": None,
        "head_sink": extra.get("head_sink"),
        "k_scale": sequence.scales[0],
        "v_scale": sequence.scales[1],
    }
    outputs = {"output": np.float32, "present_key": kept, "present_value": kept}
    found = run_node(
        "GroupQueryAttention",
        inputs,
        outputs,
        domain="com.microsoft",
        **sequence.sizes,
        **attributes,
    )
    return found[0][0], found[1][0].swapaxes(0, 1), found[2][0].swapaxes(0, 1)


def paged(sequence, extra, attributes):
    """The same of the op in NumPy."""
    caches, total = sequence.paged(), sequence.past + sequence.count
    inputs = Inputs(
        sequence.query,
        sequence.key,
        sequence.value,
        *caches,
        np.array([0, sequence.count], np.int32),
        ONE + sequence.past,
        sequence.table,
        k_scale=sequence.scales[0],
        v_scale=sequence.scales[1],
        **extra,
    )
    found = paged_attention_op(*inputs, **sequence.sizes, **attributes)
    at = np.arange(total)
    place = sequence.table[0][at // PAGE], at % PAGE
    return found.output, found.key_cache[place], found.value_cache[place]


def check(run_node, sequence, extra=(), attributes=(), theirs=(), ours=()):
    """Outputs and caches are equal; ``theirs`` and ``ours`` are attributes of one op alone."""
    extra, attributes = dict(extra), dict(attributes)
    expected = gqa(run_node, sequence, extra, attributes | dict(theirs))
    found = paged(sequence, extra, attributes | dict(ours))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=2e-6)
    for mine, other in zip(found[1:], expected[1:], strict=True):
        if sequence.kind is None:
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (3, 1), (4, 1), (8, 2), (9, 3)])
@pytest.mark.parametrize("span", SPANS)
def test_lengths_and_head_groups(run_node, span, heads, kv_heads):
    """Lengths around multiples of the page, and 1, 3 and 4 query heads to a key head."""
    check(run_node, Sequence(*span, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 16, 17])
@pytest.mark.parametrize("span", SPANS)
def test_windows(run_node, span, window):
    """A window of W is W keys, the query's own among them."""
    check(run_node, Sequence(*span), attributes={"local_window_size": window})


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_a_window_keeps_exactly_w_keys(run_node, window):
    """With equal scores each of W values weighs 1/W in both, and no other weighs anything."""
    sequence = Sequence(13, 3, heads=1, kv_heads=1)
    sequence.query[:] = 0
    sequence.pasts[1][0] = np.eye(16)[:13]
    sequence.value[:] = np.eye(16)[13:]
    attributes = {"local_window_size": window}
    for output in (
        gqa(run_node, sequence, {}, attributes)[0],
        paged(sequence, {}, attributes)[0],
    ):
        for query, weights in enumerate(output, start=13):
            kept = np.flatnonzero(weights)
            assert list(range(query - window + 1, query + 1)) == kept.tolist()
            np.testing.assert_allclose(weights[kept], 1 / window, rtol=1e-6)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("attributes", [{"softcap": 1.5}, {"scale": 0.7}])
def test_softcap_and_scale(run_node, span, attributes):
    """Scores are scaled, then squashed."""
    check(run_node, Sequence(*span), attributes=attributes)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("theirs", [{}, {"smooth_softmax": 1}])
def test_sinks(run_node, span, theirs):
    """A sink logit takes weight; a smooth softmax is a sink of 0."""
    sinks = np.array([0.3, -1, 2, 0], np.float32)
    if theirs:
        expected = gqa(run_node, Sequence(*span), {}, theirs)[0]
        found = paged(Sequence(*span), {"head_sink": np.zeros(4, np.float32)}, {})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    else:
        check(run_node, Sequence(*span), {"head_sink": sinks})


@pytest.mark.parametrize("span", SPANS)
def test_all_new_tokens_seen(run_node, span):
    """Without causality every query sees its sequence to the end."""
    check(run_node, Sequence(*span), theirs={"causal": 0}, ours={"is_causal": 0})


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("size", "half"), [(16, 8), (32, 8), (32, 16)])
def test_rotary(run_node, span, interleaved, size, half):
    """Halves or neighbours make pairs, of all of a head or its first part."""
    turns = np.arange(64)[:, None] / 100 ** (np.arange(half) / half)
    tables = {"cos_cache": np.cos(turns), "sin_cache": np.sin(turns)}
    tables = {name: table.astype(np.float32) for name, table in tables.items()}
    attributes = {"do_rotary": 1, "rotary_interleaved": interleaved}
    check(run_node, Sequence(*span, size=size), tables, attributes)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("quant_type", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_caches(run_node, span, quant_type, kind):
    """int8 and int4 caches: the same bytes are written, the same numbers read."""
    sequence = Sequence(*span)
    sequence.quantise(kind, quant_type)
    same = {"k_quant_type": quant_type, "v_quant_type": quant_type}
    bits = {"kv_cache_bit_width": 4 if kind == "int4" else 8}
    names = {"k_cache_dtype": kind, "v_cache_dtype": kind}
    check(run_node, sequence, attributes=same, theirs=bits, ours=names)


@pytest.mark.parametrize(
    ("sizes", "half", "sinks"),
    [
        ({"size": 12}, 0, 4),
        ({"size": 24}, 8, 4),
        ({"size": 16}, 4, 4),
        ({"size": 16}, 16, 4),
        ({"size": 16}, 0, 3),
        ({"heads": 3}, 0, 3),
    ],
)
def test_refuses_alike(run_node, sizes, half, sinks):
    """Head sizes, rotary tables, sinks and head counts that one refuses, the other does too."""
    sequence, extra = Sequence(3, 1, **sizes), {"head_sink": np.zeros(sinks, np.float32)}
    if half:
        extra |= dict.fromkeys(("cos_cache", "sin_cache"), np.ones((8, half), np.float32))
    attributes = {"do_rotary": int(half > 0)}
    with pytest.raises(Exception, match="INVALID_ARGUMENT|num_heads"):
        gqa(run_node, sequence, extra, attributes)
    with pytest.raises(LengthError):
        paged(sequence, extra, attributes)


def test_everything_at_once(run_node):
    """Window, softcap, sinks, rotary and an int8 cache together."""
    turns = np.arange(64)[:, None] / 100 ** (np.arange(8) / 8)
    extra = {"cos_cache": np.cos(turns), "sin_cache": np.sin(turns), "head_sink": np.arange(4) - 1}
    extra = {name: array.astype(np.float32) for name, array in extra.items()}
    for span, window in product(SPANS, [2, 5]):
        sequence = Sequence(*span)
        sequence.quantise("int8", "PER_CHANNEL")
        attributes = {"local_window_size": window, "softcap": 3.0, "do_rotary": 1}
        attributes |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
        check(run_node, sequence, extra, attributes, theirs={"kv_cache_bit_width": 8})
