"""The element type a processor is fast in."""

import pytest

from octavo.checkpoints import processor
from octavo.checkpoints.processor import fast_dtype, flags


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu sse2 avx512f avx512_bf16 amx_bf16", "bf16"),
        ("flags\t\t: fpu sse2 avx512f avx512_bf16", "bf16"),
        ("flags\t\t: fpu sse2 avx512f avx512_vnni", "fp32"),
        ("Features\t: fp asimd bf16", "bf16"),
        ("Features\t: fp asimd", "fp32"),
        ("model name\t: flags: avx512_bf16", "fp32"),
        ("", "fp32"),
    ],
)
def test_dtype_follows_the_instructions(line, expected, tmp_path):
    """bf16 is taken only where the processor names instructions for it."""
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{line}\n\nprocessor\t: 1\n{line}\n")

    assert expected == fast_dtype(tmp_path / "cpuinfo")


def test_a_system_that_does_not_say_has_no_flags(tmp_path):
    """Outside Linux there is no such file; fp32 runs everywhere."""
    assert (set(), "fp32") == (flags(tmp_path / "none"), fast_dtype(tmp_path / "none"))


def test_this_machine_is_one_or_the_other():
    """The default looks at the machine."""
    assert processor.fast_dtype() in {"bf16", "fp32"}
