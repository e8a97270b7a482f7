"""docs/models.md says how the engine answers each family: some of them, run again."""

import json
from pathlib import Path

import pytest
from served_models import FAMILIES, outcome

ANSWERS = json.loads(
    (Path(__file__).parents[1] / "data/engine_families.json").read_text(encoding="utf-8")
)
SAMPLE = ("bert", "cpmant", "ctrl", "gptj", "mpt", "musicgen", "openai-gpt", "stablelm", "whisper")


def test_every_family_is_answered():
    """Those that the installed transformers names, each one way; most of them are run."""
    kinds = [answer.partition(":")[0] for answer in ANSWERS.values()]

    assert FAMILIES == list(ANSWERS)
    assert {"together", "by rows", "refused", "untried"} == set(kinds)
    assert kinds.count("together") + kinds.count("by rows") >= 150


@pytest.mark.parametrize("family", SAMPLE)
def test_the_engine_answers_as_the_page_says(family):
    """It runs a tiny model to its own tokens, or refuses it for the same reason."""
    assert ANSWERS[family] == outcome(family)
