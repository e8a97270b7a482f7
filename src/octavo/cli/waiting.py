"""Shows what is waited for: one line on stderr that is rewritten, and gone at the end.

Needs the standard library alone and imports nothing of octavo, so that `make` can run it as a
program before anything is installed: ``python -P waiting.py WORDS COMMAND...``.
"""

import os
import subprocess
import sys
import threading
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TextIO

_BAR, _SHORTEST_BAR = 30, 5
_COLUMNS = 80  # of a terminal that does not tell
_SPARE = 3  # columns left free on the right: for the ^C that a terminal shows
_DRAW_SECONDS = 0.1
_FIRST_SECONDS, _NEXT_SECONDS = 1.0, 8.0  # between lines where no terminal is
_AGAIN = 40  # columns of a stage that has been told whole
_SHOWN_SECONDS = 2.0  # of a count without end
_SURE_SECONDS = 3.0  # before what is left can be guessed from what is done
_SHOWN = 20  # lines of a command that failed
_STEPS = ("Building ", "Collecting ", "Downloading ", "Installing ", "Preparing ")  # pip's words


class _State(NamedTuple):
    """What is being done: its stage, how much of how much (0: not known), and since when."""

    stage: str
    done: int
    total: int
    since: float


class ProgressBar:
    """Says what is being waited for, while the block of a ``with`` runs.

    A terminal shows it on one line, however narrow, which is rewritten ten times per second and
    erased at the end. Elsewhere what takes longer than a second gets a line, and another one every
    eight seconds, in which a long stage is not written whole again. A thread writes them, so that
    they also come while a library is being imported.

    Args:
        name: what stands before the stages.
        stream: where; None: stderr.
        unit: what is counted, written behind the numbers.
        amount: writes a number; for bytes `octavo.planner.figures.amount`, which has its own units.
    """

    def __init__(
        self,
        name: str,
        stream: TextIO | None = None,
        unit: str = "",
        amount: Callable[[int], str] = "{:,}".format,
    ) -> None:
        self._name, self._unit, self._amount = name, unit, amount
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._state: _State | None = None
        self._said: deque[str] = deque()
        self._shown = 0  # columns of the line on the terminal
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, stage: str, done: int = 0, total: int = 0) -> None:
        """``done`` of ``total`` bytes or units of ``stage`` are done (0: not known). O(1).

        The time is that of one count: it begins anew with another total, or with another stage
        where no total is known.
        """
        before = self._state
        same = before and (before.total or before.stage) == (total or stage)
        since = before.since if before and same else time.monotonic()
        self._state = _State(stage, done, total, since)

    def say(self, line: str) -> None:
        """Write a line that stays. O(1)."""
        self._said.append(line)

    def close(self) -> None:
        """Write what has been said and erase the line; nothing is shown from then on."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            told, when = _State("", 0, 0, 0.0), 0.0  # what was last told of, and when
            while not self._over.wait(_DRAW_SECONDS):
                self._say()
                state = self._state
                if state is None:
                    continue
                if self._terminal:
                    self._draw(self._fitted(state))
                    continue
                now = time.monotonic()
                first = told.since != state.since
                if now - (state.since if first else when) >= (
                    _FIRST_SECONDS if first else _NEXT_SECONDS
                ):
                    again = not first and told.stage == state.stage
                    stage = _cut(state.stage, _AGAIN) if again else state.stage
                    told, when = state, now
                    self._stream.write(f"{self._name}: {self._whole(state, stage)}\n")
                    self._stream.flush()
            self._say()
            self._draw("")
        except (OSError, ValueError):
            return  # nobody reads it any more

    def _say(self) -> None:
        while self._said:
            self._draw("")
            self._stream.write(f"{self._said.popleft()}\n")
            self._stream.flush()

    def _draw(self, line: str) -> None:
        """Put a line in the place of the one on the terminal; leaves the cursor at its end."""
        if self._shown or line:
            self._stream.write(f"\r{' ' * (self._shown + 2)}\r{line}")
            self._stream.flush()
            self._shown = _columns(line)

    def _whole(self, state: _State, stage: str) -> str:
        count = self._count(state)
        return f"{stage}{',' if count else ''}{count}{_time(state)}"

    def _fitted(self, state: _State) -> str:
        """As much as the terminal is wide: what counts most first, the bar with what is left."""
        room = self._width() - _SPARE
        stage, count = self._shown_as(state.stage), self._count(state)
        head = f"{self._shown_as(self._name)}: {stage}"
        if _columns(head + count) > room:
            head = stage
        head = _cut(head, room - _columns(count))
        tail = count + _time(state)
        tail = tail if _columns(head + tail) <= room else count
        length = min(_BAR, room - _columns(head + tail) - len(" []"))
        if not state.total or length < _SHORTEST_BAR:
            return _cut(head + tail, room)
        filled = min(length, length * state.done // state.total)
        return f"{head} [{'#' * filled}{'-' * (length - filled)}]{tail}"

    def _count(self, state: _State) -> str:
        if not state.done and not state.total:
            return ""
        of = f" of {self._amount(state.total)}" if state.total else ""
        return f" {self._amount(state.done)}{of} {self._unit}".rstrip()

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS

    def _shown_as(self, text: str) -> str:
        """On one line, in characters that the stream can write."""
        line = "".join(each if each.isprintable() else " " for each in text)
        coding = self._stream.encoding or "utf-8"
        return line.encode(coding, "replace").decode(coding)


def _time(state: _State) -> str:
    """How long it has taken, or what is left where that can be told."""
    spent = time.monotonic() - state.since
    if not state.total:
        return f", {spent:.0f} s" if spent >= _SHOWN_SECONDS else ""
    if spent < _SURE_SECONDS or not 0 < state.done < state.total:
        return ""
    left = spent * (state.total / state.done - 1)
    return f", about {_duration(left)} to go"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"


def _columns(text: str) -> int:
    """Columns a terminal takes for it."""
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def _cut(text: str, room: int) -> str:
    """The text in at most so many columns, with dots where its end is missing."""
    if _columns(text) <= room:
        return text
    while text and _columns(text) > room - len("..."):
        text = text[:-1]
    return text + "..." if room >= len("...") else ""


def main(words: Sequence[str]) -> int:
    """Run a command, showing which of pip's steps it tells of; its last lines where it fails.

    Args:
        words: what it is for, then the command.

    Returns:
        The command's exit code; 130 when interrupted.
    """
    what, *command = words
    said: list[str] = []
    began = time.monotonic()
    try:
        with (
            ProgressBar(what) as bar,
            subprocess.Popen(
                command,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process,
        ):
            bar("started")
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if line.lstrip().startswith(_STEPS):
                    bar(line.strip())
    except KeyboardInterrupt:
        return 130
    if process.returncode:
        sys.stderr.writelines(said[-_SHOWN:])
    else:
        print(f"{what}: done in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
