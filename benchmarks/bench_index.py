"""What it costs to hand a step to a kernel, and what vLLM, transformers and torch pay for theirs.

Claim: from step to step of ROWS sequences of about TOKENS tokens that decode, an `Emitter` costs
less than the function it stands for, which reads the whole table. What is aimed at (10 us for
tables and lengths, 20 for FlashInfer's pages, 50 for a whole emission) is printed beside. Steps are
real:
pages turn, and `extend` and `commit` run in between, untimed, so nothing is warm that would not be.
Of each step the best round counts, and of these the median and the best are printed. "warm" is the
same call again and again on one step, the best call. Others in the same run, the best call each:
with ``--vllm-python`` the table of vLLM's worker (pages appended to sixteen rows, then copied to
where a CPU device reads; no lengths, no slots, which its GPU works out), warm; transformers'
indices by the code installed; torch's conversion of a logical block mask to pages.
"""

import argparse
import json
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from machine import machine_line

from octavo import Cache, Plan, Step, index

ROWS, TOKENS, PAGE_SIZE, STEPS, PREFILL = 256, 1_152, 16, 48, 32_768
AIMS = {"vllm": 10, "flash": 10, "onnxruntime": 10, "tensorrt": 10, "flashinfer": 20}
WHOLE = 50
Timed = Callable[[], object]


class Decoding:
    """ROWS sequences that decode, one in PAGE_SIZE of them turning a page in each step."""

    def __init__(self) -> None:
        pages = ROWS * (TOKENS + 3 * STEPS) // PAGE_SIZE + 2 * ROWS
        self.plan = Plan.from_pages(pages, PAGE_SIZE)
        self.cache = Cache(self.plan, max_sequences=ROWS)
        random, rows = np.random.default_rng(0), []
        for number in range(ROWS):
            prompt = random.integers(0, 32_000, TOKENS + number % PAGE_SIZE, np.int32)
            rows.append(self.cache.admit(prompt, limit=4 * TOKENS))
            self.cache.commit(self.cache.extend(rows[-1], prompt.size), [1])
        self.batch = self.cache.batch(rows)
        self.ids = np.ones(ROWS, np.int32)

    def step(self) -> Step:
        """The next one, open."""
        return self.cache.extend(self.batch)

    def commit(self, step: Step) -> None:
        """Its end."""
        self.cache.commit(step, self.ids)


