"""Claim: 12,031 conversations of 148 million tokens are replayed at a page size of 16 in under two
minutes on one core, and at 512 both Mooncake traces hit as often as an exact simulation says.

Serial replays on the real cache: at page size 512 every capacity of both traces, at 16 as many
tokens. Then generated requests under the model of time, with its steps a second. `--quick` leaves
out all but three capacities of a trace.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
from machine import machine_line
from traces import CAPACITIES, LRU_RATES, read_trace

from octavo import Plan
from octavo.simulation import Run, Setting, TimeModel, Trace, TraceRequest, generate, replay, serve

SECONDS, CLOSE = 120, 0.005


def trace_of(name: str) -> Trace:
    """A trace of tests/data/traces; lengths are whole blocks, times are left out there."""
    requests = [
        TraceRequest(number, 0.0, 512 * ids.size, 1, blocks=(2 * ids + 1).astype(np.int32))
        for number, ids in enumerate(read_trace(name))
    ]
    return Trace(name, "mooncake", requests)


def serial(trace: Trace, page_size: int, blocks: int | None) -> Run:
    """A replay with room for ``blocks`` blocks and the open page; prints a row."""
    pages = (
        trace.most_pages(page_size, serial=True) if blocks is None else blocks * 512 // page_size
    )
    run = replay(trace, Setting(Plan.from_pages(pages + 2, page_size)))
    size = "unbounded" if blocks is None else f"{blocks:,}"
    rate, tokens = 100 * run.to_dict()["hit_rate_pages"], run.whole.prompt_tokens
    print(
        f"{trace.name:<14}{page_size:>9}{size:>12}{rate:>8.2f}{run.seconds:>9.1f}"
        f"{tokens / run.seconds:>15,.0f}{len(trace.requests) / run.seconds:>13,.0f}",
        flush=True,
    )
    return run


def curves(quick: bool) -> float:  # noqa: FBT001, a script's own switch
    """Both traces at page size 512; the largest distance from what is published, in points."""
    off = [0.0]
    for name, rates in LRU_RATES.items():
        trace = trace_of(name)
        for blocks, published in list(zip(CAPACITIES, rates, strict=True))[:: 3 if quick else 1]:
            rate = 100 * serial(trace, 512, blocks).to_dict()["hit_rate_pages"]
            off.append(abs(round(rate, 2) - published))
    return max(off)


def timed() -> None:
    """Generated requests under the model of time, with one replica and with four."""
    print("\nworkload       replicas  requests  seconds     tokens/s   requests/s")
    for name, replicas in (("chat", 1), ("system-prompt", 4)):
        setting = Setting(Plan.from_pages(4001, 16), replicas=replicas, router="prefix")
        run = serve(generate(name, 1000), setting, TimeModel())
        tokens = run.whole.prompt_tokens + run.whole.output_tokens
        print(
            f"{name:<14}{replicas:>9}{len(run.jobs):>10,}{run.seconds:>9.1f}"
            f"{tokens / run.seconds:>13,.0f}{len(run.jobs) / run.seconds:>13,.0f}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three capacities of a trace")
    quick = parser.parse_args(arguments).quick
    print(machine_line("numpy", "octavo"))
    print("trace         page size      blocks   hit %  seconds       tokens/s   requests/s")
    off = curves(quick)
    conversation = trace_of("conversation")
    seconds = max(serial(conversation, 16, blocks).seconds for blocks in (10_000, None))
    timed()
    print(f"\nhit rates off by at most {off:.2f} points, {CLOSE} allowed")
    print(f"page size 16: at most {seconds:.1f} s, {SECONDS} allowed")
    return 0 if off <= CLOSE and seconds <= SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
