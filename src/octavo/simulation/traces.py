"""Request traces from files: Mooncake's JSON lines, Azure's CSV, and octavo's own log.

The log is JSON lines: ``arrival`` in seconds; the prompt as ``tokens``, as ``hash_ids`` (an id for
512 tokens) with ``input_length``, or as ``input_length`` alone; the answer as ``output`` (its ids)
or ``output_length``. Mooncake's lines have ``timestamp`` in milliseconds instead of ``arrival``.
"""

import csv
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from octavo.errors import TraceError
from octavo.simulation.requests import BLOCK, LONGEST, Ints, Trace, TraceRequest

_LONGEST_LINE = 2**28
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_WHAT = "a trace is JSON lines, or CSV with the columns " + ", ".join(_COLUMNS)
_Fields = dict[str, Any]


def read_trace(path: str | Path, *, skip_bad: bool = False) -> Trace:
    """The requests of a file, by arrival; those that arrive at once stay in its order.

    Args:
        path: of JSON lines or CSV.
        skip_bad: count malformed lines instead of refusing the file.

    Raises:
        TraceError: what is wrong, with file and line; or there is no request at all.
        OSError: the file cannot be read.

    Cost: O(bytes of the file).
    """
    with Path(path).open("rb") as file:
        return _Reading(str(path), skip_bad=skip_bad).trace(file)


class _Reading:
    """One file on its way to a trace."""

    def __init__(self, path: str, *, skip_bad: bool) -> None:
        self._path, self._skip, self._bad = path, skip_bad, 0
        self._line: _JsonLine | _CsvLine | None = None
        self._no_header: TraceError | None = None

    def trace(self, file: BinaryIO) -> Trace:
        found = list(self._fields(file))
        if not found or self._line is None:
            if self._no_header is not None:
                raise self._no_header
            skipped = f"; {self._bad} bad lines were skipped" if self._bad else ""
            raise TraceError(self._path, None, f"there is no request in it{skipped}")
        arrivals = [fields["arrival"] for fields in found]
        late = sum(after < before for before, after in pairwise(arrivals))
        found.sort(key=lambda fields: fields["arrival"])
        first = min(arrivals)
        requests = [
            TraceRequest(number, **fields | {"arrival": fields["arrival"] - first})
            for number, fields in enumerate(found)
        ]
        return Trace(Path(self._path).name, self._line.form, requests, self._bad, late)

    def _fields(self, file: BinaryIO) -> Iterator[_Fields]:
        """The fields of a request, of every line that is right."""
        for number, raw in self._lines(file):
            try:
                fields = self._read(raw)
            except (_BadHeader, _BadLine) as bad:
                if not self._skip:
                    raise TraceError(self._path, number, str(bad)) from None
                self._bad += 1
                if isinstance(bad, _BadHeader) and self._no_header is None:
                    self._no_header = TraceError(self._path, number, str(bad))
            else:
                if fields is not None:
                    yield fields

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise TraceError(self._path, number, f"it is longer than {_LONGEST_LINE} bytes")
            yield number, line

    def _read(self, raw: bytes) -> _Fields | None:
        """A line's request; None of an empty line or the header."""
        text = _decode(raw)
        if not text.strip():
            return None
        if self._line is not None:
            return self._line(text)
        if text.lstrip().startswith(("{", "[")):
            self._line = _JsonLine()
            return self._line(text)
        self._line = _CsvLine(text)
        return None


class _BadLine(Exception):
    """A line is malformed; the message says why."""


class _BadHeader(_BadLine):
    """The first line says that no line of the file can be read."""


