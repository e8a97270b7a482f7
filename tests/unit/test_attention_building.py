"""How the C kernel gets to be there, and what happens where it cannot."""

import subprocess
import sys

import pytest

import octavo
from octavo.attention import backend, backends, best
from octavo.attention.kernels import build as building
from octavo.errors import PlanError, UnsupportedModel


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache folder, no kernel looked for yet, and a small one to build."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    small = tmp_path / "small.c"
    small.write_text("int octavo_paged_attention(void) { return 0; }\n")
    monkeypatch.setattr(building, "SOURCE", small)
    found, load = building._found, building.load
    monkeypatch.setattr(building, "_found", building.cache(found.__wrapped__))
    monkeypatch.setattr(building, "load", building.cache(load.__wrapped__))
    return tmp_path / "kernels"


def build_apart():
    """Another process that builds the same kernel."""
    code = (
        "import pathlib, sys; from octavo.attention.kernels import build as building;"
        "building.SOURCE = pathlib.Path(sys.argv[1]); building.load()"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(building.SOURCE)])


def test_kernel_is_built_once(fresh):
    """The first use compiles one file into the cache folder; the next process finds it there."""
    assert building.why_not() is None
    built = list(fresh.iterdir())
    building._found.cache_clear()

    assert building.load().octavo_paged_attention
    assert built == list(fresh.iterdir())
    assert 1 == len(built)


def test_two_processes_may_build_at_once(fresh):
    """Each of two processes that start together gets a kernel, and one file is left."""
    runs = [build_apart() for _ in range(2)]

    assert [0, 0] == [run.wait(timeout=120) for run in runs]
    assert 1 == len(list(fresh.iterdir()))


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/nowhere/cc", "FileNotFoundError"),
        ("false", "CalledProcessError"),
        ("echo", "No such file"),
    ],
)
def test_without_a_compiler_the_reason_is_named(fresh, monkeypatch, compiler, reason):
    """Where no kernel can be built, the backend says why, and `best` falls back with a warning."""
    monkeypatch.setenv("CC", compiler)
    cpu = backend("cpu")

    assert reason in cpu.missing
    with pytest.raises(UnsupportedModel, match=f"backend cpu: the C kernel cannot.*{reason}"):
        cpu.load()
    with pytest.raises(UnsupportedModel, match=reason):
        building.load()
    with pytest.warns(RuntimeWarning, match="attention backend cpu is not used: the C kernel"):
        assert "torch" == best().name


def test_compiler_that_fails_is_quoted(fresh, monkeypatch, tmp_path):
    """What a compiler says when it fails is part of the reason, and no file is left."""
    compiler = tmp_path / "cc"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\necho "no such flag" >&2; exit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))

    assert "no such flag" in building.why_not()
    assert [] == list(fresh.iterdir())


def half(raw):
    """The first half of a file."""
    return raw[: len(raw) // 2]


def zeroed(raw):
    """A file whose middle has become zeros."""
    third = len(raw) // 3
    return raw[:third] + bytes(third) + raw[2 * third :]


@pytest.mark.parametrize("damaged", [half, zeroed, lambda raw: raw[:-1], lambda raw: b"text"])
def test_damaged_kernel_is_built_anew(fresh, damaged):
    """A file that is not what was built is never opened, and replaced."""
    assert 0 == build_apart().wait(timeout=120)
    (built,) = fresh.iterdir()
    whole = built.read_bytes()
    built.write_bytes(damaged(whole))

    assert building.why_not() is None
    assert [whole] == [path.read_bytes() for path in fresh.iterdir()]


def test_library_without_the_kernel_is_refused(fresh):
    """What a compiler makes is tried before it is kept."""
    building.SOURCE.write_text("int another_function(void) { return 0; }\n")

    with pytest.raises(UnsupportedModel, match="undefined symbol|symbol not found"):
        building.load()
    assert [] == list(fresh.iterdir())


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "cpu"),
        ({"dtype": "float32", "order": "token"}, "cpu"),
        ({"dtype": "fp16"}, "torch"),
        ({"device": "cuda:1"}, "torch"),
        ({"latent": True}, "cpu"),
        ({"kv_dtype": "int8"}, "torch"),
        ({"kv_dtype": "int4", "latent": True}, "torch"),
    ],
)
def test_best_backend_takes_what_is_asked(asked, name):
    """The fastest backend that takes such caches is chosen."""
    assert name == best(**asked).name


def test_what_no_backend_takes_is_refused():
    """Names and combinations that nothing serves are named."""
    with pytest.raises(PlanError, match="attention backend is 'cuda, bf16, order head"):
        best("cuda", kv_dtype="fp4")
    with pytest.raises(PlanError, match="backend is 'numba'; known are: cpu, torch, triton"):
        backend("numba")
    with pytest.raises(octavo.OctavoError):
        best(dtype="float")


def test_missing_package_is_named(monkeypatch):
    """A backend whose package is not installed is listed with that reason."""
    lacking = backends()[1]._replace(requires=("no_such_package",))

    assert "no_such_package is not installed" == lacking.missing
    with pytest.raises(UnsupportedModel, match="no_such_package is not installed"):
        lacking.load()
