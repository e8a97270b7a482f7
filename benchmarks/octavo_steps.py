"""Steps that octavo alone is timed on: by kind of group, by what rows do, by form of argument.

A step is `extend`, reading slots and table, and `commit`; sampled ids are drawn before.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from workloads import DRAFTS, PAGE_SIZE, ROWS, STEPS, prompt, timed

from octavo import Attention, Batch, Cache, Plan, Sequence, State, Step, index
from octavo.model.spec import LayerKind

LONG, SHORT, CHUNK = 1_152, 512, 128
FULL = Attention(1, 1, 1)
ONE: dict[str, LayerKind] = {"full": FULL}
WINDOW: dict[str, LayerKind] = {"full": FULL, "w": Attention(1, 1, 1, window=128)}
WINDOWS: dict[str, LayerKind] = {**WINDOW, "v": Attention(1, 1, 1, window=64)}
STATE: dict[str, LayerKind] = {"full": FULL, "state": State(1)}
Chance = np.random.Generator
Turn = Iterator[None]
"""Two stops a step: before it what is drawn, and then the step."""


class Running:
    """A batch that has computed all but the last token of each row.

    Args:
        chance: draws ids.
        groups: of the cache.
        rows, tokens: of the batch, and about how long each is.
        spread: rows begin at so many different places of a page; 1: in lockstep.
        options: of the cache.
    """

    def __init__(
        self,
        chance: Chance,
        groups: dict[str, LayerKind] = ONE,
        *,
        rows: int = ROWS,
        tokens: int = SHORT,
        spread: int = 16,
        **options: Any,
    ) -> None:
        pages = len(groups) * (rows + 1) * (tokens + SHORT + spread) // PAGE_SIZE
        self.plan, self.groups = Plan.from_pages(pages, PAGE_SIZE, groups), groups
        self.cache, self.chance = Cache(self.plan, max_sequences=rows + 8, **options), chance
        self.rows = [self.admit(tokens + row % spread) for row in range(rows)]
        self.batch: Batch = self.cache.batch(self.rows)

    def admit(self, length: int) -> Sequence:
        """A sequence that has computed its prompt and knows one token more."""
        row = self.cache.admit(prompt(self.chance, length))
        self.cache.commit(self.cache.extend(row, length), [1])
        return row

    def ids(self, count: int = 0) -> Any:
        """Sampled ids, one a row where no number is given."""
        return prompt(self.chance, count or len(self.rows))

    def step(self, ids: Any, counts: Any = 1, rows: Any = None) -> None:
        """One step, its arrays read."""
        step = self.cache.extend(self.batch if rows is None else rows, counts)
        self.read(step)
        self.cache.commit(step, ids)

    def read(self, step: Step) -> None:
        """What a kernel takes, of every group."""
        for name, kind in self.groups.items():
            view = step.group(name)
            where = view.has_state if isinstance(kind, State) else view.slots
            self.arrays = where, view.table


def decode(run: Running) -> Turn:
    """One token a row."""
    while True:
        ids = run.ids()
        yield
        run.step(ids)
        yield


def decode_id_lists(run: Running) -> Turn:
    """The same, sampled ids being a list."""
    while True:
        ids = run.ids().tolist()
        yield
        run.step(ids)
        yield


def decode_row_lists(run: Running) -> Turn:
    """The same with a list of sequences instead of a batch."""
    for row in run.rows:
        run.batch.remove(row)
    while True:
        ids = run.ids()
        yield
        run.step(ids, rows=run.rows)
        yield


def sit_out(run: Running) -> Turn:
    """Half of the rows, others each time."""
    while True:
        counts, ids = run.chance.integers(0, 2, ROWS), run.ids()
        yield
        run.step(ids, counts)
        yield


def speculate(run: Running) -> Turn:
    """DRAFTS beside the token known, of which any number is accepted."""
    while True:
        kept = run.chance.integers(1, DRAFTS + 2, ROWS)
        flat = run.ids(int(kept.sum()))
        yield
        step = run.cache.extend(run.batch, 1 + DRAFTS, ahead=DRAFTS)
        run.read(step)
        run.cache.commit(step, (flat, kept), kept=kept)
        yield


def prefill(run: Running) -> Turn:
    """One row in CHUNKs of a new prompt of SHORT tokens beside the others, which decode."""
    while True:
        run.batch.remove(run.rows[0])
        run.cache.release(run.rows.pop(0))
        run.rows.append(run.cache.admit(run.ids(SHORT)))
        row = run.batch.add(run.rows[-1])
        for _ in range(SHORT // CHUNK):
            counts, ids = np.ones(ROWS, np.int64), run.ids()
            counts[row] = CHUNK
            yield
            run.step(ids, counts)
            yield


def move(run: Running) -> Turn:
    """One row leaves the batch and comes back before each decode step."""
    while True:
        row, ids = run.rows[int(run.chance.integers(ROWS))], run.ids()
        yield
        run.batch.remove(row)
        run.batch.add(row)
        run.step(ids)
        yield


def emit(name: str, run: Running, *, again: bool = False) -> Turn:
    """The arrays of a kernel's format, of an open decode step; ``again``: in the same buffers."""
    form = partial(getattr(index, name), plan=run.plan)
    if again:
        form = index.Emitter(getattr(index, name), run.plan)
    while True:
        step = run.cache.extend(run.batch)
        yield
        run.arrays = form(step)
        yield
        run.cache.commit(step, run.ids())


def mean_us(turn: Turn, steps: int) -> float:
    """Microseconds of a step: that part of the turn alone."""

    def advance() -> float:
        taken = 0.0
        for _ in range(steps):
            next(turn)
            began = time.thread_time()
            next(turn)
            taken += time.thread_time() - began
        return taken

    found: list[float] = []
    timed(lambda: found.append(advance()))
    return found[0] * 1e6 / steps


def figure(
    kind: Callable[[Running], Turn],
    groups: dict[str, LayerKind] = ONE,
    *,
    steps: int | None = None,
    **options: Any,
) -> Callable[[Chance], float]:
    """The mean step of a batch that is made for it."""

    def run(chance: Chance) -> float:
        running = Running(chance, groups, **options)
        return mean_us(kind(running), steps or STEPS[len(running.rows)])

    return run


FIGURES: dict[str, Callable[[Chance], float]] = {
    **{f"batch_{n}": figure(decode, rows=n) for n in STEPS},
    **{f"window_{n}": figure(decode, WINDOW, rows=n) for n in STEPS},
    **{f"state_{n}": figure(decode, STATE, rows=n) for n in STEPS},
    **{f"ids_list_{n}": figure(decode_id_lists, rows=n) for n in STEPS},
    **{f"rows_list_{n}": figure(decode_row_lists, rows=n) for n in STEPS},
    **{
        f"{kind}_{name}": figure(partial(emit, name, again=again), tokens=LONG)
        for name in ("vllm", "flashinfer")
        for kind, again in (("index", False), ("emitter", True))
    },
    "lockstep": figure(decode, spread=1),
    "window_lockstep": figure(decode, WINDOW, spread=1),
    "windows_lockstep": figure(decode, WINDOWS, spread=1),
    "events": figure(decode, on_event=lambda event: None),
    "sit_out": figure(sit_out),
    "prefill": figure(prefill),
    "speculate": figure(speculate),
    "speculate_window": figure(speculate, WINDOW, rollback=DRAFTS),
    "move": figure(move),
}
