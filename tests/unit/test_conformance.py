"""The conformance suite: right kernels pass, wrong ones are caught and named."""

from types import SimpleNamespace

import numpy as np
import pytest

from octavo import PlanError, index
from octavo.attention import oracle
from octavo.testing import KernelMismatch, check_kernel
from octavo.testing.conformance.cases import SCENES
from octavo.testing.conformance.scenes import build_scene, rows_of

QUICK = {"page_sizes": (2,), "heads": ((4, 2),), "dims": ((8, 4),)}


def seen(position, keys, causal, window, sink_tokens):
    """Which keys a query sees."""
    found = (keys <= position) if causal else np.ones(keys.size, bool)
    if window is not None:
        found &= (keys > position - window) | (keys < sink_tokens)
    return found


def cap(products, factor, softcap):
    """Scores of products."""
    scores = products * factor
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


RIGHT = {
    "past": lambda step, row: step.past[row],
    "length": lambda step, row, page_size: step.context[row],
    "table": lambda table, row: table[row],
    "flat": lambda cache: cache.reshape(-1, *cache.shape[2:]),
    "seen": seen,
    "kv_head": lambda head, heads, kv_heads: head // (heads // kv_heads),
    "scale": lambda scale, k_dim: k_dim**-0.5 if scale is None else scale,
    "cap": cap,
    "sink": lambda logit, factor: logit,
    "lse": lambda sums, logit: sums,
}


def small(**wrong):
    """A plain kernel whose parts can be made wrong one at a time."""
    part = SimpleNamespace(**{**RIGHT, **wrong})

    def attend(
        query,
        key_cache,
        value_cache,
        step,
        *,
        group=None,
        order="token",
        scale=None,
        causal=True,
        softcap=None,
        window=None,
        sink_tokens=0,
        sink_logits=None,
        return_lse=False,
    ):
        if order == "head":
            key_cache, value_cache = key_cache.swapaxes(1, 2), value_cache.swapaxes(1, 2)
        page_size, kv_heads, v_dim = value_cache.shape[1:]
        tokens, heads, k_dim = query.shape
        out, lse = np.zeros((tokens, heads, v_dim)), np.full((tokens, heads), -np.inf)
        factor = part.scale(scale, k_dim)
        logits = np.full(heads, -np.inf) if sink_logits is None else part.sink(sink_logits, factor)
        kv = [part.kv_head(head, heads, kv_heads) for head in range(heads)]
        for row in np.flatnonzero(step.counts):
            keys = np.arange(part.length(step, row, page_size))
            table = part.table(step.group(group).table, row)
            at = table[keys // page_size] * page_size + keys % page_size
            every = [part.flat(c)[at][:, kv].astype(float) for c in (key_cache, value_cache)]
            first, last = step.query_start[row : row + 2]
            for number, token in enumerate(range(first, last)):
                products = np.einsum("hd,khd->hk", query[token], every[0])
                scores = part.cap(products, factor, softcap)
                position = part.past(step, row) + number
                sees = part.seen(position, keys, causal, window, sink_tokens)
                scores = np.where(sees, scores, -np.inf)
                sums = np.logaddexp.reduce(scores, axis=1)
                weights = np.exp(scores - np.logaddexp(sums, logits)[:, None])
                out[token] = np.einsum("hk,khd->hd", weights, every[1])
                lse[token] = part.lse(sums, logits)
        return (out, lse) if return_lse else out

    return attend


def flat_as_if_together(cache):
    """Slots of a cache whose pages are taken to lie next to each other."""
    shape = (cache.shape[0] * cache.shape[1], *cache.shape[2:])
    return np.lib.stride_tricks.as_strided(cache, shape, cache.strides[1:])


def to_page(step, row, page_size):
    """A context rounded up to whole pages."""
    return -(-step.context[row] // page_size) * page_size


WRONG = {
    "sees 2 keys where the window is 1": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and w + 1, s)
    },
    "sees 1 keys where the window is 2": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and max(1, w - 1), s)
    },
    "ignores the window": {"seen": lambda p, k, c, w, s: seen(p, k, c, None, 0)},
    "ignores the sink tokens": {"seen": lambda p, k, c, w, s: seen(p, k, c, w, 0)},
    "counts the sink tokens within the window": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and max(1, w - s), s)
    },
    "is not causal: queries see later keys": {
        "seen": lambda p, k, c, w, s: seen(p, k, False, w, s)
    },
    "is causal where it must not be": {"seen": lambda p, k, c, w, s: seen(p, k, True, w, s)},
    "does not let a query see its own key": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w, s) & (k != p)
    },
    "counts positions from the first query": {"past": lambda step, row: 0},
    "reads slots that are in no row's context and sees its last page whole": {
        "length": to_page,
        "seen": lambda p, k, c, w, s: np.ones(k.size, bool),
    },
    "reads slots that are in no row's context and weighs them by 0": {"length": to_page},
    "reads the page table of the row before": {"table": lambda table, row: table[row - 1]},
    "reads the first row's page table for every row": {"table": lambda table, row: table[0]},
    "takes a row's pages for consecutive": {
        "table": lambda table, row: table[row, 0] + np.arange(table.shape[1])
    },
    "lets query head h read key/value head h % kv_heads": {"kv_head": lambda h, heads, kv: h % kv},
    "does not scale the scores": {"scale": lambda scale, k_dim: 1.0},
    "ignores the scale it is given": {"scale": lambda scale, k_dim: k_dim**-0.5},
    "ignores the softcap": {"cap": lambda products, factor, softcap: products * factor},
    "caps the scores before it scales them": {
        "cap": lambda products, factor, softcap: cap(products, 1.0, softcap) * factor
    },
    "ignores the sink logits": {"sink": lambda logits, factor: np.full(logits.shape, -np.inf)},
    "scales the sink logits": {"sink": lambda logits, factor: logits * factor},
    "counts the sink logits in the lse": {"lse": np.logaddexp},
    "gives the lse to base 2": {"lse": lambda sums, logits: sums / np.log(2)},
    "takes pages to lie next to each other": {"flat": flat_as_if_together},
}


def test_right_kernel_passes():
    """A right kernel of few lines passes everything, and the report says what was tried."""
    report = check_kernel(small(), **QUICK)

    assert report.cases == 17 * len(SCENES)
    assert ("kv_dtype", "v_dim") == report.left_out
    assert str(report).startswith(f"{report.cases} cases agree; largest error: fp32 ")


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernel_is_caught_and_named(fault):
    """Each fault is found, and the message names it."""
    orders = ("token",) if "next to each other" in fault else ("token", "head")
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(small(**WRONG[fault]), orders=orders, **QUICK)

    assert fault in (caught.value.fault or ""), str(caught.value)
    assert fault in str(caught.value)


def test_message_says_where():
    """The message names row, kind, position, head, the keys seen and their pages, and the case."""
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(small(**WRONG["sees 2 keys where the window is 1"]), **QUICK)
    wrong = caught.value
    place = (wrong.what, wrong.row, wrong.token, wrong.head, wrong.position)

    assert ("out", 0, 0, 0, 4) == place
    assert abs(wrong.expected - wrong.actual) > 1e-10
    assert (
        f"row 0 (decode, context 5, page size 2, window 1): out of the query at position 4, head 0 "
        f"is {wrong.actual:.6g} and should be {wrong.expected:.6g}; it may see 1 keys: 4 on page "
        f"{wrong.page} (offset 0).\nThe kernel sees 2 keys where the window is 1"
    ) in str(wrong)
    assert str(wrong).endswith(f"case: {wrong.case}")
