"""Shows that something goes on: what it is, and for how many seconds, on one line of stderr.

Needs the standard library alone and imports nothing of octavo, so that `make` can run it as a
program before anything is installed: ``python -P waiting.py WORDS COMMAND...``.
"""

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, TextIO

_APART = 8  # seconds between two lines where they cannot be rewritten
_SHOWN = 20  # lines of a command that failed


class Waiting:
    """While its block runs, a line that tells so; at the end it is gone.

    On a terminal the line is rewritten every second. Elsewhere one stands at the beginning, and one
    more every eight seconds.

    Args:
        what: what is waited for.
        stream: where to write; None: stderr.

    Attributes:
        doing: what is being done at the moment, set by whoever does it; empty: nothing to add.
    """

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self.doing = ""
        self._what, self._stream = what, stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._began

    def _tick(self) -> None:
        while not self._over.wait(1 if self._terminal else _APART):
            self._write()

    def _write(self) -> None:
        line = f"{self._what}, {self.seconds:.0f} s" + (f": {self.doing}" if self.doing else "")
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{line[:width]}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()


def main(words: Sequence[str]) -> int:
    """Run a command, showing the last line it wrote; all of its last lines where it fails.

    Args:
        words: what it is for, then the command.

    Returns:
        The command's exit code; 130 when interrupted.
    """
    what, *command = words
    said: list[str] = []
    try:
        with (
            Waiting(what) as waiting,
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
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                waiting.doing = line.strip()
    except KeyboardInterrupt:
        return 130
    if process.returncode:
        sys.stderr.writelines(said[-_SHOWN:])
    else:
        print(f"{what}: done in {waiting.seconds:.0f} s", file=sys.stderr)
    return process.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
