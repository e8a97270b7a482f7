"""What the documentation quotes is current, its links lead somewhere, and people can read it."""

import ast
import re
from pathlib import Path

import draw_pictures
import figures
import help_texts
import performance
import pytest

ROOT = Path(__file__).parents[2]
OTHERS = ["benchmarks/README.md", "examples/dual_ar/README.md"]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in OTHERS),
]
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MOST_WORDS = 100


def prose(page: Path) -> str:
    """A page without its blocks of code, line for line."""
    text = page.read_text(encoding="utf-8")
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def paragraphs(text: str) -> list[tuple[int, str]]:
    """(line, text) of each paragraph and list item of prose; tables and headings are none."""
    found: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith(("|", "#")):
            inside = False
        elif inside and not re.match(r"([-*]|\d+\.) ", words):
            found[-1] = (found[-1][0], f"{found[-1][1]} {words}")
        else:
            found.append((number, words))
            inside = True
    return found


def too_long(text: str) -> list[str]:
    """Paragraphs of more than a hundred words, where and how long; a link's target is no word."""
    each = [
        (line, len(re.sub(r"\]\([^)]*\)", "]", words).split()), words)
        for line, words in paragraphs(text)
    ]
    return [
        f"line {line}, {count} words: {words[:50]}"
        for line, count, words in each
        if count > MOST_WORDS
    ]


def name(page: Path) -> str:
    """A page's path in the repository."""
    return str(page.relative_to(ROOT))


def test_help_texts_are_current():
    """docs/cli.md holds what `--help` prints; `make help-texts` writes it anew."""
    assert help_texts.render() == help_texts.PAGE.read_text(encoding="utf-8")


def test_error_tree_is_current():
    """docs/errors.md draws the tree that the docstring of octavo.errors draws."""
    source = (ROOT / "src/octavo/errors.py").read_text(encoding="utf-8")
    _, _, drawn = (ast.get_docstring(ast.parse(source)) or "").partition("::\n\n")
    tree = "\n".join(line.removeprefix("    ") for line in drawn.splitlines())

    assert f"```text\n{tree}\n```" in (ROOT / "docs/errors.md").read_text(encoding="utf-8")


def test_performance_page_is_current():
    """Its tables and lists are those of benchmarks/results; `make help-texts` writes them anew."""
    assert performance.render() == performance.PAGE.read_text(encoding="utf-8")


def test_figures_stand_in_results():
    """No figure of the page of figures is from elsewhere than a benchmark's raw output."""
    raw = " ".join(path.read_text("utf-8") for path in figures.RESULTS.glob("*.txt"))
    measured = set(re.findall(r"[\d.]+", raw.replace(",", "")))
    tables = re.findall(r"^\|.*\|$", performance.PAGE.read_text("utf-8"), re.MULTILINE)
    shown = {number for row in tables for number in re.findall(r"[\d.]+", row.replace(",", ""))}

    assert len(shown) > 200
    assert set() == shown - measured


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    """Every relative link of a page names a file of the repository, and a heading that is there."""
    lost = []
    for target, anchor in LINK.findall(prose(page)):
        there = page.parent / target if target else page
        headings = there.suffix == ".md" and "docs/api" not in str(there)  # those are docstrings'
        if not there.is_file() or (anchor and headings and anchor not in anchors(prose(there))):
            lost.append((target, anchor))

    assert [] == lost


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=name)
def test_paragraphs_are_short(page):
    """No paragraph is longer than a hundred words; code, tables and the list of changes aside."""
    assert [] == too_long(prose(page))


def test_faults_of_pages_are_seen(tmp_path):
    """A heading's anchor is GitHub's; a paragraph ends at an empty line, an item, a table."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b.c` & [d](e.md)\n\n```py\n# no heading\n```\n\n" + "word " * 101 + "\n- one\n"
    )

    assert {"a-bc--d"} == anchors(prose(page))
    assert ["line 7, 101 words: " + ("word " * 10)[:50]] == too_long(prose(page))
    assert [] == too_long("word " * 60 + "\n\n" + "word " * 60)


def test_pictures_are_current():
    """Each picture is what its script draws; `make help-texts` draws them anew."""
    drawn = dict(draw_pictures.pictures())

    assert {path: path.read_text("utf-8") for path in drawn} == drawn
    assert [] == [
        p for p in draw_pictures.FOLDER.glob("*.svg") if not p.with_suffix(".py").exists()
    ]
