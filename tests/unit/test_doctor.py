"""``octavo doctor``: what it says, on a sound machine and on others."""

import pytest

import octavo
from octavo import attention, core
from octavo.cli import doctor, main


@pytest.fixture
def report(capsys, monkeypatch, tmp_path):
    """Runs it in an empty cache folder; its lines by their first word."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))

    def run():
        code = main(["doctor"])
        captured = capsys.readouterr()
        assert (0, "") == (code, captured.err)
        lines = (line.strip().partition(" ") for line in captured.out.splitlines())
        return {name: fact.strip() for name, _, fact in lines}

    return run


def fake(name, reason):
    """A backend that is missing for a reason, or breaks when it is asked."""

    class Fake:
        @property
        def missing(self):
            if isinstance(reason, Exception):
                raise reason
            return reason

    Fake.name = name
    return Fake()


def test_report_names_everything(report, tmp_path):
    """Versions, the core, each backend, the folder of kernels and the processors have a line."""
    facts = report()

    assert octavo.__version__ == facts["octavo"]
    assert {"python", "numpy", "torch", "core", "kernels", "processors"} <= set(facts)
    assert {backend.name for backend in attention.backends()} <= set(facts)
    assert "works" == facts["oracle"]
    assert facts["kernels"].startswith(f"{tmp_path}/kernels, ")


@pytest.mark.parametrize(
    ("why_not", "fact"), [(None, "compiled"), ("some reason", "Python source: some reason")]
)
def test_core_that_runs_is_named(report, monkeypatch, why_not, fact):
    """Which core runs, and why it is the source."""
    monkeypatch.setattr(core, "why_not", why_not)

    assert fact == report()["core"]


def test_broken_backend_is_reported(report, monkeypatch):
    """A package that fails when it is imported is a finding, not the end of the report."""
    broken = [fake("absent", "it is not installed"), fake("broken", OSError("no\nlibrary"))]
    monkeypatch.setattr(doctor, "backends", lambda: broken)
    facts = report()

    assert "no: it is not installed" == facts["absent"]
    assert "no: OSError: no library" == facts["broken"]


def test_home_that_cannot_be_is_reported(report, monkeypatch):
    """So is a cache folder that cannot be named."""
    monkeypatch.setenv("OCTAVO_HOME", "~nobody-of-that-name")

    assert report()["kernels"].startswith("no folder: ~nobody-of-that-name: ")


def test_missing_package_is_said(monkeypatch):
    """A package that is not there has a line too."""
    monkeypatch.setattr(doctor, "_PACKAGES", ("no-such-package",))

    assert ("no-such-package", "not installed") in list(doctor._facts())
