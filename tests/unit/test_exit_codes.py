"""Every exit code of the table in docs/cli.md, got from the program itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.exits import EXIT_CODES

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tests/data/configs/AFM-4.5B-params.json"
BROKEN = """\
import sys
from octavo.cli import doctor, main
{change}
sys.exit(main(sys.argv[1:]))
"""
RAISE = "def fail(*_): raise {0}\ndoctor.diagnosis.facts = fail"
SIGNAL = "import os\ndef fail(*_): os.kill(os.getpid(), {0})\ndoctor.diagnosis.facts = fail"
CASES = [
    (0, "", ["plan", CONFIG, "--memory", "8GiB"]),
    (1, "", ["plan", "nowhere", "--memory", "8GiB"]),
    (1, RAISE.format("OSError(28, 'full')"), ["doctor"]),
    (2, "", ["plan", CONFIG, "--memory", "lots"]),
    (3, "", ["plan", CONFIG, "--memory", "8GiB", "--max-seqs", "1000"]),
    (130, RAISE.format("KeyboardInterrupt"), ["doctor"]),
    (130, SIGNAL.format(signal.SIGINT.value), ["doctor"]),
    (141, RAISE.format("BrokenPipeError"), ["doctor"]),
    (143, SIGNAL.format(signal.SIGTERM.value), ["doctor"]),
]


@pytest.mark.parametrize(("code", "change", "words"), CASES)
def test_code_is_the_one_of_the_table(code, change, words):
    """What happens and what the table says go together."""
    run = subprocess.run(
        [sys.executable, "-c", BROKEN.format(change=change), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        check=False,
    )

    assert code == run.returncode, run.stderr


def test_every_code_has_a_case():
    """A code that nothing gives, or that the table lacks, is seen."""
    assert set(EXIT_CODES) == {code for code, _, _ in CASES}
