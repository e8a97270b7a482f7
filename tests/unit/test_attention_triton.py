"""The triton backend, in Triton's interpreter in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from octavo.attention import backend

TESTS = Path(__file__).with_name("interpreted_triton.py")


def test_kernels_in_the_interpreter():
    """All tests of `interpreted_triton.py` pass."""
    pytest.importorskip("triton")  # there are none for other systems than Linux
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", str(TESTS)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=TESTS.parents[2], check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr


def test_says_why_it_does_not_work(monkeypatch):
    """Without a CUDA device the registry says so, or that there is no Triton."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reason = backend("triton").missing

    assert reason is not None
    assert "CUDA" in reason or "triton is not installed" in reason
