"""Claim: the cache is as fast as the goal of each figure says, beside other engines' page managers.

octavo runs twice, as it is installed and with OCTAVO_PURE=1, beside a naive manager in plain Python
(`contender_naive.py`) and, where they are there, nano-vllm's, InfiniLM's, transformers' and vLLM's.
Each has an interpreter of its own; they take turns, each round with new prompts that are the same
for all, and the best of the rounds is printed, in microseconds of processor time. Behind a peer's
time stands how many times octavo's it is. octavo's arrays for kernels (slots and block table) are
made and read in every step. Of the peers, transformers fills a block table and lists slots, vLLM's
manager and nano-vllm's make neither, InfiniLM's and the naive one make lists of slots.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import NamedTuple

from machine import machine_line
from worker import Absent, Worker
from workloads import Figure

Times = dict[str, dict[str, float]]
"""The best round by figure and contender."""
Found = dict[str, dict[str, list[Figure]]]
"""Rounds by figure and contender."""
OCTAVO, PURE, NAIVE = "octavo", "pure", "naive"
PEERS = {
    "nano-vllm": "contender_nano_vllm:NanoVllm",
    "InfiniLM": "contender_infinilm:InfiniLM",
    "transformers": "contender_transformers:Transformers",
    "vLLM": "contender_vllm:Vllm",
}


class Goal(NamedTuple):
    """What is to be reached.

    Attributes:
        text: in the table.
        most: the time octavo may take, of the times so far; None: cannot be said without a peer.
        who: takes it.
    """

    text: str
    most: Callable[[Times, str], float | None]
    who: str = OCTAVO


def within(us: float) -> Goal:
    """Microseconds."""
    return Goal(f"{us:g} us", lambda times, figure: us)


def beside(other: str, times_it: float) -> Goal:
    """A multiple of another figure."""
    return Goal(
        f"{times_it:g} x {other}",
        lambda times, figure: times_it * times[other][OCTAVO] if other in times else None,
    )


def ahead(multiple: float, *peers: str) -> Goal:
    """So many times faster than each peer that is there; default: than each engine."""

    def most(times: Times, figure: str) -> float | None:
        found = [us for who, us in times[figure].items() if who in (peers or PEERS)]
        return min(found) / multiple if found else None

    return Goal(f"{multiple:g} x faster than {' and '.join(peers) or 'engines'}", most)


def behind(peer: str, multiple: float) -> Goal:
    """Interpreted, at most a multiple of a peer's time."""

    def most(times: Times, figure: str) -> float | None:
        return times[figure][peer] * multiple if peer in times[figure] else None

    return Goal(f"pure {multiple:g} x {peer}", most, PURE)


def rows(count: int) -> str:
    """In words."""
    return "1 row" if count == 1 else f"{count} rows"


ROWS: dict[str, tuple[str, list[Goal]]] = {
    "serve": ("256 rows, requests come and go: a token", [ahead(4), behind("nano-vllm", 4)]),
    "serve_lists": ("the same, prompts are lists", [ahead(4), behind("nano-vllm", 4)]),
    "admit_new": ("admit 1,024 new tokens", [ahead(4)]),
    "admit_new_lists": ("the same, prompts are lists", [beside("admit_new", 1.5)]),
    "admit_shared": ("admit 1,024 published tokens and 64", [ahead(4)]),
    "churn": ("turn of a conversation, full pool", [ahead(4)]),
    "finish": ("finish 1,024 + 128 decoded tokens", [ahead(4)]),
    "decode_1": ("decode step of 1 row", [within(12)]),
    "decode_8": ("decode step of 8 rows", [within(12)]),
    "decode_256": ("decode step of 256 rows", [within(0.2 * 256)]),
    "drafts": ("4 drafts, 2 kept, 256 rows", [within(60)]),
    **{f"batch_{n}": (f"rows of 512 tokens decode, {rows(n)}", []) for n in (1, 8, 256)},
    **{
        f"{kind}_{n}": (f"{title}, {rows(n)}", [beside(f"batch_{n}", most)])
        for kind, title, most in (
            ("window", "  with a window group", 2),
            ("state", "  with a state group", 2),
            ("ids_list", "  sampled ids are a list", 1.5),
            ("rows_list", "  a list of sequences", 1.2),
        )
        for n in (1, 8, 256)
    },
    "emitter_vllm": ("an Emitter of index.vllm, 256 rows", [within(8)]),
    "emitter_flashinfer": ("an Emitter of index.flashinfer", [within(12)]),
    "index_vllm": ("  the function, arrays made anew", []),
    "index_flashinfer": ("  the same of index.flashinfer", []),
    "slots_1_256": ("slot of 1 token, page 256", [within(0.3)]),
    "slots_4096_16": ("slots of 4,096 tokens, page 16", [ahead(10, NAIVE)]),
    "slots_32768_16": ("slots of 32,768 tokens, page 16", [ahead(10, NAIVE)]),
    "slots_4096_256": ("slots of 4,096 tokens, page 256", [ahead(5, NAIVE)]),
    "slots_32768_256": ("slots of 32,768 tokens, page 256", [ahead(10, NAIVE)]),
    "build_100k": ("build a pool of 100,000 pages", [ahead(10)]),
    "build_1m": ("build a pool of 1,000,000 pages", [ahead(20)]),
    **{
        name: (title, [beside("batch_256", 10)])
        for name, title in (
            ("lockstep", "  256 rows in lockstep"),
            ("window_lockstep", "  with a window group, lockstep"),
            ("windows_lockstep", "  with two window groups, lockstep"),
            ("events", "  with events"),
            ("sit_out", "  half of 256 rows sit out"),
            ("prefill", "  a chunk of 128 beside decode"),
            ("speculate", "  speculation 1 + 4, any kept"),
            ("speculate_window", "  the same with a window group"),
            ("move", "  a row leaves and comes back"),
        )
    },
}


