"""``octavo doctor``: what it says on sound machines and on others, and what it keeps to itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import octavo
from octavo import attention, core
from octavo.cli import bug_report, diagnosis, main, self_test
from octavo.errors import UnsupportedModel

SRC = Path(__file__).parents[2] / "src"
KEYS = {
    *("octavo", "folder", "python", "system", "packages", "core", "backends", "kernels"),
    *("compiler", "processor", "memory", "environment", "faults", "advice"),
}


@pytest.fixture
def doctor(capsys, monkeypatch, tmp_path):
    """Runs it in an empty cache folder: the code, its lines by their first word, and stderr."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 1e9)

    def run(*words):
        code = main(["doctor", *words])
        captured = capsys.readouterr()
        lines = (line.strip().partition(" ") for line in captured.out.splitlines())
        return code, {name: fact.strip() for name, _, fact in lines}, captured.err

    return run


def fake(name, reason=None, attend=None):
    """A backend for CPUs that is missing for a reason, breaks when it is asked, or computes."""

    class Fake:
        requires, devices, orders = ("torch",), ("cpu",), ("token",)

        @property
        def missing(self):
            if isinstance(reason, Exception):
                raise reason
            return reason

        def load(self):
            return SimpleNamespace(paged_attention=attend)

    Fake.name = name
    return Fake()


def test_report_names_everything(doctor, tmp_path):
    """Versions, the core, each backend, the folder of kernels and the machine have a line."""
    code, facts, err = doctor("--quick")

    assert (0, "") == (code, err)
    assert facts["octavo"].startswith(f"{octavo.__version__}, ")
    assert {"python", "numpy", "torch", "core", "kernels", "processor", "memory"} <= set(facts)
    assert {backend.name for backend in attention.backends()} <= set(facts)
    assert "works" == facts["oracle"]
    assert facts["kernels"].startswith(f"{tmp_path}/kernels, ")
    assert f"OCTAVO_HOME={tmp_path}" in facts["environment"]
    assert "that is installed works" == facts["everything"]


def test_everything_that_works_is_tried(capsys):
    """The cache, the oracle, memory and each backend that works on a CPU pass their tests."""
    code = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    on_cpus = {b.name for b in attention.backends() if "cpu" in (b.devices or ("cpu",))}
    working = {each["name"] for each in found["backends"] if each["works"]}

    assert 0 == code
    assert KEYS | {"tests"} == set(found)
    assert [] == found["faults"]
    assert {"cache", "memory"} | on_cpus & working == set(found["tests"])
    assert all(found["tests"][name]["cases"] > 20 for name in on_cpus & working)
    assert all(0 < found["tests"][name]["bytes_per_second"] < 1e13 for name in ("memory", "torch"))


