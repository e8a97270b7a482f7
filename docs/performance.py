"""Writes the figures of docs/performance.md anew from benchmarks/results; tests hold them current.

The page's prose stands in the page; between its marks `<!-- NAME -->` and `<!-- end -->` stands
what `FIGURES` reads from the raw output of a benchmark, what a run missed included.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).parents[1] / "benchmarks/results"
LINEAR = re.compile(r"(\w+) +(\d+) +([\d.]+) +[\d.]+ +([\d.]+|-)")  # of linears.txt


def lines(name: str) -> list[str]:
    """The lines of a result."""
    return (RESULTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    head = list(head)
    marks = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, marks, *rows]) + "\n"


def machine(name: str) -> str:
    """Where and with what a result was measured."""
    return f"`benchmarks/bench_{name}.py`; {lines(name)[0]}\n"


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
            rows.append([what, own, pure, *cells])
        missed += [
            f"{what}: {own} us, aim {goal.strip().removesuffix(': MISSED')}"
            for goal in goals.split(";")
            if goal.endswith("MISSED")
        ]
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
        elif ", aim " in line:
            missed.append(re.sub(r" +", " ", line.strip()))
    return table(["us", *chosen], rows), missed


def generate() -> tuple[str, list[str]]:
    """Whole calls, and where the drop-in is slower than DynamicCache."""
    rows, missed = [], []
    for line in lines("generate"):
        row = re.fullmatch(r" +(\d+)  (new|reused) +(\S.*?)  +([\d. ]+)", line)
        if row:
            count, prefix, cache, figures = row.groups()
            many = "1 row" if count == "1" else f"{count} rows"
            rows.append([f"{many}, {prefix}, {cache}", *figures.split()])
            if "octavo" in cache and float(figures.split()[-1]) < 1:
                missed.append(f"{rows[-1][0]}: {figures.split()[-1]} of DynamicCache's speed")
    return table(["call", "s", "tok/s", "MiB", "speedup"], rows), missed


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


def engine(result: str) -> tuple[str, list[str]]:
    """Tokens per second of each side and case, and where another is faster than octavo."""
    rates: dict[str, dict[str, list[str]]] = {}
    for line in lines(result):
        row = re.fullmatch(r" *(\d+ x +[\d,]+(?:, \d+ shared)?)  +(\S.*?)  +(\S.*)", line)
        if row:
            case, side, figures = row.groups()
            rates.setdefault(re.sub(" +", " ", case), {})[side] = figures.split()
    sides = list(next(iter(rates.values())))
    rows, missed = [], []
    for case, found in rates.items():
        bound = found["octavo"][1]
        rows.append([case, *(f"{found[side][0]} ({found[side][-2]})" for side in sides), bound])
        for side in sides:
            if side.startswith("octavo"):
                continue
            mine = "octavo int4" if side == "OpenVINO" else "octavo"
            for at, what in ((0, "decode"), (-2, "whole run")):
                ours, other = found[mine][at], found[side][at]
                if "-" not in (ours, other) and float(ours) < float(other):
                    share = float(ours) / float(other)
                    missed.append(f"{case}, {mine}: {share:.2f} of {side}'s {what}")
    return table(["tokens per s", *sides, "bound"], rows), missed


def engines(result: str) -> str:
    """The machine, the conditions and the table of one run of `bench_engine.py`."""
    told = lines(result)
    conditions = next(line for line in told if "new tokens" in line)
    return f"`benchmarks/bench_engine.py`; {told[0]}\n\n{conditions}\n\n{engine(result)[0]}"


def pool_size() -> str:
    """A decode step in pools of two sizes."""
    found = [
        re.match(r"(pool +\d+ tokens) +best +([\d.]+) ms +median +([\d.]+)", line)
        for line in lines("pool_size")
    ]
    rows = [[re.sub(" +", " ", row[1]), row[2], row[3]] for row in found if row]
    return table(["ms per step", "best", "median"], rows)


def linears() -> str:
    """Milliseconds of all linear layers, by kind and rows, beside those of `F.linear`."""
    found = [row.groups() for row in map(LINEAR.fullmatch, lines("linears")) if row]
    counts = list(dict.fromkeys(rows for _, rows, *_ in found))
    cells = {
        (kind, rows): kernel if torch == "-" else f"{kernel} ({torch})"
        for kind, rows, kernel, torch in found
    }
    kinds = dict.fromkeys(kind for kind, *_ in found)
    head = ["ms", *("1 row" if rows == "1" else f"{rows} rows" for rows in counts)]
    return table(head, ([kind, *(cells[kind, rows] for rows in counts)] for kind in kinds))


def sampling() -> tuple[str, list[str]]:
    """What kinds of requests cost beside the model, and where that is 5 % of a step or more."""
    found: dict[str, list[str]] = {}
    head, missed, rows = ["kind of request"], [], ""
    for line in lines("sampling"):
        if row := re.match(r"(\d+) rows", line):
            rows = "1 row" if row[1] == "1" else f"{row[1]} rows"
            head += [f"{rows}, ms", "of a step"]
        if row := re.fullmatch(r"(\S.*?)((?:  +[\d.]+){5})  +([\d.]+)%  +([\d.]+)%", line):
            together = row[2].split()[-1]
            found.setdefault(row[1], [row[1]]).extend([together, f"{row[3]} %, {row[4]} %"])
            missed += [
                f"{row[1]}, {rows}: {share} % of a step in {dtype}"
                for share, dtype in zip(row.groups()[2:], ("fp32", "int4"), strict=True)
                if float(share) >= 5
            ]
    return table(head, found.values()), missed


def step() -> str:
    """Shares of a decode step, by weights, threads and rows."""
    rows, head = [], []
    for line in lines("step"):
        cells = re.split("  +", line.strip())
        if found := re.search(r"weights (\w+), .* (\d+) threads", line):
            case = f"{found[1]}, {found[2]} thread{'s' * (found[2] != '1')}"
        elif cells[0] == "rows":
            head = cells[1:-1]
        elif cells[0].endswith(" ms"):
            whole = cells[-2]
        elif cells[0].endswith(" %"):
            rows.append([f"{case}: {cells[0][:-2]}", *cells[1:-2], whole])
    return table(["weights, threads: rows", *head[:-1], "all, ms"], rows)


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


def listed(missed: list[str]) -> str:
    """What a benchmark missed, as a list."""
    return "".join(f"- {each}\n" for each in missed or ["nothing"])


FIGURES: dict[str, Callable[[], str]] = {
    "speed": lambda: f"{machine('speed')}\n{speed()[0]}",
    "attention": lambda: f"{machine('attention')}\n{attention()[0]}",
    "prefix": lambda: f"{machine('prefix')}\n{prefix()}",
    "generate": lambda: f"{machine('generate')}\n{generate()[0]}",
    "active prefix": lambda: f"{machine('active_prefix')}\n{active_prefix()}",
    "engine": lambda: engines("engine"),
    "engine many": lambda: engines("engine_64"),
    "engine long": lambda: engines("engine_long"),
    "engine bf16": lambda: engines("engine_bf16"),
    "step": lambda: f"{machine('step')}\n{step()}",
    "linears": lambda: f"{machine('linears')}\n{linears()}",
    "sampling": lambda: f"{machine('sampling')}\n{sampling()[0]}",
    "pool size": lambda: f"{machine('pool_size')}\n{pool_size()}",
    "index": lambda: f"{machine('index')}\n{index()[0]}",
    "speculation": lambda: f"{machine('speculation')}\n{speculation()}",
    "packing": lambda: f"{machine('packing')}\n{packing()}",
    "claims": lambda: claims(
        "prefix", "speculation", "import_time", "planning", "simulate", "traces"
    ),
    "missed: speed": lambda: listed(speed()[1]),
    "missed: attention": lambda: listed(attention()[1]),
    "missed: generate": lambda: listed(generate()[1]),
    "missed: engine": lambda: listed(
        [each for run in ("engine", "engine_64", "engine_long") for each in engine(run)[1]]
    ),
    "missed: engine bf16": lambda: listed(engine("engine_bf16")[1]),
    "missed: sampling": lambda: listed(sampling()[1]),
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
