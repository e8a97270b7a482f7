"""Claim: none; where a decode step of the engine goes, by rows, as shares of its time.

SmolLM2-135M with prompts of random ids of one length. Steps are recorded, as in every engine, and
around each recorded call stands a clock: those of linear layers, norms, rotary codes, the writing
of keys and values, and attention are counted apart. A clock costs a fraction of a microsecond, some
per cent of a step. What is left of the model is additions, activations and the embedding; what is
left of the step is the engine's own. Figures are processor time of the main thread, means of the
fastest quarter of the steps, as a busy machine stretches others. One thread unless asked otherwise.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from machine import machine_line

import octavo
from octavo.checkpoints.loading import LoadedModel, load
from octavo.engine import Engine, SamplingParams
from octavo.engine.recorded import Recorded
from octavo.engine.recordings import FIRST

PARTS = (
    *("linear layers", "norms", "rotary codes", "writing", "attention"),
    *("rest of the model", "engine"),
)
WARM = FIRST + 4
CALLS = {"_checked": "linear layers", "octavo_norm": "norms", "octavo_turn": "rotary codes"}
OF_STEP = {"attends": "attention", "writes": "writing"}


class Clock:
    """Seconds by part; of parts within each other the inner one's alone."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self._running = ["engine"]
        self._since = time.thread_time()

    def _turn(self) -> None:
        now = time.thread_time()
        self.taken[self._running[-1]] += now - self._since
        self._since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its time taken for a part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._turn()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn()
                self._running.pop()

        return timed

    def read(self) -> dict[str, float]:
        """What was taken since it was read last."""
        self._turn()
        found = {part: self.taken[part] for part in PARTS}
        self.taken.clear()
        return found


def part_of(call: Callable[..., Any]) -> str:
    """Which part of a step a recorded call is."""
    function = getattr(call, "func", call)
    if function.__name__ == "_of_now":
        return next(part for name, part in OF_STEP.items() if name in call.args[1].__qualname__)
    return CALLS.get(function.__name__, "rest of the model")


def engine_of(loaded: LoadedModel, quantise: Any, clock: Clock) -> Engine:
    """An engine with clocks around what it has recorded."""
    make = Recorded.__init__

    def timed(self: Recorded, *args: Any) -> None:
        make(self, *args)
        self._calls = [clock.around(part_of(call), call) for call in self._calls]

    Recorded.__init__ = timed  # type: ignore[method-assign]
    plan = octavo.plan(loaded.spec, "1GiB", max_length=2048, dtype=loaded.dtype, order="head")
    return Engine(loaded.model, plan, quantise=quantise)


def decoding(engine: Engine, rows: int, context: int, steps: int) -> None:
    """Has so many rows decode."""
    random.seed(0)
    params = SamplingParams(max_tokens=steps + rows + WARM)
    prompts = [[random.randrange(100, 49_000) for _ in range(context)] for _ in range(rows)]
    requests = [engine.submit(prompt, params) for prompt in prompts]
    while not all(request.output for request in requests):
        engine.step()
    for _ in range(WARM - 2):
        engine.step()


def milliseconds(engine: Engine, clock: Clock, steps: int) -> dict[str, float]:
    """What a step takes by part, means of the fastest quarter; then the requests end."""
    taken = []
    for _ in range(steps):
        clock.read()
        engine.step()
        taken.append(clock.read())
    while engine.step():
        pass
    fastest = sorted(taken, key=lambda step: sum(step.values()))[: max(1, steps // 4)]
    return {part: 1e3 * sum(step[part] for step in fastest) / len(fastest) for part in PARTS}


def report(rows: int, found: dict[str, float]) -> tuple[str, str]:
    """Two lines, milliseconds and shares."""
    whole = sum(found.values())
    figures = {**found, "all": whole, "without linears": whole - found["linear layers"]}
    ms = (f"{figure:>{len(name)}.2f}" for name, figure in figures.items())
    shares = (f"{figure / whole:>{len(name)}.0%}" for name, figure in figures.items())
    return f"{rows:>5} ms  " + "  ".join(ms), f"{rows:>5} %   " + "  ".join(shares)


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split(";")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16], help="default: 1 4 16")
    parser.add_argument("--context", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each (default 40)")
    parser.add_argument("--dtype", default="fp32", help="element type (default fp32)")
    parser.add_argument("--quantise", choices=("int4", "int8"), help="of weights (default: none)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    loaded, clock = load("smollm2-135m", options.dtype), Clock()
    engine = engine_of(loaded, options.quantise, clock)
    print(machine_line("torch", "transformers", "octavo"))
    print(
        f"SmolLM2-135M {options.dtype}, weights {options.quantise or options.dtype}, prompts of "
        f"{options.context} tokens, {options.threads} thread{'s' * (options.threads != 1)}, ms per "
        f"step, the fastest quarter of {options.steps}; load average {os.getloadavg()[0]:.1f}"
    )
    print("  ".join(("    rows", *PARTS, "all", "without linears")))
    for rows in options.rows:
        decoding(engine, rows, options.context, options.steps)
        print(*report(rows, milliseconds(engine, clock, options.steps)), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
