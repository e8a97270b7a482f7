"""What a line of a trace says, in each of the forms that people have.

A line becomes entries: requests as far as one line tells. What takes the whole file to know, such
as how many tokens a hash id stands for, `octavo.simulation.traces` finds out.

========================  ==========================================================================
form                      a line, or an object of a JSON array
========================  ==========================================================================
``log``                   octavo's own: ``arrival``, and a prompt as ids, hash ids or a length
``mooncake``              ``timestamp``, ``input_length``, ``output_length``, ``hash_ids``
``bailian``               the same with ``chat_id``; 16 tokens an id, seconds
``sessions``              ``session_id``: a turn's own tokens, behind all earlier ones; ``delay``
``conversations``         ``conversations`` or ``messages``: turns as text (ShareGPT)
``prompts``               ``prompt`` as text, ``output_tokens`` (vLLM's custom benchmark)
``lengths``               ``input_lens``, ``output_lens``: the results of a benchmark
``azure``                 CSV: TIMESTAMP, ContextTokens, GeneratedTokens
``burstgpt``              CSV: Timestamp, Request tokens, Response tokens; seconds
========================  ==========================================================================
"""

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from octavo.simulation.requests import LONGEST, Ints

BYTES_A_TOKEN = 4
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
_Fields = dict[str, Any]


class BadLine(Exception):
    """A line is malformed; the message says why."""


class BadHeader(BadLine):
    """The first line says that no line of the file can be read."""


@dataclass(slots=True)
class Entry:
    """A request, as far as its line tells.

    Attributes:
        own: tokens of the prompt that are not of an earlier turn of its session.
        output_length: tokens of the answer.
        at: when it comes, in the unit of the file; None: that is not told.
        whole: whether ``at`` is written as a whole number.
        tokens, output: ids of its own tokens and of the answer, or None.
        ids: hash ids of its own tokens, or None.
        session: what its session is called; None: it is of none.
        delay: seconds after the request before it in its session.
        line: where it stands.
    """

    own: int
    output_length: int
    at: float | None = None
    whole: bool = True
    tokens: Ints | None = None
    output: Ints | None = None
    ids: list[int | str] | None = None
    session: object = None
    delay: float = 0.0
    line: int | None = None


class JsonLines:
    """Objects of JSON, of the form of the first one.

    Attributes:
        form: of the first object; empty before it.
        unit: of the times, where the form says.
        block: tokens a hash id stands for, where the form says.
        estimated: whether texts were counted, not tokens.
    """

    def __init__(self) -> None:
        self.form = ""
        self.unit: Unit | None = None
        self.block: int | None = None
        self.estimated = False
        self._conversations = 0

    def read(self, text: str) -> list[Entry]:
        """The requests of a line.

        Raises:
            BadLine: it is malformed.
        """
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadLine(f"it is not JSON: {error}") from None
        return self.entries(line)

    def entries(self, line: object) -> list[Entry]:
        """The requests of an object.

        Raises:
            BadLine: it is malformed.
        """
        if not isinstance(line, dict):
            raise BadLine("it is no JSON object; a trace has one object a line")
        form = _form(line)
        found = self._read(form, line)
        if not self.form:
            self.form = form
            self.unit = "s" if form in ("log", "bailian", "lengths") else None
            self.block = 16 if form == "bailian" else None
        return found

    def _read(self, form: str, line: _Fields) -> list[Entry]:
        if form == "lengths":
            return _lengths(line)
        if form == "conversations":
            self._conversations += 1
            self.estimated = True
            return _turns(line, self._conversations)
        if form == "prompts":
            self.estimated = True
            return [_prompt(line)]
        if form != "sessions" and _time(line)[0] is None:
            raise BadLine(_lacks(line, "arrival"))
        entry = _request(line)
        if form == "sessions":
            entry.session = _get(line, "session_id")
            if type(entry.session) not in (int, str):
                raise BadLine("session_id must be a string or a whole number")
            entry.delay = _number(line, "delay") / 1000 if "delay" in line else 0.0
            if entry.delay < 0:
                raise BadLine(f"delay is {_short(line['delay'])}; it must not be negative")
        return [entry]


def _form(line: _Fields) -> str:
    """What an object is, by the fields that it has."""
    if "input_lens" in line:
        return "lengths"
    if "conversations" in line or "messages" in line:
        return "conversations"
    if "prompt" in line and "input_length" not in line:
        return "prompts"
    if "session_id" in line:
        return "sessions"
    if "timestamp" in line:
        return "bailian" if "chat_id" in line else "mooncake"
    return "log"


def _time(line: _Fields) -> tuple[float | None, bool]:
    """When it comes, and whether that is written as a whole number."""
    name = "arrival" if "arrival" in line else "timestamp"
    if name not in line or (line[name] is None and "session_id" in line):
        return None, True
    return _number(line, name), type(line[name]) is int


def _prompt(line: _Fields) -> Entry:
    """A prompt as text, and the length of its answer."""
    tokens = text_tokens(_text(line, "prompt"))
    if not tokens.size:
        raise BadLine("prompt is empty")
    length = _whole(line, _first(line, "output_tokens", "output_len", "max_tokens"), 0)
    return Entry(tokens.size, length, *_time(line), tokens=tokens)


def _request(line: _Fields) -> Entry:
    """A prompt by its ids, its hash ids or its length, and an answer by its ids or its length."""
    entry = Entry(0, 0, *_time(line))
    if "tokens" in line:
        entry.tokens = _ids(line, "tokens")
        entry.own = entry.tokens.size
    else:
        entry.own = _whole(line, "input_length", 1)
        if "hash_ids" in line:
            entry.ids = _hash_ids(line["hash_ids"])
    if "output" in line:
        entry.output = _ids(line, "output")
        entry.output_length = entry.output.size
    else:
        entry.output_length = _whole(line, "output_length", 0)
    return entry


