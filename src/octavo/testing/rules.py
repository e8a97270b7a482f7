"""What can be done to a world, with arguments drawn from any source of integers.

The same rules run under Hypothesis, which shrinks what fails, and under a plain seeded generator,
which is fast. To add a verb, write a function of (world, draw) and enter it in ``RULES``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    StaleSequence,
    StepError,
    TokenError,
    UnknownSequence,
)
from octavo.testing.world import Opened, Pair, World

VOCABULARY = 3

_T = TypeVar("_T")


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """Any int in ``low..high``."""


def admit(world: World, draw: Draw) -> None:
    """A prompt, often one that begins like an earlier one; sometimes one that cannot be had."""
    tokens = _prompt(world, draw)
    size = world.shape.page_size
    limit = None
    if draw.integer(0, 2):
        limit = min(len(tokens) + draw.integer(0, 3 * size), world.cache.max_length)
    if _rarely(draw):
        limit = _pick(draw, (max(1, len(tokens) - 1), world.cache.max_length + 1))
    name = f"named {draw.integer(0, 1)}" if _rarely(draw) else None
    world.admit(
        tokens, limit=limit, id=name, reuse=not _rarely(draw), guarantee=draw.integer(0, 5) == 0
    )


def extend(world: World, draw: Draw) -> None:
    """A step of some rows, with prefills whole and in chunks, decodes and drafts mixed."""
    rows = _some(world, draw)
    ahead = draw.integer(1, 3) if draw.integer(0, 3) == 0 else 0
    counts = [_count(pair, ahead, draw) for pair in rows]
    if not any(counts):
        world.refuse(StepError if world.opened else LengthError, _extension(rows, counts))
        return
    drafts = [[draw.integer(0, VOCABULARY - 1) for _ in range(ahead)] for _ in rows]
    world.extend(rows, counts, ahead=ahead, drafts=drafts)


def commit(world: World, draw: Draw) -> None:
    """The oldest open step, drafts accepted up to anywhere, in every form of telling it."""
    opened = world.opened[0]
    kept, learned = [], []
    for row, pair in enumerate(opened.rows):
        keep = draw.integer(0, opened.run.counts[row])
        keep = opened.run.counts[row] if draw.integer(0, 2) else keep
        accepted = max(0, opened.run.past[row] + keep - len(pair.request.tokens))
        room = max(0, pair.request.limit - len(pair.request.tokens) - accepted)
        extra = draw.integer(0, min(2, room))
        kept.append(keep)
        learned.append(
            opened.drafts(row)[:accepted] + [draw.integer(0, VOCABULARY - 1) for _ in range(extra)]
        )
    world.commit(opened, *_formed(opened, learned, kept, draw))


def abort(world: World, _: Draw) -> None:
    """The newest open step."""
    world.abort(world.opened[-1])


def truncate(world: World, draw: Draw) -> None:
    """Back to any length, and one too long now and then."""
    pair = _pick(draw, world.live)
    known = len(pair.request.tokens)
    length = known + 1 if _rarely(draw) else draw.integer(0, known)
    world.truncate(pair, length, exclusive=draw.integer(0, 3) == 0)


def drop(world: World, draw: Draw) -> None:
    """Back by a few tokens."""
    world.drop(_pick(draw, world.live), draw.integer(0, 3))


def release(world: World, draw: Draw) -> None:
    """End a sequence, with a step of it open or not."""
    world.release(_pick(draw, world.live))


def reset(world: World, draw: Draw) -> None:
    """Forget all prefixes; refused while sequences live, so they often end first."""
    if draw.integer(0, 3):
        for pair in list(world.live):
            world.release(pair)
    world.reset()


def peek(world: World, draw: Draw) -> None:
    """Look a prompt up."""
    world.peek(_prompt(world, draw))


def fits(world: World, draw: Draw) -> None:
    """Ask for some sequences and prompts at once, then see that a yes is kept."""
    rows = _some(world, draw) if world.live else []
    asked: list[tuple[Pair | list[int], int]] = [(pair, pair.request.limit) for pair in rows]
    for _ in range(draw.integer(0, 2)):
        tokens = _prompt(world, draw)
        asked.append((tokens, len(tokens) + draw.integer(0, world.shape.page_size)))
    world.fits(asked)


def misuse(world: World, draw: Draw) -> None:
    """A call that is wrong whatever the state; it must change nothing."""
    world.refuse(*_pick(draw, _wrong(world, draw)))


class Rule(NamedTuple):
    """One rule: what it does, how often beside the others, and what it needs of the world."""

    act: Callable[[World, Draw], None]
    weight: int
    needs: Callable[[World], bool] = lambda world: True


RULES: dict[str, Rule] = {
    "admit": Rule(admit, 20, lambda world: len(world.live) < world.shape.max_sequences),
    "extend": Rule(extend, 40, lambda world: bool(world.live) and len(world.opened) < world.depth),
    "commit": Rule(commit, 48, lambda world: bool(world.opened)),
    "abort": Rule(abort, 3, lambda world: bool(world.opened)),
    "truncate": Rule(truncate, 6, lambda world: bool(world.live)),
    "drop": Rule(drop, 4, lambda world: bool(world.live)),
    "release": Rule(release, 12, lambda world: bool(world.live)),
    "reset": Rule(reset, 1),
    "peek": Rule(peek, 6),
    "fits": Rule(fits, 6),
    "misuse": Rule(misuse, 3),
}


def _rarely(draw: Draw) -> bool:
    return draw.integer(0, 9) == 9


def _pick(draw: Draw, items: "tuple[_T, ...] | list[_T]") -> _T:
    return items[draw.integer(0, len(items) - 1)]


def _prompt(world: World, draw: Draw) -> list[int]:
    """The beginning of an earlier sequence and a few more tokens; rarely too many of them."""
    head: list[int] = []
    if world.histories and draw.integer(0, 3):
        head = _pick(draw, world.histories)
        head = head[: draw.integer(0, len(head))] if draw.integer(0, 1) else head
    own = draw.integer(0 if head else 1, 2 * world.shape.page_size)
    tokens = head + [draw.integer(0, VOCABULARY - 1) for _ in range(own)]
    return tokens if _rarely(draw) else tokens[: world.cache.max_length]


def _some(world: World, draw: Draw) -> list[Pair]:
    """Some of the live pairs, at least one."""
    chosen = [pair for pair in world.live if draw.integer(0, 2)]
    return chosen or [_pick(draw, world.live)]


def _count(pair: Pair, ahead: int, draw: Draw) -> int:
    """Mostly all that is known and as far ahead as allowed; sometimes less, rarely more."""
    most = max(0, len(pair.request.tokens) - pair.request.scheduled + ahead)
    choice = draw.integer(0, 19)
    if choice == 19:
        return most + 1
    return draw.integer(0, most) if choice > 12 else most


def _extension(rows: list[Pair], counts: list[int]) -> Callable[[Any], object]:
    return lambda cache: cache.extend([pair.handle for pair in rows], counts)


def _formed(
    opened: Opened, learned: list[list[int]], kept: list[int], draw: Draw
) -> tuple[list[list[int]], list[int], Callable[[list[list[int]]], Any]]:
    """Arguments of `World.commit`: what is learned, as one of the forms a commit takes."""
    form = _pick(draw, (_arrays, _lists, _flat, _one_a_row))
    wants = opened.step.wants_token.tolist()
    if form is _one_a_row:
        learned = [
            (new or [0])[:1] if want else [] for new, want in zip(learned, wants, strict=True)
        ]
        room = [
            len(pair.request.tokens) + len(new) - past
            for pair, new, past in zip(opened.rows, learned, opened.run.past, strict=True)
        ]
        kept = [min(keep, most) for keep, most in zip(kept, room, strict=True)]
    return learned, kept, form


def _arrays(learned: list[list[int]]) -> list[Any]:
    return [np.array(new, np.int64) for new in learned]


def _lists(learned: list[list[int]]) -> list[list[int]] | None:
    return learned if any(learned) else None


def _flat(learned: list[list[int]]) -> tuple[list[int], list[int]]:
    return [token for new in learned for token in new], [len(new) for new in learned]


def _one_a_row(learned: list[list[int]]) -> Any:
    return np.array([new[0] if new else -1 for new in learned], np.int32)


def _wrong(world: World, draw: Draw) -> list[tuple[Any, Callable[[Any], object]]]:
    """Calls no cache may accept, by the error each must raise."""
    calls: list[tuple[Any, Callable[[Any], object]]] = [
        (LengthError, lambda cache: cache.admit([])),
        (TokenError, lambda cache: cache.admit([0, -1])),
        (TokenError, lambda cache: cache.admit([0, 2**31])),
        (UnknownSequence, lambda cache: cache.release("no sequence")),
        (UnknownSequence, lambda cache: cache.drop(object(), 1)),
    ]
    if len(world.live) == world.shape.max_sequences:
        calls += [(CapacityError, lambda cache: cache.admit([0]))] * 3
    if world.released:
        stale = _pick(draw, world.released)
        calls += [
            (StaleSequence, lambda cache: cache.release(stale)),
            (StaleSequence, lambda cache: cache.truncate(stale, 0)),
            (StaleSequence, lambda cache: cache.batch([stale])),
            (StaleSequence, lambda cache: cache.fits([(stale, 1)])),
        ]
    if world.live:
        handle = _pick(draw, world.live).handle
        calls += [
            (DuplicateSequence, lambda cache: cache.batch([handle, handle])),
            (DuplicateSequence, lambda cache: cache.admit([1], id=handle.id)),
            (LengthError, lambda cache: cache.drop(handle, -1)),
        ]
    if world.opened:
        step, rows = world.opened[0].step, len(world.opened[0].rows)
        calls += [
            (LengthError, lambda cache: cache.commit(step, [[]] * (rows + 1))),
            (LengthError, lambda cache: cache.commit(step, kept=step.counts + 1)),
            (TokenError, lambda cache: cache.commit(step, [[-1]] * rows)),
            (StepError, lambda cache: cache.extend([world.opened[0].rows[0].handle], 1)),
        ]
    return calls
