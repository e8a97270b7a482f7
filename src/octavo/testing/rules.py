"""What can be done to a world, with arguments drawn from any source of integers.

The same rules run under Hypothesis, which shrinks what fails, and under a plain seeded generator,
which is fast. To add a verb, write a function of (world, draw) and enter it in ``RULES``. Steps are
in `octavo.testing.stepping`, calls that are wrong in `octavo.testing.misuse`.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

from octavo.cache.batch import Batch
from octavo.cache.identity import Adapter, CrossInput, Extra, Media, Salt
from octavo.cache.sequence import Sequence
from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    OutOfPages,
    RollbackUnsupported,
    StepError,
)
from octavo.testing.drawing import VOCABULARY, Draw, pick, rarely
from octavo.testing.misuse import misuse
from octavo.testing.stepping import abort, commit, decode, extend, gather, mix, prove
from octavo.testing.world import Record, World

_EXTRAS: tuple[tuple[Extra, ...], ...] = (
    (Salt("a"),),
    (Adapter("a", 1),),
    (Adapter("a", "1"),),
    (Media("m", 0, 2),),
    (Media(None, 3, 5),),
    (Salt("a"), Media(b"m", 1, 3)),
)


def admit(world: World, draw: Draw) -> None:
    """A prompt, mostly one that begins like an earlier one."""
    tokens = _prompt(world, draw)
    extra = () if draw.integer(0, 7) else pick(draw, _EXTRAS)
    if world.shape.of_form("cross") and draw.integer(0, 3):
        size = world.shape.page_size
        extra += (CrossInput(pick(draw, ("a", "b")), pick(draw, (1, size, 2 * size + 1))),)
    limit = len(tokens) + draw.integer(0, 20) if draw.integer(0, 2) else None
    guarantee = limit is not None and draw.integer(0, 2) == 0
    world.admit(
        tokens,
        extra=extra,
        limit=limit,
        reuse=not rarely(draw),
        guarantee=guarantee,
        allowed=(OutOfPages, CapacityError),
    )


def truncate(world: World, draw: Draw) -> None:
    """Back to any length."""
    row = pick(draw, world.live)
    length = draw.integer(0, len(row.text))
    if draw.integer(0, 1):
        length = max(0, len(row.text) - draw.integer(0, 3))
    allowed = (StepError, RollbackUnsupported, LengthError, OutOfPages)
    world.truncate(row, length, *allowed, exclusive=draw.integer(0, 4) == 0)


def fork(world: World, draw: Draw) -> None:
    """One or two children."""
    allowed = (StepError, CapacityError, OutOfPages)
    world.fork(pick(draw, world.live), draw.integer(1, 2), *allowed)


def preempt(world: World, draw: Draw) -> None:
    """Take a row's pages, with a step of it open or not."""
    world.preempt(pick(draw, _running(world)))


def resume(world: World, draw: Draw) -> None:
    """Let a preempted row go on."""
    world.resume(pick(draw, [row for row in world.live if row.handle.preempted]))


def release(world: World, draw: Draw) -> None:
    """End a row, with a step of it open or not; mostly it leaves its batch."""
    row = pick(draw, world.live)
    world.release(row)
    if draw.integer(0, 3):
        leave_batch(world, row.handle)


def forget(world: World, _: Draw) -> None:
    """Lose a handle without a release."""
    row = next(filter(lambda row: _is_loose(world, row), world.live))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        world.forget(row)
        del row


def regroup(world: World, draw: Draw) -> None:
    """Into a batch, or out of one; batches are made and emptied."""
    if len(world.batches) < 2 and rarely(draw):
        world.batches.append(world.cache.batch())
    row, batch = pick(draw, world.live), pick(draw, world.batches)
    for dead in [handle for handle in batch if handle.released]:
        batch.remove(dead)
    if row.handle in batch:
        leave_batch(world, row.handle)
    else:
        world.attempt(lambda: batch.add(row.handle), DuplicateSequence)


