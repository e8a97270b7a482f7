"""Shapes, prompts and extras at random, from whatever draws integers.

`any_shape` and `any_extras` take a `Draw`: `Chance`, which has a seed, or Hypothesis, for which
`octavo.testing.machine.from_hypothesis` makes strategies of them.
"""

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from octavo.cache.identity import Adapter, Extra, Media, Salt
from octavo.model.spec import Attention, Cross, LayerKind, State
from octavo.testing.shapes import Shape

VOCABULARY = 2
"""Token ids of prompts and answers: few, so that sequences agree by chance."""

_T = TypeVar("_T")


class Draw(Protocol):
    """A source of choices."""

    def integer(self, low: int, high: int) -> int:
        """Any int in ``low..high``."""


class Chance:
    """A seeded source of choices."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        """Any int in ``low..high``."""
        return low + int(self._random.random() * (high - low + 1))


def pick(draw: Draw, items: Sequence[_T]) -> _T:
    """One of ``items``."""
    return items[draw.integer(0, len(items) - 1)]


def rarely(draw: Draw) -> bool:
    """True one time in ten."""
    return draw.integer(0, 9) == 9


def any_kind(draw: Draw) -> LayerKind:
    """Any layer kind, with windows and chunks of any small size."""
    choice = draw.integer(0, 5)
    if choice == 0:
        return State(1)
    if choice == 1:
        return Cross(1, 1, 1)
    if choice == 2:
        return Attention(1, 1, 1, chunk=draw.integer(1, 12))
    if choice == 3:
        return Attention(1, 1, 1)
    return Attention(1, 1, 1, window=draw.integer(1, 12), sink_tokens=draw.integer(0, 5))


def any_shape(draw: Draw) -> Shape:
    """One to four groups of any kinds in a small pool of any kind, with any options."""
    kinds = [any_kind(draw) for _ in range(draw.integer(1, 4))]
    if not any(isinstance(kind, (Attention, State)) for kind in kinds):
        kinds.append(Attention(1, 1, 1))
    groups = {f"{type(kind).__name__.lower()} {at}": kind for at, kind in enumerate(kinds)}
    packed = bool(draw.integer(0, 1))
    pages = draw.integer(8, 24) * (1 + len(kinds))
    options: dict[str, Any] = {
        "max_sequences": draw.integer(2, 6),
        "max_length": draw.integer(30, 90),
        "policy": pick(draw, ("lru", "slru")),
        "prefix": draw.integer(0, 9) > 0,
        "snapshots": pick(draw, ("branch", "grid")),
        "rollback": pick(draw, (0, 0, 1, 3)),
        "depth": draw.integer(1, 3),
    }
    page_size = draw.integer(1, 5)
    pages = max(6, pages // 2) if packed else pages
    options["max_length"] = min(options["max_length"], (pages - 1) * page_size)
    return Shape(
        f"{'packed' if packed else 'plain'}: {', '.join(groups)}",
        groups,
        pages,
        page_size,
        {name: draw.integer(1, 4) for name in groups} if packed else None,
        {name: draw.integer(1, 3) for name, kind in groups.items() if isinstance(kind, State)},
        options,
        listens=bool(draw.integer(0, 1)),
    )


def any_extras(draw: Draw) -> tuple[Extra, ...]:
    """None, or a salt, an adapter and media that do not overlap."""
    extras: list[Extra] = []
    if draw.integer(0, 1):
        extras.append(Salt(pick(draw, ("a", "b"))))
    if draw.integer(0, 1):
        version: str | int = draw.integer(0, 1)
        extras.append(Adapter(pick(draw, ("a", "b")), version if draw.integer(0, 1) else "1"))
    start = 0
    for _ in range(draw.integer(0, 2)):
        start += draw.integer(0, 4)
        stop = start + draw.integer(1, 5)
        extras.append(Media(pick(draw, ("a", b"a", "b", None)), start, stop))
        start = stop
    return tuple(extras)
