"""Request traces from files: opened, read line by line, and put in order.

What a line says is `octavo.simulation.lines`'. Here is what takes the whole file to know: how many
tokens a hash id stands for, in which unit times are, and which request goes on from which.
"""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from octavo.checks import check_choice, check_int
from octavo.errors import TraceError
from octavo.planner.figures import counted
from octavo.simulation.fields import BadHeader, BadLine, Entry
from octavo.simulation.lines import WHAT, CsvLines, JsonLines, Unit, parse_json
from octavo.simulation.requests import BLOCK, LONGEST, Ints, Trace, TraceRequest
from octavo.simulation.texts import BYTES_A_TOKEN

_LONGEST_LINE = 2**28
_UNITS = {"s": 1.0, "ms": 1000.0}
_EPOCH = 1e9  # seconds since 1970, of a day in 2001; as milliseconds, of its twelfth day


def read_trace(
    path: str | Path,
    *,
    skip_bad: bool = False,
    requests: int | None = None,
    block_size: int | None = None,
    time_unit: Unit | None = None,
) -> Trace:
    """The requests of a file, by arrival; those that arrive at once stay in its order.

    Args:
        path: of JSON lines, a JSON document or CSV, compressed by gzip or not; ``-``: stdin.
        skip_bad: count malformed lines instead of refusing the file.
        requests: the file's first so many, of which no further line is read; None: all.
        block_size: tokens a hash id stands for; None: as the form says (512, of Bailian's 16), or,
            where that is wrong, the one number that all lines agree with.
        time_unit: of ``timestamp``: ``s`` or ``ms``; None: as the form says, or milliseconds of
            whole numbers (seconds of those as large as since 1970) and seconds of numbers with a
            decimal point.

    Raises:
        TraceError: what is wrong, with file and line; or there is no request at all.
        LengthError, PlanError: ``requests`` or ``block_size`` is no whole number of at least 1;
            ``time_unit`` is none.
        OSError: the file cannot be read.

    Cost: O(bytes of the file), of its first requests alone if so many are named.
    """
    if requests is not None:
        check_int("requests", requests, 1)
    if block_size is not None:
        check_int("block_size", block_size, 1, LONGEST)
    if time_unit is not None:
        check_choice("time_unit", time_unit, tuple(_UNITS))
    reading = _Reading(str(path), skip_bad=skip_bad, most=requests)
    if str(path) == "-":
        return reading.trace(cast("io.BufferedReader", sys.stdin.buffer), block_size, time_unit)
    with Path(path).open("rb") as file:
        return reading.trace(file, block_size, time_unit)


