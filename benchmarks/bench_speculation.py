"""Guesses from a request's own text, verified several at a time, beside one token per step.

Claim: on a task that copies, the engine with `PromptLookup` gives SmolLM2-135M's tokens at least
1.5 times as fast as without, the same tokens; on a text that is made up it is at most 1.1 times as
slow, as guesses that do not pay end by themselves.

Method: greedy; a text to be repeated word for word, of 95 tokens in a chat's template, and a story
to be made up; one request at a time, and four at once, each with a beginning of its own. One thread
and seconds of CPU time, as the machine is shared: on a core of its own that is the time that
passes. Prompts are computed before the clock starts. Beside the engine, for one request:
transformers' `generate()` with and without its `prompt_lookup_num_tokens`, whose first pass, which
computes the prompt, is in its time. Contenders in turn, the best of the rounds.
"""

import argparse
import time
from typing import Any, NamedTuple

import torch
from machine import machine_line
from transformers.utils import logging

import octavo
from octavo.checkpoints.loading import LoadedModel, load
from octavo.engine import Engine, PromptLookup, SamplingParams

FASTER, SLOWER = 1.5, 1.1  # where it copies at least, where it does not at most
NEW = 96
LOG = (
    "The keeper wrote in his log every evening. On Monday the wind came from the north and two "
    "boats stayed in the harbour. On Tuesday it rained until noon, and a crate of oranges washed "
    "ashore. On Wednesday the lamp was cleaned and the glass polished. On Thursday nobody passed. "
    "On Friday the supply ship brought flour, oil, three letters and a new rope."
)
TASKS = {
    "copy": f"Repeat this text word for word:\n\n{LOG}",
    "story": "Tell me a story about a fox who learns to swim.",
}
NAMES = ("", "Ann: ", "Bob: ", "Cleo: ")


class Run(NamedTuple):
    """What one contender took for its answers."""

    tokens: list[list[int]]
    seconds: float
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


def prompts(loaded: LoadedModel, task: str, rows: int) -> list[list[int]]:
    """Token ids of a task's prompts, each with another beginning."""
    found = []
    for name in NAMES[:rows]:
        turns = [{"role": "user", "content": name + TASKS[task]}]
        found.append(
            loaded.tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_dict=False
            )
        )
    return found


def engine(loaded: LoadedModel, ids: list[list[int]], speculation: Any) -> Run:
    """octavo's engine; the clock starts when all prompts are computed."""
    plan = octavo.plan(loaded.spec, "256MiB", dtype=loaded.dtype, order="head")
    with Engine(loaded.model, plan, speculation=speculation, prefix=False) as running:
        requests = [running.submit(each, SamplingParams(max_tokens=NEW)) for each in ids]
        running.step()
        before, start = running.stats, time.process_time()
        running.run()
        seconds, stats = time.process_time() - start, running.stats
        steps = stats.steps - before.steps
        tokens = [request.output for request in requests]
        return Run(tokens, seconds, steps, stats.drafted_tokens, stats.accepted_tokens)


def generate(loaded: LoadedModel, ids: list[list[int]], guesses: int | None) -> Run:
    """transformers' `generate()`, for one request."""
    row = torch.tensor(ids)
    start = time.process_time()
    tokens = loaded.model.generate(
        row,
        attention_mask=torch.ones_like(row),
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        prompt_lookup_num_tokens=guesses,
    )
    return Run([tokens[0, row.shape[1] :].tolist()], time.process_time() - start)


CONTENDERS = {
    "generate": lambda loaded, ids: generate(loaded, ids, None),
    "generate, lookup": lambda loaded, ids: generate(loaded, ids, 10),
    "octavo": lambda loaded, ids: engine(loaded, ids, None),
    "octavo, lookup": lambda loaded, ids: engine(loaded, ids, PromptLookup()),
}


def compare(loaded: LoadedModel, task: str, rows: int, rounds: int) -> bool:
    """Print a line per contender; whether the claim holds."""
    ids = prompts(loaded, task, rows)
    ours = [name for name in CONTENDERS if rows == 1 or name.startswith("octavo")]
    best: dict[str, Run] = {}
    for _ in range(rounds):
        for name in ours:
            run = CONTENDERS[name](loaded, ids)
            if name not in best or run.seconds < best[name].seconds:
                best[name] = run
    for name, run in best.items():
        new = sum(map(len, run.tokens))
        steps = f"{run.steps:8}{run.drafted:9}{run.accepted:10}" if run.steps else ""
        print(
            f"{task:7}{rows:5}  {name:18}{run.seconds:7.2f}{new / run.seconds:8.1f}{steps}",
            flush=True,
        )
    plain, lookup = best["octavo"], best["octavo, lookup"]
    ratio = plain.seconds / lookup.seconds
    equal = all(run.tokens == plain.tokens for run in best.values())
    print(f"{task:7}{rows:5}  lookup is {ratio:.2f} times as fast, tokens", end=" ")
    print("equal" if equal else "differ", flush=True)
    return equal and ratio >= (FASTER if task == "copy" else 1 / SLOWER)


def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    print(machine_line("torch", "transformers"))
    print(
        f"SmolLM2-135M in {options.dtype}, 1 thread, CPU time; {NEW} tokens each, greedy; "
        f"best of {options.rounds} rounds in turn"
    )
    print("task    rows  by                      s   tok/s   steps  guessed  accepted")
    loaded = load("smollm2-135m", dtype=options.dtype)
    engine(loaded, prompts(loaded, "story", 1), None)
    held = [compare(loaded, task, rows, options.rounds) for task in TASKS for rows in (1, 4)]
    print(
        f"tokens equal, at least {FASTER} times as fast where it copies, at most {SLOWER} times as "
        "slow where not:",
        "yes" if all(held) else "no",
    )
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