def contenders() -> dict[str, Worker]:
    """Those that are there; names the others, and why they are not."""
    python = os.environ.get("PEERS_PYTHON", sys.executable)
    found = {
        OCTAVO: Worker("contender_octavo:Octavo"),
        PURE: Worker("contender_octavo:Octavo", OCTAVO_PURE="1"),
        NAIVE: Worker("contender_naive:Naive"),
    }
    for name, where in PEERS.items():
        try:
            found[name] = Worker(where, python)
        except Absent as why:
            print(f"left out: {name}: {why}")
    print("; ".join(f"{name} {worker.version}" for name, worker in found.items()))
    return found


def measure(workers: dict[str, Worker], figures: list[str], rounds: int) -> Found:
    """All figures in turn, round by round, so that what disturbs the machine disturbs a round.

    One round more warms up, and finds out who has which figure.
    """
    found: Found = {}
    for figure in figures:
        warm = {who: worker.run(figure, 0) for who, worker in workers.items()}
        found[figure] = {who: [] for who, made in warm.items() if made}
    for turn in range(1, rounds + 1):
        print(f"round {turn} of {rounds}", file=sys.stderr)
        for figure, made in found.items():
            for who, rows in made.items():
                now = workers[who].run(figure, turn)
                assert now is not None
                rows.append(now)
    return found


def number(us: float) -> str:
    """Three digits that say something."""
    return f"{us:,.0f}" if us >= 1_000 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def cells(times: dict[str, float], names: list[str]) -> str:
    """The times of a row, a peer's with its multiple of octavo's."""
    line = ""
    for who in names:
        if who not in times:
            line += f"{'-':>{width(who)}}"
        elif who in (OCTAVO, PURE):
            line += f"{number(times[who]):>{width(who)}}"
        else:
            ratio = f"{times[who] / times[OCTAVO]:.1f}x"
            line += f"{number(times[who]):>{width(who) - 8}}{ratio:>8}"
    return line


def width(who: str) -> int:
    """Of a contender's column."""
    return 10 if who in (OCTAVO, PURE) else 18


def judge(goals: list[Goal], times: Times, figure: str) -> list[str]:
    """Each goal, and whether it is reached."""
    said = []
    for goal in goals:
        most = goal.most(times, figure)
        verdict = "?" if most is None else "ok" if times[figure][goal.who] <= most else "MISSED"
        said.append(f"{goal.text}: {verdict}")
    return said


def table(found: Found, names: list[str]) -> list[str]:
    """Print the table; returns the goals that are missed."""
    times: Times = {
        figure: {who: min(f.microseconds for f in rows) for who, rows in made.items()}
        for figure, made in found.items()
    }
    missed = []
    print(f"{'figure, us':<42}{''.join(f'{who:>{width(who)}}' for who in names)}  goals")
    for figure, made in found.items():
        title, goals = ROWS[figure]
        said = judge(goals, times, figure)
        missed += [f"{figure}, {text}" for text in said if text.endswith("MISSED")]
        print(f"{title:<42}{cells(times[figure], names)}  {'; '.join(said)}")
        if made[OCTAVO][0].hits is not None:
            hits = "".join(f"{made[who][-1].hits or 0:>{width(who)}.1f}" for who in names)
            print(f"{'  per cent of its tokens found':<42}{hits}")
    return missed


def main() -> int:
    """Print the figures; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a figure (default 5)")
    parser.add_argument("--figures", nargs="+", default=list(ROWS), choices=ROWS, metavar="NAME")
    options = parser.parse_args()
    print(machine_line("numpy", "octavo"))
    print(f"best of {options.rounds} rounds in turn; load average {os.getloadavg()[0]:.1f}")
    workers = contenders()
    missed = table(measure(workers, options.figures, options.rounds), list(workers))
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    print("missed: " + ("; ".join(text[:-8] for text in missed) or "none"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
