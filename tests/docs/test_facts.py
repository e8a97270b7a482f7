"""What the documentation says of the code is so: names, extras, backends."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from octavo import attention

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAME = re.compile(r"(?<![\w/.\"~])octavo(?:\.[A-Za-z_]\w*)+(?![\w/\"])")
NO_NAMES = {"octavo.window"}  # a key of a graph's metadata
EXTRA = re.compile(r"(?:\.|\boctavo)\[([a-z]+(?:,[a-z]+)*)\]")
RESOLVE = """
import sys, types
import octavo
before = set(sys.modules)

def forgotten(package, part):
    # what importing other names has set: the next one must not lean on it
    found = vars(package).get(part)
    name = f"{package.__name__}.{part}"
    if isinstance(found, types.ModuleType) and found.__name__ == name and name not in before:
        del vars(package)[part]

for name in sys.stdin.read().split():
    owner = octavo
    try:
        for part in name.split(".")[1:]:
            if isinstance(owner, types.ModuleType):
                forgotten(owner, part)
            owner = getattr(owner, part)
    except AttributeError as error:
        print(f"{name}: {error}")
"""


def test_documented_names_resolve_after_import_octavo():
    """``octavo.attention.kernels.oracle`` and the like need no import of their own."""
    pages = [page for page in PAGES if page.parent.name != "api"]  # those name paths of the site
    names = {name for page in pages for name in NAME.findall(page.read_text("utf-8"))}
    named = {name for name in names if not name.startswith(tuple(NO_NAMES))}
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input="\n".join(sorted(named)),
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(named) > 50
    assert "" == done.stdout


def test_a_name_that_is_none_is_seen():
    """The check above can fail."""
    words = "octavo.attention.kernels.none octavo.index.vllm octavo.nothing"
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE], input=words, capture_output=True, text=True, check=True
    )

    assert ["octavo.attention.kernels.none", "octavo.nothing"] == [
        line.partition(":")[0] for line in done.stdout.splitlines()
    ]


def test_extras_are_those_of_the_package():
    """docs/install.md has each, and no page, message or make target names another."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    sources = [*PAGES, ROOT / "Makefile", *sorted((ROOT / "src").rglob("*.py"))]
    named = {
        (source.name, extra)
        for source in sources
        for found in EXTRA.findall(source.read_text("utf-8"))
        for extra in found.split(",")
    }
    install = (ROOT / "docs/install.md").read_text("utf-8")
    listed = {extra for found in EXTRA.findall(install) for extra in found.split(",")}

    assert [] == [(where, extra) for where, extra in sorted(named) if extra not in extras]
    assert set() == extras - listed - {"site"}  # which `make site` installs


@pytest.fixture(scope="module")
def table():
    """The cells of docs/attention.md's table of backends, by name."""
    text = (ROOT / "docs/attention.md").read_text("utf-8").partition("## Backends")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in rows[: len(attention.backends())]}


def test_backends_are_those_of_the_table(table):
    """All of them, in the order in which they are tried."""
    assert [backend.name for backend in attention.backends()] == [*table]


@pytest.mark.parametrize("backend", attention.backends(), ids=lambda backend: backend.name)
def test_facts_of_a_backend_are_those_of_the_table(backend, table):
    """Devices, orders, element types, whether it takes latent and quantised caches."""
    devices, orders, dtypes, latent, quantised, _ = table[backend.name]
    told = [] if devices == "any" else [devices.split(" ")[0].lower()]

    assert told == [*backend.devices]
    assert orders.split(", ") == [*backend.orders]
    assert ([] if "all floats" in dtypes else dtypes.split(", ")) == [*backend.dtypes]
    assert (latent == "yes") == backend.latent
    assert ([] if quantised == "no" else quantised.split(", ")) == [*backend.kv_dtypes]
