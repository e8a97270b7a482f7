"""Claim: octavo's kernel computes the linear layers of a decode step in F.linear's time, or less.

For one row, where both wait for memory, in at most 1.2 times of it; in less for 4 to 16 rows in
fp32, and in bf16 up to 8, or up to 63 where it is multiplied by tiles; with weights of 4 bits in
at most half the time of fp32, up to 16 rows, and of 256 rows too where 8 bits have tiles.

Method: layers of SmolLM2-135M's shapes, all 30 blocks and the output layer, each with weights of
its own, so that a pass reads them from memory; one thread, seconds of processor time, the best of
several passes. The sides take turns. GB/s counts the bytes of weights, scales included. What is
left to torch is torch's in both columns: 256 rows of fp32 and bf16, and more of bf16 than 8 where
the processor multiplies it, but not by tiles.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
from machine import machine_line
from torch.nn.functional import linear

from octavo.engine.linears import PlainLinear, QuantisedLinear, Together, has_tiles, quantised

WIDTH, WITHIN, KEYS, VOCABULARY, BLOCKS = 576, 1_536, 192, 49_152, 30
GROUPS = [
    *[(WIDTH, (WIDTH, KEYS, KEYS)), (WIDTH, (WIDTH,)), (WIDTH, (WITHIN,) * 2), (WITHIN, (WIDTH,))]
    * BLOCKS,
    (WIDTH, (VOCABULARY,)),
]  # inputs, and the outputs of each layer that takes them
ROWS = (1, 4, 8, 16, 32, 63, 256)
ONE_ROW = 1.2  # of F.linear's time, at most


def modules(dtype: torch.dtype) -> list[list[torch.nn.Linear]]:
    """The layers, by groups of the same input."""
    return [
        [torch.nn.Linear(width, count, bias=False, dtype=dtype) for count in counts]
        for width, counts in GROUPS
    ]


def taken(layers: list[PlainLinear | QuantisedLinear]) -> Together:
    """The layers as an engine that has the model computes them."""
    together = Together(layers)
    together.taken = True
    return together


def kernel(kind: str, groups: list[list[torch.nn.Linear]]) -> tuple[list[Together], int]:
    """The layers as the kernel computes them, and the bytes it reads."""
    if kind in ("fp32", "bf16"):
        plain = [[PlainLinear(module) for module in group] for group in groups]
        return list(map(taken, plain)), sum(m.weight.nbytes for g in groups for m in g)
    bits = {
        m: "int4" if kind == "int4" and m.out_features < VOCABULARY else "int8"
        for group in groups
        for m in group
    }
    found = quantised(bits)
    layers = [[found[m] for m in group] for group in groups]
    return list(map(taken, layers)), sum(layer.nbytes for each in layers for layer in each)


def best(passes: list[Callable[[], None]], rounds: int) -> list[float]:
    """The least seconds of each pass, taken in turn."""
    found = [[] for _ in passes]
    for _ in range(rounds):
        for run, times in zip(passes, found, strict=True):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
    return list(map(min, found))


def measure(kind: str, rounds: int) -> dict[int, list[float]]:
    """Prints one kind; seconds by rows, of the kernel and, of plain weights, of F.linear."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    groups = modules(dtype)
    layers, size = kernel(kind, groups)
    seconds = {}
    for rows in ROWS:
        inputs = {width: torch.randn(1, rows, width, dtype=dtype) for width in (WIDTH, WITHIN)}

        def by_kernel(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for (width, counts), together in zip(GROUPS, layers, strict=True):
                for number in range(len(counts)):
                    together.compute(number, inputs[width])

        def by_torch(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for (width, _), group in zip(GROUPS, groups, strict=True):
                for module in group:
                    linear(inputs[width], module.weight)

        sides = [by_kernel, by_torch] if kind in ("fp32", "bf16") else [by_kernel]
        seconds[rows] = best(sides, rounds)
        own, *others = (f"{each * 1e3:9.1f}" for each in seconds[rows])
        rate = size / seconds[rows][0] / 1e9
        print(f"{kind:5}{rows:5}{own}{rate:9.1f}{others[0] if others else '        -'}")
    return seconds


def main() -> int:
    """Measures all kinds; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="passes of each side")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine_line("torch", "octavo"))
    load = os.getloadavg()[0]
    print(f"ms of processor time, one thread, best of {options.rounds}; load average {load:.1f}")
    print("kind  rows   kernel     GB/s F.linear")
    with torch.inference_mode():
        found = {k: measure(k, options.rounds) for k in ("fp32", "bf16", "int8", "int4")}
    missed = [
        f"{kind}, {rows} rows: {own / other:.2f} of F.linear's time"
        for kind, most in (("fp32", 16), ("bf16", 63 if has_tiles() else 8))
        for rows, (own, other) in found[kind].items()
        if rows <= most and own > (ONE_ROW if rows == 1 else 1) * other
    ]
    missed += [
        f"int4, {rows} rows: {found['int4'][rows][0] / found['fp32'][rows][0]:.2f} of fp32's time"
        for rows in (*ROWS[:4], *ROWS[-1:] * has_tiles())
        if found["int4"][rows][0] > found["fp32"][rows][0] / 2
    ]
    print("missed: " + ("; ".join(missed) or "nothing"))
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
