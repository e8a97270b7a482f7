"""The command line ``octavo``: generate text, plan or simulate a cache, see what works.

``main`` parses, runs one command and turns every foreseen failure into one line on stderr and an
exit code of `octavo.cli.exits`. Answers go to stdout, everything else to stderr; a stream that was
closed is taken for the null device. PyTorch is only imported by the commands that run a model.
"""

import argparse
import contextlib
import difflib
import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from octavo import __version__, interrupts
from octavo.checks import not_installed
from octavo.cli import completion, demo, doctor, generate, plan, pull, settings, simulate
from octavo.cli.arguments import CommandError, UsageError, is_unit
from octavo.errors import BudgetTooSmall, OctavoError, PlanError

__all__ = ["main", "parser"]

_FAILED, _MISUSED = 1, 2
_EXTRA = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "jinja2")


class _Terminated(BaseException):
    """SIGTERM came; raised so that what is half-done is cleaned up on the way out."""


_QUIET = {BrokenPipeError: 141, _Terminated: 143}
"""What ends the program without a word, with the exit codes shells give for it."""


class _Parser(argparse.ArgumentParser):
    """A parser that complains in one line, points to its help, and takes options by whole names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        prefix, _, words = message.partition("unrecognized arguments: ")
        if not prefix and is_unit(words.split()[0]):
            message += "; a size is one word, such as 80GiB"
        elif not prefix:
            message += self._meant(words.split()[0].removeprefix("--"))
        self.exit(_MISUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _meant(self, word: str) -> str:
        """The option that was meant by a word that is none, where one is close to it."""
        options = [each for each in self._option_string_actions if each.startswith("--")]
        names = {each.removeprefix("--").removeprefix("max-"): each for each in options}
        names |= {each.removeprefix("--"): each for each in options}
        close = difflib.get_close_matches(word, names, 1)
        return f"; did you mean {names[close[0]]}?" if close else ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base, but a command refuses itself what it does not know, to name its own help."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _print_message(self, message: str, file: Any = None) -> None:
        """As the base, which however says nothing where the help cannot be written."""
        if message:
            (file or sys.stderr).write(message)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command's file adds its own part."""
    whole = _Parser(
        prog="octavo",
        description="Plan, try and simulate a paged KV cache, and generate text with one.",
        epilog="Start with: octavo demo",
    )
    whole.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = whole.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=_Parser
    )
    for command in (demo, pull, generate, plan, simulate, doctor, completion):
        command.add_to(commands)
    for each in settings.parsers(whole).values():
        settings.add_to(each)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the words after ``octavo``; None: those this process was started with.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an answer may hold what the locale cannot show
    code = _guarded(arguments)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # the failure has been told; the interpreter would tell it again
        _drop_output()
    return code


def _open_closed_streams() -> None:
    """A standard stream that was closed before we started is None, which nobody can print to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def _command(arguments: Sequence[str] | None) -> int:
    """Parse and run one command."""
    whole = parser()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options, found = settings.parse(whole, words, os.environ)
    except SystemExit as done:  # argparse has said what there was to say
        return int(done.code or 0)
    if options.command is None:
        whole.print_help(sys.stderr)
        return _MISUSED
    if options.show_config:
        print(settings.show(options.command, found))
        return 0
    try:
        return int(options.run(options) or 0)
    except (OctavoError, CommandError) as error:
        places = settings.places(found)
        if not places or _code(error) != _MISUSED:
            raise
        raise UsageError(f"{error} (beside the flags count: {places})") from error


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end what is inside, cleaning up; a second Ctrl-C does not wait for it.

    Where a library took the interrupt for a failure of its own, what it raised is an interrupt.
    """
    interrupted = False

    def terminate(*_: object) -> NoReturn:
        raise _Terminated

    def interrupt(*_: object) -> NoReturn:
        nonlocal interrupted
        if interrupted:
            os._exit(interrupts.tell())
        interrupted = True
        raise KeyboardInterrupt

    try:
        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, terminate)}
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # neither theirs nor off
            before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _guarded(arguments: Sequence[str] | None) -> int:
    """Run one command; what can go wrong outside of octavo becomes a line and a code."""
    try:
        with _signals(), warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            code = _command(arguments)
            sys.stdout.flush()
    except KeyboardInterrupt:
        return interrupts.tell()
    except tuple(_QUIET) as ended:
        return next(code for kind, code in _QUIET.items() if isinstance(ended, kind))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        return _complain(not_installed(str(error.name), "engine"), _FAILED)
    except (OctavoError, CommandError) as error:
        return _complain(str(error), _code(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", _FAILED)
    return code


def _code(error: Exception) -> int:
    """Wrong arguments are misuse; a model, a file or a memory that does not suffice is failure."""
    if isinstance(error, CommandError):
        return error.code
    misused = isinstance(error, PlanError) and not isinstance(error, BudgetTooSmall)
    return _MISUSED if misused else _FAILED


def _complain(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # where nothing can be said, the code has to do
        print(f"octavo: {' '.join(message.split())}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Let the interpreter's last flush of stdout go nowhere instead of failing again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
