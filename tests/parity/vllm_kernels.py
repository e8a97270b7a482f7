"""Runs vLLM's CPU attention over pages, in an interpreter that has vLLM; no test by itself.

    python vllm_kernels.py CASES.npz RESULTS.npz

Case i of CASES has ``query_i`` [T, H, dim], ``keys_i`` and ``values_i`` [pages, 32, kv_heads, dim],
``table_i``, ``starts_i``, ``context_i``, ``sinks_i`` [H or 0] and ``numbers_i``: scale, softcap
(0: none), window (-1: none), causal. RESULTS has ``out_i``. All numbers are float32.
"""

import sys

import numpy as np
import torch
from vllm import _custom_ops as ops

KERNEL = "vec"  # the one for float32 whose heads are a multiple of 32, on any x86


def attention(query, keys, values, table, starts, context, sinks, numbers):
    """One case, its arrays as tensors."""
    scale, softcap, window, causal = numbers.tolist()
    pages, size, kv_heads, dim = keys.shape
    store = torch.zeros(pages, kv_heads, 2 * size, dim)
    cache = store.chunk(2, dim=2)
    slots = torch.arange(pages * size)
    ops.cpu_attn_reshape_and_cache(keys.flatten(0, 1), values.flatten(0, 1), *cache, slots, KERNEL)
    plan = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(context),
        num_heads=query.shape[1],
        num_kv_heads=kv_heads,
        head_dim=dim,
        seq_lens=context,
        dtype=torch.float32,
        query_start_loc=starts,
        causal=bool(causal),
        sliding_window_size=int(window),
        isa=KERNEL,
        enable_kv_split=False,
    )
    out = torch.empty_like(query)
    ops.cpu_attention_with_kv_cache(
        query=query,
        key_cache=cache[0],
        value_cache=cache[1],
        output=out,
        query_start_loc=starts,
        seq_lens=context,
        scale=scale,
        causal=bool(causal),
        alibi_slopes=None,
        sliding_window=int(window),
        block_table=table,
        softcap=softcap,
        scheduler_metadata=plan,
        s_aux=sinks if len(sinks) else None,
    )
    return out


def main(cases, results):
    """Every case of one file, into another."""
    names = ("query", "keys", "values", "table", "starts", "context", "sinks", "numbers")
    with np.load(cases) as given:
        count = len(given.files) // len(names)
        found = {}
        for i in range(count):
            tensors = [torch.from_numpy(given[f"{name}_{i}"]) for name in names]
            found[f"out_{i}"] = attention(*tensors).numpy()
    np.savez(results, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
