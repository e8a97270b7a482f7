"""An interrupt while the command ``octavo`` is imported: a line and a code, no traceback.

``import octavo`` comes before anything of the command runs, and is most of its start. Where another
program imports octavo nothing is changed.
"""

import os
import sys
from types import TracebackType

CODE = 130
_SCRIPTS = ("octavo", "octavo.exe", "octavo-script.py")


def tell() -> int:
    """Say that the command was interrupted; returns the code shells give for it."""
    if sys.stderr is not None:  # as where it was closed before the start
        sys.stderr.write("octavo: interrupted\n")
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


if _is_command():
    sys.excepthook = _hook
