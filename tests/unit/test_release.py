"""What a release consists of agrees with the repository: versions, Pythons, targets, questions."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import octavo

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def read(path):
    """A YAML file below .github; ``on`` is True in YAML 1.1."""
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def steps(path):
    """The shell lines of a workflow's steps, and the actions they use."""
    found = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    lines = [line for step in found for line in step.get("run", "").splitlines()]
    return lines, [step["uses"] for step in found if "uses" in step]


def pythons(path, job):
    """The versions of Python a job runs with."""
    found = read(path)["jobs"][job]
    listed = found.get("strategy", {}).get("matrix", {}).get("python")
    setup = [s for s in found["steps"] if s.get("uses", "").startswith("actions/setup-python")]
    return listed or setup[0]["with"]["python-version"].split()


def test_there_is_one_version():
    """The citation names the version that the package has, which the build reads from there."""
    assert octavo.__version__ == read("CITATION.cff")["version"]
    assert ["version"] == PROJECT["dynamic"]


def test_every_supported_python_is_tested():
    """Tests and the check of a release run on each Python that the metadata claims."""
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))

    assert PROJECT["requires-python"] == f">={claimed[0]}"
    assert claimed == pythons(".github/workflows/tests.yml", "test")
    assert claimed == pythons(".github/workflows/wheels.yml", "source")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_is_there(path):
    """A workflow calls targets of the Makefile, only reads the repository, and pins its actions."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines, actions = steps(path)
    called = [line.split()[1:] for line in lines if line.startswith("make ")]

    assert called
    for words in called:
        assert {word for word in words if not re.match(r"-|\w+=", word)} <= targets
    assert all(re.fullmatch(r"(actions|pypa)/[\w-]+@(v\d+|release/v\d+)", a) for a in actions)
    assert {"contents": "read"} == read(path)["permissions"]


def test_a_bug_report_asks_for_the_doctor():
    """Whoever reports a fault is asked for what the doctor says, and need not guess the command."""
    form = read(".github/ISSUE_TEMPLATE/bug.yml")
    asked = {field["id"]: field for field in form["body"]}

    assert "octavo doctor --report" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"]["required"]


def test_extras_of_all_exist():
    """An extra that another one, or a message, names is there."""
    extras = PROJECT["optional-dependencies"]
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"not_installed\(.*, [\"'](\w+)[\"']\)", text))
    listed = {name for needs in extras.values() for need in needs for name in _extras_of(need)}

    assert {"engine", "simulate", "completion"} <= named
    assert named | listed <= set(extras)


def _extras_of(need):
    found = re.match(r"octavo\[([\w,]+)\]", need)
    return found[1].split(",") if found else []
