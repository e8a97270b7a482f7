"""Request traces, and their replay through a cache: one request at a time, outputs ignored."""

import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo import Cache, Plan

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
PAGE_SIZE = 512
CAPACITIES = (1_000, 3_000, 10_000, 30_000, 50_000, 100_000, None)
LRU_RATES = {
    "conversation": (4.45, 6.53, 21.16, 32.57, 35.46, 36.37, 36.64),
    "synthetic": (8.41, 19.06, 42.39, 62.42, 63.96, 63.96, 63.96),
}
"""Hit rates, in per cent of blocks, of an exact simulation of LRU at CAPACITIES blocks."""


def read_trace(name: str) -> list[NDArray[np.int32]]:
    """The ids of each request of a trace, one for 512 tokens and all before them."""
    raw = np.frombuffer(lzma.decompress((TRACES / f"{name}.xz").read_bytes()), "<i4")
    count = int(raw[0])
    ids = np.cumsum(raw[1 + count :], dtype=np.int32)
    return np.split(ids, np.cumsum(raw[1:count])) if count else []


def replay(
    requests: list[NDArray[np.int32]], blocks: int | None, policy: str = "lru"
) -> tuple[float, Cache]:
    """Hit rate in per cent of all ids with room for ``blocks`` of them, and the cache as it ends.

    A prompt is 512 equal tokens for each id and one token of its own, which takes a page more.

    Args:
        blocks: pages beside the open one; None: as many as there are ids.
    """
    total = sum(ids.size for ids in requests)
    pages = (total if blocks is None else blocks) + 1
    cache = Cache(Plan.from_pages(pages + 1, PAGE_SIZE), max_sequences=1, policy=policy)
    hits = 0
    for ids in requests:
        tokens = np.zeros(ids.size * PAGE_SIZE + 1, np.int32)
        tokens[:-1].reshape(-1, PAGE_SIZE)[:] = ids[:, None]
        sequence = cache.admit(tokens)
        hits += sequence.cached // PAGE_SIZE
        cache.commit(cache.extend(sequence, tokens.size - sequence.computed))
        cache.release(sequence)
    return 100 * hits / total, cache
