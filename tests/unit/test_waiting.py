"""What is waited for shows a sign, on a terminal and elsewhere."""

import contextlib
import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.cli.waiting import Waiting, main

WAITING = Path(__file__).parents[2] / "src/octavo/cli/waiting.py"
SPEAK = "print('first'); print('Collecting torch'); raise SystemExit({})"


def _all_of(master):
    """What was written to a terminal whose other end is closed."""
    shown = b""
    with os.fdopen(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while piece := terminal.read(4096):  # at the end Linux raises, others give nothing
            shown += piece
    return shown.decode()


@pytest.mark.parametrize("columns", [20, 40, 80])
def test_terminal_line_fits_and_is_gone_at_the_end(columns, monkeypatch):
    """Every rewritten line is shorter than the terminal, and the last thing done is to clear it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, Waiting("Installing much", terminal) as waiting:
        waiting.doing = "Collecting " + "x" * 100
        time.sleep(1.2)
    shown = _all_of(master)
    *lines, last = shown.split("\r\x1b[K")[1:]

    assert "" == last
    assert lines[0] == "Installing much, 0 s"[: columns - 1]
    assert columns - 1 == len(lines[-1])
    assert "\n" not in shown


def test_without_a_terminal_lines_are_whole():
    """Nothing is rewritten where nobody could see it, and no control characters are written."""
    stream = io.StringIO()
    with Waiting("Loading", stream):
        pass

    assert "Loading, 0 s\n" == stream.getvalue()


def test_command_that_succeeds_is_one_line(capfd):
    """What it wrote is not kept; how long it took is."""
    assert 0 == main(["Installing", sys.executable, "-c", SPEAK.format(0)])

    first, last = capfd.readouterr().err.splitlines()
    assert ("Installing, 0 s", True) == (first, last.startswith("Installing: done in "))


def test_command_that_fails_is_heard(capfd):
    """Its code is passed on, and its last lines say why."""
    assert 3 == main(["Installing", sys.executable, "-c", SPEAK.format(3)])

    assert capfd.readouterr().err.endswith("first\nCollecting torch\n")


def test_runs_before_anything_is_installed():
    """`make` runs the file itself, isolated from every package."""
    words = [sys.executable, "-I", "-S", str(WAITING), "Making", sys.executable, "-c", "pass"]
    run = subprocess.run(words, check=False, capture_output=True, text=True)

    assert (0, "") == (run.returncode, run.stdout), run.stderr
