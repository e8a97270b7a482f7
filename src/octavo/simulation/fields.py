"""Fields of a trace's line, checked one by one; and what a line comes to."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.simulation.requests import LONGEST, Ints

Fields = dict[str, Any]


class BadLine(Exception):
    """A line is malformed; the message says why."""


class BadHeader(BadLine):
    """The first line says that no line of the file can be read."""


@dataclass(slots=True)
class Entry:
    """A request, as far as its line tells.

    Attributes:
        own: tokens of the prompt that are not of an earlier turn of its session.
        output_length: tokens of the answer; None: that is not told.
        at: when it comes, in the unit of the file; None: that is not told.
        whole: whether ``at`` is written as a whole number.
        tokens, output: ids of its own tokens and of the answer, or None.
        ids: hash ids of its own tokens, or None.
        session: what its session is called; None: it is of none.
        goes_on: whether its own tokens follow what its session had so far; else they are all.
        delay: seconds after the request before it in its session.
        line: where it stands.
    """

    own: int
    output_length: int | None
    at: float | None = None
    whole: bool = True
    tokens: Ints | None = None
    output: Ints | None = None
    ids: list[int | str] | None = None
    session: object = None
    goes_on: bool = True
    delay: float = 0.0
    line: int | None = None


def get(line: Fields, name: str) -> Any:
    """A field that must be there."""
    if name not in line:
        raise BadLine(lacks(line, name))
    return line[name]


def lacks(line: Fields, name: str) -> str:
    """What is wrong with a line without a field."""
    there = ", ".join(map(str, line)) or "nothing"
    return f"it lacks {name}; it has {there[:200]}"


def first(line: Fields, *names: str) -> str:
    """The first of these that the line has; the first of all where it has none."""
    return next((name for name in names if name in line), names[0])


def number(line: Fields, name: str) -> float:
    """A number, as large as times are."""
    value = get(line, name)
    if type(value) not in (int, float) or not abs(value) <= 1e15:  # NaN is none, too
        raise BadLine(f"{name} is {short(value)}; it must be a number, at most 1e15")
    return float(value)


def whole(line: Fields, name: str, low: int) -> int:
    """A count; 472.0 is one, as tables that have gaps write it."""
    value = get(line, name)
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not low <= value <= LONGEST:
        right = f"a whole number of at least {low}, at most {LONGEST}"
        raise BadLine(f"{name} is {short(value)}; it must be {right}")
    return value


def text(line: Fields, name: str) -> str:
    """A text, or the texts of a list of parts."""
    value = get(line, name)
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "".join(str(part.get("text") or "") for part in value)
    if not isinstance(value, str):
        raise BadLine(f"{name} is {short(value)}; it must be text")
    return value


def token_ids(line: Fields, name: str) -> Ints:
    """Token ids, at least one."""
    value = get(line, name)
    right = isinstance(value, list) and value and all(type(each) is int for each in value)
    if not right or min(value) < 0 or max(value) > LONGEST:
        raise BadLine(f"{name} must be a list of token ids, whole numbers of 0 to {LONGEST}")
    return np.array(value, np.int32)


def short(value: object) -> str:
    """A value for a message."""
    try:
        shown = repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return "a huge number"
    return shown if len(shown) <= 40 else f"{shown[:40]}..."
