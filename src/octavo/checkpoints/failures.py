"""What other libraries raise while they read a model's files, as one ModelError in one line.

transformers, tokenizers, safetensors and gguf raise all kinds of errors for a damaged file, down to
bare Exception and a panic of Rust; what a file holds is never a reason to crash.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from octavo.errors import ModelError, OctavoError

_PANIC = "PanicException"  # of pyo3, which no module exports; it is no Exception


@contextlib.contextmanager
def reading(path: str | Path, what: str) -> Iterator[None]:
    """Turn whatever is raised inside into ``ModelError(path, "what: first line")``.

    octavo's own errors, an interrupt and an exit pass as they are.
    """
    try:
        yield
    except OctavoError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise ModelError(path, f"{what}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message, after its type where it is a lone word."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    if not lines:
        return name
    return f"{name}: {lines[0]}" if isinstance(error, LookupError) else lines[0]
