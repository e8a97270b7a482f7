"""Builds what a release consists of, and tries it as those will who install it.

``build`` makes the source distribution, the wheel with the compiled core and the pure wheel in
dist/, and has twine check them. ``check`` installs each into a fresh environment of every Python
named, far from the checkout, and runs the README's examples and ``octavo doctor`` there; the source
distribution also where no C compiler is. Needs the standard library and a package index.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
TOOLS = ("build>=1.6,<2", "twine>=7,<8")
PYTHONS = [f"python3.{minor}" for minor in range(11, 16)]
BLOCK = re.compile(  # those that need no model, and what stands under them as printed
    r"^```python\n(.*?)^```$(?:\s+^```text title=\"prints\"\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
EXAMPLES = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
CONFIG = ROOT / "tests/data/configs/AFM-4.5B-params.json"
SAY_CORE = "import octavo.core; print(octavo.core.compiled)"
WARN = (
    "import warnings, octavo\n"
    "with warnings.catch_warnings(record=True) as said:\n"
    "    warnings.simplefilter('always')\n"
    "    octavo.Cache(octavo.Plan.from_pages(8, 16))\n"
    "print(*(str(each.message) for each in said))"
)
SAYS_SO = "octavo's core is not compiled"  # hatch_build.py
WARNS = "octavo's core runs as Python source"  # the first cache


def run(
    *command: str | Path,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    stderr: int = subprocess.STDOUT,
) -> str:
    """The output of a command; one that fails is shown, and ends all."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=plain() if environment is None else environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
        raise SystemExit(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout


def plain(**more: str) -> dict[str, str]:
    """The environment without what leads to a checkout or changes octavo."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OCTAVO_", "VIRTUAL_ENV")) and name != "CC"
    }
    return kept | {"OCTAVO_CONFIG_FILE": os.devnull} | more


def require(what: str, *, holds: bool, shown: object = "") -> None:
    """End with a line where something does not hold."""
    if not holds:
        raise SystemExit(f"FAILED: {what}\n{shown}")


def make_environment(folder: Path, python: str) -> Path:
    """The Python of a fresh virtual environment."""
    run(python, "-m", "venv", folder)
    return folder / "bin/python"


def build(work: Path) -> None:
    """Fill dist/ and check what is in it."""
    shutil.rmtree(DIST, ignore_errors=True)
    print(f"building in {DIST}: the core is compiled, which takes a minute or two", flush=True)
    python = make_environment(work / "tools", sys.executable)
    run(python, "-m", "pip", "install", "-q", *TOOLS)
    run(python, "-m", "build", "--outdir", DIST)
    run(python, "-m", "build", "--wheel", "--outdir", DIST, environment=plain(OCTAVO_PURE="1"))
    print(run(python, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir())).strip())
    check_contents()


def check_contents() -> None:
    """Everything that belongs into the files is there, and nothing else."""
    source, compiled, pure = distributions()
    with tarfile.open(source) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "PKG-INFO",
    }
    wanted |= {"tests/conftest.py", "docs/install.md", "src/octavo/core/pages.pxd", "Makefile"}
    require(f"{source.name} has {wanted}", holds=wanted <= names, shown=sorted(wanted - names))
    core = {path.stem for path in (ROOT / "src/octavo/core").glob("*.pxd")}
    for wheel in (compiled, pure):
        with zipfile.ZipFile(wheel) as opened:
            names = set(opened.namelist())
        extensions = {Path(n).name.partition(".")[0] for n in names if n.endswith((".so", ".pyd"))}
        expected = core | {"_octavo_shared"} if wheel is compiled else set()
        require(f"extensions of {wheel.name}", holds=extensions == expected, shown=extensions)
        roots = {name.partition("/")[0] for name in names}
        version = wheel.name.split("-")[1]
        require(f"roots of {wheel.name}", holds=roots == {"octavo", f"octavo-{version}.dist-info"})
        require(f"py.typed in {wheel.name}", holds="octavo/py.typed" in names)
        print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 2**20:.1f} MiB")


def distributions() -> tuple[Path, Path, Path]:
    """The source distribution, the compiled wheel and the pure one."""
    [source] = DIST.glob("octavo-*.tar.gz")
    wheels = sorted(DIST.glob("octavo-*.whl"))
    [pure] = [wheel for wheel in wheels if wheel.name.endswith("-py3-none-any.whl")]
    compiled = [wheel for wheel in wheels if wheel != pure]
    require("dist/ has a wheel with a compiled core", holds=len(compiled) == 1, shown=wheels)
    return source, compiled[0], pure


def starts(python: str) -> bool:
    """Whether a Python is on PATH and runs; pyenv's stand-in for one may not."""
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


def check(pythons: Sequence[str], work: Path) -> None:
    """Install and try everything with every Python."""
    source, compiled, pure = distributions()
    for python in pythons:
        version = run(python, "-c", "import platform; print(platform.python_version())").strip()
        for name, wheel in (("compiled", compiled), ("pure", pure)):
            inside = make_environment(work / f"{version}-{name}", python)
            run(inside, "-m", "pip", "install", "-q", wheel)
            try_out(inside, compiled=wheel is compiled)
            print(f"Python {version}: {wheel.name} works", flush=True)
        for name, without in (("PATH without cc", {}), ("CC=false", {"CC": "/bin/false"})):
            inside = make_environment(work / f"{version}-{name.replace(' ', '-')}", python)
            environment = plain(**without)
            if not without:
                environment["PATH"] = str(inside.parent)
            said = run(inside, "-m", "pip", "install", "-v", source, environment=environment)
            require(f"{name}: the install says why", holds=SAYS_SO in said, shown=said)
            try_out(inside, compiled=False, environment=environment)
            print(f"Python {version}, {name}: {source.name} works as source", flush=True)


def try_out(python: Path, *, compiled: bool, environment: Mapping[str, str] | None = None) -> None:
    """What someone does first: the README's examples, a plan, the doctor."""
    with tempfile.TemporaryDirectory() as empty:
        folder, octavo = Path(empty), python.parent / "octavo"
        environment = dict(plain() if environment is None else environment)
        environment["OCTAVO_HOME"] = empty

        def ask(*command: str | Path) -> str:
            return run(*command, cwd=folder, environment=environment)

        require("the core", holds=ask(python, "-c", SAY_CORE).strip() == str(compiled))
        warned = ask(python, "-c", WARN)
        require("the first cache warns", holds=(WARNS in warned) != compiled, shown=warned)
        code, said = ("\n".join(part) for part in zip(*EXAMPLES, strict=True))
        printed = ask(python, "-W", "ignore::RuntimeWarning", "-c", code)
        require("the README's prints", holds=printed.split() == said.split(), shown=printed)
        plan = ask(octavo, "plan", CONFIG, "--memory", "16GiB")
        require("a plan", holds="GiB" in plan, shown=plan)
        doctor = (octavo, "doctor", "--json")  # stderr: on a busy machine, that it still tests
        found = json.loads(
            run(*doctor, cwd=folder, environment=environment, stderr=subprocess.DEVNULL)
        )
        require("the doctor", holds=found["core"]["compiled"] == compiled, shown=found)
        require("no faults", holds=found["faults"] == [], shown=found)
        require("tests", holds={"cache", "oracle", "memory"} <= set(found["tests"]), shown=found)
        require("NumPy alone", holds=found["packages"]["torch"] is None, shown=found)


def main() -> None:
    """Build, or check with the Pythons that are here or named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("build", "check"))
    parser.add_argument("pythons", nargs="*", help="for check (default: those on PATH)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="octavo-release-") as work:
        if options.what == "build":
            build(Path(work))
        else:
            check(options.pythons or list(filter(starts, PYTHONS)), Path(work))


if __name__ == "__main__":
    main()
