"""``octavo completion SHELL``: a script by which a shell completes commands, options and files."""

import argparse
from typing import Any

from octavo.checks import not_installed
from octavo.cli import arguments, settings

_SHELLS = {
    "bash": 'eval "$(octavo completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(octavo completion zsh)" in ~/.zshrc, behind compinit',
    "fish": "octavo completion fish >~/.config/fish/completions/octavo.fish",
}
_FILES = {"FILE", "CONFIG", "PATH", "TRACE"}
"""Words for files in what options and arguments take."""


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "completion",
        help="print a script that lets a shell complete octavo's commands",
        description="Print a script that lets a shell complete octavo's commands, options, their "
        "choices and files. It comes from shtab, which pip install 'octavo[completion]' brings, in "
        "a checkout of octavo pip install '.[completion]'.",
        epilog="; ".join(f"{shell}: {how}" for shell, how in _SHELLS.items()),
    )
    parser.add_argument("shell", choices=[*_SHELLS], help="the shell it is for")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the script of the whole command line.

    Raises:
        CommandError: shtab is not installed.
    """
    from octavo.cli import parser

    try:
        import shtab
    except ModuleNotFoundError:
        raise arguments.CommandError(not_installed("shtab", "completion")) from None
    whole = parser()
    for command in settings.parsers(whole).values():
        for action in command._actions:
            if _FILES.intersection(str(action.metavar).split("|")):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # what shtab reads
    print(shtab.complete(whole, options.shell))
