"""vLLM's side of `bench_index.py`: the block table of its worker, in an interpreter of its own.

Run by ``bench_index.py --vllm-python``; prints one JSON line: version and best microseconds.
"""

import json
import os
import sys
from time import perf_counter_ns

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.stdout, answers = sys.stderr, sys.stdout  # whatever it prints is not an answer

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.v1.worker.block_table import BlockTable  # noqa: E402

STEPS, SPARE = 2_000, 8  # SPARE: columns beyond those in use


def main(rows: int, tokens: int, page_size: int) -> None:
    """One row in ``page_size`` begins a page, then the table goes to where the device reads it."""
    torch.set_num_threads(1)
    held, best, device = tokens // page_size, 10**9, torch.device("cpu")
    table = BlockTable(page_size, rows, held + SPARE, rows, False, device, 1)
    for _ in range(STEPS):
        table.num_blocks_per_row[:] = held
        start = perf_counter_ns()
        for row in range(0, rows, page_size):
            table.append_row([7], row)
        table.commit_block_table(rows)
        best = min(best, perf_counter_ns() - start)
    print(json.dumps({"version": vllm.__version__, "us": best / 1000}), file=answers, flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
