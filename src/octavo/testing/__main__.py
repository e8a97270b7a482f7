"""``python -m octavo.testing --rules N --seed S``: the stress run, a few lines of outcome.

With ``--requests N`` it is traffic for a scheduler instead.
"""

import argparse
import sys
import time
from collections import Counter

from octavo.testing.shapes import SHAPES
from octavo.testing.stress import stress
from octavo.testing.traffic import traffic


def main() -> None:
    """Run it and print what it did; a broken law ends it with a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo.testing", description="Random rules on small caches."
    )
    parser.add_argument("--rules", type=int, default=20_000, help="rules to run (20000)")
    parser.add_argument(
        "--requests", type=int, help="requests at random for a scheduler, in place of rules"
    )
    parser.add_argument("--seed", type=int, default=0, help="any int; equal seeds, equal runs (0)")
    parser.add_argument("--shape", action="append", help="a shape to run, by name (all of them)")
    options = parser.parse_args()
    shapes = [s for s in SHAPES if options.shape is None or s.name in options.shape]
    if not shapes:
        parser.error(f"shapes are: {'; '.join(map(str, SHAPES))}")
    start = time.perf_counter()
    if options.requests is not None:
        counts = traffic(options.requests, options.seed)
        seconds = time.perf_counter() - start
        sys.stdout.write(
            f"seed {options.seed}: {options.requests} requests in {seconds:.1f} s\n"
            f"done: {_listed(counts)}\n"
        )
        return
    report = stress(options.rules, options.seed, shapes)
    seconds = time.perf_counter() - start
    sys.stdout.write(
        f"seed {options.seed}: {options.rules} rules in {seconds:.1f} s, "
        f"{options.rules / seconds:.0f} a second\n"
        f"rules: {_listed(report.rules)}\ndone: {_listed(report.counts)}\n{report.digest}\n"
    )


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
