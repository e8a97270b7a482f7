"""What Storage costs beside the bare torch indexing it is made of.

Medians of interleaved rounds of CPU time, one thread. 8 heads of 128, pages of 16, one layer.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from machine import machine_line

import octavo
from octavo.storage import Storage

ROUNDS = 15


def timed(run: Callable[[], object], calls: int) -> float:
    """Microseconds of CPU time a call."""
    start = time.thread_time()
    for _ in range(calls):
        run()
    return (time.thread_time() - start) / calls * 1e6


def both(ours: Callable[[], object], bare: Callable[[], object], calls: int) -> str:
    """Medians of both, measured in turn."""
    pairs = [(timed(ours, calls), timed(bare, calls)) for _ in range(ROUNDS)]
    left, right = (median(side) for side in zip(*pairs, strict=True))
    return f"{left:9.1f} {right:9.1f} {left / right:6.2f}"


def write(store: Storage, tokens: int) -> str:
    """A write of so many tokens, and index_put_ on the same views."""
    slots = np.random.default_rng(0).permutation(np.arange(16, 16 * store.plan.num_pages))[:tokens]
    index = store.index(slots)
    key = torch.randn(tokens, 8, 128).to(store.dtype)
    views = [v if store.plan.order == "token" else v.transpose(1, 2) for v in store.layer(0)[:2]]

    def bare() -> None:
        for view in views:
            view.index_put_((index.pages, index.offsets), key)

    calls = 500 if tokens <= 64 else 20
    return both(lambda: store.write(0, key, key, index), bare, calls)


def gather(store: Storage, pages: int) -> str:
    """A gather of so many whole pages, and fancy indexing of the same pages."""
    ids = store.page_index(
        np.random.default_rng(0).permutation(store.plan.num_pages - 1)[:pages] + 1
    )

    def bare() -> None:
        for view in store.layer(0)[:2]:
            view[ids.pages]

    return both(lambda: store.gather(0, ids), bare, 20)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(machine_line("torch", "numpy"))
    print("\nus of CPU a call            octavo      bare  ratio")
    spec = octavo.ModelSpec("bench", (octavo.Attention(8, 128, 128),), 4096)
    for dtype in ("bf16", "fp32"):
        for order in ("token", "head"):
            store = Storage(octavo.plan(spec, "128MiB", page_size=16, dtype=dtype, order=order))
            for tokens in (1, 8, 64, 1024):
                print(f"write  {dtype} {order:5} {tokens:5}   {write(store, tokens)}")
            print(f"gather {dtype} {order:5} {64:5}   {gather(store, 64)}")


if __name__ == "__main__":
    main()
