"""Claim: the engine's fp32 tokens of SmolLM2-135M are those of `generate()`; rates stand beside.

Sides: octavo in fp32 and with linear layers in 4 bits; `generate()` and `generate_batch()` of
transformers; vLLM for CPUs and OpenVINO GenAI, where `--vllm-python` and `--openvino-python` name
interpreters that have them. All in fp32, or with `--dtype bf16` in that, but octavo int4 and
OpenVINO, whose weights have 4 bits.

Method: every side is a process of its own that keeps its model. Before a case each answers as many
short prompts, as a server has before: what is compiled, recorded or loaded once is not counted. In
each round the sides take turns with the same prompts of random ids, new ones each round, so that no
prefix is known but the 512 tokens that prompts of a shared case have in common. Greedy, prefix
caches on. Decode is the rate of new tokens after every prompt has its first; whole is new tokens by
the time of the whole run, prompts included. The median of the rounds is printed, and what reading
the weights and keys once a step allows by the machine's measured bandwidth: its rate stands beside.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from engine_sides import SIDES
from machine import machine_line

PARAMETERS = 134_515_008  # of SmolLM2-135M, its embeddings counted once, as they are read
KEYS = 30 * 3 * 64 * 2  # numbers in a token's keys and values
BYTES = {"fp32": 4, "bf16": 2}
BITS4 = 106_168_320 * 6 / 8 + 28_311_552 * 9 / 8  # bytes of its weights as octavo's int4 has them


class Case(NamedTuple):
    """Prompts of one kind.

    Attributes:
        batch: so many at once.
        context: tokens of each.
        shared: of these, the same in all.
        rounds: how often, at most.
    """

    batch: int
    context: int
    shared: int
    rounds: int


WARM = 128  # tokens of the prompts that sides answer before a case
CASES = [
    *(Case(batch, 128, 0, rounds) for batch, rounds in ((1, 7), (4, 5), (16, 3), (64, 1))),
    *(Case(batch, 1_024, 0, rounds) for batch, rounds in ((1, 5), (4, 3), (16, 1))),
    *(Case(batch, 1_024, 512, rounds) for batch, rounds in ((1, 3), (4, 3), (16, 1))),
]


class Side:
    """One side behind a pipe.

    Args:
        name: one of `SIDES`.
        python: its interpreter.
        model: what it loads.
        options: the command line's.

    Raises:
        RuntimeError: it cannot run here; says why.
    """

    def __init__(self, name: str, python: str, model: str, options: argparse.Namespace) -> None:
        known = dict(os.environ, OMP_NUM_THREADS=str(options.threads), DTYPE=options.dtype)
        if options.cpu_time:
            known["CPU_TIME"] = "1"
        if python != sys.executable:
            known.pop("PYTHONPATH", None)
        self.name = name
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("engine_sides.py")), name, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=known,
        )
        self.version: str = self._answer()["version"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": "its interpreter ended"}
        if "error" in reply:
            raise RuntimeError(f"{self.name}: {reply['error']}")
        return reply

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        """Generate from all prompts at once."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "new": new}) + "\n")
        self.process.stdin.flush()
        return self._answer()


def rates(counts: list[tuple[float, int]]) -> tuple[float | None, float]:
    """(decoded, whole) tokens per second; the first is None where the side told no steps."""
    (first, some), (end, made) = counts[0], counts[-1]
    decoded = (made - some) / (end - first) if end > first and made > some else None
    return decoded, made / end


def bandwidth(options: argparse.Namespace) -> float:
    """Bytes a second that the machine's memory gives to the sides' threads; the best of some."""
    import torch

    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(options.threads)
    block = torch.ones(2**26)  # 256 MiB
    best = 0.0
    for _ in range(8):
        start = clock()
        block.sum()
        best = max(best, block.nbytes / (clock() - start))
    return best


def prompts_of(case: Case, turn: int) -> list[list[int]]:
    """Random ids; the same for every side."""
    ids = random.Random(f"{case} {turn}")
    common = [ids.randrange(100, 49_000) for _ in range(case.shared)]
    rest = case.context - case.shared
    return [common + [ids.randrange(100, 49_000) for _ in range(rest)] for _ in range(case.batch)]


