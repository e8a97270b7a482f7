"""A terminal for tests: a program on a pseudo-terminal, and what stands on its screen."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import unicodedata
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
_OWN = "import fcntl, sys, termios; fcntl.ioctl(2, termios.TIOCSCTTY, 0)\n"


class Screen:
    """Rows of text so many columns wide, as a terminal without escape codes shows them.

    Attributes:
        rows: what stands there now. most: rows that were in use at once, ever.
    """

    def __init__(self, columns):
        self.columns, self.most = columns, 0
        self._cells, self._column = [{}], 0

    @property
    def rows(self):
        """Text of the rows, without blanks at the end and empty rows below."""
        lines = ["".join(cells[at] for cells in [row] for at in sorted(row)) for row in self._cells]
        return "\n".join(line.rstrip() for line in lines).rstrip().splitlines()

    def feed(self, text):
        """Show what a program has written."""
        for each in text:
            if each == "\r":
                self._column = 0
            elif each == "\n":
                self._cells.append({})
                self._column = 0
            else:
                self._put(each)

    def _put(self, each):
        assert each.isprintable(), f"{each!r} is no text"
        wide = 1 + (unicodedata.east_asian_width(each) in "WF")
        if self._column + wide > self.columns:  # it wraps
            self._cells.append({})
            self._column = 0
        for at in range(self._column, self._column + wide):
            self._cells[-1][at] = ""
        self._cells[-1][self._column] = each
        self._column += wide
        self.most = max(self.most, sum(any(map(str.strip, row.values())) for row in self._cells))


class Program:
    """Python code on a terminal of its own that is so many columns wide.

    Args:
        stdout: True: its answers go to the terminal too, else `end` returns them.
    """

    def __init__(self, code, columns, *words, stdout=False, **variables):
        self.screen, self.drawn = Screen(columns), ""
        environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"} | variables
        for size in ("COLUMNS", "LINES"):  # which pytest-xdist sets: the terminal's own size counts
            environment.pop(size, None)
        self._answers = tempfile.TemporaryFile()  # noqa: SIM115, closed by `end`
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWN + code, *map(str, words)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=slave if stdout else self._answers,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read(self, until=None):
        """Show what comes until a text has come, or the program has ended."""
        while until is None or until not in self.drawn:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # how Linux says that the other side is closed
                data = b""
            if not data:
                assert until is None, f"{until!r} never came; this did: {self.drawn!r}"
                return
            text = data.decode(errors="replace")
            self.drawn += text
            self.screen.feed(text.replace("\r\n", "\n"))

    def press_control_c(self):
        """What the key does: every process in the foreground is interrupted."""
        os.write(self._master, b"\x03")

    def end(self):
        """The exit code and the answers, once it has ended."""
        self.read()
        os.close(self._master)
        code = self.process.wait()
        with self._answers as file:
            file.seek(0)
            return code, file.read().decode()


def command(before=""):
    """Code that is the command ``octavo`` with the words given; ``before`` runs first."""
    return (
        "sys.argv[0] = 'octavo'\n"
        f"{before}\n"
        "import octavo.cli.waiting as waiting\n"
        "waiting._DRAW_SECONDS = 0.001\n"
        "from octavo.__main__ import main\n"
        "sys.exit(main())"
    )
