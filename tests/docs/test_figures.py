"""What docs/performance.md says of results: where the engine misses its aims, old headers too."""

import engine_figures
import figures
import pytest

RUN = """\
machine: a test, 2 cores
fp32, {threads}, seconds of the clock, 32 new tokens, at most {rounds}; memory 1.0 GB/s
prompts                   side              decode/s   bound/s   whole/s     equal
  1 x   128               octavo                40.0        57      30.0       1/1
  1 x   128               octavo int4           90.0       264      60.0       0/1
  1 x   128               generate_batch        25.0                15.0       1/1
  1 x   128               vLLM                  40.0                31.0       1/1
 16 x 1,024               octavo                90.0       366      89.0     16/16
 16 x 1,024               octavo int4          150.0       543      80.0     15/16
 16 x 1,024               vLLM                 100.0               100.0     16/16
 16 x 1,024               OpenVINO             200.0                   -      0/16
 16 x 1,024, 512 shared   octavo                99.0       366     100.0     16/16
 16 x 1,024, 512 shared   vLLM                 100.0               100.0     16/16
load average at the end: 1.0
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    return tmp_path


def test_what_the_engine_misses_goes_by_rows_and_sides(results):
    """An equal rate is none below; 0.9 of vLLM will do for many rows, but not where they share."""
    (results / "run.txt").write_text(RUN)

    assert [
        "1 x 128, decode: octavo 1.60 of generate_batch, aim 2",
        "1 x 128, whole run: octavo 0.97 of vLLM, aim 1",
        "16 x 1,024, whole run: octavo 0.89 of vLLM, aim 0.9",
        "16 x 1,024, decode: octavo int4 0.75 of OpenVINO, no aim",
        "16 x 1,024, 512 shared, decode: octavo 0.99 of vLLM, aim 1",
    ] == engine_figures.behind("run")


@pytest.mark.parametrize(
    ("threads", "rounds"),
    [("1 threads", "1 rounds"), ("1 thread", "1 round")],
    ids=["as they were", "as they are"],
)
def test_conditions_are_shown_in_the_singular(results, threads, rounds):
    """Headers of results that were written before scripts knew one from many are read as well."""
    (results / "run.txt").write_text(RUN.format(threads=threads, rounds=rounds))

    assert "fp32, 1 thread, " in engine_figures.conditions("run")
    assert "at most 1 round;" in engine_figures.conditions("run")
