"""The site is built from the pages without a warning, and asks no network for anything."""

import re
import tomllib

import build_site

import octavo
import octavo.errors


def test_site_builds(tmp_path):
    """Every page is in the site, its links lead somewhere, and nothing is loaded from elsewhere."""
    run = build_site.build(tmp_path)

    assert (0, []) == (run.returncode, build_site.warnings(run.stdout)), run.stdout
    pages = {path.parent.name for path in (tmp_path / "site").rglob("index.html")}
    assert {path.stem for path in build_site.DOCS.rglob("*.md")} - {"index"} <= pages
    loaded = [
        (path.name, source)
        for path in (tmp_path / "site").rglob("*.html")
        for source in re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)', path.read_text("utf-8")
        )
    ]
    assert [] == loaded
    unread = [
        path for path in (tmp_path / "site").rglob("*.html") if "```" in path.read_text("utf-8")
    ]
    assert [] == unread  # a block whose first line the generator does not understand


def test_navigation_has_every_page():
    """Each page and notebook stands in the navigation once, and nothing else does."""
    nav = tomllib.loads((build_site.DOCS / "zensical.toml").read_text("utf-8"))["project"]["nav"]

    def listed(entries):
        for entry in entries:
            for value in entry.values():
                yield from listed(value) if isinstance(value, list) else [value]

    sources = [path for kind in ("*.md", "*.ipynb") for path in build_site.DOCS.rglob(kind)]
    pages = [build_site.place(path).as_posix() for path in sources]
    assert sorted([*pages, *build_site.BROUGHT.values()]) == sorted(listed(nav))


def test_links_out_of_docs_are_brought_along(tmp_path):
    """A page beside docs/ becomes a page of the site; any other file lies there as text."""
    build_site.stage(tmp_path)
    page = build_site.DOCS / "storage.md"
    text = (
        "[a](concepts.md#groups) [b](../CHANGELOG.md) [c](../benchmarks/results/storage.txt) "
        "[d](../src/octavo/slots.py)"
    )

    assert (
        "[a](concepts.md#groups) [b](changelog.md) [c](files/benchmarks/results/storage.txt) "
        "[d](files/src/octavo/slots.py.txt)"
    ) == build_site.relink(text, page, tmp_path / "pages")
    copied = tmp_path / "pages/files/src/octavo/slots.py.txt"
    assert (build_site.ROOT / "src/octavo/slots.py").read_bytes() == copied.read_bytes()


def test_reference_has_every_name():
    """Each name of the package stands on the page of the package, or is an error on theirs."""
    page = (build_site.DOCS / "api/octavo.md").read_text("utf-8")
    shown = set(re.findall(r"^::: octavo\.(\w+)$", page, re.MULTILINE))

    assert set(octavo.__all__) - set(octavo.errors.__all__) == shown
