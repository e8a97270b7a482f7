"""Figures of docs/performance.md that are of the engine, read from benchmarks/results."""

import re

from figures import count, ending, lines, listed, machine, table

LINEAR = re.compile(r"(\w+) +(\d+) +([\d.]+) +[\d.]+ +([\d.]+|-)")  # of linears.txt
Rates = dict[str, dict[str, list[str]]]
"""What each side did in each case: decode/s, bound/s where it is octavo's, whole/s, equal rows."""


def rates(result: str) -> Rates:
    """The lines of a run of `bench_engine.py`."""
    found: Rates = {}
    for line in lines(result):
        row = re.fullmatch(r" *(\d+ x +[\d,]+(?:, \d+ shared)?)  +(\S.*?)  +(\S.*)", line)
        if row:
            case, side, figures = row.groups()
            found.setdefault(re.sub(" +", " ", case), {})[side] = figures.split()
    return found


def aim(case: str, side: str) -> float | None:
    """What share of a side's rate octavo aims at, of OpenVINO's octavo int4; None: none is set."""
    many = "shared" not in case and int(case.partition(" ")[0]) > 4
    if side == "generate_batch":
        return 2
    if many and side in ("vLLM", "OpenVINO"):
        return 0.9 if side == "vLLM" else None
    return 1


def engine(result: str) -> str:
    """Tokens per second of each side and case."""
    found = rates(result)
    sides = list(next(iter(found.values())))
    rows = [
        [case, *(f"{of[side][0]} ({of[side][-2]})" for side in sides), of["octavo"][1]]
        for case, of in found.items()
    ]
    return table(["tokens per s", *sides, "bound"], rows)


def behind(*results: str) -> list[str]:
    """Where octavo does not reach its aim, or is slower where it has none."""
    missed = []
    for case, found in (each for result in results for each in rates(result).items()):
        for side in (side for side in found if not side.startswith("octavo")):
            mine, goal = "octavo int4" if side == "OpenVINO" else "octavo", aim(case, side)
            if mine not in found:
                continue
            for at, what in ((0, "decode"), (-2, "whole run")):
                ours, other = found[mine][at], found[side][at]
                if "-" not in (ours, other) and float(ours) < (goal or 1) * float(other):
                    share = float(ours) / float(other)
                    wanted = f"aim {goal:g}" if goal else "no aim"
                    missed.append(f"{case}, {what}: {mine} {share:.2f} of {side}, {wanted}")
    return missed


def conditions(result: str) -> str:
    """How a run of `bench_engine.py` was measured."""
    told = next(line for line in lines(result) if "new tokens" in line)
    return re.sub(r"\b1 (round|thread)s\b", r"1 \1", told)


def engines(result: str) -> str:
    """The machine, the conditions and the table of one run of `bench_engine.py`."""
    where = f"`benchmarks/bench_engine.py`; {lines(result)[0]}"
    return f"{where}\n\n{conditions(result)}\n\n{engine(result)}"


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
    head = ["ms", *(count(rows, "row") for rows in counts)]
    return table(head, ([kind, *(cells[kind, rows] for rows in counts)] for kind in kinds))


def sampling() -> tuple[str, list[str]]:
    """What kinds of requests cost beside the model, and where that is 5 % of a step or more."""
    found: dict[str, list[str]] = {}
    shares: dict[tuple[str, str], str] = {}  # of a step in int4, by kind and rows
    head, rows = ["kind of request"], ""
    for line in lines("sampling"):
        if row := re.match(r"(\d+) rows?:", line):
            rows = row[1]
            head += [f"{count(rows, 'row')}, ms", "of a step"]
        if row := re.fullmatch(r"(\S.*?)((?:  +[\d.]+){5})  +([\d.]+)%  +([\d.]+)%", line):
            together = row[2].split()[-1]
            found.setdefault(row[1], [row[1]]).extend([together, f"{row[3]} %, {row[4]} %"])
            shares[row[1], rows] = row[4]
    missed = [
        f"{kind}, {count(rows, 'row')}: {shares[kind, rows]} % of a step in int4"
        for kind, rows in re.findall(r"; (.+?) at (\d+)", lines("sampling")[-1])
    ]
    return table(head, found.values()), missed


