"""How the C kernel gets to be there, and what happens where it cannot."""

import subprocess
import sys

import pytest

import octavo
from octavo.attention import backend, backends, best
from octavo.attention.kernels import build as building
from octavo.attention.kernels import cpu
from octavo.errors import PlanError, UnsupportedModel


def kernel_of(source):
    """A kernel of the attention's kind from another source."""
    return building.Kernel("small", source, "octavo_paged_attention", "backend cpu")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """An empty cache folder, and a small kernel to build, which the cpu backend takes for its own.

    Returns the folder.
    """
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    small = tmp_path / "small.c"
    small.write_text("int octavo_paged_attention(void) { return 0; }\n")
    monkeypatch.setattr(cpu, "KERNEL", kernel_of(small))
    return tmp_path / "kernels"


def build_apart(folder):
    """Another process that builds the same kernel."""
    code = (
        "import pathlib, sys; from octavo.attention.kernels.build import Kernel;"
        "name, function = 'small', 'octavo_paged_attention';"
        "Kernel(name, pathlib.Path(sys.argv[1]), function, 'backend cpu').load()"
    )
    return subprocess.Popen([sys.executable, "-c", code, str(folder.parent / "small.c")])


def test_kernel_is_built_once(fresh):
    """The first use compiles one file into the cache folder; the next process finds it there."""
    assert cpu.why_not() is None
    built = list(fresh.iterdir())

    assert kernel_of(fresh.parent / "small.c").load()
    assert built == list(fresh.iterdir())
    assert 1 == len(built)


def test_kernel_is_built_anew_where_what_it_includes_has_changed(fresh):
    """Files beside the source that it includes are part of it."""
    source, beside = fresh.parent / "small.c", fresh.parent / "small.h"
    source.write_text('#include "small.h"\n')
    for number in (1, 2):
        beside.write_text(f"int octavo_paged_attention(void) {{ return {number}; }}\n")
        assert number == kernel_of(source).load()()


def test_two_processes_may_build_at_once(fresh):
    """Each of two processes that start together gets a kernel, and one file is left."""
    runs = [build_apart(fresh) for _ in range(2)]

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
    named = backend("cpu")

    assert reason in named.missing
    with pytest.raises(UnsupportedModel, match=f"backend cpu: the C kernel cannot.*{reason}"):
        named.load()
    with pytest.raises(UnsupportedModel, match=reason):
        cpu.KERNEL.load()
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

    assert "no such flag" in cpu.why_not()
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
    assert 0 == build_apart(fresh).wait(timeout=120)
    (built,) = fresh.iterdir()
    whole = built.read_bytes()
    built.write_bytes(damaged(whole))

    assert cpu.why_not() is None
    assert [whole] == [path.read_bytes() for path in fresh.iterdir()]


def test_library_without_the_kernel_is_refused(fresh):
    """What a compiler makes is tried before it is kept."""
    (fresh.parent / "small.c").write_text("int another_function(void) { return 0; }\n")

    with pytest.raises(UnsupportedModel, match="undefined symbol|symbol not found"):
        cpu.KERNEL.load()
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