def start_sides(options: argparse.Namespace) -> list[Side]:
    """Those that are there; the others are named, with the reason."""
    pythons = {"vLLM": options.vllm_python, "OpenVINO": options.openvino_python}
    sides = []
    for name in options.sides:
        model = {"vLLM": options.folder, "OpenVINO": options.gguf}.get(name, options.model)
        python = pythons.get(name, sys.executable)
        if python is None or model is None:
            print(f"left out: {name}: no interpreter or no model for it is named")
            continue
        try:
            sides.append(Side(name, python, model, options))
        except RuntimeError as why:
            print(f"left out: {why}")
    return sides


def measure(
    case: Case, sides: list[Side], options: argparse.Namespace, read: float
) -> Counter[str]:
    """Print a case's lines; returns for each side how many rows had the first side's tokens."""
    found: dict[str, list[tuple[float | None, float]]] = {side.name: [] for side in sides}
    equal: Counter[str] = Counter()
    before = prompts_of(Case(case.batch, WARM, 0, 0), 0)  # of no case
    for side in sides:
        side.run(before, 9)
    for turn in range(min(case.rounds, options.rounds)):
        prompts, tokens = prompts_of(case, turn), {}
        if case.shared:  # what the prompts share has been asked about before
            for side in sides:
                side.run([prompts[0][: case.shared]], 1)
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            reply = side.run(prompts, options.new)
            tokens[side.name] = reply["tokens"]
            found[side.name].append(rates(reply["counts"]))
        for name, rows in tokens.items():
            equal[name] += sum(a == b for a, b in zip(rows, tokens[sides[0].name], strict=True))
        equal["rows"] += case.batch
    each = BYTES[options.dtype]
    keys = case.batch * (case.context + options.new / 2) * KEYS * each
    kind = f"{case.batch:3} x {case.context:5,}" + (
        f", {case.shared} shared" if case.shared else ""
    )
    for name, runs in found.items():
        decoded = [rate for rate, _ in runs if rate is not None]
        bound = case.batch * read / ((BITS4 if "int4" in name else PARAMETERS * each) + keys)
        fast = f"{median(decoded):10.1f}" if decoded else f"{'-':>10}"
        limit = f"{bound:10.0f}" if name.startswith("octavo") else f"{'':10}"
        whole = median(rate for _, rate in runs)
        same = f"{equal[name]}/{equal['rows']}"
        print(f"{kind:26}{name:16}{fast}{limit}{whole:10.1f}{same:>10}", flush=True)
    return equal


def main() -> int:
    """Print the table; 1 where octavo's tokens in fp32 are not those of generate()."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m", help="name or folder for octavo's load")
    parser.add_argument("--folder", help="the same as a Hugging Face folder, for vLLM")
    parser.add_argument("--gguf", help="the same as a GGUF file, for OpenVINO")
    parser.add_argument("--vllm-python")
    parser.add_argument("--openvino-python")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES, metavar="SIDE")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--context", nargs="+", type=int, default=[128, 1_024])
    parser.add_argument("--dtype", default="fp32", choices=BYTES)
    parser.add_argument("--new", type=int, default=32, help="new tokens of each prompt")
    parser.add_argument("--rounds", type=int, default=7, help="most rounds of a case")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--cpu-time", action="store_true", help="seconds of processor time; for busy machines"
    )
    options = parser.parse_args()
    if options.folder is None:
        from octavo.checkpoints import hub

        options.folder = str(hub.find(options.model))
    print(machine_line("torch", "transformers", "octavo"))
    sides = start_sides(options)
    read = bandwidth(options)
    print("; ".join(f"{side.name}: {side.version}" for side in sides))
    seconds = "seconds of CPU time" if options.cpu_time else "seconds of the clock"
    print(
        f"{options.dtype}, {options.threads} thread{'s' * (options.threads != 1)}, {seconds}, "
        f"{options.new} new tokens, at most {options.rounds} round{'s' * (options.rounds != 1)}; "
        f"memory {read / 1e9:.1f} GB/s; load average {os.getloadavg()[0]:.1f}"
    )
    header = f"{'prompts':26}{'side':16}{'decode/s':>10}{'bound/s':>10}{'whole/s':>10}{'equal':>10}"
    print(header)
    wrong = 0
    for case in CASES:
        if case.batch in options.batch and case.context in options.context:
            equal = measure(case, sides, options, read)
            wrong += equal["rows"] - equal.get("generate", equal["rows"])
    print(f"rows whose tokens differ from generate()'s: {wrong}")
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    return 1 if wrong and options.dtype == "fp32" else 0


if __name__ == "__main__":
    sys.exit(main())
