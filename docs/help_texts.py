"""Writes docs/cli.md from the command line's own help texts; the tests check that it is current."""

import argparse
import os
import sys
from pathlib import Path

from octavo.cli import parser
from octavo.cli.exits import EXIT_CODES

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# The command line

`pip install .` in a checkout brings `octavo plan`, `simulate` and `doctor`, which need NumPy alone.
`octavo pull` and `octavo generate` come with `pip install '.[engine]'`.
The simulator's pictures come with `pip install '.[simulate]'`.
Answers go to stdout, everything else to stderr; what went wrong is one line.

What takes longer than a second shows on stderr: on a terminal in one line, which is erased at the
end, elsewhere in a line every eight seconds.
Ctrl-C ends every command with one line; a second one does not wait until everything is cleaned up.

Every option can also be set in a variable or a file: [settings](settings.md).

| exit code | what it says |
|---|---|
{codes}

This page is written by `make help-texts`.
"""


def _commands(whole: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The program's parser, then each command's."""
    groups = [a for a in whole._actions if isinstance(a, argparse._SubParsersAction)]
    return [whole, *(command for group in groups for command in group.choices.values())]


def render() -> str:
    """The whole page, wrapped to 96 columns whatever the terminal is."""
    os.environ["COLUMNS"] = "98"
    sections = (
        f"## {command.prog}\n\n```text\n{command.format_help().rstrip()}\n```\n"
        for command in _commands(parser())
    )
    codes = "\n".join(f"| {code} | {what} |" for code, what in EXIT_CODES.items())
    return "\n".join([INTRODUCTION.format(codes=codes), *sections])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")