def _decode(raw: bytes) -> str:
    """The text of a line.

    Raises:
        _BadLine: it is none.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _BadLine(f"it is not text in UTF-8; {_WHAT}") from None
    if "\0" in text:
        raise _BadLine(f"it is not text; {_WHAT}")
    return text


class _JsonLine:
    """Lines of Mooncake's traces and of octavo's log.

    Attributes:
        form: ``mooncake`` or ``log``, of the first line.
    """

    def __init__(self) -> None:
        self.form = ""
        self._blocks: dict[int | str, int] = {}

    def __call__(self, text: str) -> _Fields:
        """The fields of a request. Raises _BadLine."""
        line = _object(text)
        own = "timestamp" not in line
        self.form = self.form or ("log" if own else "mooncake")
        arrival = _number(line, "arrival") if own else _number(line, "timestamp") / 1000
        return {"arrival": arrival, **self._prompt(line), **_answer(line)}

    def _prompt(self, line: _Fields) -> _Fields:
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
            raise _BadLine("hash_ids must be a list of whole numbers or strings")
        want = -(-length // BLOCK)
        if len(ids) < want:
            why = f"an input_length of {length} takes {want}, one for {BLOCK} tokens"
            raise _BadLine(f"hash_ids has {len(ids)} ids; {why}")
        known = self._blocks
        return np.array([2 * known.setdefault(i, len(known)) + 1 for i in ids], np.int32)


class _CsvLine:
    """Lines of Azure's traces, below their header.

    Args:
        header: names of the columns, in any order and with others between.

    Raises:
        _BadHeader: columns are missing.
    """

    form = "azure"

    def __init__(self, header: str) -> None:
        self._names = [name.strip() for name in _columns(header)]
        missing = [name for name in _COLUMNS if name not in self._names]
        if len(missing) == len(_COLUMNS):
            raise _BadHeader(f"this is no trace; {_WHAT}")
        if missing:
            there = ", ".join(self._names)
            raise _BadHeader(f"the column {missing[0]} is missing; there are {there}")

    def __call__(self, text: str) -> _Fields:
        """The fields of a request. Raises _BadLine."""
        values = _columns(text)
        if len(values) != len(self._names):
            raise _BadLine(f"it has {len(values)} columns; {len(self._names)} are expected")
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
        raise _BadLine(f"it is not CSV: {error}") from None


def _object(text: str) -> _Fields:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"it is not JSON: {error}") from None
    if not isinstance(line, dict):
        raise _BadLine("it is no JSON object; a trace has one object a line")
    return line


def _number(line: _Fields, name: str) -> float:
    value = _get(line, name)
    if type(value) not in (int, float) or math.isnan(value) or abs(value) > 1e15:
        raise _BadLine(f"{name} is {_short(value)}; it must be a number")
    return float(value)


def _whole(line: _Fields, name: str, low: int) -> int:
    value = _get(line, name)
    if type(value) is not int or not low <= value <= LONGEST:
        right = f"a whole number of at least {low}, at most {LONGEST}"
        raise _BadLine(f"{name} is {_short(value)}; it must be {right}")
    return value


def _get(line: _Fields, name: str) -> Any:
    if name not in line:
        there = ", ".join(map(str, line)) or "nothing"
        raise _BadLine(f"it lacks {name}; it has {there[:200]}")
    return line[name]


def _ids(line: _Fields, name: str) -> Ints:
    value = line[name]
    right = isinstance(value, list) and value and all(type(each) is int for each in value)
    if not right or min(value) < 0 or max(value) > LONGEST:
        raise _BadLine(f"{name} must be a list of token ids, whole numbers of 0 to {LONGEST}")
    return np.array(value, np.int32)


def _answer(line: _Fields) -> _Fields:
    if "output" not in line:
        return {"output_length": _whole(line, "output_length", 0)}
    output = _ids(line, "output")
    return {"output_length": output.size, "output": output}


def _parsed(row: _Fields, name: str) -> _Fields:
    """``name`` as a number where it is one, else as it stands."""
    text = row[name].strip()
    digits = text.removeprefix("-")
    return {name: int(text) if digits.isdecimal() and len(digits) < 19 else text}


def _moment(text: str) -> float:
    """Seconds, of a time as ``2023-11-16 18:17:03.9799600``; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise _BadLine(f"TIMESTAMP is {_short(text)}; it must be a date and time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return "a huge number"
    return text if len(text) <= 40 else f"{text[:40]}..."
