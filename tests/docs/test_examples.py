"""The examples of README and docs run as they are printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python([ \w]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(text: str) -> list[tuple[int, set[str], str]]:
    """(first line, words of the info string, code) of every Python block in ``text``."""
    return [
        (text.count("\n", 0, match.start(2)), set(match[1].split()), match[2])
        for match in BLOCK.finditer(text)
    ]


def _run(page: Path, *, with_model: bool) -> None:
    """Run a page's blocks in one namespace; tracebacks show the page's own line numbers."""
    namespace = {"__name__": page.stem}
    for line, words, code in _blocks(page.read_text(encoding="utf-8")):
        if with_model or "model" not in words:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)  # noqa: S102 - its purpose


def _pages(*, with_model: bool) -> list[Path]:
    """Pages with Python blocks, those that need the model apart from those that do not."""
    words = {page: [w for _, w, _ in _blocks(page.read_text(encoding="utf-8"))] for page in PAGES}
    return [
        p for p, each in words.items() if each and with_model == any("model" in w for w in each)
    ]


@pytest.mark.parametrize("page", _pages(with_model=False), ids=lambda page: page.name)
def test_examples(page, monkeypatch, tmp_path):
    """The Python blocks of a page run one after the other without an error."""
    monkeypatch.chdir(tmp_path)
    _run(page, with_model=False)


@pytest.mark.model
@pytest.mark.parametrize("page", _pages(with_model=True), ids=lambda page: page.name)
def test_examples_with_model(page, monkeypatch, tmp_path):
    """The same for pages with blocks that generate text."""
    monkeypatch.chdir(tmp_path)
    _run(page, with_model=True)


def _commands(program: str) -> list[list[str]]:
    """Words behind ``program`` of every shell line in the pages that calls it."""
    text = "".join(block for page in PAGES for block in SHELL.findall(page.read_text("utf-8")))
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [words[1:] for words in lines if words and words[0] == program]


def _octavo(words: list[str], folder: Path) -> str:
    """What an `octavo` command answers in ``folder``, where tests lie as in a checkout."""
    (folder / "tests").symlink_to(ROOT / "tests")
    command = [sys.executable, "-m", "octavo", *words]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)

    assert (0, True) == (run.returncode, bool(run.stdout.strip())), run.stderr
    return run.stdout


FILES = [words for words in _commands("octavo") if any(word.startswith("tests/") for word in words)]


@pytest.mark.model
@pytest.mark.parametrize("words", [w for w in _commands("octavo") if w not in FILES], ids=" ".join)
def test_commands_run(words, tmp_path):
    """Every `octavo` command of the pages succeeds and answers on stdout."""
    assert _octavo(words, tmp_path)


@pytest.mark.parametrize("words", FILES, ids=lambda words: " ".join(words[1:]).rpartition("/")[2])
def test_commands_on_files_run(words, tmp_path):
    """The same for commands on files of the checkout, which need no model."""
    assert _octavo(words, tmp_path)


def test_quoted_answers_are_current(tmp_path):
    """The answers that docs/sizing.md quotes are those of its commands, line by line."""
    text = (ROOT / "docs/sizing.md").read_text(encoding="utf-8")
    quoted = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    answers = ""
    for number, words in enumerate(FILES):
        (folder := tmp_path / str(number)).mkdir()
        answers += _octavo(words, folder)

    assert [] == [line for line in quoted.splitlines() if line not in answers.splitlines()]


def test_make_targets_exist():
    """Every `make` target that the pages name is one of the Makefile's."""
    named = {words[0] for words in _commands("make")}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

    assert {"demo", "test"} <= named <= targets


def test_failing_example_is_seen(tmp_path):
    """A block that raises fails the run, with the line it has in the page."""
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")

    with pytest.raises(AssertionError) as caught:
        _run(page, with_model=False)

    assert 8 == caught.traceback[-1].lineno + 1