def test_numpy_alone_is_enough():
    """Without PyTorch the rest is tried, nothing is at fault, and what is missing is advised."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from octavo.cli import main; sys.exit(main(['doctor', '--json']))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(run.stdout)

    assert 0 == run.returncode
    assert all(line.startswith("doctor: ") for line in run.stderr.splitlines())
    assert ["oracle"] == [each["name"] for each in found["backends"] if each["works"]]
    assert {"cache", "oracle", "memory"} == set(found["tests"])


@pytest.mark.parametrize(
    ("why_not", "fact"), [(None, "compiled, "), ("some reason", "Python source: some reason")]
)
def test_core_that_runs_is_named(doctor, monkeypatch, why_not, fact):
    """Which core runs, and why it is the source, which is no fault: there is advice."""
    monkeypatch.setattr(core, "why_not", why_not)
    code, facts, _ = doctor("--quick")

    assert 0 == code
    assert facts["core"].startswith(fact)
    found = {"core": {"why_not": why_not}, "packages": {"torch": "2"}}
    found |= {"compiler": "/usr/bin/cc", "processor": {"flags": None}}
    assert bool(why_not) == any("C compiler" in line for line in diagnosis.advice(found))


def test_missing_compiler_is_no_fault(monkeypatch):
    """Without a C compiler the attention kernel is missing, which is advice."""
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    found = diagnosis.facts()
    found["backends"] = [{"name": "cpu", "works": False, "broken": False}]

    assert found["compiler"] is None
    assert [] == diagnosis.faults(found)
    assert any("install one, or set CC" in line for line in diagnosis.advice(found))


def test_broken_backend_is_a_fault(doctor, monkeypatch):
    """A package that fails when it is imported is named and makes the code 1; a missing one not."""
    broken = [fake("absent", "it is not installed"), fake("broken", OSError("no\nlibrary"))]
    monkeypatch.setattr(diagnosis, "backends", lambda: broken)
    code, facts, err = doctor("--quick")

    assert (1, "octavo: 1 fault found on this machine\n") == (code, err)
    assert "no: it is not installed" == facts["absent"]
    assert "BROKEN: OSError: no library" == facts["broken"]
    assert "attention backend broken: OSError: no library" == facts["FAULT:"]
    assert "all" not in facts


@pytest.mark.parametrize(
    ("attend", "fault"),
    [
        (lambda query, *_: np.zeros_like(query), "KernelMismatch"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_wrong_answers_are_a_fault(monkeypatch, attend, fault):
    """A backend that computes something else, or fails, is found out."""
    monkeypatch.setattr(self_test, "backends", lambda: [fake("wrong", attend=attend)])
    name, told, figures = list(self_test.tests())[-1]

    assert "wrong" == name
    assert told.startswith("FAULT: ")
    assert fault in figures["fault"]
    found = {"backends": [], "tests": {name: figures}, "kernels": {"why_not": None}}
    assert [f"test wrong: {figures['fault']}"] == diagnosis.faults(found)


def test_broken_law_is_a_fault(monkeypatch):
    """So is a cache that does not keep its laws."""

    def broken(*_):
        raise AssertionError("seed 0, world 3: pages are lost")

    monkeypatch.setattr(self_test, "stress", broken)
    monkeypatch.setattr(self_test, "backends", list)
    [cache, *others] = self_test.tests()

    assert "AssertionError: seed 0, world 3: pages are lost" == cache[2]["fault"]
    assert not any("fault" in figures for _, _, figures in others)


def test_home_that_cannot_be_is_a_fault(doctor, monkeypatch):
    """A cache folder that cannot be named is one as well."""
    monkeypatch.setenv("OCTAVO_HOME", "~nobody-of-that-name")
    code, facts, _ = doctor("--quick")

    assert 1 == code
    assert facts["kernels"].startswith("~nobody-of-that-name: ")


def test_missing_package_is_said(doctor, monkeypatch):
    """A package that is not there has a line too."""
    monkeypatch.setattr(diagnosis, "_PACKAGES", ("no-such-package", "torch"))

    assert "not installed" == doctor("--quick")[1]["no-such-package"]


def test_system_that_tells_little(doctor, monkeypatch):
    """Where the system does not say what it has, that is said, and nothing is guessed."""
    monkeypatch.setattr(diagnosis.processor, "flags", lambda *_: set())
    monkeypatch.setattr(diagnosis, "machine_memory", lambda: None)
    code, facts, _ = doctor("--quick")

    assert 0 == code
    assert facts["processor"].endswith("instructions unknown on this system")
    assert "unknown on this system" == facts["memory"]


# -- the bug report --------------------------------------------------------------------------------

PRIVATE = {
    "HOME": "/home/jane.doe",
    "USER": "jane.doe",
    "HOSTNAME": "joy-laptop",
    "API_TOKEN": "hunter2-hunter2",
    "PIP_INDEX_URL": "https://jane:s3cret@pip.acme.example/simple",
}
ERROR = (
    "/home/jane.doe/acme/venv/lib/libfast.so: undefined symbol, asked by Jane.Doe on joy-laptop "
    "with token hunter2-hunter2 of https://jane:s3cret@pip.acme.example/simple"
)


def test_report_keeps_private_things_out(doctor, capsys, monkeypatch):
    """Not even what a broken package says names the user, the machine, folders or secrets."""
    for name, value in PRIVATE.items():
        monkeypatch.setenv(name, value)
    broken = [fake("broken", UnsupportedModel("fast", ERROR))]
    monkeypatch.setattr(diagnosis, "backends", lambda: broken)
    main(["doctor", "--report", "--quick"])
    out = capsys.readouterr().out

    assert out.startswith("### What happened\n")
    assert (
        "BROKEN: UnsupportedModel: fast: .../libfast.so: undefined symbol, asked by <user>" in out
    )
    for word in ("jane", "doe", "joy", "hunter2", "s3cret", "acme", str(Path.home()), str(SRC)):
        assert word.lower() not in out.lower()


def test_report_of_this_machine_names_neither_user_nor_host(tmp_path):
    """The whole program, started by somebody with a name, a home and a host's name."""
    variables = PRIVATE | {"HOME": str(tmp_path / "jane.doe"), "PYTHONPATH": str(SRC)}
    variables |= {"OCTAVO_HOME": str(tmp_path / "jane.doe/cache")}
    run = subprocess.run(
        [sys.executable, "-m", "octavo", "doctor", "--report", "--quick"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )

    assert octavo.__version__ in run.stdout
    for word in ("jane", "doe", "joy-laptop", "hunter2", "s3cret", str(tmp_path), sys.prefix):
        assert word not in run.stdout


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("at 12.7 GB/s, 1/2 read and/or written", "at 12.7 GB/s, 1/2 read and/or written"),
        (r"C:\Users\someone\octavo\cpu.dll failed", ".../cpu.dll failed"),
        ("~/secret-project/x.py, line 3", ".../x.py, line 3"),
        ("file '/a/b c/d'", "file '.../d'"),
        ("//server/share/x", ".../x"),
        ("mary, Mary's rosemary", "<user>, <user>'s rosemary"),
        ("torch 2.13.0+cpu", "torch 2.13.0+cpu"),
        ("3.11.7 of $PYTHON", "3.11.7 of $PYTHON"),
        ("12345678 and 1234", "$PIN and 1234"),
    ],
)
def test_words_that_are_taken_out(said, kept):
    """Folders, names and values go; figures, versions and words that contain a name stay."""
    environment = {"USER": "mary", "PYTHON": "3.11.7", "PIN": "12345678", "SMALL": "1234"}

    assert kept == bug_report.scrub(said, environment)
