"""Claim: what the engine does beside the model takes less than 5 % of a decode step.

Method: SmolLM2-135M decodes rows of 128 known tokens, each a text of its own, for one kind of
request at a time. Timed are steps without prompts: the scheduler, the cache (places for the new
tokens, and their commit), sampling, and the rest (bookkeeping, listeners, waking who waits), which
is what the model's forward pass leaves of `Engine.step`. CPU time of one thread, the median of the
steps. The share is of a whole step, once by the forward pass in fp32 and once by that with linear
layers in int4; the pass is the same for all kinds, so that of greedy rows stands for all.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from machine import machine_line

import octavo
from octavo.cache.cache import Cache
from octavo.checkpoints.loading import LoadedModel, load
from octavo.engine import Engine, SamplingParams, core
from octavo.engine.runner import Runner
from octavo.scheduling import Scheduler

SHARE = 0.05
ROWS = (1, 4, 16, 64)
CONTEXT = 128
PARTS = ("schedule", "cache", "sample", "rest")
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, seed": {"temperature": 0.8, "seed": 1},
    "top_k 50, top_p 0.9, seed": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "three penalties": {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
    "logprobs 5": {"logprobs": 5},
    "a regex": {"regex": "[A-Za-z ,.]{400,}"},
}
TEXT = (
    "The keeper wrote in his log every evening. On Monday the wind came from the north and two "
    "boats stayed in the harbour. On Tuesday it rained until noon, and a crate of oranges washed "
    "ashore. On Wednesday the lamp was cleaned and the glass polished. On Thursday nobody passed. "
)


@contextmanager
def timed(owner: Any, name: str, spent: dict[str, float], part: str) -> Iterator[None]:
    """Add the CPU time of every call of ``owner.name`` to ``spent[part]``."""
    call: Callable[..., Any] = getattr(owner, name)

    def wrapper(*args: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return call(*args, **options)
        finally:
            spent[part] += time.process_time() - start

    with patch.object(owner, name, wrapper):
        yield


def measure(
    loaded: LoadedModel, quantise: Any, rows: int, params: dict[str, Any], steps: int
) -> dict[str, float]:
    """Milliseconds of each part of a decode step, and of the forward pass, by its name."""
    plan = octavo.plan(loaded.spec, "1GiB", dtype=loaded.dtype, order="head")
    asked = SamplingParams(max_tokens=steps + 2, **params)
    parts = defaultdict[str, list[float]](list)
    spent = defaultdict[str, float](float)
    with (
        Engine(loaded.model, plan, quantise=quantise, tokenizer=loaded.tokenizer) as engine,
        timed(Runner, "forward", spent, "forward"),
        timed(Scheduler, "schedule", spent, "schedule"),
        timed(Cache, "extend", spent, "extend"),
        timed(Cache, "commit", spent, "commit"),
        timed(core, "sample_accepted", spent, "sample"),
    ):
        for row in range(rows):
            ids = loaded.tokenizer(f"{row}: " + TEXT * 3).input_ids[:CONTEXT]
            engine.submit(ids, asked)
        while engine.stats.generated_tokens < rows:
            engine.step()
        for _ in range(steps):
            spent.clear()
            start = time.process_time()
            engine.step()
            whole = time.process_time() - start
            parts["forward"].append(spent["forward"])
            parts["schedule"].append(spent["schedule"] - spent["extend"])
            parts["cache"].append(spent["extend"] + spent["commit"])
            parts["sample"].append(spent["sample"])
            others = ("forward", "schedule", "commit", "sample")
            parts["rest"].append(whole - sum(spent[name] for name in others))
    return {name: 1e3 * median(times) for name, times in parts.items()}


def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line("torch", "transformers"))
    print(f"SmolLM2-135M, 1 thread, milliseconds of CPU time, median of {options.steps} steps")
    loaded = load("smollm2-135m", dtype="fp32")
    missed = []
    for rows in options.rows:
        full, int4 = (
            measure(loaded, quantise, rows, {}, options.steps)["forward"]
            for quantise in (None, "int4")
        )
        print(
            f"\n{rows} row{'s' * (rows != 1)}: forward pass in fp32 {full:.1f}, in int4 {int4:.1f}"
        )
        print(f"{'':26}" + "".join(f"{part:>9}" for part in (*PARTS, "together", "fp32", "int4")))
        for kind in options.kinds:
            found = measure(loaded, "int4", rows, KINDS[kind], options.steps)
            ours = sum(found[part] for part in PARTS)
            shares = [ours / (ours + forward) for forward in (full, int4)]
            line = "".join(f"{found[part]:9.3f}" for part in PARTS) + f"{ours:9.3f}"
            print(f"{kind:26}{line}" + "".join(f"{share:9.1%}" for share in shares), flush=True)
            if max(shares) >= SHARE:
                missed.append(f"{kind} at {rows}")
    print(
        f"\nless than {SHARE:.0%} of every step:", "; ".join(["not", *missed]) if missed else "yes"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
