"""Writes docs/cli.md from the command line's own help texts; the tests check that it is current."""

import argparse
import os
import sys
from pathlib import Path

from octavo.cli import parser

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """\
# The command line

`pip install .` in a checkout brings `octavo plan`, `simulate` and `doctor`, which need NumPy alone.
`octavo pull` and `octavo generate` come with `pip install '.[engine]'`.
The simulator's pictures come with `pip install '.[simulate]'`.
Answers go to stdout, everything else to stderr.
Exit codes: 0 done, 1 failed, 2 misused; what went wrong is one line.

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
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")
