"""``python -m octavo.testing --rules N --seed S``: the stress run, one line of outcome."""

import argparse
import sys
import time

from octavo.testing.stress import stress


def main() -> None:
    """Run it and print what it did; a broken law ends it with a traceback."""
    parser = argparse.ArgumentParser(
        prog="python -m octavo.testing", description="Random rules on small caches."
    )
    parser.add_argument("--rules", type=int, default=20_000, help="rules to run (20000)")
    parser.add_argument("--seed", type=int, default=0, help="any int; equal seeds, equal runs (0)")
    options = parser.parse_args()
    start = time.perf_counter()
    report = stress(options.rules, options.seed)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(report.rules.items()))
    sys.stdout.write(
        f"seed {options.seed}: {options.rules} rules in {time.perf_counter() - start:.1f} s: "
        f"{counts}; {report.hits} tokens hit, {report.evicted} pages evicted; {report.digest}\n"
    )


if __name__ == "__main__":
    main()
