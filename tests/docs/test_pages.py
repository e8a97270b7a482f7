"""What the documentation quotes is current, and its links lead somewhere."""

import ast
import re
from pathlib import Path

import help_texts
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks/README.md"]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)")


def test_help_texts_are_current():
    """docs/cli.md holds what `--help` prints; `make help-texts` writes it anew."""
    assert help_texts.render() == help_texts.PAGE.read_text(encoding="utf-8")


def test_error_tree_is_current():
    """docs/errors.md draws the tree that the docstring of octavo.errors draws."""
    source = (ROOT / "src/octavo/errors.py").read_text(encoding="utf-8")
    _, _, drawn = (ast.get_docstring(ast.parse(source)) or "").partition("::\n\n")
    tree = "\n".join(line.removeprefix("    ") for line in drawn.splitlines())

    assert f"```text\n{tree}\n```" in (ROOT / "docs/errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    """Every relative link of a page names a file of the repository."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert [] == [target for target in targets if not (page.parent / target).exists()]
