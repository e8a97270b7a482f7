"""Claim: `import octavo` takes at most 50 ms more than `import numpy`.

Fresh interpreters, NumPy and octavo in turn, each timing its own import statement; the first pair
(cold file caches, bytecode not written yet) is not counted. The verdict goes by the best of each:
noise only ever adds time.
"""

import argparse
import os
import statistics
import subprocess
import sys

from machine import machine_line

BOUND_MS = 50.0


def import_ms(module: str) -> float:
    """Milliseconds that ``import module`` takes in a fresh interpreter."""
    code = (
        "import time; start = time.perf_counter()\n"
        f"import {module}\n"
        "print((time.perf_counter() - start) * 1e3)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    return float(run.stdout)


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="pairs of interpreters (default 15)")
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {"numpy": [], "octavo": []}
    for counted in range(-1, rounds):
        for module, taken in times.items():
            milliseconds = import_ms(module)
            if counted >= 0:
                taken.append(milliseconds)
    print(machine_line("numpy", "octavo"))
    for module, taken in times.items():
        best, median = min(taken), statistics.median(taken)
        print(f"import {module:<7} best {best:6.1f} ms  median {median:6.1f} ms  of {rounds}")
    extra = min(times["octavo"]) - min(times["numpy"])
    print(f"octavo over numpy: {extra:.1f} ms, at most {BOUND_MS:.0f} allowed")
    return 0 if extra <= BOUND_MS else 1


if __name__ == "__main__":
    sys.exit(main())
