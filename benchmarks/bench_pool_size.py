"""Claim: a decode step at 300 tokens of context costs the same, within 5 %, in a pool of 512 tokens
and in one of 32,768, because cost follows the tokens that exist, not the capacity.

One model, two engines, one sequence each; single decode steps of the two in turn, in one process,
with the context going from 300 to 300 + rounds. The verdict goes by the ratio of the medians.
"""

import argparse
import statistics
import sys
import time

import torch
from machine import machine_line

import octavo
from octavo.checkpoints.loading import LoadedModel, load
from octavo.engine import Engine, SamplingParams

CONTEXT = 300
POOLS = (512, 32_768)
BOUND = 1.05


def start(loaded: LoadedModel, tokens: int, rounds: int, dtype: str) -> Engine:
    """An engine with a pool of ``tokens`` and one sequence of CONTEXT tokens that is decoding."""
    width = octavo.model.dtypes.dtype(dtype).bytes
    row = sum(layer.elements_per_token for layer in loaded.spec.layers) * width
    plan = octavo.plan(loaded.spec, (tokens + 16) * row, dtype=dtype, order="head")
    assert plan.tokens == tokens, plan.tokens
    engine = Engine(loaded.model, plan)
    text = "The history of the printing press begins with a sheet of paper. " * 40
    prompt = loaded.tokenizer.encode(text)[: CONTEXT - 1]
    engine.submit(prompt, SamplingParams(max_tokens=rounds + 12))
    for _ in range(6):  # the prompt, then steps that warm up
        engine.step()
    return engine


def step_ms(engine: Engine) -> float:
    """Milliseconds of one decode step."""
    began = time.perf_counter()
    engine.step()
    return (time.perf_counter() - began) * 1e3


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.split(",")[0])
    parser.add_argument("--rounds", type=int, default=150, help="steps of each pool (default 150)")
    parser.add_argument("--dtype", default="bf16", help="element type (default bf16)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded = load("smollm2-135m", options.dtype)
    engines = {pool: start(loaded, pool, options.rounds, options.dtype) for pool in POOLS}
    times: dict[int, list[float]] = {pool: [] for pool in POOLS}
    for turn in range(options.rounds):
        for pool in POOLS if turn % 2 else POOLS[::-1]:
            times[pool].append(step_ms(engines[pool]))
    print(machine_line("numpy", "torch", "transformers", "octavo"))
    print(f"SmolLM2-135M {options.dtype}, page size 16, {options.threads} threads, batch 1")
    for pool, taken in times.items():
        best, median = min(taken), statistics.median(taken)
        print(f"pool {pool:>6} tokens  best {best:6.2f} ms  median {median:6.2f} ms  a step")
    small, large = (statistics.median(times[pool]) for pool in POOLS)
    print(f"large / small: {large / small:.3f}, at most {BOUND} allowed")
    return 0 if large / small <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
