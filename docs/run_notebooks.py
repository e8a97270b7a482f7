"""Runs the notebooks of the documentation and prints what they print; `--write` keeps that."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).with_name("notebooks")


def run(path: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of its cells, run one after the other in a kernel of its own."""
    notebook = nbformat.read(path, as_version=4)
    config = Config({"KernelManager": {"transport": "ipc"}})  # no port, no network
    options = {"kernel_name": "python3", "timeout": 120, "record_timing": False}
    NotebookClient(notebook, config=config, **options).execute()
    for cell in notebook.cells:  # what libraries warn of differs from machine to machine
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)  # the interpreter's version
    return notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    """What its cells printed, one after the other."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return "".join(output.get("text", "") for cell in cells for output in cell.outputs)


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.ipynb")):
        result = run(each)
        if sys.argv[1:] == ["--write"]:
            nbformat.write(result, each)
        else:
            print(printed(result), end="")
