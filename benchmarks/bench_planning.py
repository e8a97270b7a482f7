"""Claim: 300 models are planned in under a second, and ten million pages in under 0.2 s.

Models of one group and of several in turn, each with another memory and longest sequence; the best
of several rounds of all 300. The large pool is that of the first packed model.
"""

import argparse
import sys
import time
from collections.abc import Callable

from machine import machine_line
from planned_models import GPT_OSS_20B, MIXED, PLAIN

import octavo

MODELS, PAGES, ALL_S, LARGE_S = 300, 10_000_000, 1.0, 0.2


def best_of(rounds: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def all_models() -> None:
    """One plan each, none like another."""
    specs = [*MIXED, *PLAIN]
    for number in range(MODELS):
        spec = specs[number % len(specs)]
        octavo.plan(spec, f"{16 + number}GiB", max_length=4096 + 16 * number)


def large() -> octavo.Plan:
    """A plan of at least so many pages of a group."""
    return octavo.plan(GPT_OSS_20B, PAGES * 12 * 8 * 128 * 16 * 2)


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    rounds = parser.parse_args().rounds
    print(machine_line("numpy", "octavo"))
    each = {
        spec.name: best_of(rounds, lambda s=spec: octavo.plan(s, "16GiB"))
        for spec in (*MIXED, *PLAIN)
    }  # type: ignore[misc]
    for name, seconds in each.items():
        print(f"{name:<20} {seconds * 1e3:6.2f} ms")
    together, pages = best_of(rounds, all_models), large()
    count, alone = max(map(pages.ids, pages.groups)), best_of(rounds, large)
    print(f"{MODELS} models: {together:.3f} s, at most {ALL_S} allowed")
    print(f"{count:,} pages: {alone:.3f} s, at most {LARGE_S} allowed")
    return 0 if together <= ALL_S and alone <= LARGE_S and count >= PAGES else 1


if __name__ == "__main__":
    sys.exit(main())
