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

_MOST = 10**12  # rules or requests: years of them


def main() -> None:
    """Run it and print what it did; a broken law ends it with a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo.testing", description="Random rules on small caches."
    )
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument("--rules", type=_count, default=20_000, help="rules to run (20000)")
    asked.add_argument(
        "--requests", type=_count, help="requests at random for a scheduler, in place of rules"
    )
    parser.add_argument("--seed", type=int, default=0, help="any int; equal seeds, equal runs (0)")
    parser.add_argument("--shape", action="append", help="a shape to run, by name (all of them)")
    options = parser.parse_args()
    unknown = {*(options.shape or ())} - {shape.name for shape in SHAPES}
    if unknown:
        parser.error(f"shapes are: {'; '.join(map(str, SHAPES))}")
    if options.shape and options.requests is not None:
        parser.error("--shape goes with --rules; requests come to pools of any kind")
    shapes = [s for s in SHAPES if options.shape is None or s.name in options.shape]
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


def _count(text: str) -> int:
    """How many rules or requests to run."""
    right = f"a whole number of at least 1, at most {_MOST:,}"
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= _MOST):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {right}")
    return int(text)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    main()
