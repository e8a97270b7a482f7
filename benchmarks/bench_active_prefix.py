"""Claim: a step costs what its prefix costs: capacity 32,768 is no dearer than 1,024, within 5 %.

A decoder of SmolLM2-135M's shape with random weights, a prompt of 234 tokens, one row, one thread.
On one side static caches of full capacity behind a mask, with heads repeated for their group, or
taken as query rows; on the other `octavo.ActivePrefixCache`: exact in eager mode, in buckets of 256
under torch.compile. Same weights, same tokens; steps are taken in turn. The verdict goes by the
best step of each, in CPU time of the thread: noise only ever adds to it. How many times faster than
the full caches octavo is, how often each was compiled, what its keys and values take, and whether
all chose the same tokens is printed for each dtype. Compiled steps need a C++ compiler, and
minutes.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import machine_line
from small_decoder import HEAD_DIM, KV_HEADS, LAYERS, VOCAB, Decoder, FullCache

from octavo.active_prefix.cache import ActivePrefixCache

PROMPT, CAPACITY, SMALL, BUCKET = 234, 32_768, 1_024, 256
BOUND = 1.05
SHARE = {"full": 8, f"octavo {CAPACITY}": 1, f"octavo {SMALL}": 1}  # steps: one in so many rounds
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Step = Callable[[torch.Tensor, Any], torch.Tensor]


def active(capacity: int, dtype: torch.dtype, bucket: int = 1) -> ActivePrefixCache:
    """octavo's side."""
    return ActivePrefixCache(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        capacity=capacity,
        dtype=dtype,
        bucket=bucket,
    )


class Run:
    """One side on its way: a cache after the prompt, the next token, the times of its steps.

    Args:
        model: runs the prompt, eager.
        step: the function timed, the model itself or compiled.
        cache: empty.
        prompt: token ids, [1, PROMPT].
    """

    def __init__(self, model: Decoder, step: Step, cache: Any, prompt: torch.Tensor) -> None:
        self.step, self.cache = step, cache
        self.token = model(prompt, cache.begin(PROMPT)).argmax(-1, keepdim=True)
        self.tokens: list[int] = []
        self.ms: list[float] = []

    def take(self, *, counted: bool = True) -> None:
        """One token."""
        self.tokens.append(int(self.token))
        start = time.process_time()
        self.token = self.step(self.token, self.cache.begin()).argmax(-1, keepdim=True)
        if counted:
            self.ms.append((time.process_time() - start) * 1e3)

    def line(self) -> str:
        """Median, best and memory."""
        median, best = statistics.median(self.ms), min(self.ms)
        mib = self.cache.nbytes / 2**20
        return f"{median:9.1f}{best:9.1f}{1e3 / median:9.2f}{mib:10.1f}"


class Counted:
    """A function under torch.compile that knows how often it was compiled."""

    def __init__(self, function: Step) -> None:
        self.graphs = 0
        self.call = torch.compile(function, backend=self._compile)

    def _compile(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph, inputs)

    def __call__(self, token: torch.Tensor, prefix: Any) -> torch.Tensor:
        """A step."""
        return self.call(token, prefix)


def compare(runs: dict[str, Run], rounds: int) -> None:
    """Take steps on each side in turn, fewer on the slow ones, and print them."""
    for turn in range(rounds):
        for name, run in runs.items():
            if turn < rounds // SHARE[name.split(",")[0]]:
                run.take()
    for name, run in runs.items():
        print(f"{name:<34}{run.line()}")
    *fulls, (ours, run) = (each for each in runs.items() if f"{SMALL}," not in each[0])
    for name, full in fulls:
        median = statistics.median(full.ms) / statistics.median(run.ms)
        same = all(a == b for a, b in zip(run.tokens, full.tokens, strict=False))
        best = min(full.ms) / min(run.ms)
        print(f"  {name} / {ours}: median {median:.1f}, best {best:.1f}; tokens equal: {same}")


def sides(dtype: torch.dtype, bucket: int) -> dict[str, Any]:
    """The caches compared, empty."""
    return {
        "full, repeated": FullCache(CAPACITY, dtype, repeated=True),
        "full, as rows": FullCache(CAPACITY, dtype, repeated=False),
        f"octavo {CAPACITY}": active(CAPACITY, dtype, bucket),
    }


def eager(model: Decoder, prompt: torch.Tensor, dtype: torch.dtype, rounds: int) -> float:
    """The eager steps of all sides; best of capacity 32,768 over best of 1,024."""
    caches = sides(dtype, 1) | {f"octavo {SMALL}": active(SMALL, dtype)}
    runs = {f"{name}, eager": Run(model, model, each, prompt) for name, each in caches.items()}
    for run in runs.values():
        run.take(counted=False)
    compare(runs, rounds)
    large, small = (min(run.ms) for run in list(runs.values())[-2:])
    print(f"  capacity {CAPACITY} / {SMALL}: best {large / small:.3f}, at most {BOUND} allowed")
    return large / small


def compiled(model: Decoder, prompt: torch.Tensor, dtype: torch.dtype, rounds: int) -> None:
    """The compiled steps of all sides, once octavo has reached its second bucket."""
    runs = {}
    for name, cache in sides(dtype, BUCKET).items():
        step = Counted(model)
        run = runs[f"{name}, compiled"] = Run(model, step, cache, prompt)
        for _ in range(PROMPT, BUCKET + 1 if name.startswith("octavo") else PROMPT + 2):
            run.take(counted=False)
        print(f"  {name}: compiled {step.graphs} times up to {run.cache.kv_len} tokens")
    compare(runs, rounds)
    print(f"  after {run.cache.kv_len} tokens octavo is compiled {step.graphs} times")


def main() -> int:
    """Print the table; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="steps of octavo (default 40)")
    parser.add_argument("--dtype", choices=DTYPES, help="one alone (default: each)")
    parser.add_argument("--eager", action="store_true", help="leave out what is compiled")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine_line("torch", "octavo"))
    instructions = torch.backends.cpu.get_cpu_capability()
    print(f"prompt {PROMPT}, one row, CPU time of one thread, torch uses {instructions}")
    ratios = []
    prompt = torch.randint(VOCAB, (1, PROMPT))
    with torch.inference_mode():
        for name in [options.dtype] if options.dtype else DTYPES:
            dtype = DTYPES[name]
            torch._dynamo.reset()
            model = Decoder().to(dtype)
            print(f"\n{name + ', ms a step':<34}{'median':>9}{'best':>9}{'tok/s':>9}{'MiB':>10}")
            ratios.append(eager(model, prompt, dtype, options.rounds))
            if not options.eager:
                compiled(model, prompt, dtype, options.rounds)
    return 0 if max(ratios) <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
