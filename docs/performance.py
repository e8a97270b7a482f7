"""Writes the figures of docs/performance.md anew from benchmarks/results; tests hold them current.

The page's prose stands in the page; between its marks `<!-- NAME -->` and `<!-- end -->` stands
what `FIGURES` reads from the raw output of a benchmark, what a run missed included.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import engine_figures
from figures import count, ending, lines, listed, machine, table

PAGE = Path(__file__).with_name("performance.md")
UNITS = {"write": "token", "gather": "page"}  # of storage.txt


def speed() -> tuple[str, list[str]]:
    """The table beside other page managers, and what it missed."""
    rows, missed = [], []
    peers = ["naive", "nano-vllm", "InfiniLM", "transformers", "vLLM"]
    for line in lines("speed"):
        row = re.fullmatch(r" *(\S.*?)  +([\d,.]+) +([\d,.]+) +(\S.*)", line)
        if row is None:
            continue
        what, own, pure, rest = row.groups()
        others = re.match(r"(?:(?:-|[\d,.]+(?: +[\d.]+x)?) *){5}", rest)
        if others is None:
            continue
        found = re.findall(r"(-|[\d,.]+)(?: +([\d.]+x))?", others[0])
        goals = rest[others.end() :]
        if any(value != "-" for value, _ in found):
            cells = [f"{value} ({factor})" if factor else value for value, factor in found]
            rows.append([what.replace("per cent", "not us but per cent"), own, pure, *cells])
        for goal in (goal.strip() for goal in goals.split(";") if goal.endswith("MISSED")):
            aim, as_source = goal.removesuffix(": MISSED"), goal.startswith("pure ")
            if as_source:
                aim = re.sub(r"pure (\S+) x (.*)", r"at most \1 times \2", aim)
            aim = re.sub(r"(\S+) x faster than engines", r"\1 times as fast as each engine", aim)
            side, us = ("octavo as source", pure) if as_source else ("octavo", own)
            missed.append(f"{what}: {side} {us} us, aim {aim}")
    return table(["us", "octavo", "octavo as source", *peers], rows), missed


def attention() -> tuple[str, list[str]]:
    """Chosen rows of the attention table, and what it missed."""
    text = lines("attention")
    chosen = ["grouped", "gqa", "cpu 32s", "cpu 256c", "vllm 32s"]
    names = re.findall(r"(?:cpu|torch|vllm) \d+[sc]|\S+", text[2])
    rows, missed = [], []
    for line in text[3:]:
        cells = line.split()
        if len(cells) == len(names) and cells[1] in ("32/8/128", "9/3/64"):
            of = dict(zip(names, cells, strict=True))  # two columns are `rows`
            what = f"{cells[0]}, {cells[1]}, {cells[2]} x {int(cells[3]):,} tokens"
            rows.append([what, *(f"{int(of[name]):,}" for name in chosen)])
        elif row := re.fullmatch(r" *(\S+) +(\S+) +(\d+) +(\d+): cpu (\d+)([sc]): (.+)", line):
            order = "in random order" if row[6] == "s" else "in sequence"
            case = f"{row[1]}, {row[2]}, {row[3]} x {int(row[4]):,} tokens"
            missed.append(f"{case}, pages of {row[5]} {order}: {row[7]}")
    return table(["us", *chosen], rows), missed


def generate() -> tuple[str, list[str]]:
    """Whole calls, and where the drop-in is slower than DynamicCache."""
    rows, missed = [], []
    for line in lines("generate"):
        row = re.fullmatch(r" +(\d+)  (new|reused) +(\S.*?)  +([\d. ]+)", line)
        if row:
            number, prefix, cache, figures = row.groups()
            rows.append([f"{count(number, 'row')}, {prefix}, {cache}", *figures.split()])
            if "octavo" in cache and float(figures.split()[-1]) < 1:
                missed.append(f"{rows[-1][0]}: {figures.split()[-1]} of DynamicCache's speed")
    return table(["call", "s", "tok/s", "MiB", "speedup"], rows), missed


def drop_in() -> str:
    """A decode step with the drop-in, and with DynamicCache."""
    found = (re.fullmatch(r" *(\d+)((?: +[\d.]+){4})", line) for line in lines("drop_in"))
    rows = [[count(row[1], "row"), *row[2].split()] for row in found if row]
    return table(["ms per step", "DynamicCache", "octavo", "ratio", "aim"], rows)


def storage() -> str:
    """Writes and gathers of `Storage`, beside the bare indexing."""
    found = (
        re.fullmatch(r"(write|gather) +(\w+) (\w+) +(\d+) +(.*)", line) for line in lines("storage")
    )
    rows = [
        [
            f"{row[1]} {count(row[4], UNITS[row[1]])}, {row[2]}, {row[3]}-major",
            *row[5].split(),
        ]
        for row in found
        if row
    ]
    return table(["us", "octavo", "bare", "ratio"], rows)


def growth() -> str:
    """Whether steps grow with what is around them, and what other verbs take beside much of it."""
    told = [f"- {line}\n" for line in lines("growth") if " allowed" in line]
    found = (
        re.fullmatch(r"(\S.*?; .*?)  +([\d,]+)  +([\d,]+)((?:  +[\d.]+){3})", line)
        for line in lines("growth")
    )
    rows = [[row[1], row[2], row[3], *row[4].split()] for row in found if row]
    head = ["verb; beside how many", "little", "much", "us, little", "us, much", "ratio"]
    return f"{''.join(told[:-1])}\n{table(head, rows)}\nEach verb, {told[-1].removeprefix('- ')}"


def active_prefix() -> str:
    """Milliseconds of a decode step, eager and compiled."""
    rows, kind = [], ""
    for line in lines("active_prefix"):
        kind = line[:4] if line.startswith(("fp32", "bf16")) else kind
        row = re.fullmatch(r"(full|octavo)(.*?)  +([\d. ]+)", line)
        if row:
            rows.append([f"{kind}, {row[1]}{row[2]}", *row[3].split()])
    return table(["ms per step", "median", "best", "tok/s", "MiB"], rows)


def index() -> tuple[str, list[str]]:
    """Microseconds of each format, and aims that were missed."""
    rows, missed = [], []
    for line in lines("index"):
        row = re.fullmatch(r"(\w+) +([\d. ]+)", line)
        if row and len(cells := row[2].split()) == 7:
            emitter, _, first, function, _, _, second = cells
            rows.append([f"`{row[1]}`", emitter, function])
            for what, cost, aim in (("Emitter", emitter, first), ("function", function, second)):
                if float(cost) > float(aim):
                    missed.append(f"`{row[1]}`, {what}: {cost} us, aim {aim}")
    return table(["us", "Emitter", "function"], rows), missed


def prefix() -> str:
    """Questions about one text, by cache."""
    rows = [re.split("  +", line) for line in lines("prefix") if line.startswith("one ")]
    head = ["questions, cache", "s", "tokens per s", "first token, s", "MiB kept"]
    return table(head, [[f"{row[0]}: {row[1]}", *row[2:]] for row in rows])


def speculation() -> str:
    """Tasks with and without guesses, by contender."""
    found = (
        re.fullmatch(r"(\w+) +(\d+)  (generate.*?|octavo.*?)  +(.*)", line)
        for line in lines("speculation")
    )
    rows = [
        [f"{row[1]}, {row[2]} at once: {row[3]}", *(row[4].split() + ["-"] * 3)[:5]]
        for row in found
        if row
    ]
    head = ["task, by", "s", "tokens per s", "steps", "guessed", "accepted"]
    return table(head, rows)


def packing() -> str:
    """What packed plans promise, and what was held."""
    rows = [line.split() for line in lines("packing") if line.endswith("%")]
    return table(["model", "promised", "held", "in use", "vacant", "vacant at most"], rows)


def claims(*names: str) -> str:
    """What benchmarks end with."""
    return "".join(f"- `bench_{name}.py`: {lines(name)[-1]}\n" for name in names)


FIGURES: dict[str, Callable[[], str]] = {
    **engine_figures.FIGURES,
    "speed": lambda: f"{machine('speed')}\n{speed()[0]}",
    "attention": lambda: f"{machine('attention')}\n{attention()[0]}",
    "prefix": lambda: f"{machine('prefix')}\n{prefix()}",
    "generate": lambda: f"{machine('generate')}\n{generate()[0]}",
    "active prefix": lambda: f"{machine('active_prefix')}\n{active_prefix()}",
    "index": lambda: f"{machine('index')}\n{index()[0]}",
    "speculation": lambda: f"{machine('speculation')}\n{speculation()}",
    "packing": lambda: f"{machine('packing')}\n{packing()}",
    "claims": lambda: claims(
        "prefix", "speculation", "import_time", "planning", "simulate", "traces"
    ),
    "drop in": lambda: f"{machine('drop_in')}\n{drop_in()}\n{ending('drop_in')}",
    "storage": lambda: f"{machine('storage')}\n{storage()}",
    "growth": lambda: f"{machine('growth')}\n{growth()}",
    "missed: speed": lambda: listed(speed()[1]),
    "missed: attention": lambda: listed(attention()[1]),
    "missed: generate": lambda: listed(generate()[1]),
    "missed: index": lambda: listed(index()[1]),
}


def render() -> str:
    """The whole page, with the figures as they are now."""
    return re.sub(
        r"(<!-- ([\w: ]+) -->\n).*?(<!-- end -->)",
        lambda mark: f"{mark[1]}\n{FIGURES[mark[2]]()}\n{mark[3]}",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")
