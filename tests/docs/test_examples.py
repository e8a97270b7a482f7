"""The examples of README and docs run as they are printed."""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from doctest import ELLIPSIS, OutputChecker
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
import run_notebooks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONTINUES = re.compile(r"^<!-- continues (\S+) -->$", re.MULTILINE)


class Block(NamedTuple):
    """A block of a page: its language, what else its first line says, its text, where it begins."""

    language: str
    info: str
    text: str
    line: int

    @property
    def with_model(self) -> bool:
        """Whether it needs the model's weights: a word of its first line says so."""
        return "model" in re.findall(r"\w+", self.info)


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], match[3], text.count("\n", 0, match.start(3)))
        for match in BLOCK.finditer(text)
    ]


def _prints(blocks: list[Block], language: str) -> Iterator[tuple[Block, str | None]]:
    """Blocks of a language, each with the text that the page says it prints, or None."""
    for block, behind in zip_longest(blocks, blocks[1:]):
        if block.language == language:
            said = behind is not None and behind.info.strip() == 'title="prints"'
            yield block, behind.text if said else None


def _same(printed: str, said: str) -> bool:
    """Whether a page says what was printed; ``...`` stands for anything, such as a time."""
    return OutputChecker().check_output(said, printed, ELLIPSIS)


def _run(page: Path) -> None:
    """Run a page's blocks in one namespace; tracebacks show the page's own line numbers.

    Where a block of text titled "prints" follows, it is what the block must print. A page that
    continues another runs behind that one's blocks.
    """
    namespace = {"__name__": page.stem}
    blocks = _blocks(page)
    if (before := CONTINUES.search(page.read_text(encoding="utf-8"))) is not None:
        blocks = [*_blocks(page.parent / before[1]), *blocks]
    for block, said in _prints(blocks, "python"):
        out = io.StringIO()
        with redirect_stdout(out):
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, namespace)  # noqa: S102 - its purpose
        if said is not None:
            assert _same(out.getvalue(), said), f"line {block.line}: prints {out.getvalue()}"


def _pages(*, with_model: bool) -> list[Path]:
    """Pages with Python blocks, those that need the model apart from those that do not."""
    python = {page: [b for b in _blocks(page) if b.language == "python"] for page in PAGES}
    return [
        page
        for page, blocks in python.items()
        if blocks and with_model == any(block.with_model for block in blocks)
    ]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", _pages(with_model=False), ids=_name)
def test_examples(page, monkeypatch, tmp_path):
    """The Python blocks of a page run one after the other and print what the page says."""
    monkeypatch.chdir(tmp_path)
    _run(page)


@pytest.mark.model
@pytest.mark.parametrize("page", _pages(with_model=True), ids=_name)
def test_examples_with_model(page, monkeypatch, tmp_path):
    """The same for pages with blocks that generate text."""
    monkeypatch.chdir(tmp_path)
    _run(page)


def test_notebooks():
    """The notebooks run from start to end, each in a kernel, and print what is kept in them."""
    paths = sorted(run_notebooks.FOLDER.glob("*.ipynb"))
    kept = "".join(run_notebooks.printed(nbformat.read(path, as_version=4)) for path in paths)
    command = [sys.executable, run_notebooks.__file__]  # apart: a kernel's client warns at its end
    run = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (0, kept) == (run.returncode, run.stdout), run.stderr


def _words(block: Block, program: str) -> list[list[str]]:
    """Words behind ``program`` of the lines of a shell block that call it."""
    lines = [shlex.split(line, comments=True) for line in block.text.splitlines()]
    return [words[1:] for words in lines if words and words[0] == program]


def _commands(program: str) -> list[list[str]]:
    """The same of all pages; those that stand there twice once."""
    blocks = [block for page in PAGES for block in _blocks(page) if block.language == "sh"]
    found = [words for block in blocks for words in _words(block, program)]
    return list(map(list, dict.fromkeys(map(tuple, found))))


def _octavo(words: list[str], folder: Path) -> str:
    """What an `octavo` command answers in ``folder``, where tests lie as in a checkout."""
    (folder / "tests").symlink_to(ROOT / "tests")
    command = [sys.executable, "-m", "octavo", *words]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)

    first = run.stdout.strip().partition("\n")[0]
    assert (3 if " not fit" in first else 0, True) == (run.returncode, bool(first)), run.stderr
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


@pytest.mark.parametrize("page", [ROOT / "docs/sizing.md"], ids=_name)
def test_quoted_answers_are_current(page, tmp_path):
    """The answers that a page of plans quotes are those of its commands, line by line."""
    blocks = _blocks(page)
    texts = [b.text for b in blocks if b.language == "text" and "prints" not in b.info]
    quoted = "".join(texts)
    commands = [w for b in blocks if b.language == "sh" for w in _words(b, "octavo")]
    answers = ""
    for number, words in enumerate(commands):
        (folder := tmp_path / str(number)).mkdir()
        answers += _octavo(words, folder)

    assert [] == [line for line in quoted.splitlines() if line not in answers.splitlines()]


QUOTED = [
    pytest.param(_words(block, "octavo"), said, id=f"{_name(page)}:{block.line}")
    for page in PAGES
    for block, said in _prints(_blocks(page), "sh")
    if said is not None
]


@pytest.mark.parametrize(("commands", "said"), QUOTED)
def test_commands_print_what_pages_say(commands, said, tmp_path):
    """What stands under commands as printed is what they print, one after the other."""
    printed = ""
    for number, words in enumerate(commands):
        (folder := tmp_path / str(number)).mkdir()
        printed += _octavo(words, folder)

    assert _same(printed, said), printed


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
        _run(page)

    assert 8 == caught.traceback[-1].lineno + 1


@pytest.mark.parametrize(
    ("said", "same"), [("2 of 5\n", True), ("2 of ...\n", True), ("3\n", False)]
)
def test_other_output_is_seen(tmp_path, said, same):
    """What a block prints is compared with the text behind it; dots stand for what may differ."""
    page = tmp_path / "page.md"
    page.write_text(f'```python\nprint("2 of 5")\n```\n\n```text title="prints"\n{said}```\n')

    if same:
        _run(page)
    else:
        with pytest.raises(AssertionError, match="line 1: prints 2 of 5"):
            _run(page)