def step() -> str:
    """Shares of a decode step, by weights, threads and rows."""
    rows, head = [], []
    for line in lines("step"):
        cells = re.split("  +", line.strip())
        if found := re.search(r"weights (\w+), .* (\d+) threads?,", line):
            case = f"{found[1]}, {count(found[2], 'thread')}"
        elif cells[0] == "rows":
            head = cells[1:-1]
        elif cells[0].endswith(" ms"):
            whole = cells[-2]
        elif cells[0].endswith(" %"):
            rows.append([f"{case}: {cells[0][:-2]}", *cells[1:-2], whole])
    return table(["weights, threads: rows", *head[:-1], "all, ms"], rows)


def host_memory() -> str:
    """Requests of which some are preempted, with lost pages computed again or copied back."""
    found = (
        re.fullmatch(r" *([\d,]+)  (computed again|copied back) +(.*)", line)
        for line in lines("host_memory")
    )
    rows = [[f"{row[1]} tokens, {row[2]}", *row[3].split()] for row in found if row]
    return table(["pool, lost pages are", "s", "preempted", "computed", "copied", "peak MiB"], rows)


def frames() -> str:
    """Conversations of an audio model, by contender."""
    found = (
        re.fullmatch(r" +(\d+)  (generate.*?|engine.*?)  +(.*)", line) for line in lines("frames")
    )
    rows = [[f"{row[1]}, {row[2]}", *row[3].split()] for row in found if row]
    return table(["conversations, by", "s", "ms per frame"], rows)


def draft() -> str:
    """A draft model that nobody has trained, by its layers."""
    cells = (line.split() for line in lines("draft") if re.match(r" +\d", line))
    rows = [[f"{count(row[0], 'row')}, {count(row[1], 'layer')}", *row[2:]] for row in cells]
    return table(["rows, draft's layers", "s", "x none", "steps", "guessed", "accepted"], rows)


def calibration() -> str:
    """Runs of the engine, and what the simulator tells of them."""
    rows: list[list[str]] = []
    for line in lines("calibration"):
        if row := re.fullmatch(r"(.*?) *(engine|simulator)((?: +[\d.]+){5})", line):
            run = row[1] or rows[-1][0].split(": ")[0]
            rows.append([f"{run}: {row[2]}", *row[3].split()])
    return table(["run", "steps", "preempted", "hit", "evicted", "s"], rows)


FIGURES = {
    "engine": lambda: engines("engine"),
    "engine many": lambda: engines("engine_64"),
    "engine long": lambda: engines("engine_long"),
    "engine bf16": lambda: engines("engine_bf16"),
    "step": lambda: f"{machine('step')}\n{step()}",
    "linears": lambda: f"{machine('linears')}\n{linears()}",
    "sampling": lambda: f"{machine('sampling')}\n{sampling()[0]}",
    "pool size": lambda: f"{machine('pool_size')}\n{pool_size()}",
    "host memory": lambda: f"{machine('host_memory')}\n{host_memory()}\n{ending('host_memory')}",
    "frames": lambda: f"{machine('frames')}\n{frames()}\n{ending('frames')}",
    "draft": lambda: f"{machine('draft')}\n{draft()}\n{ending('draft')}",
    "calibration": lambda: f"{machine('calibration')}\n{calibration()}\n{ending('calibration')}",
    "missed: engine": lambda: listed(behind("engine", "engine_64", "engine_long")),
    "missed: engine bf16": lambda: listed(behind("engine_bf16")),
    "missed: sampling": lambda: listed(sampling()[1]),
}
