"""Claim: a decode step costs the same in a pool of a thousand pages and in one of a million, and at
a thousand tokens of context and at a million, within 25 %.

Also prints how admission, finishing and steps grow with page size, sequences, tokens and pages, one
of them changed at a time. Times are processor time, the best of rounds that take the sizes in turn.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from contender_octavo import Octavo
from machine import machine_line
from workloads import prompt, timed

BOUND = 1.25
STEPS = 64


class Running(Octavo):
    """octavo with sequences that decode.

    Args:
        pages: usable pages; None: as many as the sequences take, and some.
    """

    def __init__(
        self, *, sequences: int, tokens: int, page_size: int = 16, pages: int | None = None
    ) -> None:
        super().__init__(page_size, sequences + 1)
        self.chance = np.random.default_rng(sequences + tokens + page_size)
        self.count, self.tokens = sequences, tokens
        room = -(-(tokens + 16 * STEPS) // page_size) * (sequences + 1)
        self.fresh(room if pages is None else pages)
        lengths = (tokens - self.chance.integers(0, min(page_size, tokens), sequences)).tolist()
        self.handles = [self.admit(prompt(self.chance, length)) for length in lengths]
        self.start(self.handles)
        self.sampled = [prompt(self.chance, sequences) for _ in range(STEPS)]

    def step_us(self) -> float:
        """One of STEPS decode steps, on average."""
        return timed(self._steps) / STEPS

    def _steps(self) -> None:
        for tokens in self.sampled:
            self.step(tokens)

    def admit_us(self) -> float:
        """Admit one more prompt, of which nothing is known."""
        request = prompt(self.chance, self.tokens)
        began = time.process_time()
        self.extra = self.admit(request)
        return (time.process_time() - began) * 1e6

    def finish_us(self) -> float:
        """Finish it."""
        began = time.process_time()
        self.finish(self.extra)
        return (time.process_time() - began) * 1e6


def table(title: str, made: dict[int, Callable[[], Running]], rounds: int) -> dict[int, float]:
    """Print one table; returns microseconds of a step by size."""
    print(f"{title:<22}{'step':>10}{'a sequence':>12}{'admit':>12}{'finish':>10}   us")
    best: dict[int, list[float]] = {}
    running = {size: make() for size, make in made.items()}
    for _ in range(rounds):
        for size, cache in running.items():
            now = [cache.step_us()]
            pairs = [(cache.admit_us(), cache.finish_us()) for _ in range(3)]
            now += [min(side) for side in zip(*pairs, strict=True)]
            best[size] = list(map(min, zip(best.get(size, now), now, strict=True)))
    for size, (step, admit, finish) in best.items():
        each = step / running[size].count
        print(f"{size:>22,}{step:10.1f}{each:12.2f}{admit:12.1f}{finish:10.1f}", flush=True)
    return {size: times[0] for size, times in best.items()}


def verdict(what: str, steps: dict[int, float]) -> bool:
    """Print the spread of a table's steps; whether it is within BOUND."""
    ratio = max(steps.values()) / min(steps.values())
    print(f"step, dearest / cheapest over {what}: {ratio:.2f}, at most {BOUND} allowed")
    return ratio <= BOUND


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a table (default 6)")
    rounds = parser.parse_args().rounds
    print(machine_line("numpy", "octavo"))
    print("256 sequences of 1,152 tokens, page size 16, where nothing else is said")
    sizes = (1, 4, 16, 64, 256)
    table(
        "page size",
        {n: lambda n=n: Running(sequences=256, tokens=1_152, page_size=n) for n in sizes},  # type: ignore[misc]
        rounds,
    )
    counts = (1, 4, 16, 64, 256, 1_024, 4_096)
    table(
        "sequences of 256",
        {n: lambda n=n: Running(sequences=n, tokens=256) for n in counts},  # type: ignore[misc]
        rounds,
    )
    lengths = (1_024, 16_384, 131_072, 1_048_576)
    tokens = table(
        "tokens, 4 sequences",
        {n: lambda n=n: Running(sequences=4, tokens=n) for n in lengths},  # type: ignore[misc]
        rounds,
    )
    pools = (1_000, 10_000, 100_000, 1_000_000)
    pages = table(
        "pages, 16 sequences",
        {n: lambda n=n: Running(sequences=16, tokens=256, pages=n) for n in pools},  # type: ignore[misc]
        rounds,
    )
    holds = [verdict("tokens", tokens), verdict("pages", pages)]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
