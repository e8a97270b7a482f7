"""Builds the documentation as a site: `python docs/build_site.py FOLDER`, or `make site`.

The pages are those of docs/, to be read in the repository as they stand. What they link to outside
of docs/ is brought along: pages such as the changelog as pages, any other file as text. The folder
gets `pages` (what is built) and `site` (what is to be read); any warning ends the build.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BROUGHT = {  # pages from outside of docs/, and their names in the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples/dual_ar/README.md": "dual-ar.md",
}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def place(path: Path) -> Path:
    """Where a file of the repository lies in the site's pages."""
    name = path.relative_to(ROOT).as_posix()
    if path.suffix == ".ipynb":
        return path.relative_to(DOCS).with_suffix(".md")
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    if name in BROUGHT:
        return Path(BROUGHT[name])
    return Path("files", name if path.suffix == ".txt" else f"{name}.txt")


def relink(text: str, source: Path, pages: Path) -> str:
    """The text of ``source`` with its links as they are in the site; brings files along."""

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(source.parent / match[1]))
        there = place(target)
        if there.parts[0] == "files":
            (pages / there).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, pages / there)
        return Path(os.path.relpath(there, place(source).parent)).as_posix()

    return LINK.sub(link, text)


def read(source: Path) -> str:
    """A page's text; a notebook's cells, with what they printed under them."""
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".ipynb":
        return text
    parts = []
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append("".join(cell["source"]))
        else:
            printed = "".join("".join(output["text"]) for output in cell["outputs"])
            parts.append(f"```python\n{''.join(cell['source'])}\n```")
            parts += [f'```text title="prints"\n{printed}```'] if printed else []
    return "\n\n".join(parts)


def stage(folder: Path) -> None:
    """Writes the pages and the generator's settings into ``folder``."""
    pages = folder / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.py", "__pycache__", "*.toml", "*.ipynb")
    shutil.copytree(DOCS, pages, ignore=ignored)
    shutil.copyfile(DOCS / "zensical.toml", folder / "zensical.toml")
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"), *(ROOT / name for name in BROUGHT)]
    for source in sources:
        text = relink(read(source), source, pages)
        (pages / place(source)).write_text(text, encoding="utf-8")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Stages the pages and builds the site from them; what was printed is in ``stdout``."""
    stage(folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},  # the docstrings of this tree
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def warnings(output: str) -> list[str]:
    """The lines of the generator's output that find fault."""
    return [
        line
        for line in output.splitlines()
        if re.search(r"warning|griffe:|mkdocstrings:|error", line, re.IGNORECASE)
    ]


if __name__ == "__main__":
    target = Path(sys.argv[1]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    run = build(target)
    print(run.stdout, end="")
    if run.returncode or warnings(run.stdout):
        sys.exit("the site was built with warnings, or not at all")
    print(f"read {target / 'site' / 'index.html'}")
