"""Steps as a real cache makes them, with rows of every kind; knows page tables and no numbers.

Pages are handed out in turns, so that no sequence lies in one piece; some were another's before,
and some stand in the tables of several rows.
"""

from typing import NamedTuple

import numpy as np

from octavo.cache.cache import Cache
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.model.spec import Attention
from octavo.planner.request import Plan

_SPARE = 3  # pages beside those that rows hold, the null page among them: few, so that all are used

STEP_ARRAYS = (
    *("counts", "input_ids", "positions", "query_start"),
    *("past", "context", "last", "wants_token"),
)
"""A step's own arrays, those of its groups apart."""


class SceneRow(NamedTuple):
    """One sequence of a step.

    Attributes:
        past: tokens computed before the step.
        new: tokens of the step; 0: the row sits out.
        shares: whether it begins with the two pages that other such rows begin with.
    """

    past: int
    new: int
    shares: bool = False


class Scene(NamedTuple):
    """A step and the plan of its cache.

    Attributes:
        plan: page numbers only; groups ``full`` and, where there is a window, ``window``.
        step: the step, open, its pages held.
        rows: what its rows are.
    """

    plan: Plan
    step: Step
    rows: tuple[SceneRow, ...]


def rows_of(scene: str, page_size: int, longest: int) -> tuple[SceneRow, ...]:
    """The rows of ``decode``, ``prefill``, ``decodes`` or ``mixed``, around multiples of a page.

    One of ``decodes`` has ``longest`` keys, or four pages and more. O(rows).
    """
    size = page_size
    ends = sorted({1, max(1, size - 1), size, size + 1, 2 * size, 2 * size + 1, 50})
    decodes = [SceneRow(length - 1, 1) for length in ends]
    sharing = [SceneRow(2 * size, 1, shares=True), SceneRow(3 * size, 1, shares=True)]
    prefills = [SceneRow(0, size + 1), SceneRow(0, max(1, size - 1)), SceneRow(size, 2 * size)]
    if scene == "decode":
        return (SceneRow(2 * size, 1),)
    if scene == "prefill":
        return (SceneRow(0, 2 * size + 1),)
    if scene == "decodes":
        long = SceneRow(max(longest - 1, 4 * size + 2), 1)
        return (sharing[0], *decodes, SceneRow(2 * size, 0), *sharing[1:], long)
    return (
        *decodes[:2],
        prefills[0],
        SceneRow(2 * size, 0),
        SceneRow(2 * size + 1, size, shares=True),
        *prefills[1:],
        SceneRow(0, 0),
        *sharing,
        *decodes[2:],
        SceneRow(50, 3),
    )


def build_scene(
    rows: tuple[SceneRow, ...], page_size: int, window: int | None, sink_tokens: int, seed: int
) -> Scene:
    """Admit, extend and commit until ``rows`` stand where they should, then make their step.

    Cost: O(tokens / page_size) verbs of a cache.
    """
    groups = {"full": Attention(1, 1, 1)}
    if window is not None:
        groups["window"] = Attention(1, 1, 1, window=window, sink_tokens=sink_tokens)
    plan = Plan.from_pages(_pages(rows, page_size, window) + _SPARE, page_size, groups)
    cache = Cache(plan, max_sequences=len(rows) + 2)
    rng = np.random.default_rng(seed)
    _use_pages(cache, page_size, rng)
    sequences: dict[int, Sequence] = {}
    leader = next((number for number, row in enumerate(rows) if row.shares), None)
    for late in (False, True):  # followers find what the leader has published
        chosen = [n for n, row in enumerate(rows) if late == (row.shares and n != leader)]
        for number in chosen:
            sequences[number] = cache.admit(_tokens(number, rows[number], page_size))
        _compute(cache, page_size, rng, [(sequences[n], rows[n].past) for n in chosen])
    step = cache.extend([sequences[n] for n in range(len(rows))], [row.new for row in rows])
    return Scene(plan, step, rows)


def without_keys(scene: Scene) -> Scene:
    """The same with half of the queries of every second row, or its only one, before any key.

    Queries are aligned to the end of a row's keys: its first ones then stand before position 0, as
    on padding to the left, or beside an input that is not there. O(step).
    """
    step, context = scene.step, scene.step.context.copy()
    context[::2] = step.counts[::2] // 2
    lost = step.context - context
    step = step.replace(
        context=context,
        past=step.past - lost,
        positions=step.positions - lost.repeat(step.counts),
    )
    counts = zip(step.past.tolist(), step.counts.tolist(), strict=True)
    return scene._replace(step=step, rows=tuple(SceneRow(past, new) for past, new in counts))


def _pages(rows: tuple[SceneRow, ...], page_size: int, window: int | None) -> int:
    """Pages that all rows take, so that the last of them are found used."""
    pages = sum(-(-(row.past + row.new) // page_size) for row in rows)
    if window is not None:
        return 2 * pages  # a window may have dropped what others would share
    return pages - 2 * max(0, sum(row.shares for row in rows) - 1)


def _tokens(number: int, row: SceneRow, page_size: int) -> list[int]:
    own = list(range(1000 * (number + 1), 1000 * (number + 1) + max(1, row.past + row.new)))
    shared = 2 * page_size if row.shares else 0
    return [*range(shared), *own[shared:]]


def _use_pages(cache: Cache, page_size: int, rng: np.random.Generator) -> None:
    """Two sequences come and go, so that what follows stands in pages used before."""
    earlier = [cache.admit([number] * 2 * page_size) for number in (1, 2)]
    _compute(cache, page_size, rng, [(sequence, sequence.length) for sequence in earlier])
    for sequence in earlier:
        cache.release(sequence)


def _compute(
    cache: Cache, page_size: int, rng: np.random.Generator, goals: list[tuple[Sequence, int]]
) -> None:
    """Bring each sequence to its goal, some pages at a time, in turns of random order."""
    while open_goals := [(seq, goal) for seq, goal in goals if seq.computed < goal]:
        for number in rng.permutation(len(open_goals)):
            sequence, goal = open_goals[number]
            turn = max(1, goal // (8 * page_size)) * page_size
            cache.commit(cache.extend([sequence], min(turn, goal - sequence.computed)))