def _hash_ids(ids: Any) -> list[int | str]:
    right = isinstance(ids, list) and ids and all(type(each) in (int, str) for each in ids)
    if not right:
        raise BadLine("hash_ids must be a list of whole numbers or strings")
    return list(ids)


def _lengths(line: _Fields) -> list[Entry]:
    """The requests of a benchmark's results: one length each."""
    inputs, outputs = line["input_lens"], _get(line, "output_lens")
    starts = line.get("start_times") or []
    if not (isinstance(inputs, list) and isinstance(outputs, list) and isinstance(starts, list)):
        raise BadLine("input_lens and output_lens must be lists")
    if len(inputs) != len(outputs) or (starts and len(starts) != len(inputs)):
        raise BadLine(f"it has {len(inputs)} input_lens and {len(outputs)} output_lens")
    return [
        Entry(
            _whole({"input_lens": size}, "input_lens", 1),
            _whole({"output_lens": answer}, "output_lens", 0),
            _number({"start_times": starts[at]}, "start_times") if starts else None,
        )
        for at, (size, answer) in enumerate(zip(inputs, outputs, strict=True))
    ]


_ASKS = ("human", "user", "system", "tool")
_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")


def _turns(line: _Fields, session: int) -> list[Entry]:
    """A conversation: each answer ends a request, whose own tokens are all since the last one."""
    name = "conversations" if "conversations" in line else "messages"
    if not isinstance(line[name], list):
        raise BadLine(f"{name} must be a list of messages")
    at, whole = _time(line)
    found, asked = list[Entry](), ""
    for message in line[name]:
        if not isinstance(message, dict):
            raise BadLine(f"{name} must be a list of messages, each a JSON object")
        who = message.get("from", message.get("role"))
        text = _text(message, "value" if "value" in message else "content")
        if who in _ANSWERS and (asked or found):
            own, output = text_tokens(asked), text_tokens(text)
            if own.size + output.size:
                found.append(
                    Entry(
                        *(own.size, output.size, None if found else at, whole),
                        tokens=own,
                        output=output,
                        session=("conversation", session),
                    )
                )
            asked = ""
        elif who in _ASKS or who in _ANSWERS:
            asked += text
        else:
            right = f"one of {', '.join(_ASKS + _ANSWERS)}"
            raise BadLine(f"the role of a message is {_short(who)}; it must be {right}")
    return found


def text_tokens(text: str) -> Ints:
    """A token for every four bytes of UTF-8: about as many as tokenizers make of English. O(bytes).

    Texts that begin alike have equal ids there, to the token; texts that differ have others, but
    for the highest bit of a fourth byte.
    """
    raw = text.encode("utf-8", "surrogatepass")
    raw += b"\0" * (-len(raw) % BYTES_A_TOKEN)
    return (np.frombuffer(raw, "<i4") & LONGEST).astype(np.int32)


class CsvLines:
    """Lines of CSV, below their header.

    Args:
        header: names of the columns, in any order and with others between.

    Attributes:
        form: ``azure`` or ``burstgpt``.
        unit: of the times.

    Raises:
        BadHeader: columns are missing.
    """

    unit: Unit = "s"
    block: int | None = None
    estimated = False

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
        at = _moment(row[time]) if self.form == "azure" else _number(_parsed(row, time), time)
        own = _whole(_parsed(row, asked), asked, 1)
        return [Entry(own, _whole(_parsed(row, answered), answered, 0), at)]


def _columns(text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise BadLine(f"it is not CSV: {error}") from None


def _number(line: _Fields, name: str) -> float:
    value = _get(line, name)
    if type(value) not in (int, float) or math.isnan(value) or abs(value) > 1e15:
        raise BadLine(f"{name} is {_short(value)}; it must be a number")
    return float(value)


def _whole(line: _Fields, name: str, low: int) -> int:
    value = _get(line, name)
    if type(value) is not int or not low <= value <= LONGEST:
        right = f"a whole number of at least {low}, at most {LONGEST}"
        raise BadLine(f"{name} is {_short(value)}; it must be {right}")
    return value


def _text(line: _Fields, name: str) -> str:
    """A text, or the texts of a list of parts."""
    value = _get(line, name)
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        value = "".join(str(part.get("text", "")) for part in value)
    if not isinstance(value, str):
        raise BadLine(f"{name} is {_short(value)}; it must be text")
    return value


def _first(line: _Fields, *names: str) -> str:
    """The first of these that the line has; the first of all where it has none."""
    return next((name for name in names if name in line), names[0])


def _get(line: _Fields, name: str) -> Any:
    if name not in line:
        raise BadLine(_lacks(line, name))
    return line[name]


def _lacks(line: _Fields, name: str) -> str:
    there = ", ".join(map(str, line)) or "nothing"
    return f"it lacks {name}; it has {there[:200]}"


def _ids(line: _Fields, name: str) -> Ints:
    value = line[name]
    right = isinstance(value, list) and value and all(type(each) is int for each in value)
    if not right or min(value) < 0 or max(value) > LONGEST:
        raise BadLine(f"{name} must be a list of token ids, whole numbers of 0 to {LONGEST}")
    return np.array(value, np.int32)


def _parsed(row: _Fields, name: str) -> _Fields:
    """``name`` as a number where it is one, else as it stands."""
    text = row[name].strip()
    digits = text.removeprefix("-")
    if digits.isdecimal():
        return {name: int(text) if len(digits) < 19 else text}
    try:
        return {name: float(text)}
    except ValueError:
        return {name: text}


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
