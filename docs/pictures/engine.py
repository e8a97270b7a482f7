"""The parts of an engine's step, and a run of its scheduler: who takes part with how much."""

from typing import NamedTuple

import numpy as np
from pictures.svg import Picture

import octavo
from octavo.scheduling import Scheduler

PARTS = [
    ("inbox", "what was asked"),
    ("scheduler", "who, and how far"),
    ("runner", "one forward pass"),
    ("samplers", "a token each"),
    ("cache", "commit"),
    ("handles", "tell who waits"),
]
ARRIVES = {"ann": 0, "bob": 0, "cleo": 1, "dan": 5}
PROMPT = {"ann": 11, "bob": 17, "cleo": 12, "dan": 10}  # all but cleo's begin with the same 8
ANSWER = {"ann": 7, "bob": 8, "cleo": 9, "dan": 4}
PAGES, PAGE_SIZE, MOST = 12, 4, 8
LEGEND = [
    ("one", "prompt"),
    ("kept", "prompt, where 8 tokens were found"),
    ("two", "one token of the answer"),
    ("null", "preempted"),
    ("both", "computed anew"),
    ("free", "waits"),
]


class Request:
    """What the scheduler asks for."""

    def __init__(self, name: str, number: int) -> None:
        shared = [] if name == "cleo" else list(range(8))
        own = range(100 * number, 100 * number + PROMPT[name] - len(shared))
        self.prompt, self.limit = [*shared, *own], PROMPT[name] + ANSWER[name]
        self.sequence: octavo.Sequence | None = None


class Cell(NamedTuple):
    """What a request does in a step; ``kind`` is empty where it is not there."""

    kind: str = ""
    words: str = ""


def run() -> tuple[dict[str, list[Cell]], list[int]]:
    """What each request does in each step of a small pool, and how many tokens each step has."""
    cache = octavo.Cache(octavo.Plan.from_pages(PAGES + 1, PAGE_SIZE))
    scheduler = Scheduler[Request](cache, max_step_tokens=MOST)
    requests = {name: Request(name, number) for number, name in enumerate(PROMPT, 1)}
    cells: dict[str, list[Cell]] = {name: [] for name in PROMPT}
    tokens: list[int] = []
    while scheduler or not tokens:
        for name, request in requests.items():
            if ARRIVES[name] == len(tokens):
                scheduler.add(request)
        turn = scheduler.schedule()
        assert turn is not None
        counts = dict(zip(turn.requests, turn.step.counts.tolist(), strict=True))
        for name, request in requests.items():
            waits = request in scheduler
            found = request in turn.admitted and request.sequence.cached > 0
            cells[name].append(_cell(request, counts.get(request), waits=waits, found=found))
        cache.commit(turn.step, np.full(len(turn.requests), 50 + len(tokens), np.int32))
        for request in turn.requests:
            if request.sequence.length == request.limit:
                scheduler.remove(request)
        tokens.append(sum(counts.values()))
    return cells, tokens


def _cell(request: Request, count: int | None, *, waits: bool, found: bool) -> Cell:
    sequence = request.sequence
    if count is None or sequence is None:
        return Cell("free" if sequence is None else "null") if waits else Cell()
    if found:
        return Cell("kept", str(count))
    if sequence.length == len(request.prompt):
        return Cell("one", str(count))
    return Cell("two" if count == 1 else "both", str(count))


def draw() -> str:
    """The parts of a step as boxes, above the steps of a run as columns."""
    cells, tokens = run()
    picture = Picture(760, 372, "The parts of an engine's step, and who takes part in each step")
    for at, (name, words) in enumerate(PARTS):
        x = 16 + at * 123
        picture.box(x, 14, 112, 44, "free")
        picture.text(x + 56, 33, name, "head", "middle")
        picture.text(x + 56, 49, words, "small", "middle")
        if at:
            picture.line((x - 11, 36), (x, 36))
    picture.text(16, 88, f"{PAGES} pages of {PAGE_SIZE} tokens, at most {MOST} tokens per step")
    for step, count in enumerate(tokens):
        picture.text(105 + step * 46, 112, str(step + 1), "small", "middle")
        picture.text(105 + step * 46, 290, str(count), "mono", "middle")
    picture.text(16, 112, "step", "small")
    picture.text(16, 290, "tokens", "head")
    for row, (name, steps) in enumerate(cells.items()):
        y = 122 + row * 38
        picture.text(16, y + 18, name, "head")
        for step, cell in enumerate(steps):
            if cell.kind:
                picture.box(84 + step * 46, y, 42, 28, cell.kind, cell.words)
    for at, (kind, words) in enumerate(LEGEND):
        x, y = 16 + at % 3 * 245, 312 + at // 3 * 28
        picture.box(x, y, 20, 16, kind)
        picture.text(x + 28, y + 13, words, "small")
    return picture.render()