class _Reading:
    """One file on its way to a trace."""

    def __init__(self, path: str, *, skip_bad: bool, most: int | None) -> None:
        self._path, self._skip, self._most, self._bad = path, skip_bad, most, 0
        self._form: JsonLines | CsvLines | None = None
        self._no_header: TraceError | None = None
        self._notes: list[str] = []
        self._agreed = ""  # what all lines agree with, for messages

    def trace(self, file: io.BufferedReader, block: int | None, unit: Unit | None) -> Trace:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        entries = self._alike(self._unpacked(file) if packed else self._entries(file))
        block = self._block(entries, block)
        entries = [each for each in entries if self._has_its_ids(each, block)]
        if not entries or self._form is None:
            if self._no_header is not None:
                raise self._no_header
            skipped = f"; {self._bad} bad lines were skipped" if self._bad else ""
            chats = self._form is not None and self._form.form == "conversations"
            why = "its conversations hold no answer" if chats else "there is no request in it"
            raise TraceError(self._path, None, f"{why}{skipped}")
        arrivals = self._arrivals(entries, unit)
        latest = accumulate(arrivals, max)  # so far, line by line
        late = sum(at < before for at, before in zip(arrivals, latest, strict=True))
        order = sorted(range(len(entries)), key=arrivals.__getitem__)
        if self._form.results > 1:
            self._notes.append(f"The requests of {self._form.results} results are taken as one.")
        if self._form.estimated:
            self._notes.append(f"Texts are counted as {BYTES_A_TOKEN} bytes per token.")
        if self._form.left_out:
            parts = counted(self._form.left_out, "part")
            self._notes.append(f"{parts} of messages without text, such as images: left out.")
        made = self._requests([entries[i] for i in order], [arrivals[i] for i in order], block)
        name = "stdin" if self._path == "-" else Path(self._path).name
        return Trace(name, self._form.form, made, self._bad, late, notes=tuple(self._notes))

    # -- lines -------------------------------------------------------------------------------

    def _unpacked(self, file: BinaryIO) -> list[Entry]:
        """The requests of a file compressed by gzip."""
        try:
            with gzip.open(file) as unpacked:
                return self._entries(cast("BinaryIO", unpacked))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise TraceError(self._path, None, f"it is damaged: {error}") from None

    def _entries(self, file: BinaryIO) -> list[Entry]:
        """The requests of every line that is right, up to the most wanted."""
        found = list[Entry]()
        for number, raw in self._lines(file):
            try:
                if self._form is None and _opens_document(raw):
                    self._read_document(raw + file.read(), found)
                    break
                for entry in self._read(raw):
                    entry.line = number
                    found.append(entry)
            except BadLine as bad:
                self._refuse(number, bad)
            if self._most is not None and len(found) >= self._most:
                break
        return found[: self._most]

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := file.readline(_LONGEST_LINE):
            number += 1
            if len(line) == _LONGEST_LINE:
                raise TraceError(self._path, number, f"it is longer than {_LONGEST_LINE} bytes")
            yield number, line

    def _read(self, raw: bytes) -> list[Entry]:
        """A line's requests; none of an empty line or the header."""
        text = _decode(raw)
        if not text.strip():
            return []
        if self._form is None:
            if not text.lstrip().startswith("{"):
                self._form = CsvLines(text)
                return []
            self._form = JsonLines()
        return self._form.read(text)

    def _read_document(self, raw: bytes, found: list[Entry]) -> None:
        """A JSON array of what else stands on lines, or one object over several lines."""
        self._form = JsonLines()
        try:
            document = parse_json(_decode(raw))
        except BadLine as bad:
            raise TraceError(self._path, None, str(bad)) from None
        listed = document if isinstance(document, list) else [document]
        for number, each in enumerate(listed, start=1):
            try:
                found += self._form.entries(each)
            except BadLine as bad:
                self._refuse(None, BadLine(f"object {number}: {bad}"))
            if self._most is not None and len(found) >= self._most:
                return

    def _refuse(self, number: int | None, bad: BadLine) -> None:
        """Count a line that is wrong, or refuse the file."""
        if not self._skip:
            raise TraceError(self._path, number, str(bad)) from None
        self._bad += 1
        if isinstance(bad, BadHeader) and self._no_header is None:
            self._no_header = TraceError(self._path, number, str(bad))

    # -- what all lines say together -----------------------------------------------------------

    def _alike(self, entries: list[Entry]) -> list[Entry]:
        """Requests with a time and the length of an answer, where others have one.

        A line without is refused, or counted. Where none has any, that is said.
        """
        timed = any(entry.at is not None for entry in entries)
        answered = any(entry.output_length is not None for entry in entries)
        found, begun = list[Entry](), set[object]()
        for entry in entries:
            if answered and entry.output_length is None:
                self._refuse(entry.line, BadLine("it lacks output_tokens; other lines have it"))
            elif (
                timed and entry.at is None and (entry.session is None or entry.session not in begun)
            ):
                self._refuse(entry.line, BadLine("it lacks a timestamp; other lines have one"))
            else:
                found.append(entry)
                begun.add(entry.session)
        bare = sum(e.tokens is None and e.ids is None and e.session is None for e in found)
        if 0 < bare < len(found):
            which = f"{bare:,} of {len(found):,} requests"
            self._notes.append(f"{which} have only a length, so nothing of them can hit.")
        if entries and not answered:
            self._notes.append("It has no lengths of answers, so answers are left out.")
        if entries and not timed:
            self._notes.append(
                "It has delays and no times, so sessions begin at once and go on after these."
                if any(entry.delay for entry in found)
                else "It has no times, so all requests come at once, in its order."
            )
        return found

    def _block(self, entries: list[Entry], given: int | None) -> int:
        """Tokens a hash id stands for: as given, as the form says, or as all lines agree."""
        sized = [(each.own, len(each.ids)) for each in entries if each.ids is not None]
        usual = (self._form and self._form.block) or BLOCK
        if given is not None or not sized:
            return given or usual
        if all(-(-own // usual) == count for own, count in sized):
            return usual
        low = max(-(-own // count) for own, count in sized)
        high = min((own - 1) // (count - 1) if count > 1 else LONGEST for own, count in sized)
        if low == high:
            self._notes.append(f"A hash id is taken as {low} tokens, which fits every line.")
            return low
        if low < high:
            self._agreed = f"; all lines agree with blocks of {low:,} to {high:,} tokens"
        return usual

    def _has_its_ids(self, entry: Entry, block: int) -> bool:
        """Whether a line has an id for each block; if not it is refused, or counted."""
        if entry.ids is None or len(entry.ids) == -(-entry.own // block):
            return True
        self._refuse(
            entry.line,
            BadLine(
                f"hash_ids has {len(entry.ids)} ids; an input_length of {entry.own} takes "
                f"{-(-entry.own // block)}, one per {block} tokens{self._agreed}; give another "
                "block size with block_size=, or --block-size"
            ),
        )
        return False

    def _arrivals(self, entries: list[Entry], unit: Unit | None) -> list[float]:
        """Seconds after the first request, by entry."""
        scale = _UNITS[unit or self._unit(entries)]
        now: dict[object, float] = {}
        found = list[float]()
        for entry in entries:
            before = now.get(entry.session) if entry.session is not None else None
            if entry.at is not None:
                at = entry.at / scale
                if before is not None and at < before:
                    what = "its session has a later request above it; its lines go on in time"
                    raise TraceError(self._path, entry.line, what)
            else:
                at = 0.0 if before is None else before + entry.delay
            if entry.session is not None:
                now[entry.session] = at
            found.append(at)
        first = min(found)
        return [at - first for at in found]

    def _unit(self, entries: list[Entry]) -> Unit:
        """What times count: as the form says, or as every line writes them."""
        assert self._form is not None
        if self._form.unit is not None:
            return self._form.unit
        times = [entry.at for entry in entries if entry.at is not None]
        told = [entry.whole for entry in entries if entry.at is not None]
        if times and all(told) and min(times) >= _EPOCH and max(times) < 10 * _EPOCH:
            self._notes.append("Times are so large that they are taken as seconds since 1970.")
            return "s"
        if all(told):
            if any(times):
                self._notes.append(
                    "Times are whole numbers and taken as milliseconds (else see --time-unit)."
                )
            return "ms"
        if any(told):
            at = next(entry for entry in entries if not entry.whole)
            why = (
                "timestamp has a decimal point here and none in other lines, so it may count "
                "seconds or milliseconds; say which with time_unit=, or --time-unit"
            )
            raise TraceError(self._path, at.line, why)
        self._notes.append("Times have decimal points and are taken as seconds.")
        return "s"

    def _requests(
        self, entries: list[Entry], arrivals: list[float], block: int
    ) -> list[TraceRequest]:
        """The requests, in order, each behind the one before it in its session."""
        numbers: dict[int | str, int] = {}
        last: dict[object, TraceRequest] = {}
        made = list[TraceRequest]()
        for number, (entry, at) in enumerate(zip(entries, arrivals, strict=True)):
            before = last.get(entry.session) if entry.session is not None else None
            before = before if entry.goes_on else None
            size = entry.own + (0 if before is None else before.length)
            answer = entry.output_length or 0
            if size + answer > LONGEST:
                raise TraceError(self._path, entry.line, f"its session is beyond {LONGEST} tokens")
            request = TraceRequest(
                number,
                at,
                size,
                answer,
                None if entry.ids is None else _odd(entry.ids, numbers),
                entry.tokens,
                entry.output,
                block,
                before,
            )
            if entry.session is not None:
                last[entry.session] = request
            made.append(request)
        return made


def _odd(ids: list[int | str], numbers: dict[int | str, int]) -> Ints:
    """An odd number for each hash id, the same for the same id."""
    return np.array([2 * numbers.setdefault(each, len(numbers)) + 1 for each in ids], np.int32)


def _opens_document(raw: bytes) -> bool:
    """Whether a first line begins a JSON array, or an object that ends on another line."""
    text = raw.lstrip(b"\xef\xbb\xbf \t")
    return text.startswith(b"[") or text.strip() == b"{"


def _decode(raw: bytes) -> str:
    """The text of a line.

    Raises:
        BadLine: it is none.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadLine(f"it is not text in UTF-8; {WHAT}") from None
    if "\0" in text:
        raise BadLine(f"it is not text; {WHAT}")
    return text
