"""Claim: a packed plan holds as many sequences of 32,768 tokens as it promises, and under churn at
most 5 % of its bytes are vacant in parents that another group could not use.

A cache of each plan (16 GiB, pages of 16 tokens, prefixes off) first takes in sequences of 32,768
tokens in chunks of 2,048 until one is refused. Then, round by round, a random third of the
sequences goes and others of random length (log-uniform up to 32,768) come until one is refused. At
that moment: bytes in pages that sequences hold, and bytes of vacant pages in bound parents, as
shares of the pool. The rest is in free parents, too few for what was refused.
"""

import argparse
import sys

import numpy as np
from machine import machine_line
from planned_models import MIXED

import octavo

LONGEST, CHUNK, MOST = 32768, 2048, 0.05


def admit(cache: octavo.Cache, length: int) -> octavo.Sequence | None:
    """One more sequence, computed in chunks; None and nothing held where it has no room."""
    row = cache.admit(np.zeros(length, np.int32), limit=length)
    try:
        while row.computed < length:
            cache.commit(cache.extend([row], min(CHUNK, length - row.computed)))
    except octavo.OutOfPages:
        cache.release(row)
        return None
    return row


def shares(cache: octavo.Cache) -> tuple[float, float]:
    """Shares of the pool's bytes: in held pages, and vacant in bound parents."""
    plan, free, total = cache.plan, cache.stats().free, cache.plan.usable_pages
    vacant = 0
    for name, pages in cache.available().items():  # without a prefix cache: free, or vacant
        group = plan.groups[name]
        vacant += (pages - free * group.pages_per_parent) * group.page_bytes
    bound = (total - free) * plan.page_bytes
    return (bound - vacant) / (total * plan.page_bytes), vacant / (total * plan.page_bytes)


def churn(spec: octavo.ModelSpec, rounds: int) -> bool:
    """Print one line; whether the claim holds."""
    plan = octavo.plan(spec, "16GiB", max_length=LONGEST)
    cache = octavo.Cache(plan, max_sequences=2**12, prefix=False)
    rows: list[octavo.Sequence] = []
    while (row := admit(cache, LONGEST)) is not None:
        rows.append(row)
    promised, found = plan.max_sequences(LONGEST), len(rows)
    chance, held, vacant = np.random.default_rng(1), [], []
    for _ in range(rounds):
        going = set(chance.choice(len(rows), -(-len(rows) // 3), replace=False).tolist())
        for at in going:
            cache.release(rows[at])
        rows = [row for at, row in enumerate(rows) if at not in going]
        while (row := admit(cache, int(np.exp(chance.uniform(0, np.log(LONGEST)))))) is not None:
            rows.append(row)
        now = shares(cache)
        held.append(now[0])
        vacant.append(now[1])
    cache.check()
    print(
        f"{spec.name:<20}{float(promised):9.2f}{found:9}{sum(held) / rounds:12.1%}"
        f"{sum(vacant) / rounds:12.2%}{max(vacant):9.2%}",
        flush=True,
    )
    return found >= int(promised) and max(vacant) <= MOST


def main() -> int:
    """Print the figures; exit code 1 when the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="rounds of churn (default 60)")
    rounds = parser.parse_args().rounds
    print(machine_line("numpy", "octavo"))
    print(f"16 GiB, page size 16; shares of the pool at the refusals of {rounds} rounds")
    print(f"{'model':<20}{'promised':>9}{'held':>9}{'in use':>12}{'vacant':>12}{'most':>9}")
    holds = [churn(spec, rounds) for spec in MIXED]
    print(f"vacant in bound parents: at most {MOST:.0%} allowed")
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
