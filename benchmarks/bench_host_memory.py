"""Urgent requests take the pages of others: those are computed again, or copied back.

Claim: with host memory the engine gives the same tokens, computes no position twice, and takes less
CPU time than where preempted requests are computed again; and where nobody is preempted it takes
no more than 5 per cent more.

Method: SmolLM2-135M in fp32, one thread, CPU time. Six prompts of 512 random ids, answers of 96
tokens, greedy; meanwhile a prompt of 512 of a higher priority comes every 12 steps, eight of them,
for 8 tokens. The pool has 3,648 tokens, what the six take, and then room for all. Rates are
measured by the engine itself. Both ways in turn, the best of the rounds. Peak: most bytes of pages
in host memory after a step.
"""

import argparse
import time
from typing import Any, NamedTuple

import torch
from machine import machine_line

import octavo
from octavo.checkpoints.loading import load
from octavo.engine import Engine, HostMemory, SamplingParams

LONG, URGENT, PROMPT, PAGE = 6, 8, 512, 16
NEW, SHORT, EVERY = 96, 8, 12  # tokens of answers, of urgent ones, and steps between those
POOLS = (3648, 8192)  # tokens
SLOWER = 1.05  # at most, where nobody is preempted
WAYS = {"computed again": None, "copied back": HostMemory("1GiB")}


class Run(NamedTuple):
    """What one engine did for all prompts."""

    tokens: list[list[int]]
    seconds: float
    stats: Any
    preemptions: int
    peak: int
    rates: Any


def plan(loaded: Any, tokens: int) -> octavo.Plan:
    """Pages for so many tokens."""
    made = {"page_size": PAGE, "dtype": loaded.dtype, "order": "head"}
    memory = octavo.memory_for(loaded.spec, sequences=1, length=tokens, **made)
    return octavo.plan(loaded.spec, memory, **made)


def run(loaded: Any, prompts: list[list[int]], tokens: int, host: HostMemory | None) -> Run:
    """All prompts, the urgent ones each in its step."""
    params = [SamplingParams(max_tokens=n, min_tokens=n) for n in (NEW, SHORT)]
    with Engine(loaded.model, plan(loaded, tokens), watermark=0.0, host=host) as engine:
        peak, began = 0, time.process_time()
        requests = [engine.submit(prompt, params[0]) for prompt in prompts[:LONG]]
        coming = prompts[LONG:]
        while engine.step() or coming:
            held = engine._core.scheduler.host
            peak = max(peak, held.used_bytes if held is not None else 0)
            if coming and engine.stats.steps % EVERY == 0:
                requests.append(engine.submit(coming.pop(), params[1], priority=1))
        seconds = time.process_time() - began
        outputs = [request.output for request in requests]
        preemptions = engine.cache.stats().preemptions
        return Run(outputs, seconds, engine.stats, preemptions, peak, engine.rates)


def compare(loaded: Any, prompts: list[list[int]], tokens: int, rounds: int) -> bool:
    """Print a line for each way in a pool of so many tokens; whether the claim holds."""
    best: dict[str, Run] = {}
    for _ in range(rounds):
        for way, host in WAYS.items():
            found = run(loaded, prompts, tokens, host)
            if way not in best or found.seconds < best[way].seconds:
                best[way] = found
    for way, found in best.items():
        stats = found.stats
        print(
            f"{tokens:>6,}  {way:<16}{found.seconds:>7.2f}{found.preemptions:>11,}"
            f"{stats.computed_tokens:>10,}{stats.restored_tokens:>8,}{found.peak / 2**20:>10.1f}",
            flush=True,
        )
    again, back = best.values()
    rates, token = back.rates, plan(loaded, tokens).bytes_per_token
    print(
        f"        {rates.copy_rate / 1e9:.2f} GB/s copied, {rates.prefill_rate:.0f} tokens/s "
        f"computed: {2e3 * token / rates.copy_rate:.3f} ms to copy a token of {token:,} bytes out "
        f"and back, {1e3 / rates.prefill_rate:.2f} ms to compute it"
    )
    faster = back.seconds < again.seconds * (1 if again.preemptions else SLOWER)
    return again.tokens == back.tokens and faster


def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    loaded = load("smollm2-135m", dtype="fp32")
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(100, 49000, (LONG + URGENT, PROMPT), generator=generator).tolist()
    print(machine_line("torch", "transformers"))
    print(
        f"SmolLM2-135M in fp32, 1 thread, CPU time; {LONG} prompts of {PROMPT} tokens, {NEW} new "
        f"ones each, and {URGENT} urgent ones, {SHORT} new ones each; best of {rounds} rounds"
    )
    print("  pool  lost pages are        s  preempted  computed  copied  peak MiB")
    held = [compare(loaded, prompts, tokens, rounds) for tokens in POOLS]
    print("tokens equal, less time where pages are lost:", "yes" if all(held) else "no")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
