"""Claim: cost follows what a sequence does, not what is or was around it.

A decode step costs the same within 25 % in a pool of a thousand pages and in one of a million,
packed or not, and at a thousand tokens of context and at a million. After a sequence of a million
tokens has come and gone, steps, admission and finishing of others cost at most 1.1 times as much.
Other verbs cost the same within 25 % beside little and beside much of what is not theirs: rows that
decode, changes no step has read, long chains that are hit or evicted, what was evicted before, and
more (`growth_cases.py`).
Also prints how all three grow with page size, sequences, tokens and pages, one of them changed at a
time. Of each step the slots and what changed in the tables are read. Times are processor time, the
best of rounds that take the sizes in turn.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from contender_octavo import Octavo
from growth_cases import cases
from machine import machine_line
from workloads import prompt, timed

from octavo import Attention, Cache, Plan, Step

BOUND, BOUND_AFTER = 1.25, 1.1
STEPS, PAIRS, LONG, CHUNK = 64, 6, 1 << 20, 1 << 15
AROUND, TIMES = 8, 16  # rounds of a verb, where a table has one; calls in each
FULL, WINDOW = Attention(1, 1, 1), Attention(1, 1, 1, window=128)


class Costs(NamedTuple):
    """Microseconds of one decode step of all, of admitting one more, and of finishing it."""

    step: float
    admit: float
    finish: float


class Decoders(Octavo):
    """octavo with sequences that decode.

    Args:
        pages: usable pages; None: as many as the sequences take, and some.
        packed: pages of each group in a parent: a full and a window group share the pool.
        before: tokens of a sequence that is computed and released before the others come.
    """

    def __init__(
        self,
        *,
        sequences: int,
        tokens: int,
        page_size: int = 16,
        pages: int | None = None,
        packed: Mapping[str, int] | None = None,
        before: int = 0,
    ) -> None:
        super().__init__(page_size, sequences + 1)
        self.packed = packed
        self.chance = np.random.default_rng(sequences + tokens + page_size)
        self.count, self.tokens = sequences, tokens
        room = -(-(tokens + 16 * STEPS) // page_size) * (sequences + 1)
        self.fresh(room if pages is None else pages)
        self._come_and_go(before)
        lengths = (tokens - self.chance.integers(0, min(page_size, tokens), sequences)).tolist()
        self.start([self.admit(prompt(self.chance, length)) for length in lengths])
        self.sampled = [prompt(self.chance, sequences) for _ in range(STEPS)]

    def build(self, pages: int) -> Cache:
        """Of one group, or packed."""
        if self.packed is None:
            return super().build(pages)
        groups = {"full": FULL, "window": WINDOW}
        plan = Plan.from_pages(pages + 1, self.page_size, groups, pages_per_parent=self.packed)
        return Cache(plan, max_sequences=self.max_sequences)

    def _read(self, step: Step) -> None:
        """Slots, and the table's changes: copying a whole table costs what the table holds."""
        self.read = step.slots(), step.delta, step.context, step.positions

    def _come_and_go(self, tokens: int) -> None:
        if tokens:
            cache = self.manager
            sequence = cache.admit(prompt(self.chance, tokens))
            while sequence.computed < tokens:
                cache.commit(cache.extend(sequence, min(CHUNK, tokens - sequence.computed)))
            cache.release(sequence)

    def costs(self) -> Costs:
        """Of one round: the best of PAIRS of admitting and finishing."""
        step = timed(self._steps) / STEPS
        pairs = zip(*(self._come() for _ in range(PAIRS)), strict=True)
        return Costs(step, *map(min, pairs))

    def _steps(self) -> None:
        for tokens in self.sampled:
            self.step(tokens)

    def _come(self) -> tuple[float, float]:
        """One more prompt, of which nothing is known, and its end."""
        request = prompt(self.chance, self.tokens)
        began = time.thread_time()
        extra = self.admit(request)
        middle = time.thread_time()
        self.finish(extra)
        return (middle - began) * 1e6, (time.thread_time() - middle) * 1e6


