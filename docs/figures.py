"""Reads results of benchmarks, for the scripts that write pages from them."""

import re
from collections.abc import Iterable
from pathlib import Path

RESULTS = Path(__file__).parents[1] / "benchmarks/results"


def lines(name: str) -> list[str]:
    """The lines of a result."""
    return (RESULTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    head = list(head)
    marks = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, marks, *rows]) + "\n"


def count(number: str, noun: str) -> str:
    """So many of a thing: `1 row`, `4 rows`."""
    return f"{number} {noun}{'s' * (number != '1')}"


def machine(name: str) -> str:
    """Where and with what a result was measured."""
    return f"`benchmarks/bench_{name}.py`; {lines(name)[0]}\n"


def ending(name: str) -> str:
    """What a run says of its claim: `tokens equal: yes`."""
    return next(line for line in reversed(lines(name)) if re.search(": (yes|no)", line)) + "\n"


def listed(missed: list[str]) -> str:
    """What a benchmark missed, as a list."""
    return "".join(f"- {each}\n" for each in missed or ["nothing"])
