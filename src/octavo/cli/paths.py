"""What commands read and write: refused before any work is done, and called what it is."""

from pathlib import Path

from octavo.cli.arguments import CommandError
from octavo.simulation import WORKLOADS


def check_output(name: str) -> None:
    """Refuse what cannot be written at the end.

    Raises:
        CommandError: it is a folder, or lies in none.
    """
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{name} is a folder; give the name of a file to write")
    if not path.parent.is_dir():
        raise CommandError(f"{name} cannot be written: there is no folder {str(path.parent)!r}")


def check_trace(name: str) -> None:
    """Refuse what is neither a file of requests nor stdin.

    Raises:
        CommandError: nothing is there, or a folder.
    """
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{name} is a folder; a trace is a file")
    if name != "-" and not path.exists():
        known = ", ".join(WORKLOADS)
        raise CommandError(
            f"{name}: there is no such file or folder, nor a workload of that name ({known})"
        )
