"""Between plain data and what a cache takes and shows: tokens, plans, extras, facts, a failure."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.cache.identity import Adapter, CrossInput, Extra, Media, Salt
from octavo.errors import OctavoError
from octavo.model.spec import Attention, Cross, LayerKind, State
from octavo.planner.request import Plan

_EXTRAS = {"salt": Salt, "adapter": Adapter, "media": Media, "cross": CrossInput}
_KINDS: dict[str, LayerKind] = {
    "full": Attention(1, 1, 1),
    "state": State(1),
    "cross": Cross(1, 1, 1),
}


class CaseFailed(OctavoError, AssertionError):
    """A step of a case does not hold, or cannot be read; the message says so in words.

    Attributes:
        case: the case's id.
        step: the step's number, from 1; 0: the cache could not be made.
        where: the step, and what of it was compared.
        expected, actual: both sides.
    """

    def __init__(self, case: object, step: int, where: str, expected: Any, actual: Any) -> None:
        self.case, self.step, self.where = case, step, where
        self.expected, self.actual = expected, actual
        super().__init__(f"case {case}, step {step}, {where}: expected {expected}, actual {actual}")


def listed(given: Any) -> list[Any]:
    """A list as it is, anything else as a list of one."""
    return given if isinstance(given, list) else [given]


def read_tokens(given: Any) -> list[int]:
    """Token ids of a list, or of text: ``0..3 9 1*4`` is 0, 1, 2, 3, 9, 1, 1, 1, 1.

    Raises:
        ValueError: a word of the text is none of these.
    """
    if isinstance(given, list):
        return given
    return [token for word in str(given).split() for token in _read_word(word)]


def _read_word(word: str) -> list[int]:
    if ".." in word:
        first, _, last = word.partition("..")
        return list(range(int(first), int(last) + 1))
    token, _, times = word.partition("*")
    return [int(token)] * int(times or 1)


def read_plan(given: Mapping[str, Any]) -> Plan:
    """The plan of ``pages`` that can be used, of ``page_size``; the rest as `Plan.from_pages`.

    A group is ``full``, ``state``, ``cross``, or the window, sink_tokens or chunk of attention.

    Raises:
        KeyError, TypeError: a word is missing, or is none. LengthError, PlanError: it is no plan.
    """
    words = dict(given)
    groups = {name: _read_kind(kind) for name, kind in words.pop("groups", {}).items()}
    return Plan.from_pages(words.pop("pages") + 1, words.pop("page_size"), groups or None, **words)


def _read_kind(given: Any) -> LayerKind:
    return Attention(1, 1, 1, **given) if isinstance(given, Mapping) else _KINDS[given]


def read_extra(given: Mapping[str, Any]) -> Extra:
    """``{salt: a}``, ``{adapter: [a, 1]}``, ``{media: [digest, 0, 4]}``, ``{cross: [digest, 5]}``.

    Raises:
        KeyError, TypeError, ValueError: it is none of these. IdentityError: it is malformed.
    """
    ((kind, facts),) = given.items()
    made: Extra = _EXTRAS[kind](*listed(facts))
    return made


def fact(subject: Any, name: str) -> Any:
    """An attribute as plain data: methods are called, arrays become lists."""
    found = getattr(subject, name, f"nothing named {name}")
    found = found() if callable(found) else found
    return found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found


def step_fact(step: Any, name: str, row: Any = None) -> Any:
    """As `fact`; but ``copies``, and ``pages`` of all rows or of one, are counts by group."""
    if name == "copies":
        return {group: int(copies.source.size) for group, copies in step.copies.items()}
    if name != "pages":
        return fact(step, name)
    at = slice(None) if row is None else list(step.sequences).index(row)
    pages = {group: np.unique(view.table[at]) for group, view in step.groups.items()}
    return {group: int(np.count_nonzero(numbers)) for group, numbers in pages.items()}
