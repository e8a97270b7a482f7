"""A decode step of SmolLM2-135M with the drop-in in place, against DynamicCache's.

Claim: under `attend()` a step takes at most 1.05 of what it takes with DynamicCache for one row,
and no more than with it for eight; tokens are equal.

Method: prompts of 64 tokens, one thread, CPU time, as the machine is shared. Both sides step in
turn, from the same token, and change places every step; medians of all steps but the first two of
each round.
"""

import argparse
import time
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from machine import machine_line
from transformers import DynamicCache

from octavo.checkpoints.loading import load
from octavo.integrations.transformers import OctavoCache

PROMPT, WARM = 64, 2
AIMS = {1: 1.05, 8: 1.0}
"""By rows, the most a step may take of DynamicCache's."""


def run(model: Any, ids: torch.Tensor, columns: int, cache: Any) -> tuple[torch.Tensor, float]:
    """The next token of each row, and seconds of CPU time; ``columns`` with the new ones."""
    mask = torch.ones(len(ids), columns, dtype=torch.int64)
    with cache.attend() if isinstance(cache, OctavoCache) else nullcontext():
        start = time.process_time()
        logits = model(ids, attention_mask=mask, cache=cache, logits_to_keep=1).logits
        seconds = time.process_time() - start
    return logits[:, -1:].argmax(-1), seconds


def measure(model: Any, rows: int, rounds: int, steps: int) -> bool:
    """One line; whether all tokens are equal and the aim is met."""
    times: tuple[list[float], list[float]] = [], []
    cache, equal = OctavoCache.for_model(model, tokens=rows * (PROMPT + steps + 16)), True
    for number in range(rounds):
        chance = torch.Generator().manual_seed(number)
        prompt = torch.randint(100, 49_000, (rows, PROMPT), generator=chance)
        cache.forget()
        sides = DynamicCache(config=model.config), cache
        (now, _), (other, _) = (run(model, prompt, PROMPT, side) for side in sides)
        equal &= torch.equal(now, other)
        for step in range(steps):
            found: dict[int, torch.Tensor] = {}
            for side in (step % 2, 1 - step % 2):
                found[side], seconds = run(model, now, PROMPT + 1 + step, sides[side])
                if step >= WARM:
                    times[side].append(seconds)
            equal &= torch.equal(found[0], found[1])
            now = found[0]
    own, ours = map(median, times)
    print(
        f"{rows:4}{own * 1e3:15.2f}{ours * 1e3:10.2f}{ours / own:8.3f}{AIMS[rows]:7.2f}", flush=True
    )
    return equal and ours <= AIMS[rows] * own


@torch.no_grad()
def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line("torch", "transformers"))
    print(
        f"SmolLM2-135M in fp32, 1 thread, CPU time, prompts of {PROMPT}, "
        f"medians of {options.rounds} rounds of {options.steps} steps in turn, milliseconds"
    )
    print("rows   DynamicCache    octavo   ratio    aim")
    model = load("smollm2-135m", dtype="fp32").model
    held = [measure(model, rows, options.rounds, options.steps) for rows in AIMS]
    print("tokens equal, and the aims are met:", "yes" if all(held) else "no")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
