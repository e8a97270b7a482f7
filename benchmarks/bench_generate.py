"""generate() of SmolLM2-135M with the drop-in, against transformers' own caches.

Claim: the drop-in's tokens are DynamicCache's; with a prefix that an earlier call computed, a call
is faster than with DynamicCache or StaticCache, and eight rows hold fewer bytes.

Method: 128 tokens of prompt, 16 greedy tokens, one thread, seconds of CPU time, as the machine is
shared. `new`: all prompts are different. `reused`: 112 tokens of each are those of a call before,
which the own caches compute again. In turn, the best of the rounds, of which eight rows have one.
MiB: keys and values of the longest moment (octavo: pages in use).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import machine_line
from transformers import DynamicCache, StaticCache

from octavo.checkpoints.loading import load
from octavo.integrations.transformers import OctavoCache

PROMPT, SHARED, NEW, CAPACITY = 128, 112, 16, 2048


def ids(rows: int, seed: int, shared: torch.Tensor | None) -> torch.Tensor:
    """int64[rows, PROMPT]: random ids, behind the shared ones where there are some."""
    drawn = torch.randint(100, 49000, (rows, PROMPT), generator=torch.Generator().manual_seed(seed))
    if shared is not None:
        drawn[:, : len(shared)] = shared
    return drawn


def generate(model: Any, prompt: torch.Tensor, cache: Any) -> tuple[torch.Tensor, float]:
    """(tokens, seconds of CPU time) of one call."""
    start = time.process_time()
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        cache=cache,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return tokens, time.process_time() - start


def held(cache: Any) -> int:
    """Bytes of keys and values."""
    if isinstance(cache, OctavoCache):
        return cache.pages.stats().peak_live * cache.plan.page_bytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def contenders(model: Any, rows: int) -> dict[str, Callable[[], Any]]:
    """Caches by name; octavo's are made once and used by every call."""
    memory = model.config.num_hidden_layers * model.config.num_key_value_heads * 64 * 2 * 4
    ours = [
        OctavoCache.for_model(model, memory * 192 * (rows + 4), max_sequences=rows)
        for _ in range(2)
    ]
    return {
        "DynamicCache": lambda: DynamicCache(config=model.config),
        "StaticCache": lambda: StaticCache(config=model.config, max_cache_len=CAPACITY),
        "octavo, gathered": lambda: ours[0],
        "octavo, in place": lambda: ours[1],
    }


def measure(model: Any, rows: int, *, reused: bool, rounds: int) -> bool:
    """One line a contender; whether all tokens are equal and a reused prefix pays."""
    caches = contenders(model, rows)
    shared = ids(1, 0, None)[0, :SHARED] if reused else None
    times: dict[str, list[float]] = {name: [] for name in caches}
    sizes, equal = dict.fromkeys(caches, 0), True
    for number in range(rounds + 1):
        prompt = ids(rows, 1 + number, shared)
        expected = None
        for name, make in caches.items():
            cache = make()
            if name.endswith("place"):
                with cache.attend():
                    tokens, seconds = generate(model, prompt, cache)
            else:
                tokens, seconds = generate(model, prompt, cache)
            expected = tokens if expected is None else expected
            equal &= torch.equal(tokens, expected)
            sizes[name] = held(cache)
            if number:  # the first warms up, and leaves the prefix that is reused
                times[name].append(seconds)
    own = min(times["DynamicCache"])
    for name, each in times.items():
        seconds = min(each)
        print(
            f"{rows:4}  {'reused' if reused else 'new':8}{name:18}{seconds:9.2f}"
            f"{rows * NEW / seconds:10.1f}{sizes[name] / 2**20:9.1f}{own / seconds:9.2f}",
            flush=True,
        )
    pays = all(min(times[name]) < own for name in times if name.startswith("octavo"))
    return equal and (pays or not reused)


def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dtype", default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line("torch", "transformers"))
    print(
        f"SmolLM2-135M in {options.dtype}, 1 thread, CPU time, prompt {PROMPT} (reused {SHARED}), "
        f"{NEW} new tokens, static capacity {CAPACITY}, "
        f"best of {options.rounds} rounds in turn (8 rows: of 1)"
    )
    print("rows  prefix  cache                   s     tok/s      MiB  speedup")
    model = load("smollm2-135m", dtype=options.dtype).model
    held_all = [
        measure(model, rows, reused=reused, rounds=options.rounds if rows == 1 else 1)
        for rows in (1, 8)
        for reused in (False, True)
    ]
    print("tokens equal, and a reused prefix pays:", "yes" if all(held_all) else "no")
    return 0 if all(held_all) else 1


if __name__ == "__main__":
    raise SystemExit(main())
