"""What a line of a trace says, in each of the forms that people have.

A line becomes entries: requests as far as one line tells. What takes the whole file to know, such
as how many tokens a hash id stands for, `octavo.simulation.traces` finds out.

========================  ==========================================================================
form                      a line, or an object of a JSON array
========================  ==========================================================================
``log``                   octavo's own: ``arrival``, and a prompt as ids, hash ids or a length
``mooncake``              ``timestamp``, ``input_length``, ``output_length``, ``hash_ids``
``bailian``               the same with ``chat_id``; 16 tokens per id, seconds
``sessions``              ``session_id``: a turn's own tokens, behind all earlier ones; ``delay``
``conversations``         ``conversations`` or ``messages``: turns as text (ShareGPT)
``prompts``               ``prompt``, ``text_input``, or ``messages`` with an ``output_length``
``lengths``               ``input_lens``, ``output_lens``: the results of a benchmark
``azure``                 CSV: TIMESTAMP, ContextTokens, GeneratedTokens
``burstgpt``              CSV: Timestamp, Request tokens, Response tokens; seconds
========================  ==========================================================================
"""

import csv
import json
from datetime import UTC, datetime
from typing import Any, Literal

from octavo.checks import first_twice
from octavo.simulation import texts
from octavo.simulation.fields import (
    BadHeader,
    BadLine,
    Entry,
    Fields,
    get,
    number,
    short,
    token_ids,
    whole,
)

_CSV = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens"),
}
WHAT = (
    "a trace is JSON lines, or CSV with the columns "
    + " or ".join(", ".join(names) for names in _CSV.values())
    + "; docs/simulate.md has all forms"
)
Unit = Literal["s", "ms"]


class JsonLines:
    """Objects of JSON, of the form of the first one.

    Attributes:
        form: of the first object; empty before it.
        unit: of the times, where the form says.
        block: tokens a hash id stands for, where the form says.
        estimated: whether texts were counted, not tokens.
        results: results of benchmarks, each of many requests.
        left_out: parts of messages that are no text, such as images.
    """

    def __init__(self) -> None:
        self.form = ""
        self.unit: Unit | None = None
        self.block: int | None = None
        self.estimated = False
        self.results = self.left_out = 0
        self._conversations = 0

    def read(self, text: str) -> list[Entry]:
        """The requests of a line.

        Raises:
            BadLine: it is malformed.
        """
        return self.entries(parse_json(text))

    def entries(self, line: object) -> list[Entry]:
        """The requests of an object; a field that is null is none.

        Raises:
            BadLine: it is malformed.
        """
        if not isinstance(line, dict):
            raise BadLine("it is no JSON object; a trace has one object per line")
        told = {name: value for name, value in line.items() if value is not None}
        form = _form(told)
        found = self._read(form, told)
        if not self.form:
            self.form = form
            self.unit = "s" if form in ("log", "bailian", "lengths") else None
            self.block = 16 if form == "bailian" else None
        return found

    def _read(self, form: str, line: Fields) -> list[Entry]:
        if form == "lengths":
            self.results += 1
            return _lengths(line)
        if form == "conversations":
            self.estimated = True
            self._conversations += 1
            found = texts.turns(line, ("conversation", self._conversations))
        elif form == "prompts":
            self.estimated = True
            found = [texts.prompt(line)]
        else:
            found = [_request(line)]
        if form in ("conversations", "prompts"):
            self.left_out += texts.parts_without_text(line)
        for entry in found[:1]:  # later turns of a conversation come when it goes on
            entry.at, entry.whole = _time(line)
        if "session_id" in line and form in ("sessions", "prompts"):
            _put_in_session(found[0], line)
        return found


def parse_json(text: str) -> object:
    """What JSON says, no key of an object twice.

    Raises:
        BadLine: it is malformed.
    """
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"it is not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadLine(f"{short(first_twice(key for key, _ in pairs))} stands twice in an object")
    return found


def _form(line: Fields) -> str:
    """What an object is, by the fields that it has."""
    if "input_lens" in line:
        return "lengths"
    if "input_length" not in line and texts.is_prompt(line):
        return "prompts"
    if any(name in line for name in texts.CONVERSATIONS):
        return "conversations"
    if "session_id" in line:
        return "sessions"
    if "timestamp" in line:
        return "bailian" if "chat_id" in line else "mooncake"
    if "total_input_tokens" in line:
        right = "save it with --save-detailed (vLLM) or --output-details (SGLang)"
        raise BadLine(f"it has a benchmark's totals, but not the length of each request; {right}")
    return "log"


def _time(line: Fields) -> tuple[float | None, bool]:
    """When it comes, and whether that is written as a whole number."""
    name = "arrival" if "arrival" in line else "timestamp"
    return (number(line, name), type(line[name]) is int) if name in line else (None, True)


