"""The front page is short, and its figures are those that were measured."""

import re
from pathlib import Path

import bench_speed
import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_LINES = 150


def _rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _result(name: str, label: str) -> list[str]:
    """The figures of the line of a result that begins with a label."""
    lines = (ROOT / f"benchmarks/results/{name}.txt").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if re.match(rf" *{re.escape(label)}  ", line)]
    return line.partition(label)[2].split()


def test_is_read_in_a_minute():
    """Who it is for and what to run next stand on one page."""
    assert MOST_LINES > README.count("\n")


@pytest.mark.parametrize("row", _rows("What it saves"), ids=lambda row: row[0])
def test_savings_are_those_measured(row):
    """A row is a line of bench_prefix.py's result, cell by cell."""
    how, _, cache = row[0].partition(": ")

    assert row[1:] == _result("prefix", f"{how:12}{cache}")


def test_sentence_on_top_is_of_the_table():
    """Seconds and MiB that are named before the table are the table's, rounded."""
    sentence = re.search(
        r"Eight questions .* took ([\d.]+) s instead of ([\d.]+) .* (\d+) MiB instead of (\d+)",
        README,
    )
    rows = {row[0]: row for row in _rows("What it saves")}
    ours, none = rows["one by one: octavo"], rows["one by one: no reuse"]

    assert sentence is not None
    assert sentence.groups() == (
        *(f"{float(row[1]):.1f}" for row in (ours, none)),
        *(f"{float(row[-1]):.0f}" for row in (ours, none)),
    )


@pytest.mark.parametrize("row", _rows("Beside its peers"), ids=lambda row: row[0])
def test_figures_beside_peers_are_those_measured(row):
    """A row's figures stand, in its order, in the line of bench_speed.py that it names."""
    label, _ = bench_speed.ROWS[row[-1].strip("`")]
    measured = iter(_result("speed", label))

    assert all(figure in measured for figure in row[1:-1])
