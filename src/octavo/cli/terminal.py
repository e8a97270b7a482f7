"""How progress and answers look: a bar on stderr, answers in order on stdout.

Knows nothing of models; it is told of tokens' text and of bytes done.
"""

import sys
from collections.abc import Sequence
from typing import TextIO

_BAR = 30
_HEADER = 60


class ProgressBar:
    """Shows one stage after another: as a bar on a terminal, as one line a stage elsewhere.

    Args:
        name: what stands before the stages.
        stream: where; None: stderr.
        unit: what is counted; None: bytes, shown in MB.
    """

    def __init__(self, name: str, stream: TextIO | None = None, unit: str | None = None) -> None:
        self._name, self._unit = name, unit
        self._stream = stream or sys.stderr
        self._stage = ""
        self._drawn = False

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes or units of ``stage`` are done (0: not known)."""
        terminal = self._stream.isatty()
        if stage != self._stage:
            self.close()
            self._stage = stage
            if not terminal:
                self._stream.write(f"{self._name}: {stage}{self._amount(total)}\n")
        if terminal:
            self._stream.write(f"\r\x1b[K{self._name}: {stage}{self._bar(done, total)}")
            self._drawn = True
        self._stream.flush()

    def close(self) -> None:
        """End the line of the bar, if there is one."""
        if self._drawn:
            self._stream.write("\n")
            self._drawn = False

    def _amount(self, total: int) -> str:
        if not total:
            return ""
        return f" {total / 1e6:.0f} MB" if self._unit is None else f" {total:,} {self._unit}"

    def _bar(self, done: int, total: int) -> str:
        if not total:
            return " ..."
        filled = _BAR * done // total
        bar = "#" * filled + "-" * (_BAR - filled)
        if self._unit is None:
            return f" [{bar}] {done / 1e6:.1f} of {total / 1e6:.1f} MB"
        return f" [{bar}] {done:,} of {total:,} {self._unit}"


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
        self._live = 0
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


def _header(index: int, prompts: Sequence[str]) -> str:
    """``--- 2/3: Why is the sea``: the prompt on one line, cut; a blank line between answers."""
    line = " ".join(prompts[index].split())
    short = line if len(line) <= _HEADER else line[: _HEADER - 3] + "..."
    return ("\n" if index else "") + f"--- {index + 1}/{len(prompts)}: {short}\n"