def _put_in_session(entry: Entry, line: Fields) -> None:
    """A turn of a session: it follows the one before, and what was said there if it goes on."""
    entry.session = line["session_id"]
    if type(entry.session) not in (int, str):
        raise BadLine("session_id must be a string or a whole number")
    entry.goes_on = "messages" not in line or line.get("message_mode") == "delta"
    entry.delay = number(line, "delay") / 1000 if "delay" in line else 0.0
    if entry.delay < 0:
        raise BadLine(f"delay is {short(line['delay'])}; it must not be negative")


def _request(line: Fields) -> Entry:
    """A prompt by its ids, its hash ids or its length, and an answer by its ids or its length."""
    entry = Entry(0, 0)
    if "tokens" in line:
        entry.tokens = token_ids(line, "tokens")
        entry.own = entry.tokens.size
    else:
        entry.own = whole(line, "input_length", 1)
        if "hash_ids" in line:
            entry.ids = _hash_ids(line["hash_ids"])
    if "output" in line:
        entry.output = token_ids(line, "output")
        entry.output_length = entry.output.size
    else:
        entry.output_length = whole(line, "output_length", 0)
    return entry


def _hash_ids(ids: Any) -> list[int | str]:
    right = isinstance(ids, list) and ids and all(type(each) in (int, str) for each in ids)
    if not right:
        raise BadLine("hash_ids must be a list of whole numbers or strings")
    return list(ids)


def _lengths(line: Fields) -> list[Entry]:
    """The requests of a benchmark's results: one length each."""
    inputs, outputs = line["input_lens"], get(line, "output_lens")
    starts = line.get("start_times") or []
    if not (isinstance(inputs, list) and isinstance(outputs, list) and isinstance(starts, list)):
        raise BadLine("input_lens and output_lens must be lists")
    if len(inputs) != len(outputs):
        raise BadLine(f"it has {len(inputs)} input_lens and {len(outputs)} output_lens")
    if starts and len(starts) != len(inputs):
        raise BadLine(f"it has {len(inputs)} input_lens and {len(starts)} start_times")
    return [
        Entry(
            whole({"input_lens": size}, "input_lens", 1),
            whole({"output_lens": answer}, "output_lens", 0),
            number({"start_times": starts[at]}, "start_times") if starts else None,
        )
        for at, (size, answer) in enumerate(zip(inputs, outputs, strict=True))
    ]


class CsvLines:
    """Lines of CSV, below their header.

    Args:
        header: names of the columns, in any order and with others between.

    Attributes:
        form: ``azure`` or ``burstgpt``.
        unit: of the times.

    Raises:
        BadHeader: columns are missing, or one stands twice.
    """

    unit: Unit = "s"
    block: int | None = None
    estimated = False
    results = left_out = 0

    def __init__(self, header: str) -> None:
        self._names = [name.strip() for name in _columns(header)]
        missing = {
            form: [name for name in names if name not in self._names]
            for form, names in _CSV.items()
        }
        self.form = min(missing, key=lambda form: len(missing[form]))
        lacking = missing[self.form]
        if len(lacking) == len(_CSV[self.form]):
            raise BadHeader(f"this is no trace; {WHAT}")
        twice = first_twice(filter(None, self._names))
        if twice is not None:
            raise BadHeader(f"the column {twice} stands twice")
        if lacking:
            there = ", ".join(self._names)
            raise BadHeader(f"the column {lacking[0]} is missing; there are {there}")

    def read(self, text: str) -> list[Entry]:
        """The request of a line.

        Raises:
            BadLine: it is malformed.
        """
        values = _columns(text)
        if len(values) != len(self._names):
            raise BadLine(f"it has {len(values)} columns; {len(self._names)} are expected")
        row = dict(zip(self._names, values, strict=True))
        time, asked, answered = _CSV[self.form]
        at = _moment(row, time)
        own = whole(_parsed(row, asked), asked, 1)
        return [Entry(own, whole(_parsed(row, answered), answered, 0), at)]


def _columns(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise BadLine(f"it is not CSV: {error}") from None


def _parsed(row: Fields, name: str) -> Fields:
    """``name`` as a number where it is one, else as it stands."""
    text = row[name].strip()
    digits = text.removeprefix("-")
    if digits.isdecimal():
        return {name: int(text) if len(digits) < 19 else text}
    try:
        return {name: float(text)}
    except ValueError:
        return {name: text}


def _moment(row: Fields, name: str) -> float:
    """Seconds: a number, or a time as ``2023-11-16 18:17:03.9799600``; without a zone it is UTC."""
    told = _parsed(row, name)
    if not isinstance(told[name], str):
        return number(told, name)
    try:
        moment = datetime.fromisoformat(row[name].strip())
    except ValueError:
        right = "a number of seconds, or a date and time"
        raise BadLine(f"{name} is {short(row[name])}; it must be {right}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
