"""Reading request traces: Mooncake's JSON lines, Azure's CSV, and octavo's own log.

The log is JSON lines: ``arrival`` in seconds; the prompt as ``tokens``, as ``hash_ids`` (an id for
512 tokens) with ``input_length``, or as ``input_length`` alone; the answer as ``output`` (its ids)
or ``output_length``. Mooncake's lines have ``timestamp`` in milliseconds instead of ``arrival``.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from octavo.errors import TraceError
from octavo.simulation.lines import BadHeader, BadLine, CsvLine, Fields, JsonLine, decode
from octavo.simulation.requests import Request, Trace

_LONGEST_LINE = 2**28


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
        self._line: JsonLine | CsvLine | None = None
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
            Request(number, **fields | {"arrival": fields["arrival"] - first})
            for number, fields in enumerate(found)
        ]
        return Trace(Path(self._path).name, self._line.form, requests, self._bad, late)

    def _fields(self, file: BinaryIO) -> Iterator[Fields]:
        """The fields of a request, of every line that is right."""
        for number, raw in self._lines(file):
            try:
                fields = self._read(raw)
            except (BadHeader, BadLine) as bad:
                if not self._skip:
                    raise TraceError(self._path, number, str(bad)) from None
                self._bad += 1
                if isinstance(bad, BadHeader) and self._no_header is None:
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

    def _read(self, raw: bytes) -> Fields | None:
        """A line's request; None of an empty line or the header."""
        text = decode(raw)
        if not text.strip():
            return None
        if self._line is not None:
            return self._line(text)
        if text.lstrip().startswith(("{", "[")):
            self._line = JsonLine()
            return self._line(text)
        self._line = CsvLine(text)
        return None