def buffers(made: Any) -> Any:
    """Room for STEPS more tokens a row, as for a graph."""
    wide = -(-(TOKENS + PAGE_SIZE + 2 * STEPS) // PAGE_SIZE)
    shapes = {
        "block_table": (ROWS, wide),
        "block_offsets": (ROWS, 2, wide),
        "kv_indices": (ROWS * wide,),
    }
    known = made._asdict()
    return made._replace(**{n: np.zeros(s, np.int32) for n, s in shapes.items() if n in known})


def one_round() -> dict[str, Any]:
    """Microseconds of each step, by what was timed: every format by emitter and by function."""
    run, times = Decoding(), {name: ([], []) for name in AIMS}
    step = run.step()
    emits = {name: getattr(index, name) for name in AIMS}
    outs = {name: buffers(emit(step, plan=run.plan)) for name, emit in emits.items()}
    makers = {n: index.Emitter(emit, run.plan, out=outs[n]) for n, emit in emits.items()}
    run.commit(step)
    for _ in range(STEPS):
        step = run.step()
        for name, emit in emits.items():
            start = perf_counter_ns()
            makers[name](step)
            middle = perf_counter_ns()
            emit(step, plan=run.plan)
            end = perf_counter_ns()
            times[name][0].append((middle - start) / 1000)
            times[name][1].append((end - middle) / 1000)
        run.commit(step)
    return {name: np.array(pair)[:, 2:] for name, pair in times.items()}


def best_us(timed: Timed, calls: int = 2_000) -> float:
    """The best of some calls: other work on the machine does not come into it."""
    return min(timeit.repeat(timed, number=1, repeat=calls)) * 1e6


def vllm_worker(python: str) -> dict[str, Any]:
    """The table of vLLM's worker, by an interpreter that has vLLM: its version and microseconds."""
    script = Path(__file__).with_name("contender_vllm_table.py")
    command = [python, str(script), str(ROWS), str(TOKENS), str(PAGE_SIZE)]
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def transformers_indices() -> float:
    """Read and write indices of one decode step by the installed continuous batching."""
    from transformers.generation.continuous_batching.cache_allocators import full_attention

    allocator = object.__new__(full_attention.FullAttentionCacheAllocator)
    allocator.tokens_per_page = allocator.block_physical_stride = PAGE_SIZE
    pages = -(-TOKENS // PAGE_SIZE) + 1
    tables = {str(r): list(range(r * pages, (r + 1) * pages)) for r in range(ROWS)}
    allocator.block_table = tables

    def step() -> None:
        reads: list[int] = []
        writes: list[int] = []
        for row in tables:
            reads.extend(allocator.get_read_indices(row, TOKENS, 1))
            writes.extend(allocator.get_write_indices(row, TOKENS, 1))

    return best_us(step, 7)


def torch_conversion() -> float:
    """torch's PagedAttention turns the logical block mask of one decode step into pages."""
    import torch
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    columns = TOKENS // PAGE_SIZE
    paged = PagedAttention(ROWS * columns + 1, PAGE_SIZE, ROWS, device="cpu")
    for row in range(ROWS):
        paged.reserve(torch.tensor([row]), torch.tensor([TOKENS]))
    counts = torch.full((ROWS, 1, 1), columns, dtype=torch.int32)
    order = torch.arange(columns, dtype=torch.int32).expand(ROWS, 1, 1, columns).contiguous()
    sizes = (1, TOKENS)
    mask = BlockMask.from_kv_blocks(
        counts, order, None, None, (1, PAGE_SIZE), noop_mask, seq_lengths=sizes
    )
    return best_us(lambda: paged.convert_logical_block_mask(mask), 3)


def prefill() -> tuple[float, float]:
    """A prompt of PREFILL tokens as vLLM's arrays, and copies of the same arrays."""
    plan = Plan.from_pages(PREFILL // PAGE_SIZE + 2, PAGE_SIZE)
    cache = Cache(plan)
    step = cache.extend(cache.admit(np.arange(PREFILL, dtype=np.int32)), PREFILL)
    made = index.vllm(step, plan=plan)
    arrays = [array for array in made if isinstance(array, np.ndarray)]
    emitted = best_us(lambda: index.vllm(step, plan=plan))
    return emitted, best_us(lambda: [array.copy() for array in arrays])


def report(rounds: int, vllm_python: str | None) -> bool:
    """Print the table; whether every emitter is cheaper than its function."""
    found = [one_round() for _ in range(rounds)]
    best = {name: np.min([f[name] for f in found], 0) for name in AIMS}
    run = Decoding()
    step = run.step()
    print(f"{'format':<12}{'emitter us':>12}{'best':>7}{'aim':>5}", end="")
    print(f"{'function us':>13}{'best':>7}{'warm':>7}{'aim':>5}")
    for name, (moved, whole) in best.items():
        warm = best_us(partial(getattr(index, name), step, plan=run.plan))
        print(f"{name:<12}{np.median(moved):12.1f}{moved.min():7.1f}{AIMS[name]:5}", end="")
        print(f"{np.median(whole):13.1f}{whole.min():7.1f}{warm:7.1f}{WHOLE:5}")
    for name in ("dense", "flex"):
        warm = best_us(partial(getattr(index, name), step, plan=run.plan), 50)
        print(f"{name:<12}{'':24}{'':20}{warm:7.1f}")
    emitted, copied = prefill()
    print(f"prefill of {PREFILL} tokens: {emitted:.1f} us; its arrays copied: {copied:.1f} us")
    if vllm_python:
        worker = vllm_worker(vllm_python)
        print(
            f"table of the worker of vLLM {worker['version']}: {worker['us']:.1f} us, nothing else"
        )
    print(f"transformers' read and write indices: {transformers_indices():.0f} us")
    print(f"torch's convert_logical_block_mask: {torch_conversion():.0f} us")
    return all(np.median(moved) < np.median(whole) for moved, whole in best.values())


def main() -> int:
    """Exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="runs (default 7)")
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter that has vLLM")
    options = parser.parse_args()
    print(machine_line("numpy", "octavo", "torch", "transformers"))
    print(f"{ROWS} rows of {TOKENS} tokens, page size {PAGE_SIZE}, {STEPS} steps, one thread")
    print(f"load average at the start: {os.getloadavg()[0]:.1f}; other work slows all of it down")
    return 0 if report(options.rounds, options.vllm_python) else 1


if __name__ == "__main__":
    sys.exit(main())
