"""One line of a trace: from JSON or CSV to the fields of a request, or why not."""

import csv
import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from octavo.simulation.requests import BLOCK, LONGEST, Ints

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_WHAT = "a trace is JSON lines, or CSV with the columns " + ", ".join(COLUMNS)
Fields = dict[str, Any]


class BadLine(Exception):
    """A line is malformed; the message says why."""


class BadHeader(BadLine):
    """The first line says that no line of the file can be read."""


def decode(raw: bytes) -> str:
    """The text of a line.

    Raises:
        BadLine: it is none.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadLine(f"it is not text in UTF-8; {_WHAT}") from None
    if "\0" in text:
        raise BadLine(f"it is not text; {_WHAT}")
    return text


class JsonLine:
    """Lines of Mooncake's traces and of octavo's log.

    Attributes:
        form: ``mooncake`` or ``log``, of the first line.
    """

    def __init__(self) -> None:
        self.form = ""
        self._blocks: dict[int | str, int] = {}

    def __call__(self, text: str) -> Fields:
        """The fields of a request. Raises BadLine."""
        line = _object(text)
        own = "timestamp" not in line
        self.form = self.form or ("log" if own else "mooncake")
        arrival = _number(line, "arrival") if own else _number(line, "timestamp") / 1000
        return {"arrival": arrival, **self._prompt(line), **_answer(line)}

    def _prompt(self, line: Fields) -> Fields:
        if "tokens" in line:
            tokens = _ids(line, "tokens")
            return {"tokens": tokens, "input_length": tokens.size}
        length = _whole(line, "input_length", 1)
        if "hash_ids" not in line:
            return {"input_length": length}
        return {"input_length": length, "blocks": self._numbers(line["hash_ids"], length)}

    def _numbers(self, ids: object, length: int) -> Ints:
        """An odd number for each hash id, the same for the same id."""
        if not isinstance(ids, list) or not all(type(each) in (int, str) for each in ids):
            raise BadLine("hash_ids must be a list of whole numbers or strings")
        want = -(-length // BLOCK)
        if len(ids) < want:
            why = f"an input_length of {length} takes {want}, one for {BLOCK} tokens"
            raise BadLine(f"hash_ids has {len(ids)} ids; {why}")
        known = self._blocks
        return np.array([2 * known.setdefault(i, len(known)) + 1 for i in ids], np.int32)


class CsvLine:
    """Lines of Azure's traces, below their header.

    Args:
        header: names of the columns, in any order and with others between.

    Raises:
        BadHeader: columns are missing.
    """

    form = "azure"

    def __init__(self, header: str) -> None:
        self._names = [name.strip() for name in _columns(header)]
        missing = [name for name in COLUMNS if name not in self._names]
        if len(missing) == len(COLUMNS):
            raise BadHeader(f"this is no trace; {_WHAT}")
        if missing:
            there = ", ".join(self._names)
            raise BadHeader(f"the column {missing[0]} is missing; there are {there}")

    def __call__(self, text: str) -> Fields:
        """The fields of a request. Raises BadLine."""
        values = _columns(text)
        if len(values) != len(self._names):
            raise BadLine(f"it has {len(values)} columns; {len(self._names)} are expected")
        row = dict(zip(self._names, values, strict=True))
        return {
            "arrival": _moment(row["TIMESTAMP"]),
            "input_length": _whole(_parsed(row, "ContextTokens"), "ContextTokens", 1),
            "output_length": _whole(_parsed(row, "GeneratedTokens"), "GeneratedTokens", 0),
        }


def _columns(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise BadLine(f"it is not CSV: {error}") from None


def _object(text: str) -> Fields:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"it is not JSON: {error}") from None
    if not isinstance(line, dict):
        raise BadLine("it is no JSON object; a trace has one object a line")
    return line


def _number(line: Fields, name: str) -> float:
    value = _get(line, name)
    if type(value) not in (int, float) or math.isnan(value) or abs(value) > 1e15:
        raise BadLine(f"{name} is {_short(value)}; it must be a number")
    return float(value)


def _whole(line: Fields, name: str, low: int) -> int:
    value = _get(line, name)
    if type(value) is not int or not low <= value <= LONGEST:
        right = f"a whole number of at least {low}, at most {LONGEST}"
        raise BadLine(f"{name} is {_short(value)}; it must be {right}")
    return value


def _get(line: Fields, name: str) -> Any:
    if name not in line:
        there = ", ".join(map(str, line)) or "nothing"
        raise BadLine(f"it lacks {name}; it has {there[:200]}")
    return line[name]


def _ids(line: Fields, name: str) -> Ints:
    value = line[name]
    right = isinstance(value, list) and value and all(type(each) is int for each in value)
    if not right or min(value) < 0 or max(value) > LONGEST:
        raise BadLine(f"{name} must be a list of token ids, whole numbers of 0 to {LONGEST}")
    return np.array(value, np.int32)


def _answer(line: Fields) -> Fields:
    if "output" not in line:
        return {"output_length": _whole(line, "output_length", 0)}
    output = _ids(line, "output")
    return {"output_length": output.size, "output": output}


def _parsed(row: Fields, name: str) -> Fields:
    """``name`` as a number where it is one, else as it stands."""
    text = row[name].strip()
    digits = text.removeprefix("-")
    return {name: int(text) if digits.isdecimal() and len(digits) < 19 else text}


def _moment(text: str) -> float:
    """Seconds, of a time as ``2023-11-16 18:17:03.9799600``; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadLine(f"TIMESTAMP is {_short(text)}; it must be a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return "a huge number"
    return text if len(text) <= 40 else f"{text[:40]}..."
