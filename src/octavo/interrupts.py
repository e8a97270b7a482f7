"""An interrupt of the command ``octavo`` that nobody can catch: a line and a code, no traceback.

``import octavo`` comes before anything of the command runs, and is most of its start: until it is
done an interrupt ends the process, as what is imported may turn it into another error. And what
Python calls by itself, as for an object that goes, only tells of an interrupt and goes on. Where
another program imports octavo nothing is changed.

This is imported first of all, and imports what Python has loaded before.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType

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


def _hook(
    kind: type[BaseException], error: BaseException, traceback: "TracebackType | None"
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        raise SystemExit(tell())
    sys.__excepthook__(kind, error, traceback)


def _unraisable(lost: "sys.UnraisableHookArgs") -> None:
    """End the process where an interrupt would be told of and forgotten."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        os._exit(tell())
    sys.__unraisablehook__(lost)


def _end(_number: int, _frame: "FrameType | None") -> None:
    """End the process while octavo is imported: nothing is half done yet."""
    os._exit(tell())


def imported() -> None:
    """From now on an interrupt is raised, as in any program. O(1)."""
    if _is_command() and signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_command():
    sys.excepthook, sys.unraisablehook = _hook, _unraisable

    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
