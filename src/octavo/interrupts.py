"""An interrupt of the command ``octavo`` that nobody can catch: a line and a code, no traceback.

``import octavo`` comes before anything of the command runs, and is most of its start; and what
Python calls by itself, as for an object that goes, only tells of an interrupt and goes on. Where
another program imports octavo nothing is changed.
"""

import os
import sys
from types import TracebackType

CODE = 130
_SCRIPTS = ("octavo", "octavo.exe", "octavo-script.py")


def tell() -> int:
    """Say that the command was interrupted; returns the code shells give for it."""
    if sys.stderr is not None:  # as where it was closed before the start
        over = "\r" if sys.stderr.isatty() else ""  # the ^C that a terminal shows
        sys.stderr.write(f"{over}octavo: interrupted\n")
    return CODE


def _is_command() -> bool:
    """Whether this process was started as ``octavo`` or ``python -m octavo``."""
    first = next(iter(getattr(sys, "argv", ())), "")
    if first == "-m":  # until Python knows the module's file
        return bool({"octavo", "-moctavo"} & set(sys.orig_argv))
    return os.path.basename(first) in _SCRIPTS  # noqa: PTH119, pathlib takes as long as all this


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        raise SystemExit(tell())
    sys.__excepthook__(kind, error, traceback)


def _unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """End the process where an interrupt would be told of and forgotten."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(tell())
    sys.__unraisablehook__(lost)


if _is_command():
    sys.excepthook, sys.unraisablehook = _hook, _unraisable
