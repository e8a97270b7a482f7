"""vLLM's C++ attention over pages, its kernel called alone; runs in an interpreter that has vLLM.

Reads cases from standard input, a line each (dtype, heads, kv_heads, dim, rows, length), and
answers each with the best processor time in microseconds: pages of 32 tokens, shuffled, one query
a row.
Loads the kernel's library and nothing else of vLLM. `bench_attention.py` starts it.
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch

PAGE = 32
ROUNDS, SECONDS = 3, 0.4


def load() -> None:
    """The library with the operators, for the processor at hand."""
    spec = find_spec("vllm")
    assert spec is not None, "no vLLM in this interpreter"
    assert spec.origin is not None
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    name = "_C.abi3.so" if wide else "_C_AVX2.abi3.so"
    torch.ops.load_library(str(Path(spec.origin).with_name(name)))


def best_us(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, rows: int, length: int) -> str:
    """The shortest of some rounds; the result is checked against SDPA."""
    ops = torch.ops._C
    width = -(-length // PAGE)
    table = (torch.randperm(rows * width).to(torch.int32) + 1).view(rows, width)
    shape = (rows * width + 1, kv_heads, 2 * PAGE, dim)
    key_cache, value_cache = torch.zeros(shape, dtype=dtype).chunk(2, dim=2)
    keys, values = (torch.randn(rows, length, kv_heads, dim).to(dtype) for _ in range(2))
    at = torch.arange(length)
    slots = (table.long()[:, at // PAGE] * PAGE + at % PAGE).flatten()
    new = (keys.flatten(0, 1), values.flatten(0, 1))
    ops.cpu_attn_reshape_and_cache(*new, key_cache, value_cache, slots, "vec", 1.0, 1.0, "auto")
    query = torch.randn(rows, heads, dim).to(dtype)
    out = torch.empty_like(query)
    starts = torch.arange(rows + 1, dtype=torch.int32)
    lengths = torch.full((rows,), length, dtype=torch.int32)
    plan = ops.get_scheduler_metadata(
        rows, heads, kv_heads, dim, lengths, dtype, starts, True, -1, "vec", True, None, "auto"
    )
    caches = (query, key_cache, value_cache, out, starts, lengths)

    def attend() -> None:
        ops.cpu_attention_with_kv_cache(
            *caches, dim**-0.5, True, None, -1, table, 0.0, plan, None, None, 1.0, 1.0, "auto"
        )

    attend()
    grouped = query.view(rows, kv_heads, -1, dim)
    right = torch.nn.functional.scaled_dot_product_attention(
        grouped, keys.transpose(1, 2), values.transpose(1, 2)
    )
    assert (out.view_as(right).float() - right.float()).abs().max() < 0.05
    best, began, rounds = float("inf"), time.perf_counter(), 0
    while rounds < ROUNDS or (time.perf_counter() - began < SECONDS and rounds < 300):
        start = time.thread_time()
        attend()
        best, rounds = min(best, time.thread_time() - start), rounds + 1
    return f"{1e6 * best}"


def main() -> None:
    """Answer line by line."""
    torch.set_num_threads(1)
    load()
    for line in sys.stdin:
        name, *sizes = line.split()
        print(best_us(getattr(torch, name), *map(int, sizes)), flush=True)


if __name__ == "__main__":
    main()
