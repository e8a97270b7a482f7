"""The command line ``octavo``: pull a model, generate text, plan a cache.

``main`` parses, runs one command and turns every foreseen failure into one line on stderr and an
exit code: 0 done, 1 failed, 2 misused, 130 interrupted, 141 nobody reads the output any more.
Answers go to stdout, everything else to stderr. PyTorch is only imported by the commands that run a
model.
"""

import argparse
import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from octavo import __version__
from octavo.cli import generate, plan, pull
from octavo.cli.arguments import CommandError
from octavo.errors import BudgetTooSmall, OctavoError, PlanError

__all__ = ["main", "parser"]

_FAILED, _MISUSED, _INTERRUPTED, _NO_READER = 1, 2, 130, 141
_EXTRA = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2")


class _Parser(argparse.ArgumentParser):
    """A parser that complains in one line and points to its help."""

    def error(self, message: str) -> NoReturn:
        self.exit(_MISUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command's file adds its own part."""
    whole = _Parser(
        prog="octavo",
        description="Generate text with a paged KV cache, and plan how much fits into one.",
        epilog="Start with: octavo pull smollm2-135m, then octavo generate 'Why is the sky blue?'",
    )
    whole.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for command in (pull, generate, plan):
        command.add_to(commands)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the words after ``octavo``; None: those this process was started with.
    """
    whole = parser()
    try:
        options = whole.parse_args(arguments)
    except SystemExit as done:  # argparse has said what there was to say
        return int(done.code or 0)
    if not hasattr(options, "run"):
        whole.print_help(sys.stderr)
        return _MISUSED
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an answer may hold what the locale cannot show
    return _guarded(options)


def _guarded(options: Any) -> int:
    """Run one command; what can go wrong outside of octavo becomes a line and a code."""
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            options.run(options)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _NO_READER
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _complain(
            f"{error.name} is not installed; run pip install 'octavo[engine]'", _FAILED
        )
    except (OctavoError, CommandError) as error:
        return _complain(str(error), _code(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", _FAILED)
    return 0


def _code(error: Exception) -> int:
    """Wrong arguments are misuse; a model, a file or a memory that does not suffice is failure."""
    if isinstance(error, CommandError):
        return error.code
    misused = isinstance(error, PlanError) and not isinstance(error, BudgetTooSmall)
    return _MISUSED if misused else _FAILED


def _complain(message: str, code: int) -> int:
    print(f"octavo: {' '.join(message.split())}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Let the interpreter's last flush of stdout go nowhere instead of failing again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
