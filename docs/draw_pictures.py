"""Writes the pictures of the documentation anew, each by its script in docs/pictures."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).with_name("pictures")


def pictures() -> Iterator[tuple[Path, str]]:
    """The file of each picture, and what should be in it."""
    for script in sorted(FOLDER.glob("*.py")):
        module = import_module(f"pictures.{script.stem}")
        if hasattr(module, "draw"):
            yield script.with_suffix(".svg"), module.draw()


if __name__ == "__main__":
    for path, text in pictures():
        if sys.argv[1:] == ["--write"]:
            path.write_text(text, encoding="utf-8")
        else:
            print(path.name, len(text))