def pin(world: World, draw: Draw) -> None:
    """Hold a prefix, or let the oldest go."""
    if world.pins and draw.integer(0, 2):
        world.pins.pop(0).release()
    elif world.histories:
        world.pin(pick(draw, world.histories))


def reset(world: World, draw: Draw) -> None:
    """Forget all prefixes; refused while anything holds pages, so all often ends first."""
    if draw.integer(0, 3) == 0:
        world.finish()
        world.batches = [world.cache.batch()]
    elif world.pins or any(not row.handle.preempted for row in world.live):
        world.refuse(StepError, lambda cache: cache.reset())


def fits(world: World, draw: Draw) -> None:
    """Ask for some rows and a prompt; looking changes nothing."""
    wishes = [(row.handle, row.handle.limit) for row in world.live if draw.integer(0, 1)]
    before = world.frozen()
    prompt = _prompt(world, draw)
    fit = world.cache.fits([*wishes, (prompt, len(prompt) + 4)])
    assert before == world.frozen(), "fits changed something"
    assert bool(fit) == (not any(fit.short.values()))


class Action(NamedTuple):
    """What a rule does, how often beside the others, and what it needs of the world."""

    act: Callable[[World, Draw], None]
    weight: int
    needs: Callable[[World], bool] = lambda world: True


def _has_rows(world: World) -> bool:
    return bool(world.live)


def _can_step(world: World) -> bool:
    return bool(_running(world)) and len(world.opened) < world.cache.depth


RULES: dict[str, Action] = {
    "admit": Action(admit, 12, lambda w: len(w.live) < w.cache.max_sequences),
    "extend": Action(extend, 14, _can_step),
    "mix": Action(mix, 14, _can_step),
    "commit": Action(commit, 26, lambda w: bool(w.opened)),
    "abort": Action(abort, 2, lambda w: bool(w.opened)),
    "gather": Action(gather, 8, lambda w: bool(_running(w)) and not w.opened),
    "decode": Action(decode, 60, lambda w: any(len(batch) for batch in w.batches)),
    "prove": Action(prove, 2, _can_step),
    "truncate": Action(truncate, 3, _has_rows),
    "fork": Action(fork, 3, _has_rows),
    "preempt": Action(preempt, 2, lambda w: bool(_running(w))),
    "resume": Action(resume, 4, lambda w: any(row.handle.preempted for row in w.live)),
    "release": Action(release, 7, _has_rows),
    "forget": Action(forget, 1, lambda w: any(_is_loose(w, row) for row in w.live)),
    "regroup": Action(regroup, 3, _has_rows),
    "pin": Action(pin, 1),
    "reset": Action(reset, 1),
    "fits": Action(fits, 1),
    "misuse": Action(misuse, 1),
}


def leave_batch(world: World, handle: Sequence) -> None:
    """Take a sequence out of whatever batch it is in."""
    for batch in world.batches:
        if handle in batch:
            _remove(batch, handle)


def _remove(batch: Batch, handle: Sequence) -> None:
    listed = list(batch)
    row = listed.index(handle)
    moved = None if row == len(listed) - 1 else listed[-1]
    assert batch.remove(handle) == (moved, row)


def _running(world: World) -> list[Record]:
    return [row for row in world.live if not row.handle.preempted]


def _is_loose(world: World, row: Record) -> bool:
    """In no step and no batch: nobody but the world has its handle."""
    steps = any(row in opened.rows for opened in world.opened)
    return not steps and not any(row.handle in batch for batch in world.batches)


def _prompt(world: World, draw: Draw) -> list[int]:
    """The beginning of an earlier text and a few more tokens."""
    head: list[int] = []
    if world.histories and draw.integer(0, 4):
        head = pick(draw, world.histories)
        head = head[: draw.integer(0, len(head))] if draw.integer(0, 2) == 0 else head
    own = draw.integer(0 if head else 1, 2 * world.shape.page_size)
    tokens = head + [draw.integer(0, VOCABULARY - 1) for _ in range(own)]
    return tokens[-40:] if len(tokens) > 40 else tokens
