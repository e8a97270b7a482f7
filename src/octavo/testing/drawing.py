"""Choices, from whatever draws integers."""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

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
