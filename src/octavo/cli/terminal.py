"""How answers look: as wide as the terminal, and those of prompts in order as they grow.

Knows nothing of models; it is told of tokens' text.
"""

import re
import sys
from collections.abc import Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO

_HEADER = 60
_NARROWEST = 20  # columns that text is still folded to
_NAME = re.compile(r" *\S.{0,19}?  +(?=\S)")  # what a line tells of, before two spaces
_GAP = re.compile(r"\S  +\S")


def show(text: str, stream: TextIO | None = None) -> None:
    """Print lines, those too long for a terminal folded below what they say of a name."""
    stream = stream or sys.stdout
    if stream.isatty():
        width = get_terminal_size().columns
        text = "\n".join(fold(line, width) for line in text.splitlines())
    print(text, file=stream, flush=True)


def fold(line: str, width: int) -> str:
    """A line in several, broken between words; a row of a table is left as it is. O(letters)."""
    if len(line) <= width or len(_GAP.findall(line)) > 1:
        return line
    name = _NAME.match(line)
    indent = name.end() if name else 0
    indent = indent if indent <= width - _NARROWEST else 0
    lines = wrap(
        line,
        max(width, _NARROWEST),
        subsequent_indent=" " * indent,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


class Answers:
    """Prints growing answers in the order of their prompts.

    The earliest unfinished answer is shown live, later ones are held back until it is finished. One
    prompt's answer is printed bare, several under a header each.
    """

    def __init__(self, prompts: Sequence[str], stream: TextIO | None = None) -> None:
        self._prompts = prompts
        self._stream = stream or sys.stdout
        self._held = [""] * len(prompts)
        self._finished = [False] * len(prompts)
        self._live, self._last = 0, "\n"
        self._begin()

    def add(self, index: int, text: str) -> None:
        """Text has been added to one answer."""
        if index == self._live:
            self._write(text)
        else:
            self._held[index] += text

    def finish(self, index: int) -> None:
        """One answer is complete; those that waited for it are shown."""
        self._finished[index] = True
        while self._live < len(self._prompts) and self._finished[self._live]:
            self._write("\n")
            self._live += 1
            self._begin()

    def close(self) -> None:
        """End the line of an answer that is cut short, so that what went wrong has its own."""
        if self._last != "\n":
            self._write("\n")

    def _begin(self) -> None:
        """Start showing the answer that has become the live one."""
        if self._live == len(self._prompts):
            return
        if len(self._prompts) > 1:
            self._write(_header(self._live, self._prompts))
        self._write(self._held[self._live])

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
            self._last = text[-1]


def _header(index: int, prompts: Sequence[str]) -> str:
    """``--- 2/3: Why is the sea``: the prompt on one line, cut; a blank line between answers."""
    line = " ".join(prompts[index].split())
    short = line if len(line) <= _HEADER else line[: _HEADER - 3] + "..."
    return ("\n" if index else "") + f"--- {index + 1}/{len(prompts)}: {short}\n"
