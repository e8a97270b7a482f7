"""What commands read and write: refused before any work is done, and called what it is."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from octavo.cli.arguments import CommandError, UsageError
from octavo.simulation import WORKLOADS

_LONGEST = 2**20  # bytes of a config; traces are longer, and not read twice


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str | Path]) -> None:
    """Refuse what cannot be written at the end, and what would destroy another file's content.

    Args:
        outputs: the files to write, by their options; None: that option was not given.
        inputs: the files that the same command reads; ``-``: stdin.

    Raises:
        CommandError: an output is a folder, or lies in none.
        UsageError: an output is an input, or two outputs are one file.
    """
    given = [(option, name) for option, name in outputs.items() if name is not None]
    read = [(each, Path("/dev/stdin" if str(each) == "-" else each)) for each in inputs]
    for option, name in given:
        _check_output(name)
        for other, path in read:
            if _is_same(Path(name), path):
                is_input = f"{option} {name} would overwrite {other}, which this command reads"
                raise UsageError(f"{is_input}; give another file to write")
    for (one, first), (other, second) in combinations(given, 2):
        if _is_same(Path(first), Path(second)):
            both = f"{one} {first} and {other} {second} are one file"
            raise UsageError(f"{both}; give each a file of its own")


def _is_same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.resolve() == other.resolve()


def _check_output(name: str) -> None:
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{name} is a folder; give the name of a file to write")
    if not path.parent.is_dir():
        raise CommandError(f"{name} cannot be written: there is no folder {str(path.parent)!r}")


def check_trace(name: str) -> None:
    """Refuse what is neither a file of requests nor stdin.

    Raises:
        CommandError: nothing is there, or a folder. UsageError: a model's config.
    """
    path = Path(name)
    if path.is_dir():
        raise CommandError(f"{name} is a folder; a trace is a file")
    if name != "-" and not path.exists():
        known = ", ".join(WORKLOADS)
        raise CommandError(
            f"{name}: there is no such file or folder, nor a workload of that name ({known})"
        )
    if path.is_file() and _is_config(path):
        known = ", ".join(WORKLOADS)
        raise UsageError(
            f"{name} is a model's config, and TRACE is a file of requests or a workload ({known}); "
            f"write octavo simulate chat --config {name}"
        )


def _is_config(path: Path) -> bool:
    """Whether a file is an object of JSON that describes a model."""
    if path.stat().st_size > _LONGEST:
        return False
    with suppress(ValueError):
        read = json.loads(path.read_bytes())
        return isinstance(read, dict) and not {"architectures", "model_type"}.isdisjoint(read)
    return False
