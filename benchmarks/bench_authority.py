"""Claim: octavo's authority is faster than the page authorities pip can bring, where it says so.

Slot mapping goes beside lists of page ranges and the per-token formula, on reversed pages from
offset 7. Admission, decode steps, finishing, churn and construction go beside transformers' paged
cache and, with `--vllm-python`, vLLM's manager in an interpreter of its own; the contenders take
turns, each round with new prompts that are the same for all. Times are processor time, the best of
the rounds; a row holds when the best peer takes at least the stated multiple of octavo's time.
A multiple of 0 claims nothing: such rows are printed beside what is aimed at, and not reached yet.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from contender_octavo import Octavo
from machine import machine_line
from page_range_lists import page_range_array, page_range_lists, per_token_formula
from workloads import ROWS, Contender, Figure, run_row

from octavo.slots import slot_mapping

logging.disable(logging.ERROR)


class Row(NamedTuple):
    """What is printed of a row, what is aimed at on an idle machine, and the multiple claimed."""

    title: str
    aim: float
    multiple: float
    scale: float = 1.0


TITLES = {
    "unique": Row("admit 1,024 new tokens, us", 50, 1.5),
    "shared": Row("admit 1,024 published tokens and 64 new, us", 40, 1),
    "decode": Row("decode step of 256 sequences, us a sequence", 0.12, 10),
    "finish": Row("finish a sequence of 1,152 tokens, us", 7, 0),
    "churn": Row("turn of a conversation, small pool, us", 90, 1),
    "pool_100k": Row("build a pool of 100,000 pages, ms", 1.5, 10, 1e-3),
    "pool_1m": Row("build a pool of 1,000,000 pages, ms", 15, 20, 1e-3),
}
SLOTS = [(4_096, 16, 10), (32_768, 16, 10), (4_096, 256, 5), (32_768, 256, 10), (1, 256, 0)]


class Vllm:
    """vLLM's manager behind a pipe."""

    name = "vLLM"

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("contender_vllm.py")
        self.process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.version = self._answer()["version"]

    def _answer(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the vLLM interpreter ended; run contender_vllm.py to see why")
        reply: dict[str, object] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(str(reply["error"]))
        return reply

    def run(self, row: str, turn: int) -> Figure:
        """One round."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{row} {turn}\n")
        self.process.stdin.flush()
        return Figure(**self._answer())  # type: ignore[arg-type]


def best_us(calls: dict[str, Callable[[], object]], count: int, rounds: int) -> dict[str, float]:
    """Microseconds of one call of each, the best of rounds of ``count`` calls in turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.process_time()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.process_time() - began) * 1e6 / count)
    return best


def slot_rows(rounds: int) -> bool:
    """Print the slot mapping table; whether its claims hold."""
    header = "".join(f"{name:>9}" for name in ("octavo", "ranges", "formula"))
    print(f"{'slot mapping, us':<32}{header}{'times':>8}{'at least':>9}")
    holds = True
    for tokens, size, least in SLOTS:
        start, stop = 7, 7 + tokens
        listed = list(range(-(-stop // size), 0, -1))
        pages = np.array(listed, np.int32)
        assert slot_mapping(pages, size, start, stop).tolist() == page_range_lists(
            listed, size, start, stop
        )
        calls: dict[str, Callable[[], object]] = {
            "octavo": partial(slot_mapping, pages, size, start, stop),
            "ranges": partial(page_range_lists, listed, size, start, stop),
            "formula": partial(per_token_formula, listed, size, start, stop),
        }
        if tokens == 1:  # a kernel takes arrays, so its list is one more call away
            calls["ranges"] = partial(page_range_array, listed, size, start, stop)
        us = best_us(calls, max(10, 100_000 // tokens), rounds)
        times = us["ranges"] / us["octavo"]
        holds &= times >= least
        label = f"{tokens:,} tokens, page {size}"
        if tokens == 1:
            label = f"1 token, page {size}, as an array"
        figures = "".join(f"{us[name]:9.2f}" for name in us)
        print(f"{label:<32}{figures}{times:8.1f}{least:9}")
    return holds


def rounds_of(
    name: str, contenders: list[Contender | Vllm], rounds: int
) -> dict[str, list[Figure]]:
    """Figures of a row by contender, who take turns; one round more warms up."""
    found: dict[str, list[Figure]] = {contender.name: [] for contender in contenders}
    for turn in range(rounds + 1):
        for contender in contenders:
            if isinstance(contender, Vllm):
                figure = contender.run(name, turn)
            else:
                figure = run_row(contender, name, turn)
            if turn:
                found[contender.name].append(figure)
    return found


def authority_rows(contenders: list[Contender | Vllm], rows: list[str], rounds: int) -> bool:
    """Print the table of the authorities; whether its claims hold."""
    names = [contender.name for contender in contenders]
    header = "".join(f"{name:>14}" for name in names)
    print(f"{'authority, page size 16':<46}{header}{'aim':>8}{'times':>8}{'at least':>9}")
    holds = True
    for name in rows:
        found = rounds_of(name, contenders, rounds)
        row = TITLES[name]
        best = {who: min(f.microseconds for f in figures) for who, figures in found.items()}
        peers = [us for who, us in best.items() if who != "octavo"]
        times = min(peers) / best["octavo"] if peers else float("nan")
        holds &= not times < row.multiple
        cells = "".join(f"{best[who] * row.scale:14.2f}" for who in names)
        aim, least = f"{row.aim:8}", f"{row.multiple:9}"
        print(f"{row.title:<46}{cells}{aim}{times:8.1f}{least}", flush=True)
        if found["octavo"][0].hits is not None:
            hits = [found[who][-1].hits or 0.0 for who in names]
            print(f"{'  per cent of its tokens found':<46}{''.join(f'{h:14.1f}' for h in hits)}")
    return holds


def transformers() -> list[Contender]:
    """transformers' paged cache, where it is installed."""
    try:
        version("transformers")
    except PackageNotFoundError:
        return []
    from contender_transformers import Transformers

    return [Transformers()]


def main() -> int:
    """Print the figures; exit code 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of a row (default 7)")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--vllm-python", metavar="PATH", help="an interpreter that has vLLM")
    options = parser.parse_args()
    contenders: list[Contender | Vllm] = [Octavo(), *transformers()]
    packages = [name for name in ("torch", "transformers") if len(contenders) > 1]
    line = machine_line("numpy", *packages, "octavo")
    if options.vllm_python:
        vllm = Vllm(options.vllm_python)
        contenders.append(vllm)
        line += f"; vLLM {vllm.version}"
    print(line)
    print(f"processor time, one thread, best of {options.rounds} rounds in turn")
    holds = slot_rows(options.rounds)
    holds &= authority_rows(contenders, options.rows, options.rounds)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
