"""Claim: on real request traces the hit rates of LRU are those of an exact simulation, within 0.2
points, and SLRU is above LRU somewhere and below it by no more than 0.5 points anywhere.

Both Mooncake traces go through a real cache, page size 512, one request at a time, at several
capacities. `--quick` leaves out all but three of them.
"""

import argparse
import sys
import time

from machine import machine_line
from traces import CAPACITIES, LRU_RATES, read_trace, replay

CLOSE, BELOW = 0.2, 0.5


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three capacities of a trace")
    quick = parser.parse_args().quick
    print(machine_line("numpy", "octavo"))
    print("trace             blocks  simulated     lru    slru   gain  seconds")
    gains, off = [], []
    for name, rates in LRU_RATES.items():
        requests = read_trace(name)
        for blocks, simulated in list(zip(CAPACITIES, rates, strict=True))[:: 3 if quick else 1]:
            began = time.process_time()
            lru, slru = (replay(requests, blocks, policy)[0] for policy in ("lru", "slru"))
            seconds = (time.process_time() - began) / 2
            gains.append(slru - lru)
            off.append(abs(lru - simulated))
            size = "unbounded" if blocks is None else f"{blocks:,}"
            row = f"{name:<14}{size:>10}{simulated:11.2f}{lru:8.2f}{slru:8.2f}{slru - lru:+7.2f}"
            print(f"{row}{seconds:9.1f}", flush=True)
    print(f"lru off by at most {max(off):.2f} points, {CLOSE} allowed")
    print(f"slru - lru from {min(gains):+.2f} to {max(gains):+.2f} points, -{BELOW} allowed")
    holds = max(off) <= CLOSE and min(gains) >= -BELOW and max(gains) > 0
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
