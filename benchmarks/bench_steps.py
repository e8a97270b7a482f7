"""What a step of 256 rows costs, by what the rows do in it: all within a few times of plain decode.

Claim: no kind of step costs more than BOUND times a plain decode step of the same rows. A step is
`extend` and `commit`; sampled ids and accepted counts are drawn before. Each kind runs as many
steps as pages take to turn several times, in several rounds, in turn with the other kinds; of each
step the best round counts, and of these the mean is printed, so that steps in which pages turn are
in it.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from machine import machine_line

from octavo import Attention, Batch, Cache, Plan, Sequence
from octavo.model.layers import LayerKind

BOUND = 10.0
ROWS, TOKENS, STEPS, PAGE_SIZE, DRAFTS, CHUNK = 256, 512, 64, 16, 4, 128
FULL = Attention(1, 1, 1)
ONE: dict[str, LayerKind] = {"full": FULL}
TWO: dict[str, LayerKind] = {"full": FULL, "w": Attention(1, 1, 1, window=128)}
THREE: dict[str, LayerKind] = {**TWO, "v": Attention(1, 1, 1, window=64)}
Turn = Iterator[None]


class Running:
    """A batch of ROWS sequences of about TOKENS tokens that have computed all but the last.

    Args:
        groups: of the cache.
        spread: rows begin at so many different places of a page; 1: in lockstep.
        options: of the cache.
    """

    def __init__(
        self, groups: dict[str, LayerKind] = ONE, spread: int = 16, **options: int
    ) -> None:
        pages = len(groups) * ROWS * 3 * TOKENS // PAGE_SIZE
        plan = Plan.from_pages(pages, PAGE_SIZE, groups)
        self.cache = Cache(plan, max_sequences=ROWS + 8, **options)
        self.random = np.random.default_rng(0)
        self.rows = [self.admit(TOKENS + row % spread) for row in range(ROWS)]
        self.batch: Batch = self.cache.batch(self.rows)

    def admit(self, length: int) -> Sequence:
        """A sequence that has computed its prompt and knows one token more."""
        prompt = self.random.integers(0, 32_000, length, np.int32)
        row = self.cache.admit(prompt, limit=4 * TOKENS)
        self.cache.commit(self.cache.extend(row, length), [1])
        return row

    def ids(self, count: int = ROWS) -> Any:
        """Sampled ids."""
        return self.random.integers(0, 32_000, count, np.int32)


def decode(run: Running) -> Turn:
    """One token a row."""
    while True:
        ids = run.ids()
        yield
        run.cache.commit(run.cache.extend(run.batch), ids)
        yield


def sit_out(run: Running) -> Turn:
    """Half of the rows, others each time."""
    while True:
        counts, ids = run.random.integers(0, 2, ROWS), run.ids()
        yield
        run.cache.commit(run.cache.extend(run.batch, counts), ids)
        yield


def speculate(run: Running) -> Turn:
    """DRAFTS beside the token known, of which any number is accepted."""
    while True:
        kept = run.random.integers(1, DRAFTS + 2, ROWS)
        flat = run.ids(int(kept.sum()))
        yield
        step = run.cache.extend(run.batch, 1 + DRAFTS, ahead=DRAFTS)
        run.cache.commit(step, (flat, kept), kept=kept)
        yield


def prefill(run: Running) -> Turn:
    """One row in CHUNKs of a new prompt of TOKENS beside the others, which decode."""
    while True:
        run.batch.remove(run.rows[0])
        run.cache.release(run.rows.pop(0))
        run.rows.append(run.cache.admit(run.ids(TOKENS), limit=4 * TOKENS))
        run.batch.add(run.rows[-1])
        for _ in range(TOKENS // CHUNK):
            counts, ids = np.ones(ROWS, np.int64), run.ids()
            counts[run.rows[-1]._row] = CHUNK
            yield
            run.cache.commit(run.cache.extend(run.batch, counts), ids)
            yield


def move(run: Running) -> Turn:
    """One row leaves the batch and comes back before each decode step."""
    while True:
        row, ids = run.rows[int(run.random.integers(ROWS))], run.ids()
        yield
        run.batch.remove(row)
        run.batch.add(row)
        run.cache.commit(run.cache.extend(run.batch), ids)
        yield


KINDS: dict[str, Callable[[], Turn]] = {
    "decode": lambda: decode(Running()),
    "decode in lockstep": lambda: decode(Running(spread=1)),
    "decode, a window": lambda: decode(Running(TWO)),
    "decode, a window, lockstep": lambda: decode(Running(TWO, 1)),
    "decode, two windows, lockstep": lambda: decode(Running(THREE, 1)),
    "decode, events": lambda: decode(Running(on_event=lambda event: None)),  # type: ignore[arg-type]
    "half sit out": lambda: sit_out(Running()),
    "a chunk beside decode": lambda: prefill(Running()),
    "speculation 1 + 4": lambda: speculate(Running()),
    "speculation 1 + 4, a window": lambda: speculate(Running(TWO, rollback=4)),
    "a row moves, decode": lambda: move(Running()),
}


def steps_us(turn: Turn) -> Any:
    """Microseconds of each of STEPS steps."""
    times = []
    gc.collect()
    for _ in range(STEPS):
        next(turn)
        start = time.perf_counter_ns()
        next(turn)
        times.append((time.perf_counter_ns() - start) / 1000)
    return np.array(times)


def main() -> int:
    """Print the table; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    rounds = parser.parse_args().rounds
    print(machine_line("numpy", "octavo"))
    print(f"{ROWS} rows of {TOKENS} tokens, page size {PAGE_SIZE}; extend + commit")
    turns = {name: kind() for name, kind in KINDS.items()}
    runs = [{name: steps_us(turn) for name, turn in turns.items()} for _ in range(rounds)]
    best = {name: float(np.min([run[name] for run in runs], 0).mean()) for name in turns}
    print(f"{'step':<32}{'us':>9}{'us a row':>10}{'x decode':>10}")
    for name, us in best.items():
        print(f"{name:<32}{us:9.1f}{us / ROWS:10.2f}{us / best['decode']:10.1f}")
    worst = max(best.values()) / best["decode"]
    print(f"dearest / decode: {worst:.1f}, at most {BOUND} allowed")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