def table(
    title: str, make: Callable[[int], Decoders], sizes: tuple[int, ...], rounds: int
) -> list[Costs]:
    """Print one table; returns its costs in the order of sizes."""
    print(f"{title:<28}{'step':>10}{'a sequence':>12}{'admit':>12}{'finish':>10}   us")
    running = {size: make(size) for size in sizes}
    found: dict[int, list[Costs]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size, cache in running.items():
            found[size].append(cache.costs())
    best = {size: Costs(*map(min, zip(*costs, strict=True))) for size, costs in found.items()}
    for size, (step, admit, finish) in best.items():
        each = step / running[size].count
        print(f"{size:>28,}{step:10.1f}{each:12.2f}{admit:12.1f}{finish:10.1f}", flush=True)
    return list(best.values())


def spread(what: str, costs: list[Costs]) -> bool:
    """Print the spread of a table's steps; whether it is within BOUND."""
    steps = [cost.step for cost in costs]
    ratio = max(steps) / min(steps)
    print(f"step, dearest / cheapest over {what}: {ratio:.2f}, at most {BOUND} allowed")
    return ratio <= BOUND


def after(costs: list[Costs]) -> bool:
    """Print what a long sequence left behind; whether it is within BOUND_AFTER."""
    ratios = [late / early for early, late in zip(*costs, strict=True)]
    said = ", ".join(f"{n} {ratio:.2f}" for n, ratio in zip(Costs._fields, ratios, strict=True))
    print(f"after {LONG:,} tokens / before: {said}, at most {BOUND_AFTER} allowed")
    return max(ratios) <= BOUND_AFTER


def repeated(verb: Callable[[], object]) -> None:
    """So many calls."""
    for _ in range(TIMES):
        verb()


def beside(rounds: int) -> bool:
    """Print what verbs cost beside little and much of what is not theirs; whether within BOUND."""
    print(f"{'':<84}{'little':>9}{'much':>11}{'us':>9}{'us':>9}{'ratio':>7}")
    holds = True
    for title, small, large, make in cases():
        verbs = {size: make(size) for size in (small, large)}
        found: dict[int, list[float]] = {size: [] for size in verbs}
        for _ in range(AROUND * rounds):
            for size, verb in verbs.items():
                found[size].append(timed(partial(repeated, verb)) / TIMES)
        little, much = (min(found[size]) for size in verbs)
        ratio = much / little
        holds = holds and ratio <= BOUND
        print(f"{title:<84}{small:>9,}{large:>11,}{little:9.1f}{much:9.1f}{ratio:7.2f}", flush=True)
    print(f"dearest / cheapest: at most {BOUND} allowed in each")
    return holds


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a table (default 6)")
    rounds = parser.parse_args().rounds
    print(machine_line("numpy", "octavo"))
    print("256 sequences of 1,152 tokens, page size 16, where nothing else is said")

    def of(title: str, size: str, sizes: tuple[int, ...], **options: Any) -> list[Costs]:
        return table(title, lambda n: Decoders(**{size: n, **options}), sizes, rounds)

    of("page size", "page_size", (1, 4, 16, 64, 256), sequences=256, tokens=1_152)
    of("sequences of 256", "sequences", (1, 4, 16, 64, 256, 1_024, 4_096), tokens=256)
    lengths, pools = (1_024, 16_384, 131_072, LONG), (1_000, 10_000, 100_000, 1_000_000)
    tokens = of("tokens, 4 sequences", "tokens", lengths, sequences=4)
    pages = of("pages, 16 sequences", "pages", pools, sequences=16, tokens=256)
    parents = of(
        "parents of 1 and 4 pages, 16",
        "pages",
        pools,
        sequences=16,
        tokens=256,
        packed={"full": 1, "window": 4},
    )
    history = of(
        "tokens gone before, 16", "before", (0, LONG), sequences=16, tokens=1_152, pages=100_000
    )
    holds = [spread("tokens", tokens), spread("pages", pages), spread("parents", parents)]
    holds += [after(history), beside(rounds)]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
