"""How the engine answers every family, kept in a file: run by `docs/model_table.py --engine`."""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import encoder_models
import media_models
import media_shapes
import served_models
from matrix import CONDITIONS, Case, refusals

from octavo.checkpoints.loading import load
from octavo.errors import UnsupportedModel
from octavo.model.configs.nested import REFUSED as NO_CACHE

FILE = Path(__file__).parents[1] / "data/engine_families.json"
HEAR = list(media_shapes.HEARING)
SEE = [name for name in media_shapes.FAMILIES if name not in HEAR]


def _smollm2(name: str) -> Case:
    """The real model, and three prompts of which two begin alike."""
    loaded = load(name, dtype="fp32")
    text = "Paris is the capital of France, and Rome is the capital of Italy."
    texts = ("Once upon a time", f"{text} The capital of Italy is", f"{text} The river of Paris is")
    asked = [(loaded.tokenizer(each).input_ids, None) for each in texts]
    return Case(loaded.model, asked, partial(served_models.reference, loaded.model))


GROUPS = {
    "real": (["smollm2-135m"], _smollm2),
    "causal": (served_models.FAMILIES, served_models.case_of),
    "see": (SEE, media_models.case_of),
    "hear": (HEAR, media_models.case_of),
    "encode and decode": (list(encoder_models.FAMILIES), encoder_models.case_of),
}
"""Families by what they are given, and how a case of one is made."""


@dataclass
class Answer:
    """How the engine answers one family.

    Attributes:
        how: ``together``, ``by rows`` or ``refused``.
        why: it is one of the last two.
        lacks: conditions under which it does not give the tokens of generate(), and why.
    """

    how: str
    why: str = ""
    lacks: dict[str, str] = field(default_factory=dict)


def answer_of(group: str, family: str) -> Answer:
    """Run a tiny model of the family under every condition."""
    if group == "causal" and family in NO_CACHE:
        return Answer("refused", NO_CACHE[family])
    case = GROUPS[group][1](family)
    try:
        with case.engine() as engine:
            why = engine.by_rows
    except UnsupportedModel as error:
        return Answer("refused", str(error).partition(": ")[2])
    lacks = refusals(case)
    if lacks.keys() == CONDITIONS.keys() and len(set(lacks.values())) == 1:  # when it is submitted
        return Answer("refused", lacks["alone"])
    return Answer("by rows" if why else "together", why or "", lacks)


def recorded() -> dict[str, dict[str, Answer]]:
    """What the file says, by group and family; nothing where it is of other conditions."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if list(found.pop("conditions", [])) != list(CONDITIONS):
        return {}
    return {
        group: {name: Answer(**each) for name, each in families.items()}
        for group, families in found.items()
    }


def record() -> None:
    """Run every family that the file lacks; each is written as soon as it is run.

    Without the file that is all of them: a quarter of an hour of one core.
    """
    answers = recorded()
    for group, (names, _) in GROUPS.items():
        before = answers.get(group, {})
        answers[group] = {name: before[name] for name in names if name in before}
        for name in names:
            if name not in before:
                answers[group][name] = answer_of(group, name)
                _write(answers)


def _write(answers: dict[str, dict[str, Answer]]) -> None:
    plain = {
        group: {
            name: {key: value for key, value in asdict(found[name]).items() if value}
            for name in sorted(found)
        }
        for group, found in answers.items()
    }
    conditions = {name: each.what for name, each in CONDITIONS.items()}
    text = json.dumps({"conditions": conditions} | plain, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")
