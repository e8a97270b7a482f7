"""Calls of attention with one number in each row that is not finite, and what they must give."""

from math import sqrt
from typing import NamedTuple

import numpy as np

from octavo.cache.step import Step

RULES = {
    "plain": {},
    "window": {"window": 70},
    "sinks": {"window": 40, "sink_tokens": 20},
    "softcap": {"softcap": 3.0},
    "all": {"causal": False},
}
ODD = (np.nan, np.inf, -np.inf)
BORDERS = (0, 1, 15, 16, 19, 20, 63, 64, 255, 256, 511, 512, 513, 767, 1023, 1024, 1025)
"""Positions around the ends of pages, tiles, and parts of a long context."""
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 16

DECODES = [((border + (0, 30, 90)[n % 3], 1), border) for n, border in enumerate(BORDERS)]
LONG = [((1100, 1), border) for border in BORDERS[6:]]
CHUNKS = [((1020, 12), 1023), ((500, 20), 511), ((600, 3), 601)]
PREFILLS = [((0, 70), position) for position in (40, 63, 66)]
ROWS = DECODES + LONG + CHUNKS + PREFILLS
"""(past, count) of each row, and the position of what is odd in it; some queries see it."""


class OddCall(NamedTuple):
    """A step over caches of which every row has one number that is not finite, in head 0."""

    step: Step
    query: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    rule: dict
    order: str


def odd_call(pages, rule, where, order, rows=ROWS):
    """The call of a rule with ODD numbers, in turns, in the ``query``, ``keys`` or ``values``."""
    rng = np.random.default_rng(7)
    step, *caches = pages([span for span, _ in rows], PAGE, KV_HEADS, DIM, DIM, order, rng)
    query = rng.standard_normal((int(step.query_start[-1]), HEADS, DIM))
    table = step.group().table
    for row, (_, position) in enumerate(rows):
        odd = ODD[(row + row // 3) % 3]
        if where == "query":
            query[step.query_start[row], 0, 3] = odd
            continue
        cache = caches[0 if where == "keys" else 1]
        page = cache[table[row, position // PAGE]]
        (page[0] if order == "head" else page[:, 0])[position % PAGE, 3] = odd
    return OddCall(step, query, *caches, RULES[rule], order)


def reference(call):
    """out and lse by the formula, each query and head by itself, over the keys it sees."""
    out = np.zeros((*call.query.shape[:2], DIM))
    lse = np.full(call.query.shape[:2], -np.inf)
    keys, values = (
        each.swapaxes(1, 2) if call.order == "head" else each for each in (call.keys, call.values)
    )
    causal, window = call.rule.get("causal", True), call.rule.get("window", 10**6)
    for row, table in enumerate(call.step.group().table):
        at = np.arange(int(call.step.context[row]))
        k, v = (each[table[at // PAGE], at % PAGE] for each in (keys, values))
        for token in range(*call.step.query_start[row : row + 2].tolist()):
            p = int(call.step.positions[token])
            seen = (at <= p) | (not causal)
            seen &= (at > p - window) | (at < call.rule.get("sink_tokens", 0))
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                out[token, head], lse[token, head] = attended(
                    call.query[token, head], k[seen, shared], v[seen, shared], call.rule
                )
    return out, lse


@np.errstate(all="ignore")
def attended(query, keys, values, rule):
    """One query over the keys it sees."""
    scores = keys @ query / sqrt(DIM)
    if "softcap" in rule:
        scores = rule["softcap"] * np.tanh(scores / rule["softcap"])
    peak = scores.max(initial=-np.inf)
    weights = np.exp(scores - (0 if peak == -np.inf else peak))
    total = weights.sum()
    if total == 0:
        return weights @ values, -np.inf
    return weights @ values / total, peak + np.log(total)
