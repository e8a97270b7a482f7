"""Eight questions about one text: no reuse, a copied DynamicCache, and octavo's drop-in.

Claim: under `generate()` of SmolLM2-135M octavo's tokens are those of no reuse; eight answers that
begin with the same text take less time than without reuse and at most 1.25 times what transformers'
recipe takes (compute the text once, copy its DynamicCache for every call), and fewer bytes are kept
than by either.

Method: a text of 384 tokens, questions of 16, answers of 16, greedy; random ids. One thread and
seconds of CPU time, as the machine is shared: on a core of its own that is the time that passes.
Everything is included: computing the text, copying, and octavo's own work, which is told nothing
beforehand when questions come one by one. In one batch the text is computed first, in a call of its
own. First token: mean over the calls, the computation of the text counted in the first; in a batch
until all rows have theirs. MiB: keys and values kept so that each of the eight conversations can go
on. Contenders in turn, the best of the rounds.
"""

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from machine import machine_line
from transformers import DynamicCache, LogitsProcessor
from transformers.utils import logging

from octavo.checkpoints.loading import load
from octavo.integrations.transformers import OctavoCache

TEXT, QUESTION, NEW, ROWS = 384, 16, 16, 8
SLOWER = 1.25  # than copying, at most


class Clock(LogitsProcessor):
    """Notes when the first logits of a call come."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(
        self,
        input_ids: torch.Tensor,  # noqa: ARG002  # transformers passes it
        scores: torch.Tensor,
    ) -> torch.Tensor:
        """Look at the clock, and leave the scores as they are."""
        if self.first is None:
            self.first = time.process_time()
        return scores


class Run(NamedTuple):
    """What one contender took for all questions."""

    tokens: torch.Tensor
    seconds: float
    first: float
    bytes: int


def prompts(seed: int) -> torch.Tensor:
    """int64[ROWS, TEXT + QUESTION]: random ids that begin alike."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(100, 49000, (ROWS, TEXT + QUESTION), generator=generator)
    drawn[:, :TEXT] = drawn[0, :TEXT]
    return drawn


def generate(model: Any, ids: torch.Tensor, cache: Any, new: int = NEW) -> tuple[Any, float]:
    """(tokens, when the first logits came) of one call."""
    clock = Clock()
    tokens = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        cache=cache,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        logits_processor=[clock],
    )
    assert clock.first is not None
    return tokens, clock.first


def size(caches: list[DynamicCache]) -> int:
    """Bytes of keys and values."""
    return sum(x.keys.nbytes + x.values.nbytes for cache in caches for x in cache.layers)


def measured(calls: Callable[[], list[tuple[Any, float]]], began: list[float]) -> Any:
    """(tokens of all rows, seconds, mean seconds to the first token)."""
    start = time.process_time()
    found = calls()
    seconds = time.process_time() - start
    firsts = [first - at for (_, first), at in zip(found, [start, *began[1:]], strict=True)]
    return torch.cat([tokens for tokens, _ in found]), seconds, sum(firsts) / len(firsts)


def no_reuse(model: Any, ids: torch.Tensor, parts: int) -> Run:
    """Every call computes its whole prompt into a DynamicCache of its own."""
    kept, began = [], []

    def call(rows: torch.Tensor) -> tuple[Any, float]:
        began.append(time.process_time())
        kept.append(DynamicCache(config=model.config))
        return generate(model, rows, kept[-1])

    return Run(*measured(lambda: [call(rows) for rows in ids.chunk(parts)], began), size(kept))


def copied(model: Any, ids: torch.Tensor, parts: int) -> Run:
    """The text is computed once; each call goes on with a copy of its DynamicCache."""
    text, kept, began = DynamicCache(config=model.config), [], []

    def call(rows: torch.Tensor) -> tuple[Any, float]:
        began.append(time.process_time())
        kept.append(copy.deepcopy(text))
        if len(rows) > 1:
            kept[-1].batch_repeat_interleave(len(rows))
        return generate(model, rows, kept[-1])

    def calls() -> list[tuple[Any, float]]:
        with torch.inference_mode():
            model(ids[:1, :TEXT], cache=text, use_cache=True, logits_to_keep=1)
        return [call(rows) for rows in ids.chunk(parts)]

    return Run(*measured(calls, began), size([text, *kept]))


def octavo(model: Any, ids: torch.Tensor, parts: int) -> Run:
    """One OctavoCache for all calls."""
    began: list[float] = []
    cache = OctavoCache.for_model(model, tokens=ROWS * 512, max_sequences=ROWS)

    def call(rows: torch.Tensor) -> tuple[Any, float]:
        began.append(time.process_time())
        return generate(model, rows, cache)

    def calls() -> list[tuple[Any, float]]:
        if parts == 1:
            generate(model, ids[:1, :TEXT], cache, new=1)
        return [call(rows) for rows in ids.chunk(parts)]

    found = measured(calls, began)
    pages = cache.pages.stats()
    kept = (pages.live + pages.evictable) * cache.plan.page_bytes
    cache.close()
    return Run(*found, kept)


CONTENDERS = {"no reuse": no_reuse, "deepcopy(DynamicCache)": copied, "octavo": octavo}


def compare(model: Any, parts: int, rounds: int) -> bool:
    """Print a line per contender; whether the claim holds."""
    best: dict[str, Run] = {}
    equal = True
    for number in range(rounds):
        ids = prompts(number)
        runs = {name: run(model, ids, parts) for name, run in CONTENDERS.items()}
        equal &= all(torch.equal(runs["no reuse"].tokens, run.tokens) for run in runs.values())
        for name, run in runs.items():
            if name not in best or run.seconds < best[name].seconds:
                best[name] = run
    how = "one batch" if parts == 1 else "one by one"
    for name, run in best.items():
        print(
            f"{how:12}{name:24}{run.seconds:8.2f}{ROWS * NEW / run.seconds:9.1f}"
            f"{run.first:14.2f}{run.bytes / 2**20:9.1f}",
            flush=True,
        )
    plain, copies, ours = best.values()
    within = ours.seconds < min(plain.seconds, SLOWER * copies.seconds)
    return equal and within and ours.bytes < min(plain.bytes, copies.bytes)


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
        f"SmolLM2-135M in {options.dtype}, 1 thread, CPU time; {ROWS} prompts of {TEXT} shared and "
        f"{QUESTION} own tokens, {NEW} new tokens each; best of {options.rounds} rounds in turn"
    )
    print("questions   cache                          s    tok/s  first token s      MiB")
    model = load("smollm2-135m", dtype=options.dtype).model
    generate(model, prompts(9)[:1, :32], DynamicCache(config=model.config), new=1)
    held = [compare(model, parts, options.rounds) for parts in (ROWS, 1)]
    print("tokens equal, less time than no reuse, fewest bytes:", "yes" if all(held) else "no")
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
