"""Rules that step: prefills, chunks and drafts of any rows, and runs of decode steps of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.cache.batch import Batch
from octavo.errors import CapacityError, LengthError, RollbackUnsupported, StepError
from octavo.testing.drawing import VOCABULARY, Draw, pick, rarely
from octavo.testing.world import OpenStep, Record, World

_REFUSALS = (LengthError, CapacityError, StepError, RollbackUnsupported)


def extend(world: World, draw: Draw) -> None:
    """A step of some rows, with prefills whole and in chunks, decodes and drafts mixed."""
    running = [row for row in world.live if not row.handle.preempted]
    rows = [row for row in running if draw.integer(0, 2)] or [pick(draw, running)]
    if draw.integer(0, 1):
        rows.reverse()
    ahead = pick(draw, (0, 0, 0, 1, 3)) if not world.opened else pick(draw, (0, 1, 2, 3))
    counts = [_count(row, ahead, draw) for row in rows]
    if any(counts):
        world.extend(rows, counts, _REFUSALS, ahead=ahead, draft=_token(draw))


def mix(world: World, draw: Draw) -> None:
    """A step of a whole batch: prompts whole and in chunks, decodes, drafts, rows that sit out."""
    batch = pick(draw, world.batches)
    for handle in list(batch):
        if handle.released or handle.preempted:
            batch.remove(handle)
    others = [handle for other in world.batches for handle in other]
    for row in world.live:
        if not row.handle.preempted and row.handle not in others and draw.integer(0, 1):
            batch.add(row.handle)
    rows = world.batched(batch)
    ahead = pick(draw, (0, 0, 1, 3)) if not world.opened else pick(draw, (0, 1, 2, 3))
    counts = [_count(row, ahead, draw) if draw.integer(0, 4) else 0 for row in rows]
    if any(counts):
        world.extend(rows, counts, _REFUSALS, batch=batch, ahead=ahead, draft=_token(draw))
        world.counts["mixed extends"] += 1


def commit(world: World, draw: Draw) -> None:
    """The oldest open step, drafts accepted up to anywhere, in every form of telling it.

    Where rejecting drafts is refused, the step is taken back instead.
    """
    opened = world.opened[0]
    later = {row for other in world.opened[1:] for row in other.rows}
    learned, kept = [], []
    for at, row in enumerate(opened.rows):
        new, keep = _outcome(opened, at, row, draw, fixed=row in later)
        learned.append(new)
        kept.append(keep)
    form = _form(opened, learned, draw)
    allowed = (CapacityError, RollbackUnsupported, StepError)
    if world.commit(learned, kept, form, allowed) is None:
        while opened in world.opened:
            world.abort()


def abort(world: World, _: Draw) -> None:
    """The newest open step."""
    world.abort()


def gather(world: World, draw: Draw) -> None:
    """Make a batch ready to decode: everybody in, the unready computed, the ended out."""
    batch = pick(draw, world.batches)
    for handle in list(batch):
        if handle.released or handle.preempted or handle.length >= handle.limit:
            batch.remove(handle)
    free = [row for row in world.live if not row.handle.preempted and draw.integer(0, 4)]
    others = [handle for other in world.batches for handle in other]
    for row in free:
        if row.handle not in others and row.handle.length < row.handle.limit:
            batch.add(row.handle)
    for row in world.batched(batch):
        _catch_up(world, row, draw)


def decode(world: World, draw: Draw) -> None:
    """A few steps in which every row of a batch runs one token, with as many open as may be."""
    batch = pick(draw, [batch for batch in world.batches if len(batch)])
    for _ in range(draw.integer(1, 3)):
        if not _is_ready(batch):
            return
        rows, open_ = world.batched(batch), len(world.opened)
        if open_ < world.cache.depth and (open_ == 0 or draw.integer(0, 3)):
            ahead = open_ + (draw.integer(0, 1) if rarely(draw) else 0)
            one, draft = [1] * len(rows), _token(draw)
            world.extend(rows, one, _REFUSALS, batch=batch, ahead=ahead, draft=draft)
            if world.ran_out and draw.integer(0, 2):
                world.preempt(rows[-1])
                batch.remove(rows[-1].handle)
        if len(world.opened) == world.cache.depth or (world.opened and draw.integer(0, 1)):
            commit(world, draw if rarely(draw) else _Plain(draw))


def prove(world: World, draw: Draw) -> None:
    """A guaranteed row runs to its limit at once, or to what it knows: that never fails."""
    there = [
        row
        for row in world.live
        if row.guaranteed
        and not row.handle.preempted
        and not any(row in opened.rows for opened in world.opened)
    ]
    if not there:
        return
    row = pick(draw, there)
    handle = row.handle
    stateful = bool(world.shape.of_form("state"))  # which cannot take drafts back
    ahead = 0 if stateful else handle.limit
    end = handle.length if stateful else handle.limit
    if end > handle.scheduled:
        counts = [end - handle.scheduled]
        assert world.extend([row], counts, ahead=ahead, draft=_token(draw))
        world.abort()
        world.counts["proofs"] += 1


class _Plain:
    """Choices of a decode step: nothing is rejected, each row learns one id."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """Any id; else the choice that changes nothing."""
        return self._draw.integer(low, high) if high == VOCABULARY - 1 and not low else low


def _outcome(
    opened: OpenStep, at: int, row: Record, draw: Draw, *, fixed: bool
) -> tuple[list[int], int]:
    """(ids a row learns, positions it keeps)."""
    past, context = int(opened.step.past[at]), int(opened.step.context[at])
    known, limit = len(row.text), row.handle.limit
    if row in opened.gone or past == context:
        return [], context - past
    drafts = opened.ids[at][known:]
    keep = context - past
    if not fixed and drafts:
        keep -= draw.integer(0, len(drafts))
    elif not fixed and draw.integer(0, 9) == 9:
        keep = draw.integer(0, keep)
    learned = drafts[: max(0, past + keep - known)]
    if past + keep >= known and known + len(learned) < limit:
        assumed = row.drafts[len(learned) :] if fixed else []
        token = draw.integer(0, VOCABULARY - 1)
        if fixed or draw.integer(0, 19) < 19:
            learned = [*learned, assumed[0] if assumed else token]
    return learned, keep


def _form(opened: OpenStep, learned: list[list[int]], draw: Draw) -> Callable[[Any], Any]:
    """One of the ways to say what was learned."""
    wants = opened.step.wants_token.tolist()
    plain = [len(new) for new in learned] == [int(want) for want in wants]
    forms: list[Callable[[Any], Any]] = [_flat, _flat_arrays, _lists, _arrays]
    if plain:
        forms = [_one_a_row, _one_a_row_int64, *forms]
    return forms[draw.integer(0, len(forms) - 1)]


def _one_a_row(learned: list[list[int]]) -> Any:
    return np.array([new[0] if new else 0 for new in learned], np.int32)


def _one_a_row_int64(learned: list[list[int]]) -> Any:
    return _one_a_row(learned).astype(np.int64)


def _flat(learned: list[list[int]]) -> tuple[list[int], list[int]]:
    return [token for new in learned for token in new], [len(new) for new in learned]


def _flat_arrays(learned: list[list[int]]) -> tuple[Any, Any]:
    ids, counts = _flat(learned)
    return np.array(ids, np.int32), np.array(counts)


def _lists(learned: list[list[int]]) -> list[list[int]] | None:
    return learned if any(learned) else None


def _arrays(learned: list[list[int]]) -> list[Any]:
    return [np.array(new, np.int64) for new in learned]


def _token(draw: Draw) -> Callable[[], int]:
    return lambda: draw.integer(0, VOCABULARY - 1)


def _count(row: Record, ahead: int, draw: Draw) -> int:
    """Mostly all that may be had; sometimes less, and up to where a state is kept."""
    handle = row.handle
    most = min(handle.length + ahead, handle.limit) - handle.scheduled
    if most <= 0:
        return 0
    count = pick(draw, (1, most, most, draw.integer(0, most)))
    if handle.next_stop is not None and draw.integer(0, 4):
        count = min(count, handle.next_stop - handle.scheduled)
    return count


def _catch_up(world: World, row: Record, draw: Draw) -> None:
    """Compute all a row knows but its last token."""
    handle = row.handle
    while len(row.text) - handle.scheduled > 1 or not handle.scheduled:
        count = len(row.text) - handle.scheduled
        if handle.next_stop is not None:
            count = min(count, handle.next_stop - handle.scheduled)
        if count < 1 or world.extend([row], [count], (RollbackUnsupported,)) is None:
            return
        commit(world, _Plain(draw))


def _is_ready(batch: Batch) -> bool:
    """Whether each row can run one token more."""
    return all(
        not handle.released
        and not handle.preempted
        and 0 < handle.scheduled < handle.limit
        and handle.length > handle.computed
        for handle in batch
    )
