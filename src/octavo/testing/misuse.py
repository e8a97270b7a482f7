"""Calls that are wrong whatever the state: each must raise its error and change nothing."""

from collections.abc import Callable, Iterator

from octavo.cache.cache import Cache
from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    NeverFits,
    OctavoError,
    StaleSequence,
    StepError,
    TokenError,
    UnknownSequence,
)
from octavo.testing.drawing import Draw, pick
from octavo.testing.world import Record, World

Misuse = tuple[type[OctavoError], Callable[[Cache], object]]


def misuse(world: World, draw: Draw) -> None:
    """One of them."""
    calls = [
        *_always(),
        *_of_room(world),
        *_of_stale(world, draw),
        *_of_live(world, draw),
        *_of_steps(world),
    ]
    world.refuse(*pick(draw, calls))


def _always() -> Iterator[Misuse]:
    yield LengthError, lambda cache: cache.admit([])
    yield LengthError, lambda cache: cache.peek([])
    yield LengthError, lambda cache: cache.need([], 1)
    yield TokenError, lambda cache: cache.admit([0, -1])
    yield TokenError, lambda cache: cache.pin([0, 2**31])
    yield UnknownSequence, lambda cache: cache.release("no sequence")  # type: ignore[arg-type]
    yield UnknownSequence, lambda cache: cache.drop(object(), 1)  # type: ignore[arg-type]


def _of_room(world: World) -> Iterator[Misuse]:
    too_long = world.cache.max_length + 1
    if len(world.live) == world.cache.max_sequences:
        yield CapacityError, lambda cache: cache.admit([0])
    if world.shape.of_form("tokens") == ["full"] and not world.shape.per_parent:
        yield NeverFits, lambda cache: cache.admit([0] * (too_long + world.shape.page_size))


def _of_stale(world: World, draw: Draw) -> Iterator[Misuse]:
    if not world.released:
        return
    stale = pick(draw, world.released)
    yield StaleSequence, lambda cache: cache.release(stale)
    yield StaleSequence, lambda cache: cache.truncate(stale, 0)
    yield StaleSequence, lambda cache: cache.preempt(stale)
    yield StaleSequence, lambda cache: cache.fork(stale)
    yield StaleSequence, lambda cache: cache.batch([stale])
    yield StaleSequence, lambda cache: cache.fits([(stale, 1)])


def _of_live(world: World, draw: Draw) -> Iterator[Misuse]:
    if not world.live:
        return
    handle = pick(draw, world.live).handle
    yield DuplicateSequence, lambda cache: cache.admit([1], id=handle.id)
    yield DuplicateSequence, lambda cache: cache.batch([handle, handle])
    yield LengthError, lambda cache: cache.drop(handle, -1)
    if not any(handle in opened.step.sequences for opened in world.opened):
        yield LengthError, lambda cache: cache.truncate(handle, handle.length + 1)
    if handle.preempted:
        yield StepError, lambda cache: cache.preempt(handle)
        yield StepError, lambda cache: cache.extend(handle, 1)
    else:
        yield StepError, lambda cache: cache.resume(handle)


def _of_steps(world: World) -> Iterator[Misuse]:
    if not world.opened:
        return
    opened = world.opened[0]
    step, rows = opened.step, len(opened.rows)
    yield LengthError, lambda cache: cache.commit(step, [[]] * (rows + 1))
    yield LengthError, lambda cache: cache.commit(step, kept=(step.counts + 1).tolist())
    yield TokenError, lambda cache: cache.commit(step, [[-1]] * rows)
    drafts = [_drafts(world, row, ids) for row, ids in zip(opened.rows, opened.ids, strict=True)]
    if any(map(any, drafts)):
        others = [[0] * len(row) for row in drafts]
        yield LengthError, lambda cache: cache.commit(step, others)
    if len(world.opened) > 1:
        yield StepError, lambda cache: cache.abort(step)
        yield StepError, lambda cache: cache.commit(world.opened[1].step)
    if len(world.opened) == world.cache.depth:
        handle = world.opened[0].rows[0].handle
        yield StepError, lambda cache: cache.extend(handle, 1)


def _drafts(world: World, row: Record, ids: list[int]) -> list[int]:
    """The drafts of a row of the oldest step that it would learn."""
    return [] if row in world.opened[0].gone else ids[len(row.text) :]
